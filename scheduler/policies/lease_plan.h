#pragma once

// The plan of GPUs in the coming leases, from which deadlines are promised (Chronus, SoCC '21). All leases end at the
// same times; the first of the plan is the rest of the current one. A job progresses only in its leases. If tenants
// have claims to less than all GPUs, no tenant has more than its claim in any lease, because other tenants may
// then have no GPUs to spare.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "scheduler/snapshot.h"

namespace larder::scheduler {

struct LeaseDemand {
    std::uint32_t job = 0;  // index in Snapshot::jobs
    std::uint32_t gpus = 0;
    std::uint32_t tenant = kNoTenant;
    std::vector<double> rates;  // by type; 0: cannot run there
    double remaining_bytes = 0;
    double restart_s = 0;                  // lost before each lease that does not directly follow one of its leases
    bool started = false;                  // it ran before; a first start in the current lease costs nothing
    bool runs = false;                     // it runs now: going on costs nothing
    std::uint32_t runs_on = kAnyGpuType;   // the type it runs on; going on elsewhere costs a restart
    std::uint32_t stays_on = kAnyGpuType;  // only this type: it is within a lease there
    double starting_s = 0;                 // rest of a restart in progress, where it runs
    bool preemptible = true;               // else its leases must be consecutive
    double deadline_s = kNever;
};

struct LeaseFit {
    std::uint32_t gpu_type = kNoGpuType;
    std::vector<std::uint32_t> leases;
    double end_s = kNever;

    bool starts_now() const { return !leases.empty() && leases.front() == 0; }
    bool meets(double deadline_s) const { return gpu_type != kNoGpuType && end_s <= deadline_s + 1e-6; }
};

class LeasePlan {
public:
    // `leases` is the number of leases; the time after them counts as free.
    LeasePlan(const Snapshot& snapshot, double first_end_s, double lease_s, std::uint32_t leases);
    // Makes leases that end at these times, in ascending order.
    LeasePlan(const Snapshot& snapshot, std::vector<double> ends_s);

    std::uint32_t leases() const { return static_cast<std::uint32_t>(ends_s_.size()); }
    double start_s(std::uint32_t lease) const;
    double end_s(std::uint32_t lease) const { return ends_s_[lease]; }
    std::uint32_t free(std::uint32_t gpu_type, std::uint32_t lease) const { return free_[gpu_type][lease]; }
    // Returns the rest of a tenant's claim; kAllGpus: all free GPUs.
    std::uint32_t claim_left(std::uint32_t tenant, std::uint32_t gpu_type, std::uint32_t lease) const {
        const bool limited = !claims_left_.empty() && tenant != kNoTenant;
        return limited ? claims_left_[claim_index(tenant, gpu_type, lease)] : kAllGpus;
    }
    std::uint32_t free(const LeaseDemand& demand, std::uint32_t gpu_type, std::uint32_t lease) const {
        return std::min(free_[gpu_type][lease], claim_left(demand.tenant, gpu_type, lease));
    }

    // Returns the earliest possible leases, on the type that lets the job end first.
    LeaseFit fit(const LeaseDemand& demand) const;
    // Returns the latest possible leases that meet the deadline, on the type that lets the job start last. The end is
    // kNever if there are not enough. A job that may not be stopped gets the earliest leases.
    LeaseFit fit_late(const LeaseDemand& demand) const;
    // Uses only the leases within `times`, as far as needed. The end is kNever if they are not enough, or not free.
    LeaseFit follow(const LeaseDemand& demand, const PromisedTimes& times) const;
    // Returns the times of the leases.
    PromisedTimes times_of(const LeaseFit& fit) const;
    void take(const LeaseFit& fit, const LeaseDemand& demand);
    // `tenant` is the owner of the claim; kNoTenant: no claim.
    void take(std::uint32_t gpu_type, std::uint32_t lease, std::uint32_t gpus, std::uint32_t tenant = kNoTenant);
    void release(std::uint32_t gpu_type, std::uint32_t lease, std::uint32_t gpus, std::uint32_t tenant = kNoTenant);
    // Takes GPUs for a job that has them already, until `until_s`.
    void hold(std::uint32_t gpu_type, std::uint32_t gpus, double until_s, std::uint32_t tenant = kNoTenant);

private:
    LeaseFit fit(const LeaseDemand& demand, std::uint32_t gpu_type, const PromisedTimes* within) const;
    LeaseFit fit_late(const LeaseDemand& demand, std::uint32_t gpu_type) const;

    double now_s_;
    std::vector<double> ends_s_;
    std::size_t claim_index(std::uint32_t tenant, std::uint32_t gpu_type, std::uint32_t lease) const {
        return (tenant * free_.size() + gpu_type) * ends_s_.size() + lease;
    }
    std::uint32_t* claim(std::uint32_t tenant, std::uint32_t gpu_type, std::uint32_t lease);

    std::vector<std::vector<std::uint32_t>> free_;  // by type, then lease
    std::vector<std::uint32_t> claims_left_;        // by tenant, type and lease; empty: no limits
};

// Returns the ends of leases up to `last_s`, the first at `first_end_s`, a multiple of `lease_s`. Near leases are
// `lease_s` wide, later ones 2, 4, 8, ... times as wide. As time goes on, a wide lease is only ever halved, so that
// work that fits once goes on fitting.
std::vector<double> widening_ends_s(double first_end_s, double lease_s, double last_s);

}  // namespace larder::scheduler
