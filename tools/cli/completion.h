#pragma once

// Completion of command lines in bash, zsh and fish. The shell's script passes the words to the program itself
// (`larder __complete WORD...`), so that what it offers is what this program understands, names of datasets included.

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tools/cli/command_tree.h"

namespace larder::cli {

struct Candidate {
    std::string word;
    std::string help;  // for shells that show it
};

struct Candidates {
    std::vector<Candidate> words;
    bool files = false;  // names of files fit, too
};

enum class NameKind : std::uint8_t { none, dataset, job };
using NamesOfKind = std::function<std::vector<std::string>(NameKind)>;

struct Context;
// Asks the daemon, briefly; no names if it does not answer. `context` must outlive the result.
NamesOfKind names_of_daemon(const Context& context);

// Returns what may stand in place of the last word, which may be empty. `words` come after the program's name. `names`
// is called only if a name fits there.
Candidates complete(const CommandText& program, std::span<const std::string> words, const NamesOfKind& names);

// Returns candidates as the scripts read them: a line for each, "word<TAB>help", then ":files" if files fit.
std::string text_of(const Candidates& candidates);

// Returns the script for "bash", "zsh" or "fish".
Result<std::string> completion_script(std::string_view shell);

}  // namespace larder::cli
