#pragma once

// A placer without guaranteed cells. Any free GPU will do; free_gpus.h chooses. A job with a claim is never evicted. If
// too few GPUs are free for a job with a claim, opportunistic jobs are evicted, the latest first.

#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler/placement/free_gpus.h"

namespace larder::scheduler {

class FreePool final : public Placer {
public:
    explicit FreePool(const GpuCluster& cluster);

    std::optional<Placed> place(const PlaceRequest& request) override;
    bool place_at(const PlaceRequest& request, const Placement& placement) override;
    void release(JobId job) override;
    Result<void> check(const PlaceRequest& request) const override;
    std::uint32_t free_gpus(std::uint32_t gpu_type) const override { return free_.count(gpu_type); }
    std::uint64_t free_on(std::uint32_t node) const override { return free_.usable_at(node); }
    bool is_usable(std::uint32_t node) const override { return free_.usable(node); }
    // A job cannot give up its claim here: a job that is passed over is stopped instead.
    bool set_opportunistic(JobId job, bool opportunistic) override;
    std::uint32_t owned_gpus(std::uint32_t /*tenant*/, std::uint32_t /*gpu_type*/) const override { return kAllGpus; }
    void set_usable(std::uint32_t node, bool usable) override { free_.set_usable(node, usable); }
    void set_node(std::uint32_t node, const GpuNode& now) override;

private:
    struct Taken {
        Placement placement;
        std::uint64_t arrival = 0;
        bool opportunistic = false;
    };
    struct Node {
        std::string name;
        std::uint32_t gpus = 0;
        std::uint64_t taken = 0;
        // The jobs that were here when the machine was found to have fewer GPUs than they hold, and their GPUs.
        std::vector<std::pair<JobId, std::uint64_t>> kept;

        bool has(std::uint64_t wanted) const { return (wanted & ~lowest_bits(~0ULL, gpus)) == 0; }
    };
    struct Machine {
        std::uint32_t gpus = 0;
        std::uint32_t used = 0;
    };
    // The nodes of one machine: of an open cluster, those of the same name, of which one has GPUs.
    std::span<const std::uint32_t> machine_of(const std::uint32_t& node) const;
    Machine count_machine(std::span<const std::uint32_t> nodes) const;
    void update_free(std::uint32_t node);
    // Remembers the jobs of a machine whose jobs hold more GPUs than it has: they, and no others, may do so.
    void note_kept(std::uint32_t node);
    bool is_kept(JobId job, const NodeGpus& share) const;
    bool only_kept_jobs_on(std::uint32_t node) const;
    void take(const PlaceRequest& request, const Placement& placement);
    void put(JobId job, Taken taken);
    Taken release_gpus(JobId job);
    bool is_free(JobId job, const Placement& placement, bool runs_there) const;
    std::optional<Placed> place_with_evictions(const PlaceRequest& request);

    bool is_open_;
    std::vector<Node> nodes_;
    std::unordered_map<std::string, std::vector<std::uint32_t>> by_name_;  // of an open cluster
    FreeGpus free_;
    FreeGpus idle_;  // all GPUs are free, and all nodes usable
    std::unordered_map<JobId, Taken> placed_;
    std::set<std::pair<std::uint64_t, JobId>> opportunistic_;  // by arrival
    std::uint64_t arrivals_ = 0;
};

}  // namespace larder::scheduler
