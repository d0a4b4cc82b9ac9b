// How many emulated accelerators does this machine feed? Runs DLIO, the tool of MLPerf Storage, with a configuration
// derived from MLPerf's RetinaNet for B200, which makes this no result of MLPerf: through larder.dlio, through a mount,
// and by DLIO's own loader from page-cached files (bench/dlio.py).

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/bench_options.h"
#include "bench/interpreter.h"
#include "tools/cli/data_file.h"
#include "tools/cli/run_program.h"

namespace larder::bench {

Result<boost::json::value> dlio(const BenchOptions& options) {
    const std::string programs = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
    std::vector<std::string> command = {tests_interpreter(), cli::data_file("bench/dlio.py"), "--programs", programs};
    if (options.quick) command.emplace_back("--quick");
    if (!options.directory.empty()) command.insert(command.end(), {"--directory", options.directory});
    const auto output = cli::run_program(command);
    if (!output) return std::unexpected(output.error());
    boost::system::error_code error;
    boost::json::value result = boost::json::parse(*output, error);
    if (error) return fail(ErrorCode::internal, "dlio.py: " + error.message());
    if (!options.json) {
        std::printf("DLIO with an MLPerf-derived configuration, unofficial\n");
        for (const auto& [reader, figures] : result.as_object()) {
            std::printf("%s: %lld accelerators; AU of 1, 2, ...:", std::string(reader).c_str(),
                        static_cast<long long>(figures.at("accelerators").as_int64()));
            for (const auto& utilisation : figures.at("au").as_array()) {
                std::printf(" %.3f", utilisation.to_number<double>());
            }
            std::printf("\n");
        }
    }
    return result;
}

}  // namespace larder::bench
