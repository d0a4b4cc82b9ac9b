#pragma once

// GPU time by tenant: what each attained, as Tenant::gpu_time has it, and what it was entitled to meanwhile: its part
// of all GPUs, by weight among its parent's tenants of the parent's part, of which nobody needs more than its jobs ask
// for. What a tenant attained of that, window by window, is how fair a policy is to tenants (Astraea, TPDS '22).

#include <cstdint>
#include <vector>

#include "scheduler/policies/tenant_tree.h"
#include "scheduler/policy.h"

namespace larder::scheduler {

class TenantShares {
public:
    TenantShares(const PolicyOptions& options, std::vector<Tenant>& tenants);

    // Its jobs, running and waiting, ask for so many GPUs more (or less).
    void change_demand(std::uint32_t tenant, double gpus);
    void set_gpus(double gpus);
    // Each tenant's part of the GPUs at present.
    std::vector<double> entitled() const { return tree_.divide(gpus_); }
    // A job of the tenant had so many GPUs all that time.
    void add(std::uint32_t tenant, double from_s, double to_s, double gpus);
    // When the interval ends; all that ran until then is to be told of before.
    double next_s() const { return (interval_ + 1) * window_.interval_s; }
    void pass(double seconds, double now_s);

    // Attained over entitled, at most 1, of each tenant and window in which it was entitled to an hour of a GPU.
    const std::vector<double>& ratios() const { return ratios_; }

private:
    void roll();

    TimeWindow window_;
    double interval_ = 0;
    std::uint32_t intervals_since_ = 0;
    std::vector<Tenant>& tenants_;
    double gpus_ = 0;
    std::vector<Leaf> demands_;  // by tenant
    TenantTree tree_;            // with them as its leaves
    std::vector<double> entitled_;
    bool stale_ = true;
    std::vector<double> attained_s_;  // in this window
    std::vector<double> due_s_;
    std::vector<double> ratios_;
};

}  // namespace larder::scheduler
