#pragma once

// GPU time of each tenant in the last intervals of a policy's window, as Tenant::gpu_s_by_interval has it.

#include <algorithm>
#include <cmath>
#include <vector>

#include "scheduler/policy.h"

namespace larder::scheduler {

class TenantShares {
public:
    TenantShares(const PolicyOptions& options, std::vector<Tenant>& tenants)
        : interval_s_(options.interval_s), tenants_(tenants) {
        for (Tenant& tenant : tenants_) tenant.gpu_s_by_interval.assign(std::max(1U, options.window_intervals), 0);
    }

    void add(std::uint32_t tenant, double gpu_s) { tenants_[tenant].gpu_s_by_interval.back() += gpu_s; }

    void roll_to(double now_s) {
        const double intervals = std::floor(now_s / interval_s_);
        for (; interval_ < intervals; ++interval_) {
            for (Tenant& tenant : tenants_) {
                auto& by_interval = tenant.gpu_s_by_interval;
                std::ranges::rotate(by_interval, by_interval.begin() + 1);
                by_interval.back() = 0;
            }
            // After a whole window without anybody all are zero anyway.
            if (intervals - interval_ > static_cast<double>(2 * window()))
                interval_ = intervals - static_cast<double>(window());
        }
    }

private:
    std::size_t window() const { return tenants_.empty() ? 1 : tenants_[0].gpu_s_by_interval.size(); }

    double interval_s_;
    double interval_ = 0;
    std::vector<Tenant>& tenants_;
};

}  // namespace larder::scheduler
