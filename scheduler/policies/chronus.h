#pragma once

// Deadlines with leases (Chronus, SoCC '21). A job with a deadline is admitted if leases can be laid (promises.h) that
// are enough for its work, beside those promised before; from then on it is promised. Jobs with strict deadlines are
// looked at before those with soft ones, each by slack; `exact` chooses by an integer program which to admit instead.
// Whoever cannot be met is refused if its deadline is strict, and goes with those that have none if it is soft. Those
// fill what GPUs the promises leave, the late first, then the shortest, and keep them to the end of a lease.

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
    void admit_exactly(const Snapshot& snapshot, LeasePlan& plan, std::vector<Promise>& promises) const;
    void fill(const Snapshot& snapshot, const std::vector<Promise>& promises, LeasePlan& plan,
              Decision& decision) const;

    double lease_s_;
    bool exact_;
};

}  // namespace larder::scheduler
