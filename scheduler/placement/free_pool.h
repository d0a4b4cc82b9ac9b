#pragma once

// A placer without guaranteed cells. Any free GPU will do; free_gpus.h chooses. A job with a claim is never evicted. If
// too few GPUs are free for a job with a claim, opportunistic jobs are evicted, the latest first.

#include <set>
#include <unordered_map>
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
        std::uint32_t gpus = 0;
        std::uint64_t taken = 0;

        // The free GPUs: of a node that was made smaller as many as it has left, whatever their numbers.
        std::uint64_t free() const;
        bool has(std::uint64_t wanted) const { return (wanted & ~lowest_bits(~0ULL, gpus)) == 0; }
    };
    void take(const PlaceRequest& request, const Placement& placement);
    void put(JobId job, Taken taken);
    Taken release_gpus(JobId job);
    bool is_free(const Placement& placement) const;
    bool is_still_free(const Placement& former, const std::optional<Placed>& placed) const;
    std::optional<Placed> place_with_evictions(const PlaceRequest& request);

    bool is_open_;
    std::vector<Node> nodes_;
    FreeGpus free_;
    FreeGpus idle_;  // all GPUs are free, and all nodes usable
    std::unordered_map<JobId, Taken> placed_;
    std::set<std::pair<std::uint64_t, JobId>> opportunistic_;  // by arrival
    std::uint64_t arrivals_ = 0;
};

}  // namespace larder::scheduler
