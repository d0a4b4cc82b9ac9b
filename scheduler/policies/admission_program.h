#pragma once

// Chooses by an integer program which jobs are promised their deadlines: the integer program of Chronus (SoCC '21), for
// CBC. An admitted job has one type of GPU and as many leases before its deadline as its work takes. In each lease, the
// jobs on a type take no more GPUs than exist, and a tenant's jobs no more than the tenant has a claim to. Jobs with
// strict deadlines count twice those with soft ones. The search ends after a fixed number of nodes, the same on every
// machine, with the best plan found.

#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "scheduler/policies/lease_plan.h"

namespace larder::scheduler {

struct AdmissionCandidate {
    const LeaseDemand* demand = nullptr;
    bool must_admit = false;  // already promised
    // Set if the job is within a lease: the type of its GPUs. The job keeps them to the end of the lease, but they
    // count as free in the plan.
    std::optional<std::uint32_t> holds_type;
    double value = 1;
};

// Returns the leases of each candidate, none for those not admitted; nullopt if the search found no plan.
std::optional<std::vector<LeaseFit>> admit_by_program(const LeasePlan& plan, std::uint32_t types,
                                                      std::span<const AdmissionCandidate> candidates);

}  // namespace larder::scheduler
