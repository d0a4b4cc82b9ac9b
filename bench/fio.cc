#include "bench/fio.h"

#include <boost/json/parse.hpp>

#include <vector>

#include "tools/cli/run_program.h"

namespace larder::bench {
namespace {

Result<boost::json::value> run_fio(const FioOptions& options, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"fio", "--name=larder", "--filename=" + options.file,
                                         "--size=" + std::to_string(options.file_bytes), "--ioengine=io_uring",
                                         "--direct=1", "--output-format=json"});
    const auto output = cli::run_program(arguments);
    if (!output) return std::unexpected(output.error());
    boost::system::error_code error;
    // fio may print notes before the JSON.
    const std::size_t begin = output->find('{');
    if (begin == std::string::npos) return fail(ErrorCode::internal, "fio printed no JSON");
    boost::json::value value = boost::json::parse(std::string_view(*output).substr(begin), error);
    if (error) return fail(ErrorCode::internal, "fio's JSON: " + error.message());
    return value;
}

}  // namespace

Result<void> fio_prepare(const FioOptions& options) {
    const auto ran = run_fio(options, {"--rw=write", "--bs=1m", "--iodepth=16"});
    if (!ran) return std::unexpected(ran.error());
    return {};
}

Result<double> fio_random_read(const FioOptions& options) {
    // fio reads the same blocks in the same order in each run by default, and the host of a virtual machine may still
    // have these blocks in memory.
    const auto ran = run_fio(options, {"--rw=randread", "--randrepeat=0", "--bs=" + std::to_string(options.block_bytes),
                                       "--iodepth=" + std::to_string(options.depth), "--time_based",
                                       "--runtime=" + std::to_string(static_cast<int>(options.seconds * 1000)) + "ms"});
    if (!ran) return std::unexpected(ran.error());
    return ran->at("jobs").at(0).at("read").at("bw_bytes").to_number<double>();
}

}  // namespace larder::bench
