#include "scheduler/policies/lease_plan.h"

#include <algorithm>

namespace larder::scheduler {

LeasePlan::LeasePlan(const Snapshot& snapshot, double first_end_s, double lease_s, std::uint32_t leases)
    : now_s_(snapshot.now_s), first_end_s_(first_end_s), lease_s_(lease_s), leases_(leases) {
    for (const GpuTypeState& type : snapshot.gpu_types) free_.emplace_back(leases, type.gpus);
}

double LeasePlan::start_s(std::uint32_t lease) const {
    return lease == 0 ? now_s_ : end_s(lease - 1);
}

LeaseFit LeasePlan::fit(const LeaseDemand& demand, std::uint32_t gpu_type) const {
    LeaseFit found{.gpu_type = gpu_type};
    const double rate = demand.rates[gpu_type];
    double left_s = demand.remaining_bytes / rate;
    bool goes_on = demand.runs;
    bool started = demand.started;
    for (std::uint32_t lease = 0; lease < leases_; ++lease) {
        if (free_[gpu_type][lease] < demand.gpus) {
            goes_on = false;
            if (!demand.preemptible) {
                left_s = demand.remaining_bytes / rate;
                found.leases.clear();
            }
            continue;
        }
        const double lost_s = started && !goes_on ? demand.restart_s : 0;
        const double begins_s = start_s(lease) + lost_s;
        found.leases.push_back(lease);
        goes_on = started = true;
        if (left_s <= end_s(lease) - begins_s) {
            found.end_s = begins_s + left_s;
            return found;
        }
        left_s -= std::max(0.0, end_s(lease) - begins_s);
    }
    found.end_s = end_s(leases_ - 1) + left_s;
    return found;
}

LeaseFit LeasePlan::fit(const LeaseDemand& demand) const {
    LeaseFit best;
    for (std::uint32_t type = 0; type < free_.size(); ++type) {
        if (demand.rates[type] <= 0) continue;
        LeaseFit found = fit(demand, type);
        if (best.gpu_type == kAnyGpuType || found.end_s < best.end_s) best = std::move(found);
    }
    return best;
}

void LeasePlan::take(std::uint32_t gpu_type, std::uint32_t lease, std::uint32_t gpus) {
    std::uint32_t& free = free_[gpu_type][lease];
    free -= std::min(free, gpus);
}

void LeasePlan::take(const LeaseFit& fit, std::uint32_t gpus) {
    for (const std::uint32_t lease : fit.leases) take(fit.gpu_type, lease, gpus);
}

void LeasePlan::hold(std::uint32_t gpu_type, std::uint32_t gpus, double until_s) {
    for (std::uint32_t lease = 0; lease < leases_ && start_s(lease) < until_s; ++lease) take(gpu_type, lease, gpus);
}

}  // namespace larder::scheduler
