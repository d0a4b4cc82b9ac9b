#pragma once

// Shortest job first, by the time the performance model expects each to take to its end. SJF: whoever runs, runs to its
// end. SRTF: a job with less left stops one with more. Jobs whose work is not known come last, in the order of
// submission; whoever finds no room is passed over.

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
    std::vector<Ranked> ranked_;  // kept for its memory
};

}  // namespace larder::scheduler
