// Measures what jobs that read one dataset at a time cost the remote, in seeded and in shared order. J jobs on one
// node, with equal speeds or with speeds 1, 2, 4, 1, ..., and a remote limited to b for all of them together. Bytes
// from the remote are given per epoch of the fastest job. The bound on the hit ratio is 1 - (1 - c/d) max f / sum f:
// one fetch of each block that is not cached, for each epoch of the fastest job.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/bench_options.h"
#include "bench/daemon_process.h"
#include "bench/larder_feeder.h"
#include "bench/pace.h"
#include "bench/plot.h"
#include "bench/work_directory.h"
#include "cache/protocol/record.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

struct SharedScenario {
    std::uint32_t blocks;
    std::uint64_t block_bytes;
    double remote_rate;  // b of all jobs together, bytes/s
    double ideal_rate;   // f* of a job of speed 1, bytes/s
    std::vector<std::uint32_t> jobs;
    std::vector<double> kappas;
    std::uint32_t epochs;  // measured, of the slowest job
    std::int64_t seeded_ns;

    std::uint64_t dataset_bytes() const { return blocks * block_bytes; }
};

SharedScenario make_shared_scenario(bool quick) {
    if (quick) return {1024, 16 << 10, 40e6, 40e6, {1, 4}, {0.5}, 2, 300'000'000};
    return {4096, 16 << 10, 40e6, 20e6, {1, 2, 4, 8}, {0, 0.25, 0.5, 0.75}, 2, 3'000'000'000};
}

struct SharedRun {
    Order order;
    std::uint32_t jobs;
    bool has_equal_speeds;
    bool is_staggered;
    double kappa;

    // The speed of a job, as a multiple of the slowest one's.
    double speed(std::uint32_t job) const { return has_equal_speeds ? 1 : 1 << (job % 3); }
    double speed_max() const { return speed(std::min(jobs - 1, 2u)); }
    double speed_sum() const {
        double sum = 0;
        for (std::uint32_t job = 0; job < jobs; ++job) sum += speed(job);
        return sum;
    }
};

struct SharedResult {
    double remote_bytes_per_epoch = 0;
    double hit_ratio = 0;
    double aggregate_rate = 0;  // bytes/s
};

// One training job in a thread. It reads until `stop`.
class SharedJob {
public:
    SharedJob(LarderFeeder feeder, double ideal_rate, std::int64_t delay_ns)
        : feeder_(std::move(feeder)), ideal_rate_(ideal_rate), delay_ns_(delay_ns), thread_([this] { read(); }) {}
    ~SharedJob() {
        stops_ = true;
        thread_.join();
    }

    std::uint64_t bytes() const { return bytes_; }
    std::uint64_t epochs() const { return epochs_; }
    bool has_failed() const { return failed_; }
    const Error& error() const { return error_; }  // once it has failed

private:
    void read() {
        std::this_thread::sleep_for(std::chrono::nanoseconds(delay_ns_));
        PacedConsumer consumer(ideal_rate_);
        while (!stops_) {
            const auto batch = feeder_.next();
            if (!batch) {
                error_ = batch.error();
                failed_ = true;
                return;
            }
            if (!*batch) {
                ++epochs_;
                continue;
            }
            bytes_ += (*batch)->bytes;
            consumer.consume((*batch)->bytes, (*batch)->reading_ns);
        }
    }

    LarderFeeder feeder_;
    double ideal_rate_;
    std::int64_t delay_ns_;
    std::atomic<bool> stops_ = false;
    std::atomic<bool> failed_ = false;
    std::atomic<std::uint64_t> bytes_ = 0;
    std::atomic<std::uint64_t> epochs_ = 0;
    Error error_;
    std::thread thread_;
};

constexpr const char* kSharedDataset = "shared";

Result<double> remote_bytes(const DaemonProcess& daemon) {
    const auto dataset = daemon.dataset(kSharedDataset);
    if (!dataset) return std::unexpected(dataset.error());
    return dataset->at("counters").at("bytes_remote_read").to_number<double>();
}

class SharedJobs {
public:
    static Result<SharedJobs> start(DaemonProcess& daemon, const SharedScenario& scenario, const SharedRun& run) {
        SharedJobs started;
        // An epoch of the slowest job, if it were alone.
        const double epoch_s =
            static_cast<double>(scenario.dataset_bytes()) / std::min(scenario.ideal_rate, scenario.remote_rate);
        for (std::uint32_t job = 0; job < run.jobs; ++job) {
            const std::string name = "job" + std::to_string(job);
            if (auto set = daemon.limit_job(name, scenario.remote_rate / run.jobs, 4 * scenario.block_bytes); !set) {
                return std::unexpected(set.error());
            }
            LoaderOptions options{{.dataset = kSharedDataset, .job = name, .socket = daemon.socket()}};
            options.seed = job;
            options.batch_size = 8;
            // Little beside the dataset, as in a cluster.
            options.memory_budget_bytes = scenario.dataset_bytes() / 32;
            options.order = run.order;
            auto feeder = LarderFeeder::open(std::move(options));
            if (!feeder) return std::unexpected(feeder.error());
            const double delay_s = run.is_staggered ? epoch_s * job / run.jobs : 0;
            // Jobs of equal speeds are limited by the remote alone.
            const double ideal_rate = run.has_equal_speeds ? 0 : scenario.ideal_rate * run.speed(job);
            started.jobs_.push_back(
                std::make_unique<SharedJob>(std::move(*feeder), ideal_rate, static_cast<std::int64_t>(delay_s * 1e9)));
        }
        return started;
    }

    // Waits until each job has read so many epochs.
    Result<void> wait_for_epochs(std::uint64_t epochs) const {
        for (;;) {
            bool all = true;
            for (const auto& job : jobs_) {
                if (job->has_failed()) return std::unexpected(job->error());
                all = all && job->epochs() >= epochs;
            }
            if (all) return {};
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
    std::uint64_t bytes() const {
        std::uint64_t sum = 0;
        for (const auto& job : jobs_) sum += job->bytes();
        return sum;
    }

private:
    std::vector<std::unique_ptr<SharedJob>> jobs_;
};

// Measures the steady state: after the first epoch of the slowest job.
Result<SharedResult> measure_sharing(DaemonProcess& daemon, const SharedScenario& scenario, const SharedRun& run) {
    const std::uint64_t record = protocol::record_bytes(scenario.block_bytes, 64);
    const auto cached = static_cast<std::uint64_t>(std::llround(run.kappa * scenario.blocks));
    if (auto set = daemon.set_quota(kSharedDataset, 0, 0); !set) return std::unexpected(set.error());
    if (auto set = daemon.set_quota(kSharedDataset, cached * record, 0); !set) return std::unexpected(set.error());
    if (cached > 0) {
        if (auto warmed = daemon.warm(kSharedDataset); !warmed) return std::unexpected(warmed.error());
    }
    const SteadyClock clock;
    auto jobs = SharedJobs::start(daemon, scenario, run);
    if (!jobs) return std::unexpected(jobs.error());
    const bool is_seeded = run.order == Order::seeded;
    if (is_seeded) {
        std::this_thread::sleep_for(std::chrono::nanoseconds(scenario.seeded_ns / 4));
    } else if (auto waited = jobs->wait_for_epochs(1); !waited) {
        return std::unexpected(waited.error());
    }
    const auto remote_before = remote_bytes(daemon);
    const std::uint64_t bytes_before = jobs->bytes();
    const std::int64_t began_ns = clock.now_ns();
    if (is_seeded) {
        // Each epoch in seeded order costs the remote the same, from its begin to its end.
        std::this_thread::sleep_for(std::chrono::nanoseconds(scenario.seeded_ns));
        if (auto waited = jobs->wait_for_epochs(0); !waited) return std::unexpected(waited.error());
    } else if (auto waited = jobs->wait_for_epochs(1 + scenario.epochs); !waited) {
        return std::unexpected(waited.error());
    }
    const auto remote_after = remote_bytes(daemon);
    const auto bytes = static_cast<double>(jobs->bytes() - bytes_before);
    if (!remote_before) return std::unexpected(remote_before.error());
    if (!remote_after) return std::unexpected(remote_after.error());
    const double remote = *remote_after - *remote_before;
    const double fastest_bytes = bytes * run.speed_max() / run.speed_sum();
    return SharedResult{
        .remote_bytes_per_epoch = remote / fastest_bytes * static_cast<double>(scenario.dataset_bytes()),
        .hit_ratio = 1 - remote / bytes,
        .aggregate_rate = bytes / seconds_since(clock, began_ns)};
}

std::string fixed(double value, int digits) {
    char text[32];
    std::snprintf(text, sizeof text, "%.*f", digits, value);
    return text;
}

void print_sharing(const boost::json::array& points, const SharedScenario& scenario) {
    cli::Table table({">jobs", "speeds", "start", ">c/d", ">remote bytes/epoch", ">seeded", ">hit ratio", ">bound",
                      ">together", ">predicted"});
    for (const boost::json::value& point : points) {
        table.add({std::to_string(point.at("jobs").to_number<std::uint64_t>()),
                   std::string(point.at("speeds").as_string()), std::string(point.at("start").as_string()),
                   fixed(point.at("kappa").as_double(), 2),
                   format_bytes(static_cast<std::uint64_t>(point.at("remote_bytes_per_epoch").as_double())),
                   format_bytes(static_cast<std::uint64_t>(point.at("seeded_remote_bytes").as_double())),
                   fixed(point.at("hit_ratio").as_double(), 3), fixed(point.at("bound").as_double(), 3),
                   format_bytes_per_second(point.at("aggregate_rate").as_double()),
                   format_bytes_per_second(point.at("predicted").as_double())});
    }
    std::printf("b = %s, d = %s\n%s", format_bytes_per_second(scenario.remote_rate).c_str(),
                format_bytes(scenario.dataset_bytes()).c_str(), table.text().c_str());
}

}  // namespace

Result<boost::json::value> shared(const BenchOptions& options) {
    const SharedScenario scenario = make_shared_scenario(options.quick);
    auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    const auto files = write_files(*work / "data", scenario.blocks, scenario.block_bytes);
    if (!files) return std::unexpected(files.error());
    // The window has a twentieth of the memory tier, and so of the dataset.
    auto daemon =
        DaemonProcess::start({.state_directory = *work / "state", .memory_bytes = scenario.dataset_bytes() * 11 / 10});
    if (!daemon) return std::unexpected(daemon.error());
    if (auto added = daemon->add_dataset({.name = kSharedDataset, .directory = files->directory}); !added) {
        return std::unexpected(added.error());
    }
    boost::json::array points;
    const auto measure_all = [&](SharedRun run) -> Result<void> {
        run.order = Order::seeded;
        const auto seeded = measure_sharing(*daemon, scenario, run);
        if (!seeded) return std::unexpected(seeded.error());
        run.order = Order::shared;
        const auto measured = measure_sharing(*daemon, scenario, run);
        if (!measured) return std::unexpected(measured.error());
        const double missed = 1 - run.kappa;
        double predicted = 0;
        for (std::uint32_t job = 0; job < run.jobs; ++job) {
            const double ideal_rate = run.has_equal_speeds ? HUGE_VAL : scenario.ideal_rate * run.speed(job);
            predicted += std::min(ideal_rate, scenario.remote_rate / missed);
        }
        points.push_back({{"jobs", run.jobs},
                          {"speeds", run.has_equal_speeds ? "equal" : "1, 2, 4"},
                          {"start", run.is_staggered ? "staggered" : "together"},
                          {"kappa", run.kappa},
                          {"remote_bytes_per_epoch", measured->remote_bytes_per_epoch},
                          {"hit_ratio", measured->hit_ratio},
                          {"aggregate_rate", measured->aggregate_rate},
                          {"predicted", predicted},
                          {"seeded_remote_bytes", seeded->remote_bytes_per_epoch},
                          {"seeded_aggregate_rate", seeded->aggregate_rate},
                          {"bound", 1 - missed * run.speed_max() / run.speed_sum()}});
        return {};
    };
    for (const std::uint32_t jobs : scenario.jobs) {
        for (const bool has_equal_speeds : {true, false}) {
            for (const bool is_staggered : {false, true}) {
                if (jobs == 1 && (!has_equal_speeds || is_staggered)) continue;
                for (const double kappa : scenario.kappas) {
                    if (auto done = measure_all({Order::seeded, jobs, has_equal_speeds, is_staggered, kappa}); !done) {
                        return std::unexpected(done.error());
                    }
                }
            }
        }
    }
    if (!options.json) print_sharing(points, scenario);
    if (!options.plot.empty()) {
        if (auto drawn = plot_shared(points, options.plot); !drawn) return std::unexpected(drawn.error());
    }
    return points;
}

}  // namespace larder::bench
