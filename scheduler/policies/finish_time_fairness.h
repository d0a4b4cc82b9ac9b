#pragma once

// Finish-time fairness (Themis, NSDI '20; as a policy over GPU types, Gavel, OSDI '20, section 4.2). A job's rho is the
// time from its submission to its end, divided by that time in a cluster of its own with 1/n of the GPUs. The largest
// rho is made as low as possible. A job that would not reach this rho even if it ran all the time runs all the time,
// and holds back no other job.

#include "scheduler/policies/fair.h"

namespace larder::scheduler {

class FinishTimeFairness final : public Fair {
public:
    explicit FinishTimeFairness(const PolicyOptions& options) : Fair(options.round_s, kKindsMax) {}
    std::string_view name() const override { return "finish-time-fairness"; }

private:
    static constexpr std::size_t kKindsMax = 256;  // small, because one decision solves a dozen linear programs

    void prepare(const Snapshot& snapshot) override;
    void set_terms(const Snapshot& snapshot, const JobState& job, double gpus, std::span<double> rates,
                   std::span<double> terms) const override;
    Result<Shares> allocate(const Snapshot& snapshot, const Kinds& kinds) override;

    double longest_bytes_ = 1;
    double weight_sum_ = 0;  // of all jobs
    int last_step_ = 0;      // the next search begins here: most end near the one before
};

}  // namespace larder::scheduler
