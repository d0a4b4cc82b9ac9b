#pragma once

// Chooses the place of a gang by the plan that cache and bandwidth would get with the gang there. A placer finds the
// place where the gang fits best (free_gpus.h). This class compares it with other places, where networks have more to
// spare or more of the gang's data lies, and takes one of them if it makes a better plan. An object serves one
// decision: it begins with the state that plans are made from, and the jobs that the decision starts and stops are
// added and removed. On large clusters, where there is no time to solve plans, an estimate from networks and data
// decides alone. One thread.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "allocator/assign.h"
#include "scheduler/gpu_cluster.h"
#include "scheduler/snapshot.h"

namespace larder::scheduler {

// The state that plans are made from, and what the indices of a snapshot and a GpuCluster are in it.
struct PlanInput {
    static constexpr std::uint32_t kUnknown = std::numeric_limits<std::uint32_t>::max();

    const GpuCluster* cluster = nullptr;  // not owned
    allocator::ClusterState state;        // cached bytes are sorted by node
    allocator::ObjectiveKind objective = allocator::ObjectiveKind::efficiency;
    std::vector<std::uint32_t> node_of;                 // by GPU node; kUnknown: plans do not know the node
    std::vector<std::uint32_t> job_of;                  // by index in Snapshot::jobs; kUnknown: not in the state
    std::map<std::uint32_t, std::uint32_t> dataset_of;  // by index in Snapshot::datasets; others are not in the state
    bool epochs_known = true;                           // if not, every job counts as reading on after its epoch
};

struct Gang {
    std::uint32_t job = 0;  // index in Snapshot::jobs
    std::uint32_t gpus = 0;
    std::uint32_t gpu_type = 0;
};

class PlacesByPlan {
public:
    // The questions that choose() asks the placer. `free_on` returns a node's free GPUs as bits; `allows` says whether
    // the gang may have these GPUs.
    struct Rules {
        std::function<std::uint64_t(std::uint32_t node)> free_on;
        std::function<bool(const Placement& placement)> allows;
        std::size_t nodes_max = std::numeric_limits<std::size_t>::max();
    };

    // `snapshot` and `input.cluster` must outlive this object.
    PlacesByPlan(const Snapshot& snapshot, PlanInput input);

    // Returns `usual`, or an allowed place that makes a better plan by more than small errors of estimates explain. If
    // nodes cache for themselves, returns, of the places that are as good on as few nodes and as few whole ones, the
    // one whose caches serve the jobs of other datasets least.
    Placement choose(const Gang& gang, const Placement& usual, const Rules& rules);
    void start(const Gang& gang, const Placement& placement);
    void stop(std::uint32_t job);

private:
    struct FreeNode {
        std::uint32_t node = 0;  // in the GpuCluster
        std::uint64_t free = 0;
        double network = 0;  // bytes/s that one more job could receive here
        double hits = 0;     // the part of the gang's data that lies here
        double room = 0;     // bytes of cache that no running job's dataset has

        std::uint32_t count() const { return static_cast<std::uint32_t>(std::popcount(free)); }
    };
    using FreeNodes = std::vector<FreeNode>;

    struct Network {
        double bytes_per_second = 0;
        double received = 0;  // bytes/s, by the jobs that read there
        int readers = 0;

        // Returns what is unused, or an equal part for one more job if that is more.
        double left() const { return std::max(bytes_per_second - received, bytes_per_second / (1 + readers)); }
    };

    FreeNodes free_nodes(const Gang& gang, const Rules& rules);
    template <typename Take>
    void try_places(const Gang& gang, FreeNodes nodes, const Take& take) const;
    std::vector<Placement> other_places(const Gang& gang, const Placement& usual, const Rules& rules);
    Placement choose_by_estimate(const Gang& gang, const Placement& usual, const Rules& rules);
    static bool may_have(const Placement& placement, const Rules& rules) {
        return placement.size() <= rules.nodes_max && rules.allows(placement);
    }
    double estimated_rate(const Gang& gang, const Placement& placement) const;
    std::uint32_t nodes_least(const Gang& gang) const;
    double ideal_at(const Gang& gang, const Placement& placement) const;
    double highest_ideal(const Gang& gang) const;
    allocator::PlanValue value_at(const Gang& gang, const Placement& placement);

    allocator::ClusterJob as_planned(const Gang& gang, const Placement& placement);
    bool reads(const Gang& gang) const { return snapshot_.jobs[gang.job]->spec->dataset != kNoDataset; }
    bool is_known(const Placement& placement) const;
    bool is_whole(std::uint32_t node, const Rules& rules) const;  // all of its GPUs are free
    std::ptrdiff_t spare_whole_nodes(const Gang& gang, const Rules& rules) const;
    std::ptrdiff_t whole_nodes(const Placement& placement, const Rules& rules) const;
    double hits_of_others(const Gang& gang, const Placement& placement) const;
    double hits_of(std::uint32_t dataset, const allocator::NodeCache& cached) const;
    double hits_on(std::uint32_t dataset, std::uint32_t state_node) const;
    void find_room();
    void count_reads(const allocator::ClusterJob& job, double rate, int times);

    const Snapshot& snapshot_;
    PlanInput input_;
    const GpuCluster& cluster_;
    std::vector<std::uint32_t> gpus_on_largest_node_;      // by GPU type
    std::uint32_t largest_gang_gpus_ = 0;                  // of all jobs of the snapshot
    std::vector<double> rates_;                            // by job of the state
    std::vector<std::vector<std::uint32_t>> known_nodes_;  // by GPU type: the nodes that plans know
    std::vector<Network> networks_;                        // by node of the state
    std::vector<double> hits_;                             // by node of the state: zeros, except within free_nodes()
    std::vector<double> wanted_;                           // by dataset of the state: the sum of its running jobs' f*
    std::vector<int> jobs_reading_;                        // by dataset of the state: the number of these jobs
    std::vector<double> room_;    // by node of the state: bytes of cache that no running job's dataset has
    bool place_matters_ = false;  // some network is limited, or nodes cache for themselves
    std::size_t trials_left_ = 0;
};

}  // namespace larder::scheduler
