#pragma once

// Which jobs to promise their deadlines, exactly: the integer program of Chronus (SoCC '21) for CBC. A job that is
// admitted has one type of GPU and as many leases before its deadline as its work takes; no lease of a type has more
// GPUs than there are, or of a tenant than it has a claim to. Jobs with strict deadlines count twice those with soft
// ones. The search ends after so many nodes, the same on every machine, with the best found by then.

#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "scheduler/policies/lease_plan.h"

namespace larder::scheduler {

struct AdmissionCandidate {
    const LeaseDemand* demand = nullptr;
    bool must = false;  // was promised already
    // Is within a lease on that type, and stays there for it; its GPUs there count as free in the plan.
    std::optional<std::uint32_t> holds_type;
    double value = 1;
};

// By candidate, its leases; none for those not admitted. Nothing when the search found no plan.
std::optional<std::vector<LeaseFit>> admit_exactly(const LeasePlan& plan, std::uint32_t types,
                                                   std::span<const AdmissionCandidate> candidates);

}  // namespace larder::scheduler
