// How fast does one Python process get samples? Compares larder.Loader over a cached directory of image files with a
// loop of open().read() over the same page-cached files, and with WebDataset's own reader over shards of them
// (bench/python_loader.py).

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>

#include <cstdio>
#include <stop_token>

#include "bench/bench_options.h"
#include "bench/daemon_process.h"
#include "bench/interpreter.h"
#include "bench/work_directory.h"
#include "cache/dataset/pack.h"
#include "tools/cli/data_file.h"
#include "tools/cli/run_program.h"

namespace larder::bench {
namespace {

constexpr const char* kImages = "/usr/share/openclipart/png";

}  // namespace

Result<boost::json::value> python(const BenchOptions& options) {
    const std::string images = options.data.empty() ? kImages : options.data;
    auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    const auto packed = cache::pack_dataset(
        {.source = {.url = images}, .destination = *work / "shards", .shard_bytes = std::uint64_t{32} << 20}, {}, {});
    if (!packed) return std::unexpected(packed.error());
    auto daemon = DaemonProcess::start({.state_directory = *work / "state"});
    if (!daemon) return std::unexpected(daemon.error());
    if (auto added = daemon->add_dataset(
            {.name = "images", .directory = images, .quota_memory_bytes = 2 * packed->payload_bytes + (64u << 20)});
        !added) {
        return std::unexpected(added.error());
    }
    const auto output =
        cli::run_program({options.python.empty() ? tests_interpreter() : options.python,
                          cli::data_file("bench/python_loader.py"), "--socket", daemon->socket(), "--dataset", "images",
                          "--images", images, "--shards", *work / "shards", "--rounds", options.quick ? "1" : "7"});
    if (!output) return std::unexpected(output.error());
    boost::system::error_code error;
    boost::json::value result = boost::json::parse(*output, error);
    if (error) return fail(ErrorCode::internal, "python_loader.py: " + error.message());
    if (!options.json) {
        std::printf("larder.Loader: %.0f samples/s; %.2f times open().read(), %.1f times WebDataset's reader\n",
                    result.at("samples_per_second").to_number<double>(),
                    result.at("open_read_ratio").to_number<double>(),
                    result.at("webdataset_ratio").to_number<double>());
    }
    return result;
}

}  // namespace larder::bench
