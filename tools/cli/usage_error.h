#pragma once

// Messages about a wrong command line: which command, what is wrong with it, and what to type instead.

#include <span>
#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace larder::cli {

// Returns one line without a newline. `app` is the program's App after the parse that threw `error`.
std::string usage_error_text(const CLI::App& app, const CLI::ParseError& error);

// True if `argument` is a misspelt command of `app` rather than a file's name.
bool is_misspelt_command(const CLI::App& app, const std::string& argument);

// Prints the error on stderr and, if `json`, as {"error": ...} on stdout. Prints the help or the version instead if
// the user asked for it. Returns the exit code.
int end_parse(const CLI::App& app, const CLI::ParseError& error, bool json);

// True if --json is among a program's own arguments. Needed when the parse ended before it reached that option.
bool asks_for_json(std::span<char* const> arguments);

}  // namespace larder::cli
