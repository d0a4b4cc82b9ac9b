#pragma once

// A program's commands and options as plain values, read from its CLI11 tree: the one source of completion and of man
// pages.

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace larder::cli {

struct OptionText {
    std::vector<std::string> names;  // "--json", "-d"; empty: a positional
    std::string positional;          // "NAME"
    std::string value;               // "SIZE"; empty: a flag
    std::vector<std::string> choices;
    std::string range;  // "FLOAT in [0 - 1]"; empty: none
    std::string help;
    std::string group;  // "Options" is the usual one
    bool required = false;
    bool repeats = false;
};

struct CommandText {
    std::string line;  // as it is typed: "larder dataset add"
    std::string name;  // its last word
    std::vector<std::string> aliases;
    std::string help;
    std::string footer;
    std::vector<OptionText> options;
    std::vector<OptionText> positionals;
    std::vector<CommandText> commands;
    bool has_parents_options = false;
};

// `line`: how the program is called.
CommandText command_text(const CLI::App& app, const std::string& line);

}  // namespace larder::cli
