#pragma once

// Deadlines with leases (Chronus, SoCC '21). A job with a strict deadline is admitted, and promised its deadline, if
// enough leases for its work fit beside those promised before (promises.h). With `exact`, an integer program chooses
// the jobs, also of those with soft deadlines. Soft deadlines are otherwise not promised but planned anew at each
// decision, by their value over time, with the leases that promises leave (goals.h). Promises and plans hold the latest
// leases, so all other GPU time goes to the shortest jobs. A strict job that seems late already goes last, because its
// end may be wrong. It is refused without GPUs, if it may not be stopped, or after its deadline. Only a promised job
// with no time to spare keeps its GPUs to the end of a lease: all others make way for jobs with less time.

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
