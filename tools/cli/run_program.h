#pragma once

// Runs a program to its end with the given stdin.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace larder::cli {

// Returns its stdout. It shares this process's stderr. An exit status other than 0 is an error.
Result<std::string> run_program(const std::vector<std::string>& arguments, const std::string& input = {});

struct ProgramOutput {
    int status = 0;
    std::string output;
    std::string errors;  // its stderr
};
// Returns an error only if the program could not be run, or had not ended within the limit. Then it is killed.
Result<ProgramOutput> run_program_for_all(const std::vector<std::string>& arguments, const std::string& input = {},
                                          std::optional<std::chrono::seconds> limit = {});

}  // namespace larder::cli
