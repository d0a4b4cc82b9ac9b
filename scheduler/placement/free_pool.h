#pragma once

// A placer without guarantees: any free GPU will do, chosen as free_gpus.h says, and whoever has a place keeps it.

#include <unordered_map>

#include "scheduler/placement/free_gpus.h"

namespace larder::scheduler {

class FreePool final : public Placer {
public:
    explicit FreePool(const GpuCluster& cluster) : free_(cluster) {}

    std::optional<Placed> place(const PlaceRequest& request) override;
    bool place_at(const PlaceRequest& request, const Placement& placement) override;
    void release(JobId job) override;
    std::uint32_t free_gpus(std::uint32_t gpu_type) const override { return free_.count(gpu_type); }
    bool set_opportunistic(JobId /*job*/, bool /*opportunistic*/) override { return false; }
    void set_usable(std::uint32_t node, bool usable) override { free_.set_usable(node, usable); }

private:
    FreeGpus free_;
    std::unordered_map<JobId, Placement> placed_;
};

}  // namespace larder::scheduler
