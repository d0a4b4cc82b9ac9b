// How does throughput grow with cache size? A consumer of rate f* reads through a remote limited to b, with caches from
// no bytes to the whole dataset. Compares the result with f = min(f*, b / (1 - h)), h = c/d, and with an LRU cache of
// the same size. With kappa = c/d, the LRU's hit ratio under per-epoch permutations is
// kappa + (1 - kappa) ln(1 - kappa) (allocator/model.h).

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "base/clock.h"
#include "base/units.h"
#include "bench/bench_options.h"
#include "bench/daemon_process.h"
#include "bench/larder_feeder.h"
#include "bench/lru_feeder.h"
#include "bench/pace.h"
#include "bench/plot.h"
#include "bench/work_directory.h"
#include "cache/protocol/record.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

constexpr double kKappas[] = {0, 0.1, 0.25, 0.5, 0.75, 0.9, 1};

struct Scenario {
    std::uint32_t blocks;
    std::uint64_t block_bytes;
    std::uint32_t batch_size;
    double ideal_rate;   // f*, bytes/s
    double remote_rate;  // b, bytes/s
    std::uint32_t warm_epochs;
    std::uint32_t measured_epochs;
};

Scenario make_curve_scenario(bool quick) {
    if (quick) return {1024, 32 << 10, 8, 300e6, 100e6, 2, 2};
    return {4096, 64 << 10, 8, 600e6, 200e6, 2, 3};
}

struct Measured {
    double throughput = 0;  // bytes/s
    double hit_ratio = 0;
};

// Measures the steady state: whole epochs after the warm-up epochs.
Result<Measured> measure(Feeder& feeder, const Scenario& scenario) {
    const SteadyClock clock;
    PacedConsumer consumer(scenario.ideal_rate);
    FeederTotals before;
    std::int64_t began_ns = 0;
    for (std::uint32_t epoch = 0; epoch < scenario.warm_epochs + scenario.measured_epochs; ++epoch) {
        if (epoch == scenario.warm_epochs) {
            before = feeder.totals();
            began_ns = clock.now_ns();
        }
        for (;;) {
            const auto batch = feeder.next();
            if (!batch) return std::unexpected(batch.error());
            if (!*batch) break;
            consumer.consume((*batch)->bytes, (*batch)->reading_ns);
        }
    }
    const FeederTotals after = feeder.totals();
    Measured measured;
    measured.throughput = static_cast<double>(after.bytes - before.bytes) / seconds_since(clock, began_ns);
    measured.hit_ratio =
        static_cast<double>(after.hits - before.hits) / static_cast<double>(after.blocks - before.blocks);
    return measured;
}

std::uint64_t burst_bytes(const Scenario& scenario) {
    return 4 * scenario.block_bytes;
}

Result<Measured> measure_larder(const DaemonProcess& daemon, const Scenario& scenario, double kappa) {
    // The quota counts whole records, so the cached share of the dataset is kappa to within a block.
    const std::uint64_t record = protocol::record_bytes(scenario.block_bytes, 64);
    const auto blocks = static_cast<std::uint64_t>(std::llround(kappa * scenario.blocks));
    DaemonProcess& configured = const_cast<DaemonProcess&>(daemon);
    if (auto set = configured.set_quota("curve", 0, 0); !set) return std::unexpected(set.error());
    if (auto set = configured.set_quota("curve", blocks * record, 0); !set) return std::unexpected(set.error());
    auto feeder = LarderFeeder::open({{.dataset = "curve", .job = "curve", .socket = daemon.socket()},
                                      static_cast<std::uint64_t>(kappa * 1000),
                                      true,
                                      16,
                                      scenario.batch_size});
    if (!feeder) return std::unexpected(feeder.error());
    return measure(*feeder, scenario);
}

Result<Measured> measure_lru(const FileSet& files, const Scenario& scenario, double kappa) {
    const auto cache_bytes = static_cast<std::uint64_t>(std::llround(kappa * scenario.blocks)) * scenario.block_bytes;
    LruFeeder feeder({.files = files,
                      .store = std::make_shared<LruStore>(cache_bytes),
                      .batch_size = scenario.batch_size,
                      .seed = static_cast<std::uint64_t>(kappa * 1000),
                      .remote_bytes_per_second = scenario.remote_rate,
                      .remote_burst_bytes = burst_bytes(scenario)});
    return measure(feeder, scenario);
}

double predicted_throughput(const Scenario& scenario, double hit_ratio) {
    return hit_ratio >= 1 ? scenario.ideal_rate : std::min(scenario.ideal_rate, scenario.remote_rate / (1 - hit_ratio));
}

double lru_hit_ratio(double kappa) {
    return kappa >= 1 ? 1 : kappa + (1 - kappa) * std::log(1 - kappa);
}

void print(const boost::json::array& points, const Scenario& scenario) {
    cli::Table table(
        {">c/d", ">predicted", ">measured", ">off", ">hit ratio", ">LRU hit ratio", ">LRU predicted", ">LRU measured"});
    const auto number = [](double value, const char* format) {
        char text[32];
        std::snprintf(text, sizeof text, format, value);
        return std::string(text);
    };
    for (const boost::json::value& point : points) {
        const double predicted = point.at("predicted").as_double();
        const double measured = point.at("measured").as_double();
        table.add({number(point.at("kappa").as_double(), "%.2f"), format_bytes_per_second(predicted),
                   format_bytes_per_second(measured), number((measured / predicted - 1) * 100, "%+.1f %%"),
                   number(point.at("hit_ratio").as_double(), "%.3f"),
                   number(point.at("lru_hit_ratio").as_double(), "%.3f"),
                   format_bytes_per_second(point.at("lru_predicted").as_double()),
                   format_bytes_per_second(point.at("lru_measured").as_double())});
    }
    std::printf("f* = %s, b = %s, d = %s\n%s", format_bytes_per_second(scenario.ideal_rate).c_str(),
                format_bytes_per_second(scenario.remote_rate).c_str(),
                format_bytes(scenario.blocks * scenario.block_bytes).c_str(), table.text().c_str());
}

}  // namespace

Result<boost::json::value> curve(const BenchOptions& options) {
    const Scenario scenario = make_curve_scenario(options.quick);
    auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    const auto files = write_files(*work / "data", scenario.blocks, scenario.block_bytes);
    if (!files) return std::unexpected(files.error());
    auto daemon = DaemonProcess::start({.state_directory = *work / "state"});
    if (!daemon) return std::unexpected(daemon.error());
    if (auto added = daemon->add_dataset({.name = "curve", .directory = files->directory}); !added) {
        return std::unexpected(added.error());
    }
    if (auto set = daemon->limit_job("curve", scenario.remote_rate, burst_bytes(scenario)); !set) {
        return std::unexpected(set.error());
    }
    boost::json::array points;
    for (const double kappa : kKappas) {
        const auto larder = measure_larder(*daemon, scenario, kappa);
        if (!larder) return std::unexpected(larder.error());
        const auto lru = measure_lru(*files, scenario, kappa);
        if (!lru) return std::unexpected(lru.error());
        points.push_back({{"kappa", kappa},
                          {"predicted", predicted_throughput(scenario, kappa)},
                          {"measured", larder->throughput},
                          {"hit_ratio", larder->hit_ratio},
                          {"lru_hit_ratio", lru->hit_ratio},
                          {"lru_hit_ratio_predicted", lru_hit_ratio(kappa)},
                          {"lru_predicted", predicted_throughput(scenario, lru_hit_ratio(kappa))},
                          {"lru_measured", lru->throughput}});
    }
    if (!options.json) print(points, scenario);
    if (!options.plot.empty()) {
        if (auto drawn = plot_curve(points, options.plot); !drawn) return std::unexpected(drawn.error());
    }
    return points;
}

}  // namespace larder::bench
