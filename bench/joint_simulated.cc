#include "bench/joint_simulated.h"

#include "allocator/protocol/codec.h"
#include "bench/joint_cluster.h"
#include "scheduler/placement/free_pool.h"
#include "scheduler/simulator/simulation.h"

namespace larder::bench {
namespace {

// Every node has its own type of GPU, which its jobs require, so each job runs on the node that the scenario gives it.
scheduler::GpuCluster cluster_of(const JointScenario& scenario) {
    scheduler::GpuCluster cluster;
    for (std::uint32_t node = 0; node < scenario.nodes; ++node) {
        std::uint32_t jobs = 0;
        for (const JointJob& job : scenario.jobs) jobs += job.node == node;
        cluster.gpu_types.push_back(JointCluster::node_name(node));
        cluster.nodes.push_back({.name = JointCluster::node_name(node), .gpu_type = node, .gpus = jobs});
    }
    return cluster;
}

scheduler::Workload workload_of(const JointScenario& scenario) {
    scheduler::Workload workload;
    workload.tenants.push_back({.name = "all"});
    for (const JointDataset& dataset : scenario.datasets) {
        workload.datasets.push_back(
            {.name = dataset.name, .size_bytes = static_cast<double>(dataset.blocks * scenario.block_bytes)});
    }
    for (const JointJob& job : scenario.jobs) {
        scheduler::JobSpec& spec = workload.jobs.emplace_back();
        spec.name = job.name;
        spec.gpu_type = job.node;
        spec.ideal_bytes_per_second.resize(scenario.nodes);
        spec.ideal_bytes_per_second[job.node] = job.ideal_bytes_per_second;
        spec.dataset = job.dataset;
        spec.total_bytes = scenario.epochs * workload.datasets[job.dataset].size_bytes;
        workload.models.emplace_back(job.name);
    }
    return workload;
}

}  // namespace

Result<std::vector<double>> simulate_joint(const JointScenario& scenario, const std::string& policy,
                                           const std::vector<double>& report_ages_s) {
    scheduler::SimulationOptions options;
    options.storage.cache_bytes =
        static_cast<double>(scenario.node_cache_bytes + scenario.node_disk_bytes) * scenario.nodes;
    options.storage.remote_bytes_per_second = scenario.remote_bytes_per_second;
    if (policy == "lru") {
        options.cache.cache = scheduler::CacheKind::lru;
        options.cache.bandwidth = scheduler::BandwidthKind::fair;
        options.cache.lru_step_s = 0.25;
    } else {
        const bool pools_caches = policy.ends_with(kPeersSuffix);
        const auto objective =
            allocator::parse_objective(policy.substr(0, policy.size() - (pools_caches ? kPeersSuffix.size() : 0)));
        if (!objective) return std::unexpected(objective.error());
        options.cache.objective = *objective;
        options.cache.own_caches = !pools_caches;
        options.reported_plans = true;
        options.report_lease_s = kJointLease_s;
        options.report_floor_bytes_per_second = scenario.remote_bytes_per_second / 100;
        options.report_ages_s = report_ages_s;
    }
    const scheduler::GpuCluster cluster = cluster_of(scenario);
    scheduler::FreePool pool(cluster);
    const auto fifo = scheduler::make_policy("fifo", options.policy);
    if (!fifo) return std::unexpected(fifo.error());
    const auto outcome = scheduler::simulate(workload_of(scenario), cluster, **fifo, pool, options);
    if (!outcome) return std::unexpected(outcome.error());
    std::vector<double> seconds;
    seconds.reserve(outcome->jobs.size());
    for (const scheduler::JobOutcome& job : outcome->jobs) seconds.push_back(job.finish_s);
    return seconds;
}

}  // namespace larder::bench
