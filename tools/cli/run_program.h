#pragma once

// Runs a program to its end with the given stdin and returns its stdout. The program shares this process's stderr.

#include <string>
#include <vector>

#include "base/error.h"

namespace larder::cli {

// An exit status other than 0 is an error.
Result<std::string> run_program(const std::vector<std::string>& arguments, const std::string& input = {});

}  // namespace larder::cli
