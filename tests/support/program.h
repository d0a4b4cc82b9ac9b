#pragma once

// Runs a program to its end and keeps its output.

#include <string>
#include <utility>
#include <vector>

namespace larder::test {

struct ProgramResult {
    int exit_code = -1;  // -1: ended by a signal, or could not be started
    std::string output;
    std::string errors;
};

// `environment` is added to this process's; standard input is empty.
ProgramResult run_program(const std::vector<std::string>& arguments,
                          const std::vector<std::pair<std::string, std::string>>& environment = {});

}  // namespace larder::test
