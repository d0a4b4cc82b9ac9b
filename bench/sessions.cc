// How long from opening a loader to its first batch? A training script, and each of its workers, waits for this.

#include <boost/json/object.hpp>

#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "bench/daemon_process.h"
#include "bench/options.h"
#include "bench/statistics.h"
#include "bench/work_directory.h"
#include "loader/larder.h"

namespace larder::bench {

Result<boost::json::value> sessions(const Options& options) {
    constexpr std::uint64_t kSessionBlockBytes = 64 << 10;
    auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    const auto files = write_files(*work / "data", 512, kSessionBlockBytes);
    if (!files) return std::unexpected(files.error());
    auto daemon = DaemonProcess::start({.state_directory = *work / "state"});
    if (!daemon) return std::unexpected(daemon.error());
    if (auto added = daemon->add_dataset(
            {.name = "sessions", .directory = files->directory, .quota_disk_bytes = 2 * files->total_bytes()});
        !added) {
        return std::unexpected(added.error());
    }
    if (auto warmed = daemon->warm("sessions"); !warmed) return std::unexpected(warmed.error());
    const SteadyClock clock;
    std::vector<double> milliseconds;
    std::uint64_t samples = 0;
    for (int i = 0; i < (options.quick ? 5 : 50); ++i) {
        const std::int64_t began_ns = clock.now_ns();
        auto loader = Loader::open({{.dataset = "sessions", .job = "sessions", .socket = daemon->socket()},
                                    static_cast<std::uint64_t>(i),
                                    true,
                                    16,
                                    32});
        if (!loader) return std::unexpected(loader.error());
        const auto batch = loader->next();
        if (!batch) return std::unexpected(batch.error());
        milliseconds.push_back(static_cast<double>(clock.now_ns() - began_ns) * 1e-6);
        samples += (*batch)->size();
    }
    const double slowest = *std::max_element(milliseconds.begin(), milliseconds.end());
    boost::json::object result{{"sessions", milliseconds.size()},
                               {"samples", samples},
                               {"open_to_first_batch_ms", median(milliseconds)},
                               {"slowest_ms", slowest}};
    if (!options.json) {
        std::printf("open to first batch of 32 disk hits: median %.2f ms, slowest of %zu %.2f ms\n",
                    median(milliseconds), milliseconds.size(), slowest);
    }
    return result;
}

}  // namespace larder::bench
