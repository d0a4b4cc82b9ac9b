#pragma once

// Tenants' GPU quotas during one decision: how many GPUs each tenant may still take. A tenant's jobs count against its
// own quota and against those of all tenants above it.

#include <span>
#include <vector>

#include "scheduler/snapshot.h"

namespace larder::scheduler {

class GpuQuotas {
public:
    explicit GpuQuotas(std::span<const Tenant> tenants);

    // Returns the GPUs that the tenant may still take; kAllGpus: no quota limits it.
    std::uint32_t left(std::uint32_t tenant) const;
    // Returns how many of `gpus` the job may have: fewer only if it is elastic; 0: it must wait.
    std::uint32_t allowed(const JobSpec& job, std::uint32_t gpus) const;
    void take(std::uint32_t tenant, std::uint32_t gpus);

private:
    std::span<const Tenant> tenants_;
    std::vector<std::uint32_t> left_;  // by tenant; empty if no tenant has a quota
};

}  // namespace larder::scheduler
