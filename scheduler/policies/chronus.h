#pragma once

// Deadlines with leases (Chronus, SoCC '21). A job with a deadline is admitted, and promised its deadline, if enough
// leases for its work fit beside those promised before (promises.h). Jobs with strict deadlines are considered before
// those with soft ones, each by slack; with `exact`, an integer program chooses the jobs instead. Jobs without a
// promise fill the GPUs that the promises leave, the shortest first. A job with a strict deadline that it cannot meet
// any more, or for which no GPUs are left, is refused. Only a promised job with no time to spare keeps its GPUs to the
// end of a lease: all other jobs make way for jobs that come later and have less time.

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
