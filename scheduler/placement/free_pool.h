#pragma once

// A placer without guarantees: any free GPU will do. A gang that fits into one node goes where the fewest GPUs are left
// over, a larger one takes the fullest free nodes, so that it lies on as few as can be; among equals, nodes that hold
// the job's data go first, then those with lower numbers. Finding a place takes time with the gang's nodes, not with
// the cluster's.

#include <set>
#include <unordered_map>
#include <vector>

#include "scheduler/placement/placer.h"

namespace larder::scheduler {

class FreePool final : public Placer {
public:
    explicit FreePool(const GpuCluster& cluster);

    std::optional<Placed> place(const PlaceRequest& request) override;
    bool place_at(const PlaceRequest& request, const Placement& placement) override;
    void release(JobId job) override;
    std::uint32_t free_gpus(std::uint32_t gpu_type) const override { return free_by_type_[gpu_type]; }
    void set_usable(std::uint32_t node, bool usable) override;

private:
    struct Node {
        std::uint32_t gpu_type = 0;
        std::uint64_t all = 0;
        std::uint64_t free = 0;
        bool usable = true;
    };
    // The nodes of one type with just so many free GPUs, by that number.
    using ByFree = std::vector<std::set<std::uint32_t>>;

    void change(std::uint32_t node, std::uint64_t free);
    std::optional<std::uint32_t> find_node(const PlaceRequest& request, std::uint32_t gpus_at_least) const;

    std::vector<Node> nodes_;
    std::vector<ByFree> by_free_;  // by type
    std::vector<std::uint32_t> free_by_type_;
    std::unordered_map<JobId, Placement> placed_;
};

}  // namespace larder::scheduler
