#pragma once

// Deadlines with leases (Chronus, SoCC '21). A job with a deadline is admitted, and promised its deadline, if enough
// leases for its work fit beside those promised before (promises.h). Jobs with strict deadlines are considered before
// those with soft ones, each by slack; with `exact`, an integer program chooses the jobs instead. A job whose deadline
// cannot be met is refused if the deadline is strict; if it is soft, the job counts as one without a deadline. Jobs
// without a deadline fill the GPUs that the promises leave, late jobs first, then the shortest, and keep them to the
// end of a lease.

#include <vector>

#include "scheduler/policies/promises.h"
#include "scheduler/policies/wants.h"

namespace larder::scheduler {

class Chronus final : public Policy {
public:
    explicit Chronus(const PolicyOptions& options) : lease_s_(options.lease_s), exact_(options.exact) {}
    std::string_view name() const override { return "chronus"; }
    bool preempts() const override { return true; }
    Result<Decision> decide(const Snapshot& snapshot) override;

private:
    LeasePlan make_plan(const Snapshot& snapshot, std::uint32_t leases_max) const;
    void admit_by_program(const Snapshot& snapshot, LeasePlan& plan, std::vector<Promise>& promises) const;
    void fill(const Snapshot& snapshot, const std::vector<Promise>& promises, LeasePlan& plan,
              Decision& decision) const;

    double lease_s_;
    bool exact_;
};

}  // namespace larder::scheduler
