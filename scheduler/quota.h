#pragma once

// Tenants' quotas while a decision is made: how many GPUs each may still take. A tenant's jobs count against its own
// quota and those of all tenants above it.

#include <span>
#include <vector>

#include "scheduler/snapshot.h"

namespace larder::scheduler {

class Quotas {
public:
    explicit Quotas(std::span<const Tenant> tenants);

    // kAnyGpuType: no quota binds.
    std::uint32_t left(std::uint32_t tenant) const;
    // Of the GPUs it asks for, those it may have: fewer only where it is elastic; 0: it has to wait.
    std::uint32_t allowed(const JobSpec& job, std::uint32_t gpus) const;
    void take(std::uint32_t tenant, std::uint32_t gpus);

private:
    std::span<const Tenant> tenants_;
    std::vector<std::uint32_t> left_;  // by tenant; empty when none has a quota
};

}  // namespace larder::scheduler
