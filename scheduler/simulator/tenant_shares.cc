#include "scheduler/simulator/tenant_shares.h"

#include <algorithm>
#include <utility>

namespace larder::scheduler {

namespace {

// One leaf per tenant, for all its jobs.
std::vector<Leaf> one_leaf_per_tenant(std::size_t tenants) {
    std::vector<Leaf> leaves(tenants);
    for (std::uint32_t t = 0; t < tenants; ++t) leaves[t].tenant = t;
    return leaves;
}

}  // namespace

TenantShares::TenantShares(const PolicyOptions& options, std::vector<Tenant>& tenants)
    : window_(options.window()),
      tenants_(tenants),
      demands_(one_leaf_per_tenant(tenants.size())),
      tree_(tenants, demands_),
      entitled_(tenants.size()),
      attained_gpu_s_(tenants.size()),
      entitled_gpu_s_(tenants.size()) {}

void TenantShares::change_demand(std::uint32_t tenant, double gpus) {
    demands_[tenant].demand += gpus;
    stale_ = true;
}

void TenantShares::set_gpus(double gpus) {
    gpus_ = gpus;
    stale_ = true;
}

void TenantShares::add(std::uint32_t tenant, double from_s, double to_s, double gpus) {
    tenants_[tenant].gpu_time.add(from_s, to_s, gpus, window_);
    attained_gpu_s_[tenant] += (to_s - from_s) * gpus;
}

void TenantShares::advance(double seconds, double now_s) {
    if (std::exchange(stale_, false)) entitled_ = entitled();
    for (std::size_t t = 0; t < entitled_gpu_s_.size(); ++t) entitled_gpu_s_[t] += entitled_[t] * seconds;
    while (now_s >= next_s()) end_interval();
}

void TenantShares::end_interval() {
    ++interval_;
    if (++intervals_since_ < window_.intervals) return;
    intervals_since_ = 0;
    constexpr double kEntitledMin_gpu_s = 3600;
    for (std::size_t t = 0; t < entitled_gpu_s_.size(); ++t) {
        if (entitled_gpu_s_[t] >= kEntitledMin_gpu_s)
            ratios_.push_back(std::min(1.0, attained_gpu_s_[t] / entitled_gpu_s_[t]));
        entitled_gpu_s_[t] = 0;
        attained_gpu_s_[t] = 0;
    }
}

}  // namespace larder::scheduler
