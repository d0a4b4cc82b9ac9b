#include "allocator/rate_bound.h"

#include <algorithm>
#include <map>
#include <utility>

namespace larder::allocator {
namespace {

// A limit counts as full from this utilization on: plans are rounded, and made from the cache's content at one moment.
constexpr double kFullPart = 0.95;

// The load of one node, in bytes per second.
struct PredictedLoad {
    double in = 0;
    double out = 0;
    double disk = 0;
};

// A limit of a node that is full.
struct FullLimit {
    double utilization = 0;
    RateBound::Kind kind = RateBound::Kind::network;
    std::uint32_t node = 0;
};

// The cached bytes of one dataset in one peer group.
struct GroupCache {
    double bytes = 0;
    double hits_per_byte = 0;     // the rate at which all jobs read each of the bytes
    std::vector<FullLimit> full;  // of the nodes that hold the bytes, the fullest first
};

using GroupCaches = std::map<std::pair<std::uint32_t, std::uint32_t>, GroupCache>;  // by dataset and group

// The part of a job that runs on a node or in a peer group.
using JobParts = std::map<std::uint32_t, double>;

double job_part_at(const JobParts& parts, std::uint32_t at) {
    const auto found = parts.find(at);
    return found == parts.end() ? 0 : found->second;
}

// The predicted reads of one job. Its hits come from the nodes of its peer groups, in proportion to their part of the
// dataset. Misses, and hits from other nodes, come in over the network of the nodes that it runs on.
struct JobReads {
    std::uint32_t dataset = 0;
    double rate = 0;
    double hits = 0;
    double misses = 0;
    double weight = 0;  // the sum of the bytes in its groups, each times the group's part of the job
    JobParts nodes;
    JobParts groups;
};

class AllBounds {
public:
    AllBounds(const ClusterState& state, const Plan& plan) : state_(state), plan_(plan), loads_(state.nodes.size()) {
        for (std::uint32_t d = 0; d < state.datasets.size(); ++d) {
            for (const NodeCache& cache : state.datasets[d].cached) {
                caches_[{d, group_of(cache.node)}].bytes += static_cast<double>(cache.bytes());
            }
        }
        jobs_.reserve(state.jobs.size());
        for (std::size_t j = 0; j < state.jobs.size(); ++j) jobs_.push_back(add_job(j));
        add_hits();
    }

    RateBound bound_of(std::size_t j) const {
        const JobReads& job = jobs_[j];
        const bool grant_covers_misses = plan_.jobs[j].bandwidth_bytes_per_second >= kFullPart * job.misses;
        if (!grant_covers_misses || remote_ >= kFullPart * state_.remote_bytes_per_second) return {};
        FullLimit fullest{.utilization = kFullPart, .kind = RateBound::Kind::remote, .node = 0};
        const auto consider = [&](const FullLimit& limit) {
            if (limit.utilization >= fullest.utilization) fullest = limit;
        };
        for (const auto& [node, part] : job.nodes) {
            const double own_in = part * job.rate - own_hits(job, node);
            if (own_in > 0) {
                consider({utilization(loads_[node].in, state_.nodes[node].nic_bytes_per_second),
                          RateBound::Kind::network, node});
            }
        }
        for (const auto& [group, part] : job.groups) {
            const auto cache = caches_.find({job.dataset, group});
            if (cache == caches_.end() || job.hits <= 0 || part <= 0) continue;
            const auto& full = cache->second.full;
            const auto first =
                std::ranges::find_if(full, [&](const FullLimit& limit) { return loads_limit(job, part, limit); });
            if (first != full.end()) consider(*first);
        }
        if (fullest.kind == RateBound::Kind::remote) return {};
        return {.kind = fullest.kind, .node = state_.nodes[fullest.node].name};
    }

private:
    std::uint32_t group_of(std::uint32_t node) const { return state_.nodes[node].peer_group; }

    static double utilization(double load, double limit) { return limit > 0 ? load / limit : 0; }

    // A job that runs on one node of a group only reads that node's bytes without its network.
    static bool loads_limit(const JobReads& job, double group_part, const FullLimit& limit) {
        return limit.kind == RateBound::Kind::disk || job_part_at(job.nodes, limit.node) < group_part;
    }

    JobReads add_job(std::size_t j) {
        const JobPlan& planned = plan_.jobs[j];
        JobReads job{.dataset = state_.jobs[j].dataset};
        if (!planned.running) return job;
        job.rate = planned.predicted_bytes_per_second;
        job.hits = job.rate * planned.hit_ratio;
        job.misses = job.rate - job.hits;
        remote_ += job.misses;
        const GpuShares& placement = placement_of(state_, plan_, j);
        double gpus = 0;
        for (const GpuShare& share : placement) gpus += share.gpus;
        for (const GpuShare& share : placement) {
            const double part = gpus > 0 ? share.gpus / gpus : 1.0 / static_cast<double>(placement.size());
            job.nodes[share.node] += part;
            job.groups[group_of(share.node)] += part;
        }
        for (const auto& [group, part] : job.groups) {
            const auto cache = caches_.find({job.dataset, group});
            if (cache != caches_.end()) job.weight += part * cache->second.bytes;
        }
        for (const auto& [node, part] : job.nodes) {
            const double own = own_hits(job, node);
            loads_[node].in += part * job.rate - own;
            loads_[node].out -= own;
        }
        if (job.weight <= 0) return job;
        for (const auto& [group, part] : job.groups) {
            const auto cache = caches_.find({job.dataset, group});
            if (cache != caches_.end()) cache->second.hits_per_byte += job.hits * part / job.weight;
        }
        return job;
    }

    // Returns the rate at which a job reads bytes that its own node holds.
    double own_hits(const JobReads& job, std::uint32_t node) const {
        const std::vector<NodeCache>& cached = state_.datasets[job.dataset].cached;
        const auto found = std::ranges::lower_bound(cached, node, {}, &NodeCache::node);
        if (found == cached.end() || found->node != node || job.weight <= 0) return 0;
        return job_part_at(job.nodes, node) * job.hits * static_cast<double>(found->bytes()) / job.weight;
    }

    void add_hits() {
        const auto for_each_cache = [&](auto&& act) {
            for (std::uint32_t d = 0; d < state_.datasets.size(); ++d) {
                for (const NodeCache& cache : state_.datasets[d].cached) {
                    if (cache.bytes() > 0) act(cache, caches_.at({d, group_of(cache.node)}));
                }
            }
        };
        for_each_cache([&](const NodeCache& cache, const GroupCache& group) {
            loads_[cache.node].out += group.hits_per_byte * static_cast<double>(cache.bytes());
            loads_[cache.node].disk += group.hits_per_byte * static_cast<double>(cache.disk_bytes);
        });
        for_each_cache([&](const NodeCache& cache, GroupCache& group) {
            const ClusterNode& node = state_.nodes[cache.node];
            const PredictedLoad& load = loads_[cache.node];
            const double out = utilization(load.out, node.nic_bytes_per_second);
            const double disk = utilization(load.disk, node.disk_read_bytes_per_second);
            if (out >= kFullPart) group.full.push_back({out, RateBound::Kind::network, cache.node});
            if (disk >= kFullPart && cache.disk_bytes > 0)
                group.full.push_back({disk, RateBound::Kind::disk, cache.node});
        });
        for (auto& [place, group] : caches_) {
            std::ranges::stable_sort(group.full, std::ranges::greater{}, &FullLimit::utilization);
        }
    }

    const ClusterState& state_;
    const Plan& plan_;
    double remote_ = 0;  // the rate of all misses
    GroupCaches caches_;
    std::vector<PredictedLoad> loads_;
    std::vector<JobReads> jobs_;
};

}  // namespace

std::vector<RateBound> rate_bounds(const ClusterState& state, const Plan& plan) {
    std::vector<RateBound> bounds(state.jobs.size());
    if (plan.jobs.size() != state.jobs.size()) return bounds;
    const AllBounds all(state, plan);
    for (std::size_t j = 0; j < bounds.size(); ++j) bounds[j] = all.bound_of(j);
    return bounds;
}

RateBound rate_bound(const ClusterState& state, const Plan& plan, std::string_view name) {
    const auto found = std::ranges::find(state.jobs, name, &ClusterJob::name);
    if (found == state.jobs.end() || plan.jobs.size() != state.jobs.size()) return {};
    return AllBounds(state, plan).bound_of(static_cast<std::size_t>(found - state.jobs.begin()));
}

}  // namespace larder::allocator
