#pragma once

// GPU time by tenant: what each tenant attained (Tenant::gpu_time), and what it was entitled to in the same time. A
// tenant is entitled to a part of its parent's GPUs, by its weight among its siblings, but to no more than its jobs ask
// for. The attained part of the entitled time, window by window, measures how fair a policy is to tenants (Astraea,
// TPDS '22).

#include <cstdint>
#include <vector>

#include "scheduler/policies/tenant_tree.h"
#include "scheduler/policy.h"

namespace larder::scheduler {

class TenantShares {
public:
    TenantShares(const PolicyOptions& options, std::vector<Tenant>& tenants);

    // Records that the tenant's jobs, running and waiting, ask for `gpus` more GPUs (negative: fewer).
    void change_demand(std::uint32_t tenant, double gpus);
    void set_gpus(double gpus);
    // Returns the GPUs that each tenant is entitled to at present.
    std::vector<double> entitled() const { return tree_.divide(gpus_); }
    // Records that a job of the tenant had `gpus` GPUs from `from_s` to `to_s`.
    void add(std::uint32_t tenant, double from_s, double to_s, double gpus);
    // Returns when the interval ends. All GPU time until then must be added before advance() reaches it.
    double next_s() const { return (interval_ + 1) * window_.interval_s; }
    void advance(double seconds, double now_s);

    // Returns attained over entitled GPU time, at most 1, for each tenant and each window in which the tenant was
    // entitled to at least an hour of a GPU.
    const std::vector<double>& ratios() const { return ratios_; }

private:
    void end_interval();

    TimeWindow window_;
    double interval_ = 0;
    std::uint32_t intervals_since_ = 0;
    std::vector<Tenant>& tenants_;
    double gpus_ = 0;
    std::vector<Leaf> demands_;  // by tenant
    TenantTree tree_;            // its leaves are demands_
    std::vector<double> entitled_;
    bool stale_ = true;
    std::vector<double> attained_gpu_s_;  // in this window
    std::vector<double> entitled_gpu_s_;
    std::vector<double> ratios_;
};

}  // namespace larder::scheduler
