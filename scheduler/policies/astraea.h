#pragma once

// Long-term GPU-time fairness (Astraea, TPDS '22): over a window of past intervals each tenant should get GPU time in
// proportion to its weight, and each job of a tenant in proportion to its own. Lease by lease, the GPUs go to the
// tenant with the least GPU time for its weight, and within it to the job with the least. A job keeps its GPUs to the
// end of its lease. Jobs that have waited too long without any service go first, the longest first.

#include "scheduler/policies/wants.h"

namespace larder::scheduler {

class Astraea final : public Policy {
public:
    explicit Astraea(const PolicyOptions& options)
        : lease_s_(options.lease_s), starve_s_(options.starve_s), window_(options.window()) {}
    std::string_view name() const override { return "astraea"; }
    bool preempts() const override { return true; }
    Result<Decision> decide(const Snapshot& snapshot) override;

private:
    double lease_s_;
    double starve_s_;
    TimeWindow window_;
};

}  // namespace larder::scheduler
