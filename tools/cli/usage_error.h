#pragma once

// What a program says about a wrong command line: which command, what is wrong with it, and what to type instead.

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace larder::cli {

// `app` is the program's App after the parse that threw `error`. One line, without its end.
std::string usage_error_text(const CLI::App& app, const CLI::ParseError& error);

// Says it on stderr; prints help or version if these were asked for. Gives the exit code.
int end_parse(const CLI::App& app, const CLI::ParseError& error);

}  // namespace larder::cli
