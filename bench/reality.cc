// Does the simulator predict a cluster's behaviour? Runs the six jobs of the joint bench on its four real nodes, from a
// cold start to the end of each, and compares each job's time with the simulator's: under each objective with a cache
// for each node; with nodes that pool their caches; and with one LRU cache for all and a fair share of the remote. The
// allocator measures f*.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "base/units.h"
#include "bench/bench_options.h"
#include "bench/fair_limiter.h"
#include "bench/joint_cluster.h"
#include "bench/joint_jobs.h"
#include "bench/joint_simulated.h"
#include "bench/lru_feeder.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

struct RunTimes {
    std::vector<double> seconds;  // of each job
    std::string network;          // see JointCluster::network(); empty: none
    std::vector<double> report_ages_s;
};

// Waits for the end of every job; returns each job's time.
Result<std::vector<double>> finish(const JointScenario& scenario, const JointRuns& runs,
                                   const cli::InterruptWatch& interrupt) {
    if (auto read = wait_for_epochs(runs, scenario.epochs, interrupt, [] {}); !read) {
        return std::unexpected(read.error());
    }
    std::vector<double> seconds;
    seconds.reserve(runs.size());
    for (const auto& run : runs) {
        run->stop();
        seconds.push_back(run->seconds());
    }
    return seconds;
}

Result<RunTimes> run_on_nodes(const JointScenario& scenario, const std::vector<FileSet>& files,
                              const std::string& directory, const std::string& policy,
                              const cli::InterruptWatch& interrupt) {
    const bool pools_caches = policy.ends_with(kPeersSuffix);
    auto cluster =
        JointCluster::start(scenario, files, directory,
                            {.objective = policy.substr(0, policy.size() - (pools_caches ? kPeersSuffix.size() : 0)),
                             .pools_caches = pools_caches,
                             .declares_rates = false});
    if (!cluster) return std::unexpected(cluster.error());
    auto ages_s = cluster->report_ages_s();
    if (!ages_s) return std::unexpected(ages_s.error());
    JointRuns runs;
    runs.reserve(scenario.jobs.size());
    for (const JointJob& job : scenario.jobs) {
        runs.push_back(run_on_larder(scenario, job, cluster->node(job.node).socket(), scenario.epochs));
    }
    auto seconds = finish(scenario, runs, interrupt);
    if (!seconds) return std::unexpected(seconds.error());
    return RunTimes{std::move(*seconds), cluster->network(), std::move(*ages_s)};
}

Result<RunTimes> run_on_lru(const JointScenario& scenario, const std::vector<FileSet>& files,
                            const cli::InterruptWatch& interrupt) {
    const auto store = std::make_shared<LruStore>(scenario.node_cache_bytes * scenario.nodes);
    const auto remote = std::make_shared<FairLimiter>(scenario.remote_bytes_per_second,
                                                      cache::default_burst_bytes(scenario.remote_bytes_per_second),
                                                      scenario.jobs.size());
    JointRuns runs;
    runs.reserve(scenario.jobs.size());
    for (std::size_t j = 0; j < scenario.jobs.size(); ++j) {
        const JointJob& job = scenario.jobs[j];
        LruOptions options = lru_options(scenario, job, files[job.dataset], store);
        options.shared_remote = remote;
        options.reader = j;
        runs.push_back(std::make_unique<JointJobRun>(
            job.name, [options]() -> Result<std::unique_ptr<Feeder>> { return std::make_unique<LruFeeder>(options); },
            job.ideal_bytes_per_second, scenario.epochs));
    }
    auto seconds = finish(scenario, runs, interrupt);
    if (!seconds) return std::unexpected(seconds.error());
    return RunTimes{.seconds = std::move(*seconds)};
}

Result<boost::json::object> compare(const JointScenario& scenario, const std::vector<FileSet>& files,
                                    const std::string& directory, const std::string& policy,
                                    const cli::InterruptWatch& interrupt) {
    const auto measured = policy == "lru" ? run_on_lru(scenario, files, interrupt)
                                          : run_on_nodes(scenario, files, directory, policy, interrupt);
    if (!measured) return std::unexpected(measured.error());
    const auto simulated = simulate_joint(scenario, policy, measured->report_ages_s);
    if (!simulated) return std::unexpected(simulated.error());
    boost::json::array jobs;
    double largest = 0;
    for (std::size_t j = 0; j < measured->seconds.size(); ++j) {
        const double off = (*simulated)[j] / measured->seconds[j] - 1;
        largest = std::max(largest, std::abs(off));
        jobs.push_back(boost::json::object{{"name", scenario.jobs[j].name},
                                           {"measured_s", measured->seconds[j]},
                                           {"simulated_s", (*simulated)[j]},
                                           {"off", off}});
    }
    return boost::json::object{
        {"policy", policy},
        {"network", measured->network.empty() ? boost::json::value() : boost::json::value(measured->network)},
        {"jobs", std::move(jobs)},
        {"largest_off", largest}};
}

std::string text(const char* format, double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, format, value);
    return buffer;
}

void print(const JointScenario& scenario, const boost::json::array& policies) {
    std::printf("B = %s, %u nodes with %s of cache each, %u epochs a job\n\n",
                format_bytes_per_second(scenario.remote_bytes_per_second).c_str(), scenario.nodes,
                format_bytes(scenario.node_cache_bytes).c_str(), scenario.epochs);
    cli::Table table({"policy", "job", ">measured", ">simulated", ">off"});
    for (const auto& policy : policies) {
        for (const auto& job : policy.at("jobs").as_array()) {
            table.add({std::string(policy.at("policy").as_string()), std::string(job.at("name").as_string()),
                       text("%.1f s", job.at("measured_s").as_double()),
                       text("%.1f s", job.at("simulated_s").as_double()),
                       text("%+.1f %%", job.at("off").as_double() * 100)});
        }
    }
    std::printf("%s", table.text().c_str());
}

}  // namespace

Result<boost::json::value> reality(const BenchOptions& options) {
    const cli::InterruptWatch interrupt;
    auto work = WorkDirectory::make(options.directory);
    if (!work) return std::unexpected(work.error());
    const JointScenario scenario = joint_scenario(options.quick);
    std::vector<FileSet> files;
    for (const JointDataset& dataset : scenario.datasets) {
        auto written = write_files(*work / dataset.name, dataset.blocks, scenario.block_bytes);
        if (!written) return std::unexpected(written.error());
        files.push_back(std::move(*written));
    }
    boost::json::array policies;
    const std::vector<std::string> policy_names = options.policies.empty() ? reality_policies() : options.policies;
    for (const std::string& policy : policy_names) {
        auto result = compare(scenario, files, *work / std::to_string(policies.size()), policy, interrupt);
        if (!result) return std::unexpected(result.error().within(policy));
        policies.push_back(std::move(*result));
    }
    if (!options.json) print(scenario, policies);
    return policies;
}

}  // namespace larder::bench
