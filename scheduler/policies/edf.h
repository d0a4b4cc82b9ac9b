#pragma once

// Earliest deadline first (Liu and Layland, JACM '73): by deadline, then in the order of submission. Jobs without a
// deadline come last, and earlier jobs stop later ones. Every job is admitted, so under overload all may be late.

#include "scheduler/policies/wants.h"

namespace larder::scheduler {

class Edf final : public Policy {
public:
    std::string_view name() const override { return "edf"; }
    bool preempts() const override { return true; }
    Result<Decision> decide(const Snapshot& snapshot) override;

private:
    std::vector<Ranked> ranked_;  // kept to reuse its memory
};

}  // namespace larder::scheduler
