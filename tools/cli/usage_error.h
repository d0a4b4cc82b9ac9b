#pragma once

// Messages about a wrong command line: which command, what is wrong with it, and what to type instead.

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace larder::cli {

// Returns one line without a newline. `app` is the program's App after the parse that threw `error`.
std::string usage_error_text(const CLI::App& app, const CLI::ParseError& error);

// Prints the error on stderr, or help or version if asked for. Returns the exit code.
int end_parse(const CLI::App& app, const CLI::ParseError& error);

}  // namespace larder::cli
