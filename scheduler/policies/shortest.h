#pragma once

// Shortest job first, by the remaining time that the performance model expects. SJF: running jobs run to their end.
// SRTF: a job with less time left stops one with more. Jobs of unknown work come last, in the order of submission. Jobs
// that find no room are passed over.

#include <vector>

#include "scheduler/policies/wants.h"

namespace larder::scheduler {

class Shortest final : public Policy {
public:
    explicit Shortest(bool preempts) : preempts_(preempts) {}
    std::string_view name() const override { return preempts_ ? "srtf" : "sjf"; }
    bool preempts() const override { return preempts_; }
    Result<Decision> decide(const Snapshot& snapshot) override;

private:
    bool preempts_;
    std::vector<Ranked> ranked_;  // kept to reuse its memory
};

}  // namespace larder::scheduler
