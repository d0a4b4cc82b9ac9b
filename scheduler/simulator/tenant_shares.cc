#include "scheduler/simulator/tenant_shares.h"

#include <algorithm>
#include <utility>

namespace larder::scheduler {

namespace {

// One for all jobs of a tenant.
std::vector<Leaf> leaf_each(std::size_t tenants) {
    std::vector<Leaf> leaves(tenants);
    for (std::uint32_t t = 0; t < tenants; ++t) leaves[t].tenant = t;
    return leaves;
}

}  // namespace

TenantShares::TenantShares(const PolicyOptions& options, std::vector<Tenant>& tenants)
    : interval_s_(options.interval_s),
      intervals_in_window_(std::max(1U, options.window_intervals)),
      tenants_(tenants),
      demands_(leaf_each(tenants.size())),
      tree_(tenants, demands_),
      entitled_(tenants.size()),
      attained_s_(tenants.size()),
      due_s_(tenants.size()) {
    for (Tenant& tenant : tenants_) tenant.gpu_s_by_interval.assign(intervals_in_window_, 0);
}

void TenantShares::change_demand(std::uint32_t tenant, double gpus) {
    demands_[tenant].demand += gpus;
    stale_ = true;
}

void TenantShares::set_gpus(double gpus) {
    gpus_ = gpus;
    stale_ = true;
}

void TenantShares::add(std::uint32_t tenant, double gpu_s) {
    tenants_[tenant].gpu_s_by_interval.back() += gpu_s;
    attained_s_[tenant] += gpu_s;
}

void TenantShares::pass(double seconds, double now_s) {
    if (std::exchange(stale_, false)) entitled_ = entitled();
    for (std::size_t t = 0; t < due_s_.size(); ++t) due_s_[t] += entitled_[t] * seconds;
    while (now_s >= next_s()) roll();
}

void TenantShares::roll() {
    ++interval_;
    for (Tenant& tenant : tenants_) {
        auto& by_interval = tenant.gpu_s_by_interval;
        std::ranges::rotate(by_interval, by_interval.begin() + 1);
        by_interval.back() = 0;
    }
    if (++intervals_since_ < intervals_in_window_) return;
    intervals_since_ = 0;
    constexpr double kDueMin_s = 3600;
    for (std::size_t t = 0; t < due_s_.size(); ++t) {
        if (due_s_[t] >= kDueMin_s) ratios_.push_back(std::min(1.0, attained_s_[t] / due_s_[t]));
        due_s_[t] = 0;
        attained_s_[t] = 0;
    }
}

}  // namespace larder::scheduler
