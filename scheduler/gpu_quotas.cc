#include "scheduler/gpu_quotas.h"

#include <algorithm>

namespace larder::scheduler {

GpuQuotas::GpuQuotas(std::span<const Tenant> tenants) : tenants_(tenants) {
    if (std::ranges::all_of(tenants, [](const Tenant& tenant) { return tenant.gpu_quota == kAllGpus; })) return;
    left_.reserve(tenants.size());
    for (const Tenant& tenant : tenants) left_.push_back(tenant.gpu_quota);
}

std::uint32_t GpuQuotas::left(std::uint32_t tenant) const {
    std::uint32_t least = kAllGpus;
    for (std::size_t step = 0; tenant < left_.size() && step < left_.size(); ++step) {
        least = std::min(least, left_[tenant]);
        tenant = tenants_[tenant].parent;
    }
    return least;
}

std::uint32_t GpuQuotas::allowed(const JobSpec& job, std::uint32_t gpus) const {
    const std::uint32_t left_of_tenant = left(job.tenant);
    if (left_of_tenant >= gpus) return gpus;
    return left_of_tenant >= job.gpus_min ? job.usable_of(left_of_tenant) : 0;
}

void GpuQuotas::take(std::uint32_t tenant, std::uint32_t gpus) {
    for (std::size_t step = 0; tenant < left_.size() && step < left_.size(); ++step) {
        if (left_[tenant] != kAllGpus) left_[tenant] -= std::min(left_[tenant], gpus);
        tenant = tenants_[tenant].parent;
    }
}

}  // namespace larder::scheduler
