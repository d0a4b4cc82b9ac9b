// Do several jobs on several nodes get what the model says, and more than without a joint plan? Six jobs on four real
// nodes under one remote's bandwidth B: with equal shares of everything (static), with LRU stores and an equal share of
// bandwidth, and with the plans of max_min and efficiency. Measured is the steady state: from when every job has ended
// its first epoch to when every job has read them all.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/units.h"
#include "bench/cluster/rate_watch.h"
#include "bench/joint_cluster.h"
#include "bench/joint_jobs.h"
#include "bench/joint_scenario.h"
#include "bench/larder_feeder.h"
#include "bench/lru_feeder.h"
#include "bench/options.h"
#include "bench/plot.h"
#include "cache/shard/token_bucket.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

using Runs = std::vector<std::unique_ptr<JointJobRun>>;

constexpr auto kLook = std::chrono::milliseconds(50);
// As much as the LRU's. Little beside a dataset, as it is where datasets are large: what is prefetched counts as read.
constexpr std::uint32_t kPrefetchBlocks = 64;

// A job's rates as the plans said, over the time measured.
struct Predicted {
    double rate = 0;
    double equal_share = 0;
    double ideal = 0;
};

struct JobResult {
    double measured = 0;
    Predicted predicted;
};

struct PolicyResult {
    std::vector<JobResult> jobs;
    std::uint64_t remote_bytes = 0;     // from the start
    std::uint64_t delivered_bytes = 0;  // likewise
    double remote_per_byte = 0;         // of the steady state
    double excess_bytes = 0;            // by which the remote was ever ahead of B
};

Result<std::unique_ptr<Feeder>> open_larder(const JointScenario& scenario, const JointJob& job,
                                            const std::string& socket) {
    auto feeder = LarderFeeder::open({{.dataset = scenario.datasets[job.dataset].name,
                                       .job = job.name,
                                       .socket = socket,
                                       .memory_budget_bytes = kPrefetchBlocks * scenario.block_bytes},
                                      job.node + 1,
                                      true,
                                      16,
                                      scenario.batch_size});
    if (!feeder) return std::unexpected(feeder.error());
    return std::make_unique<LarderFeeder>(std::move(*feeder));
}

// Until every job has read so many epochs; `each` is called many times a second.
Result<void> wait_for_epochs(const Runs& runs, std::uint32_t epochs, const std::function<void()>& each) {
    for (;;) {
        bool all = true;
        for (const auto& run : runs) {
            if (auto state = run->state(); !state) return state;
            all = all && run->epochs() >= epochs;
        }
        if (all) return {};
        each();
        std::this_thread::sleep_for(kLook);
    }
}

std::vector<std::uint64_t> bytes_of(const Runs& runs) {
    std::vector<std::uint64_t> bytes;
    bytes.reserve(runs.size());
    for (const auto& run : runs) bytes.push_back(run->bytes());
    return bytes;
}

// Measures the steady state of runs that have just begun. `remote_bytes` counts what they took, `watch_plan` is called
// about once a second of it.
Result<PolicyResult> measure(const JointScenario& scenario, const Runs& runs,
                             const std::function<Result<std::uint64_t>()>& remote_bytes,
                             const std::function<void()>& watch_plan) {
    const SteadyClock clock;
    RateWatch watch(remote_bytes, scenario.remote_bytes_per_second);
    if (auto warm = wait_for_epochs(runs, 1, [] {}); !warm) return std::unexpected(warm.error());
    const std::vector<std::uint64_t> before = bytes_of(runs);
    const auto remote_before = remote_bytes();
    const std::int64_t began_ns = clock.now_ns();
    std::int64_t watched_ns = 0;
    auto read = wait_for_epochs(runs, scenario.epochs, [&] {
        if (clock.now_ns() - watched_ns < 1'000'000'000) return;
        watched_ns = clock.now_ns();
        watch_plan();
    });
    if (!read) return std::unexpected(read.error());
    const std::vector<std::uint64_t> after = bytes_of(runs);
    const auto remote_after = remote_bytes();
    const double seconds = static_cast<double>(clock.now_ns() - began_ns) * 1e-9;
    watch.stop();
    if (!remote_before) return std::unexpected(remote_before.error());
    if (!remote_after) return std::unexpected(remote_after.error());

    PolicyResult result{.remote_bytes = *remote_after, .excess_bytes = watch.excess_bytes()};
    double delivered = 0;
    for (std::size_t j = 0; j < runs.size(); ++j) {
        const auto bytes = static_cast<double>(after[j] - before[j]);
        delivered += bytes;
        result.delivered_bytes += after[j];
        result.jobs.push_back({.measured = bytes / seconds, .predicted = {}});
    }
    result.remote_per_byte = static_cast<double>(*remote_after - *remote_before) / delivered;
    return result;
}

Result<PolicyResult> run_larder(const JointScenario& scenario, const std::vector<FileSet>& files,
                                const std::string& directory, const std::string& objective) {
    auto cluster = JointCluster::start(scenario, files, directory, objective);
    if (!cluster) return std::unexpected(cluster.error());
    Runs runs;
    runs.reserve(scenario.jobs.size());
    for (const JointJob& job : scenario.jobs) {
        const std::string socket = cluster->node(job.node).socket();
        runs.push_back(std::make_unique<JointJobRun>(
            [&scenario, &job, socket] { return open_larder(scenario, job, socket); }, job.ideal_bytes_per_second));
    }
    std::map<std::string, Predicted> sums;
    double plans = 0;
    auto result = measure(
        scenario, runs, [&] { return cluster->remote_read_bytes(); },
        [&] {
            const auto plan = cluster->plan();
            if (!plan) return;
            ++plans;
            for (const boost::json::value& job : plan->at("jobs").as_array()) {
                Predicted& sum = sums[std::string(job.at("name").as_string())];
                sum.rate += job.at("steady_bytes_per_second").to_number<double>();
                sum.equal_share += job.at("equal_share_bytes_per_second").to_number<double>();
                sum.ideal += job.at("ideal_bytes_per_second").to_number<double>();
            }
        });
    if (!result) return result;
    for (std::size_t j = 0; j < runs.size(); ++j) {
        const Predicted& sum = sums[scenario.jobs[j].name];
        result->jobs[j].predicted = {sum.rate / plans, sum.equal_share / plans, sum.ideal / plans};
    }
    return result;
}

Result<PolicyResult> run_lru(const JointScenario& scenario, const std::vector<FileSet>& files) {
    std::vector<std::shared_ptr<LruStore>> stores;
    stores.reserve(scenario.nodes);
    for (std::uint32_t i = 0; i < scenario.nodes; ++i) {
        stores.push_back(std::make_shared<LruStore>(scenario.node_cache_bytes));
    }
    const double rate = scenario.remote_bytes_per_second / static_cast<double>(scenario.jobs.size());
    std::vector<LruFeeder*> feeders(scenario.jobs.size());
    std::mutex opening;
    Runs runs;
    runs.reserve(scenario.jobs.size());
    for (std::size_t j = 0; j < scenario.jobs.size(); ++j) {
        const JointJob& job = scenario.jobs[j];
        const LruOptions options{.files = files[job.dataset],
                                 .store = stores[job.node],
                                 .dataset = job.dataset,
                                 .batch_size = scenario.batch_size,
                                 .seed = job.node + 1,
                                 .remote_bytes_per_second = rate,
                                 .remote_burst_bytes = cache::default_burst_bytes(rate),
                                 .prefetch_blocks = kPrefetchBlocks};
        runs.push_back(std::make_unique<JointJobRun>(
            [options, j, &feeders, &opening]() -> Result<std::unique_ptr<Feeder>> {
                auto feeder = std::make_unique<LruFeeder>(options);
                const std::lock_guard lock(opening);
                feeders[j] = feeder.get();
                return feeder;
            },
            job.ideal_bytes_per_second));
    }
    auto result = measure(
        scenario, runs,
        [&]() -> Result<std::uint64_t> {
            const std::lock_guard lock(opening);
            std::uint64_t bytes = 0;
            for (const LruFeeder* feeder : feeders) {
                if (feeder == nullptr) continue;
                const FeederTotals totals = feeder->totals();
                bytes += (totals.blocks - totals.hits) * scenario.block_bytes;
            }
            return bytes;
        },
        [] {});
    return result;
}

// The smallest rate measured, over the equal share that static measured against.
double min_ratio(const PolicyResult& result, const std::vector<JobResult>& shares) {
    double smallest = std::numeric_limits<double>::infinity();
    for (std::size_t j = 0; j < result.jobs.size(); ++j) {
        smallest = std::min(smallest, result.jobs[j].measured / shares[j].predicted.equal_share);
    }
    return smallest;
}

// The smallest the policy's own plans promised, over the equal share they reckoned with.
double min_ratio_predicted(const PolicyResult& result) {
    double smallest = std::numeric_limits<double>::infinity();
    for (const JobResult& job : result.jobs)
        smallest = std::min(smallest, job.predicted.rate / job.predicted.equal_share);
    return smallest;
}

boost::json::object to_json(const JointScenario& scenario, const std::string& policy, const PolicyResult& result,
                            const std::vector<JobResult>& shares) {
    const bool predicted = result.jobs.front().predicted.rate > 0;
    boost::json::array jobs;
    for (std::size_t j = 0; j < result.jobs.size(); ++j) {
        const JobResult& job = result.jobs[j];
        jobs.push_back(boost::json::object{
            {"name", scenario.jobs[j].name},
            {"equal_share", shares[j].predicted.equal_share},
            {"predicted", predicted ? boost::json::value(job.predicted.rate) : boost::json::value()},
            {"measured", job.measured},
            {"ideal", scenario.jobs[j].ideal_bytes_per_second},
            {"ideal_measured", predicted ? boost::json::value(job.predicted.ideal) : boost::json::value()}});
    }
    boost::json::value model;
    if (predicted) model = min_ratio_predicted(result);
    return {{"policy", policy},
            {"remote_bytes", result.remote_bytes},
            {"delivered_bytes", result.delivered_bytes},
            {"remote_per_byte", result.remote_per_byte},
            {"excess_bytes", result.excess_bytes},
            {"min_ratio", min_ratio(result, shares)},
            {"min_ratio_predicted", model},
            {"jobs", std::move(jobs)}};
}

std::string percent(double part) {
    char text[32];
    std::snprintf(text, sizeof text, "%+.1f %%", part * 100);
    return text;
}

void print(const JointScenario& scenario, const boost::json::array& policies) {
    std::printf("B = %s, %u nodes with %s of cache each, block %s\n\n",
                format_bytes_per_second(scenario.remote_bytes_per_second).c_str(), scenario.nodes,
                format_bytes(scenario.node_cache_bytes).c_str(), format_bytes(scenario.block_bytes).c_str());
    cli::Table jobs({"policy", "job", ">f*", ">f* seen", ">equal share", ">predicted", ">measured", ">off"});
    cli::Table totals({"policy", ">least f/e", ">model's", ">sum of f", ">remote per byte", ">ahead of B by"});
    for (const auto& policy : policies) {
        const std::string name(policy.at("policy").as_string());
        double sum = 0;
        for (const auto& job : policy.at("jobs").as_array()) {
            const double measured = job.at("measured").as_double();
            sum += measured;
            const bool predicted = !job.at("predicted").is_null();
            jobs.add({name, std::string(job.at("name").as_string()),
                      format_bytes_per_second(job.at("ideal").as_double()),
                      predicted ? format_bytes_per_second(job.at("ideal_measured").as_double()) : "-",
                      format_bytes_per_second(job.at("equal_share").as_double()),
                      predicted ? format_bytes_per_second(job.at("predicted").as_double()) : "-",
                      format_bytes_per_second(measured),
                      predicted ? percent(measured / job.at("predicted").as_double() - 1) : "-"});
        }
        char text[3][32] = {"", "-", ""};
        std::snprintf(text[0], sizeof text[0], "%.3f", policy.at("min_ratio").as_double());
        if (!policy.at("min_ratio_predicted").is_null()) {
            std::snprintf(text[1], sizeof text[1], "%.3f", policy.at("min_ratio_predicted").as_double());
        }
        std::snprintf(text[2], sizeof text[2], "%.3f", policy.at("remote_per_byte").as_double());
        totals.add({name, text[0], text[1], format_bytes_per_second(sum), text[2],
                    format_bytes(static_cast<std::uint64_t>(policy.at("excess_bytes").as_double()))});
    }
    std::printf("%s\n%s", jobs.text().c_str(), totals.text().c_str());
}

}  // namespace

Result<boost::json::value> joint(const Options& options) {
    const JointScenario scenario = joint_scenario(options.quick);
    auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    std::vector<FileSet> files;
    for (const JointDataset& dataset : scenario.datasets) {
        auto written = write_files(*work / dataset.name, dataset.blocks, scenario.block_bytes);
        if (!written) return std::unexpected(written.error());
        files.push_back(std::move(*written));
    }
    boost::json::array policies;
    std::vector<JobResult> shares;
    for (const std::string policy : {"static", "lru", "max_min", "efficiency"}) {
        const auto& wanted = options.policies;
        if (!wanted.empty() && std::ranges::find(wanted, policy) == wanted.end()) continue;
        auto result = policy == "lru" ? run_lru(scenario, files)
                                      : run_larder(scenario, files, *work / std::to_string(policies.size()), policy);
        if (!result) return std::unexpected(result.error().within(policy));
        if (shares.empty()) shares = result->jobs;
        policies.push_back(to_json(scenario, policy, *result, shares));
    }
    if (!options.json) print(scenario, policies);
    if (!options.plot.empty()) {
        if (auto drawn = plot_joint(policies, options.plot); !drawn) return std::unexpected(drawn.error());
    }
    return policies;
}

}  // namespace larder::bench
