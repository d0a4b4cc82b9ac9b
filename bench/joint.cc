// Do several jobs on several nodes get the rates that the model predicts, and more than without a joint plan? Runs six
// jobs on four real nodes under one remote's bandwidth B: with equal shares of everything, with LRU stores and
// an equal share of bandwidth, and with the plans of max-min and efficiency. Measures the steady state, from the time
// every job has finished its first epoch until every job has read all its epochs. With --events it measures changes in
// mid-run instead: joint_events.h.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>

#include "allocator/protocol/objective.h"
#include "base/clock.h"
#include "base/units.h"
#include "bench/bench_options.h"
#include "bench/joint_cluster.h"
#include "bench/joint_events.h"
#include "bench/joint_jobs.h"
#include "bench/joint_report.h"
#include "bench/joint_scenario.h"
#include "bench/lru_feeder.h"
#include "bench/plot.h"
#include "cache/shard/token_bucket.h"
#include "tests/cluster/rate_watch.h"
#include "tools/cli/interrupt.h"

namespace larder::bench {
namespace {

std::vector<std::uint64_t> bytes_of(const JointRuns& runs) {
    std::vector<std::uint64_t> bytes;
    bytes.reserve(runs.size());
    for (const auto& run : runs) bytes.push_back(run->bytes());
    return bytes;
}

// Measures the steady state of runs that have just begun. `remote_bytes` counts the bytes the jobs took; `watch_plan`
// is called about once a second meanwhile.
Result<PolicyResult> measure(const JointScenario& scenario, const JointRuns& runs,
                             const std::function<Result<std::uint64_t>()>& remote_bytes,
                             const std::function<void()>& watch_plan, const cli::InterruptWatch& interrupt) {
    const SteadyClock clock;
    test::RateWatch watch(remote_bytes, scenario.remote_bytes_per_second);
    if (auto warm = wait_for_epochs(runs, 1, interrupt, [] {}); !warm) return std::unexpected(warm.error());
    // Reading the remote's count can take long on a busy machine, so no time is read after it.
    const auto remote_before = remote_bytes();
    const std::int64_t began_ns = clock.now_ns();
    const std::vector<std::uint64_t> before = bytes_of(runs);
    std::int64_t watched_ns = 0;
    auto read = wait_for_epochs(runs, scenario.epochs, interrupt, [&] {
        if (clock.now_ns() - watched_ns < 1'000'000'000) return;
        watched_ns = clock.now_ns();
        watch_plan();
    });
    if (!read) return std::unexpected(read.error());
    const std::vector<std::uint64_t> after = bytes_of(runs);
    const double seconds = seconds_since(clock, began_ns);
    const auto remote_after = remote_bytes();
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
                                const std::string& directory, const std::string& objective,
                                const cli::InterruptWatch& interrupt) {
    auto cluster = JointCluster::start(scenario, files, directory, {.objective = objective});
    if (!cluster) return std::unexpected(cluster.error());
    JointRuns runs;
    runs.reserve(scenario.jobs.size());
    for (const JointJob& job : scenario.jobs) {
        runs.push_back(run_on_larder(scenario, job, cluster->node(job.node).socket()));
    }
    std::map<std::string, Predicted> sums;
    double plans = 0;
    auto result = measure(
        scenario, runs, [&] { return cluster->remote().bytes(); },
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
        },
        interrupt);
    if (!result) return result;
    result->network = cluster->network();
    for (std::size_t j = 0; j < runs.size(); ++j) {
        const Predicted& sum = sums[scenario.jobs[j].name];
        result->jobs[j].predicted = {sum.rate / plans, sum.equal_share / plans, sum.ideal / plans};
    }
    return result;
}

Result<PolicyResult> run_lru(const JointScenario& scenario, const std::vector<FileSet>& files,
                             const cli::InterruptWatch& interrupt) {
    std::vector<std::shared_ptr<LruStore>> stores;
    stores.reserve(scenario.nodes);
    for (std::uint32_t i = 0; i < scenario.nodes; ++i) {
        stores.push_back(std::make_shared<LruStore>(scenario.node_cache_bytes));
    }
    const double rate = scenario.remote_bytes_per_second / static_cast<double>(scenario.jobs.size());
    std::vector<LruFeeder*> feeders(scenario.jobs.size());
    std::mutex feeders_mutex;
    JointRuns runs;
    runs.reserve(scenario.jobs.size());
    for (std::size_t j = 0; j < scenario.jobs.size(); ++j) {
        const JointJob& job = scenario.jobs[j];
        LruOptions options = lru_options(scenario, job, files[job.dataset], stores[job.node]);
        options.remote_bytes_per_second = rate;
        options.remote_burst_bytes = cache::default_burst_bytes(rate);
        runs.push_back(std::make_unique<JointJobRun>(
            job.name,
            [options, j, &feeders, &feeders_mutex]() -> Result<std::unique_ptr<Feeder>> {
                auto feeder = std::make_unique<LruFeeder>(options);
                const std::lock_guard lock(feeders_mutex);
                feeders[j] = feeder.get();
                return feeder;
            },
            job.ideal_bytes_per_second));
    }
    auto result = measure(
        scenario, runs,
        [&]() -> Result<std::uint64_t> {
            const std::lock_guard lock(feeders_mutex);
            std::uint64_t bytes = 0;
            for (const LruFeeder* feeder : feeders) {
                if (feeder == nullptr) continue;
                const FeederTotals totals = feeder->totals();
                bytes += (totals.blocks - totals.hits) * scenario.block_bytes;
            }
            return bytes;
        },
        [] {}, interrupt);
    return result;
}

Result<std::vector<FileSet>> write_datasets(const JointScenario& scenario, const WorkDirectory& work) {
    std::vector<FileSet> files;
    for (const JointDataset& dataset : scenario.datasets) {
        auto written = write_files(work / dataset.name, dataset.blocks, scenario.block_bytes);
        if (!written) return std::unexpected(written.error());
        files.push_back(std::move(*written));
    }
    return files;
}

// Returns the policies the user asked for, out of those available.
std::vector<std::string> policies_to_run(const BenchOptions& options, const std::vector<std::string>& policies) {
    if (options.policies.empty()) return policies;
    std::vector<std::string> chosen_policies;
    for (const std::string& policy : policies) {
        if (std::ranges::find(options.policies, policy) != options.policies.end()) chosen_policies.push_back(policy);
    }
    return chosen_policies;
}

Result<boost::json::value> compare_policies(const BenchOptions& options, const WorkDirectory& work,
                                            const cli::InterruptWatch& interrupt) {
    const JointScenario scenario = joint_scenario(options.quick);
    const auto files = write_datasets(scenario, work);
    if (!files) return std::unexpected(files.error());
    boost::json::array policies;
    std::vector<JobResult> shares;
    for (const std::string& policy : policies_to_run(options, joint_policies())) {
        auto result = policy == "lru"
                          ? run_lru(scenario, *files, interrupt)
                          : run_larder(scenario, *files, work / std::to_string(policies.size()), policy, interrupt);
        if (!result) return std::unexpected(result.error().within(policy));
        if (shares.empty()) shares = result->jobs;
        policies.push_back(to_json(scenario, policy, *result, shares));
    }
    if (!options.json) print_policies(scenario, policies);
    if (!options.plot.empty()) {
        if (auto drawn = plot_joint(policies, options.plot); !drawn) return std::unexpected(drawn.error());
    }
    return policies;
}

Result<boost::json::value> run_events(const BenchOptions& options, const WorkDirectory& work,
                                      const cli::InterruptWatch& interrupt) {
    const JointScenario scenario = joint_events_scenario(options.quick);
    const auto files = write_datasets(scenario, work);
    if (!files) return std::unexpected(files.error());
    boost::json::array policies;
    const std::string max_min(allocator::name(allocator::ObjectiveKind::max_min));
    const std::vector<std::string> policy_names =
        options.policies.empty()
            ? std::vector{max_min}
            : policies_to_run(options, {max_min, std::string(allocator::name(allocator::ObjectiveKind::efficiency))});
    for (const std::string& policy : policy_names) {
        auto result = run_joint_events(scenario, *files, work / std::to_string(policies.size()), policy, interrupt);
        if (!result) return std::unexpected(result.error().within(policy));
        if (!options.json) {
            std::printf("%s, B = %s\n", policy.c_str(),
                        format_bytes_per_second(scenario.remote_bytes_per_second).c_str());
            print_joint_events(result->at("events").as_array());
        }
        policies.push_back(std::move(*result));
    }
    return policies;
}

}  // namespace

Result<boost::json::value> joint(const BenchOptions& options) {
    // Ctrl-C ends the bench as an error does, so that everything it made is removed.
    const cli::InterruptWatch interrupt;
    auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    return options.events ? run_events(options, *work, interrupt) : compare_policies(options, *work, interrupt);
}

}  // namespace larder::bench
