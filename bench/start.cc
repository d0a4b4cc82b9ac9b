// How soon is a restarted daemon useful? Restarts a daemon with 1.28 million cached blocks on disk (as many as
// ImageNet-1k has samples). Measures the time from exec to a loader's first sample, and the heap at that time.

#include <archive.h>
#include <archive_entry.h>
#include <boost/json/object.hpp>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/units.h"
#include "bench/bench_options.h"
#include "bench/daemon_process.h"
#include "bench/median.h"
#include "bench/work_directory.h"
#include "loader/larder.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

constexpr std::uint32_t kSmallSampleBytes = 400;
constexpr std::uint32_t kSamplesPerShard = 40'000;

// Writes tar shards of tiny samples, one member each.
Result<void> write_shards(const std::string& directory, std::uint32_t samples) {
    std::filesystem::create_directories(directory);
    std::vector<std::uint64_t> words(kSmallSampleBytes / 8);
    for (std::uint32_t first = 0; first < samples; first += kSamplesPerShard) {
        char name[32];
        std::snprintf(name, sizeof name, "/%06u.tar", first / kSamplesPerShard);
        const std::unique_ptr<archive, int (*)(archive*)> tar(archive_write_new(), archive_write_free);
        archive_write_set_format_ustar(tar.get());
        if (archive_write_open_filename(tar.get(), (directory + name).c_str()) != ARCHIVE_OK) {
            return fail(ErrorCode::io, "write " + directory + name + ": " + archive_error_string(tar.get()));
        }
        const std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry(archive_entry_new(), archive_entry_free);
        for (std::uint32_t i = first; i < std::min(samples, first + kSamplesPerShard); ++i) {
            std::snprintf(name, sizeof name, "%09u.bin", i);
            archive_entry_set_pathname(entry.get(), name);
            archive_entry_set_size(entry.get(), kSmallSampleBytes);
            archive_entry_set_filetype(entry.get(), AE_IFREG);
            archive_entry_set_perm(entry.get(), 0644);
            for (std::size_t word = 0; word < words.size(); ++word) words[word] = mix64(i * words.size() + word);
            if (archive_write_header(tar.get(), entry.get()) != ARCHIVE_OK ||
                archive_write_data(tar.get(), words.data(), kSmallSampleBytes) != kSmallSampleBytes) {
                return fail(ErrorCode::io, "write " + directory + ": " + archive_error_string(tar.get()));
            }
        }
        archive_write_close(tar.get());
    }
    return {};
}

// Returns the anonymous resident memory: heap and private mappings. Slots, the memory tier and LMDB's map are shared or
// file mappings and are not counted.
std::uint64_t anonymous_bytes(pid_t pid) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    std::string line;
    while (std::getline(status, line)) {
        unsigned long long kib = 0;
        if (std::sscanf(line.c_str(), "RssAnon: %llu kB", &kib) == 1) return kib * 1024;
    }
    return 0;
}

// Drops the page cache, so that the index is read from disk. Returns false if the machine does not allow it.
bool drop_page_cache() {
    ::sync();
    return std::ofstream("/proc/sys/vm/drop_caches") << "3" << std::flush ? true : false;
}

struct Restart {
    double first_byte_s = 0;
    std::uint64_t heap_bytes = 0;
    bool hit = false;
};

Result<Restart> restart(const std::string& state_directory) {
    const SteadyClock clock;
    const std::int64_t began_ns = clock.now_ns();
    auto daemon = DaemonProcess::start({.state_directory = state_directory});
    if (!daemon) return std::unexpected(daemon.error());
    auto loader = Loader::open({{.dataset = "start", .job = "start", .socket = daemon->socket()}, 1, true, 16, 1});
    if (!loader) return std::unexpected(loader.error());
    const auto batch = loader->next();
    if (!batch) return std::unexpected(batch.error());
    if (!*batch || (**batch)[0].bytes().size() != kSmallSampleBytes) {
        return fail(ErrorCode::internal, "the first sample is not what was written");
    }
    Restart result;
    result.first_byte_s = seconds_since(clock, began_ns);
    result.heap_bytes = anonymous_bytes(daemon->pid());
    result.hit = loader->statistics().disk_blocks > 0;
    return result;
}

}  // namespace

Result<boost::json::value> start(const BenchOptions& options) {
    const std::uint32_t samples = options.quick ? 20'000 : 1'280'000;
    auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    // The cache is filled in memory, where a million small writes are fast, and moved to disk as a whole.
    auto fill_directory = WorkDirectory::make("/dev/shm");
    if (!fill_directory) return std::unexpected(fill_directory.error());
    if (auto written = write_shards(*work / "data", samples); !written) return std::unexpected(written.error());
    std::uint64_t cached = 0;
    {
        auto daemon = DaemonProcess::start({.state_directory = *fill_directory / "state"});
        if (!daemon) return std::unexpected(daemon.error());
        if (auto added = daemon->add_dataset({.name = "start",
                                              .directory = *work / "data",
                                              .format = "webdataset",
                                              .quota_disk_bytes = std::uint64_t{16} << 30});
            !added) {
            return std::unexpected(added.error());
        }
        // A pass skips blocks while writes are behind; the next pass caches them.
        for (int pass = 0; pass < 10 && cached < samples; ++pass) {
            if (auto warmed = daemon->warm("start"); !warmed) return std::unexpected(warmed.error());
            const auto dataset = daemon->dataset("start");
            if (!dataset) return std::unexpected(dataset.error());
            cached = dataset->at("used").at("blocks").to_number<std::uint64_t>();
        }
    }
    if (cached != samples) {
        return fail(ErrorCode::internal, std::to_string(cached) + " of " + std::to_string(samples) + " blocks cached");
    }
    std::filesystem::copy(*fill_directory / "state", *work / "state",
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::skip_symlinks);
    std::vector<double> warm;
    std::vector<double> cold;
    std::uint64_t heap_bytes = 0;
    bool all_hits = true;
    for (int round = 0; round < (options.quick ? 1 : 5); ++round) {
        const bool dropped = drop_page_cache();
        for (const bool is_cold : {true, false}) {
            const auto restarted = restart(*work / "state");
            if (!restarted) return std::unexpected(restarted.error());
            if (is_cold && dropped) cold.push_back(restarted->first_byte_s);
            if (!is_cold) warm.push_back(restarted->first_byte_s);
            heap_bytes = std::max(heap_bytes, restarted->heap_bytes);
            all_hits &= restarted->hit;
        }
    }
    boost::json::object result{{"cached_blocks", cached},
                               {"first_byte_s", median(warm)},
                               {"heap_bytes", heap_bytes},
                               {"first_block_was_a_hit", all_hits}};
    if (!cold.empty()) result["first_byte_cold_s"] = median(cold);
    if (!options.json) {
        std::printf("%s cached blocks: first sample %.3f s after start%s, heap %s\n", cli::format_count(cached).c_str(),
                    median(warm),
                    cold.empty() ? ""
                                 : (" (" + format_duration_ns(static_cast<std::int64_t>(median(cold) * 1e9)) +
                                    " with a cold page cache)")
                                       .c_str(),
                    format_bytes(heap_bytes).c_str());
    }
    return result;
}

}  // namespace larder::bench
