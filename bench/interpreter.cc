#include "bench/interpreter.h"

#include <filesystem>

#include "tools/cli/data_file.h"

namespace larder::bench {

std::string tests_interpreter() {
    const std::string environment = cli::data_file("build/venv/bin/python");
    return std::filesystem::exists(environment) ? environment : "python3";
}

}  // namespace larder::bench
