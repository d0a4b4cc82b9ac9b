#pragma once

// Least makespan (Gavel, OSDI '20, section 4.2): all present jobs should end as early as possible, so each progresses
// in proportion to its remaining work. A job of unknown work counts as the longest known one.

#include "scheduler/policies/fair.h"

namespace larder::scheduler {

// Returns the remaining bytes of the longest job whose work is known; 1 if there is none.
double longest_remaining_bytes(const Snapshot& snapshot);

class Makespan final : public Fair {
public:
    explicit Makespan(const PolicyOptions& options) : Fair(options.round_s) {}
    std::string_view name() const override { return "makespan"; }

private:
    void prepare(const Snapshot& snapshot) override { longest_bytes_ = longest_remaining_bytes(snapshot); }
    void set_terms(const Snapshot& snapshot, const JobState& job, double gpus, std::span<double> rates,
                   std::span<double> terms) const override;
    Result<Shares> allocate(const Snapshot& snapshot, const Kinds& kinds) override;

    double longest_bytes_ = 1;
};

}  // namespace larder::scheduler
