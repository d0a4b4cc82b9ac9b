#include "allocator/service/plan_json.h"

#include <boost/json.hpp>

#include <vector>

#include "allocator/protocol/objective.h"

namespace larder::allocator {
namespace json = boost::json;
namespace {

json::array node_caches(const std::vector<NodeCache>& caches, const ClusterState& state) {
    json::array array;
    for (const NodeCache& cache : caches) {
        if (cache.bytes() == 0) continue;
        array.push_back(json::object{{"node", state.nodes[cache.node].name},
                                     {"memory_bytes", cache.memory_bytes},
                                     {"disk_bytes", cache.disk_bytes}});
    }
    return array;
}

}  // namespace

json::object plan_json(const Cluster& cluster, std::uint64_t number) {
    const ClusterState& state = cluster.planned_state();
    const Plan& plan = cluster.plan();
    json::array nodes;
    for (const ClusterNode& node : state.nodes) {
        nodes.push_back(
            json::object{{"name", node.name}, {"memory_bytes", node.memory_bytes}, {"disk_bytes", node.disk_bytes}});
    }
    json::array datasets;
    for (std::size_t i = 0; i < state.datasets.size(); ++i) {
        std::uint64_t cached_bytes = 0;
        for (const NodeCache& cached : state.datasets[i].cached) cached_bytes += cached.bytes();
        datasets.push_back(json::object{{"name", state.datasets[i].name},
                                        {"size_bytes", state.datasets[i].size_bytes},
                                        {"cached_bytes", cached_bytes},
                                        {"quota_bytes", plan.datasets[i].quota_bytes},
                                        {"nodes", node_caches(plan.datasets[i].quotas, state)}});
    }
    json::array jobs;
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        const ClusterJob& job = state.jobs[j];
        const JobPlan& planned = plan.jobs[j];
        if (!planned.running) continue;  // waits for its turn
        json::array node_names;
        for (const GpuShare& share : placement_of(state, plan, j))
            node_names.push_back(json::value(state.nodes[share.node].name));
        jobs.push_back(json::object{{"name", job.name},
                                    {"dataset", state.datasets[job.dataset].name},
                                    {"nodes", std::move(node_names)},
                                    {"weight", job.weight},
                                    {"ideal_bytes_per_second", job.ideal_bytes_per_second},
                                    {"ideal_is_measured", cluster.measured_ideal(job.name).has_value()},
                                    {"equal_share_bytes_per_second", planned.equal_share_bytes_per_second},
                                    {"bandwidth_bytes_per_second", planned.bandwidth_bytes_per_second},
                                    {"hit_ratio", planned.hit_ratio},
                                    {"predicted_bytes_per_second", planned.predicted_bytes_per_second},
                                    {"steady_hit_ratio", planned.steady_hit_ratio},
                                    {"steady_bytes_per_second", planned.steady_bytes_per_second}});
    }
    return {{"plan", number},
            {"objective", name(cluster.options().objective.kind)},
            {"remote_bytes_per_second", state.remote_bytes_per_second},
            {"steady_remote_bytes_per_second", plan.steady_remote_bytes_per_second},
            {"moved_bytes", plan.moved_bytes},
            {"kept_quotas", plan.kept_quotas},
            {"nodes", std::move(nodes)},
            {"datasets", std::move(datasets)},
            {"jobs", std::move(jobs)}};
}

}  // namespace larder::allocator
