#pragma once

// Least makespan (Gavel, OSDI '20, section 4.2): all jobs that are there are to end as early as can be, so each gets on
// in proportion to what it has left. A job whose work is not known counts as the longest of those that are.

#include "scheduler/policies/fair.h"

namespace larder::scheduler {

// What is left of the longest job, of those whose work is known; 1 when there is none.
double longest_remaining_bytes(const Snapshot& snapshot);

class Makespan final : public Fair {
public:
    explicit Makespan(const PolicyOptions& options) : Fair(options.round_s) {}
    std::string_view name() const override { return "makespan"; }

private:
    void prepare(const Snapshot& snapshot) override { longest_bytes_ = longest_remaining_bytes(snapshot); }
    void terms(const Snapshot& snapshot, const JobState& job, double gpus, std::span<double> rates,
               std::span<double> terms) const override;
    Result<Shares> allocate(const Snapshot& snapshot, const Kinds& kinds) override;

    double longest_bytes_ = 1;
};

}  // namespace larder::scheduler
