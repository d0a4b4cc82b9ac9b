// Measures the gain and the cost of compressing the cache. Reads compressible data (words) and incompressible data
// (random bytes) from a memory cache of half the dataset's size and from one that holds all of it, with compression
// none, zstd:3 and auto. Misses come from a remote of 200 MB/s. Every byte is read. After two epochs the cache no
// longer changes; then the settings take turns, an epoch or half a second each, several times. The medians are the
// result, because machines drift.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "base/units.h"
#include "bench/bench_options.h"
#include "bench/daemon_process.h"
#include "bench/larder_feeder.h"
#include "bench/median.h"
#include "bench/work_directory.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

constexpr double kRemoteBytesPerSecond = 200e6;
constexpr std::uint64_t kFileBytes = 1 << 20;
constexpr std::int64_t kMeasured_ns_min = 500'000'000;  // an epoch from memory takes 20 ms, mostly noise
constexpr const char* kSettings[] = {"none", "zstd:3", "auto"};

struct CompressionScenario {
    const char* data;
    const char* cache;
    FileSet files;
    std::uint64_t quota_bytes;
};

// One setting of one scenario: a dataset, a job, and the amount read.
struct Run {
    std::string setting;
    std::string name;
    std::optional<LarderFeeder> feeder = {};
    std::vector<double> rates = {};
    std::vector<double> hit_ratios = {};
};

// Writes words of a small vocabulary: text that compresses to about a third.
Result<FileSet> write_words(const std::string& directory, std::uint32_t count) {
    auto files = write_files(directory, count, kFileBytes);
    if (!files) return files;
    for (std::uint32_t i = 0; i < count; ++i) {
        std::string text;
        for (std::uint64_t at = std::uint64_t{i} << 32; text.size() < kFileBytes; ++at) {
            const std::uint64_t word = mix64(mix64(at) % 20'000);
            for (std::uint64_t letters = 3 + word % 6; letters > 0; --letters) {
                text += static_cast<char>('a' + (word >> (letters * 6)) % 26);
            }
            text += ' ';
        }
        char name[32];
        std::snprintf(name, sizeof name, "/%06u.bin", i);
        std::ofstream out(directory + name, std::ios::binary);
        out.write(text.data(), kFileBytes);
        out.close();
        if (!out) return fail(ErrorCode::io, "write of " + directory + name);
    }
    return files;
}

Result<void> read_epoch(Run& run) {
    for (;;) {
        const auto batch = run.feeder->next();
        if (!batch) return std::unexpected(batch.error());
        if (!*batch) return {};
    }
}

// Reads whole epochs, at least one, for at least `least_ns`.
Result<void> read_and_count(Run& run, std::int64_t least_ns) {
    const FeederTotals before = run.feeder->totals();
    const SteadyClock clock;
    const std::int64_t began_ns = clock.now_ns();
    do {
        if (auto read = read_epoch(run); !read) return read;
    } while (clock.now_ns() - began_ns < least_ns);
    const double seconds = seconds_since(clock, began_ns);
    const FeederTotals after = run.feeder->totals();
    run.rates.push_back(static_cast<double>(after.bytes - before.bytes) / seconds);
    run.hit_ratios.push_back(static_cast<double>(after.hits - before.hits) /
                             static_cast<double>(after.blocks - before.blocks));
    return {};
}

Result<std::vector<Run>> measure(DaemonProcess& daemon, const CompressionScenario& scenario, std::size_t rounds,
                                 std::int64_t least_ns) {
    std::vector<Run> runs;
    for (const char* setting : kSettings) {
        std::string name = std::string(scenario.data) + "-" + scenario.cache + "-" + setting;
        std::ranges::replace(name, ':', '-');
        runs.push_back({.setting = setting, .name = std::move(name)});
        Run& run = runs.back();
        if (auto added = daemon.add_dataset({.name = run.name,
                                             .directory = scenario.files.directory,
                                             .compression = setting,
                                             .quota_memory_bytes = scenario.quota_bytes});
            !added) {
            return std::unexpected(added.error());
        }
        if (auto set = daemon.limit_job(run.name, kRemoteBytesPerSecond, 4 * kFileBytes); !set) {
            return std::unexpected(set.error());
        }
        auto feeder =
            LarderFeeder::open({{.dataset = run.name, .job = run.name, .socket = daemon.socket()}, 1, true, 16, 8});
        if (!feeder) return std::unexpected(feeder.error());
        run.feeder.emplace(std::move(*feeder));
        for (int i = 0; i < 2; ++i) {
            if (auto read = read_epoch(run); !read) return std::unexpected(read.error());
        }
    }
    for (std::size_t round = 0; round < rounds; ++round) {
        for (std::size_t turn = 0; turn < runs.size(); ++turn) {
            Run& run = runs[(round + turn) % runs.size()];
            if (auto read = read_and_count(run, least_ns); !read) return std::unexpected(read.error());
        }
    }
    return runs;
}

}  // namespace

Result<boost::json::value> compression(const BenchOptions& options) {
    auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    const std::uint32_t count = options.quick ? 48 : 384;
    const auto words = write_words(*work / "words", count);
    if (!words) return std::unexpected(words.error());
    const auto random = write_files(*work / "random", count, kFileBytes);
    if (!random) return std::unexpected(random.error());
    const std::uint64_t half = words->total_bytes() / 2;
    const std::uint64_t all = words->total_bytes() * 5 / 4;
    auto daemon = DaemonProcess::start(
        {.state_directory = *work / "state", .memory_bytes = 12 * words->total_bytes() + (std::uint64_t{1} << 30)});
    if (!daemon) return std::unexpected(daemon.error());

    cli::Table table({"data", "cache", "compression", ">hits", ">throughput", ">rate / better of none, zstd:3"});
    boost::json::array rows;
    double auto_to_better_min = 1e9;
    for (const CompressionScenario& scenario :
         {CompressionScenario{"words", "half", *words, half}, CompressionScenario{"words", "all", *words, all},
          CompressionScenario{"random", "half", *random, half}, CompressionScenario{"random", "all", *random, all}}) {
        const auto runs = measure(*daemon, scenario, options.quick ? 2 : 9, options.quick ? 0 : kMeasured_ns_min);
        if (!runs) return std::unexpected(runs.error());
        // `better` is the rate of the better fixed setting, none or zstd:3.
        const double better = std::max(median((*runs)[0].rates), median((*runs)[1].rates));
        auto_to_better_min = std::min(auto_to_better_min, median((*runs)[2].rates) / better);
        for (const Run& run : *runs) {
            const double rate = median(run.rates);
            const double hits = median(run.hit_ratios);
            char part[16];
            std::snprintf(part, sizeof part, "%.2f", rate / better);
            table.add({scenario.data, scenario.cache, run.setting, cli::format_part(hits, 1),
                       format_bytes_per_second(rate), part});
            rows.push_back({{"data", scenario.data},
                            {"cache", scenario.cache},
                            {"compression", run.setting},
                            {"hit_ratio", hits},
                            {"bytes_per_second", rate}});
        }
    }
    if (!options.json) std::printf("%s", table.text().c_str());
    return boost::json::object{{"runs", rows}, {"auto_to_better_min", auto_to_better_min}};
}

}  // namespace larder::bench
