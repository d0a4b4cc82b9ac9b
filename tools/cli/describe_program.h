#pragma once

// Programs describe themselves to shells and to man: with one of these words as its first argument, a program answers
// from its CLI11 tree and does nothing else.
//
//   __complete WORD...           candidates for the last word; see completion.h
//   __man WORD...                the man page of the command that the words name
//   __man-pages DIRECTORY WORD...  writes its page and the pages below it

#include <optional>
#include <string>

#include "tools/cli/completion.h"

namespace CLI {
class App;
}

namespace larder::cli {

inline constexpr const char* kCompleteWord = "__complete";
inline constexpr const char* kManWord = "__man";
inline constexpr const char* kManPagesWord = "__man-pages";

struct ProgramDescription {
    std::string line;     // how the program is called: "larder"
    int man_section = 1;  // 8 for daemons
    NamesOfKind names{};  // may be empty
};

// Returns the exit code if the program was asked to describe itself.
std::optional<int> describe_program(const CLI::App& app, const ProgramDescription& description, int argc, char** argv);

}  // namespace larder::cli
