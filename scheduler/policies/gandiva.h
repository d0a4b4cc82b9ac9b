#pragma once

// Time slicing with packing, growing and migration (Gandiva, OSDI '18). While jobs ask for more GPUs than exist, they
// take turns by rounds, the longest waiting first. Two jobs that allow sharing share GPUs if they then make more
// progress than by taking turns, and are separated when they no longer do. While GPUs are spare, no jobs share and
// elastic jobs grow into them. A job on more nodes than it needs moves if that pays.

#include "scheduler/policies/wants.h"

namespace larder::scheduler {

class Gandiva final : public Policy {
public:
    explicit Gandiva(const PolicyOptions& options) : round_s_(options.round_s) {}
    std::string_view name() const override { return "gandiva"; }
    bool preempts() const override { return true; }
    bool sizes_jobs() const override { return true; }
    Result<Decision> decide(const Snapshot& snapshot) override;

private:
    double round_s_;
};

}  // namespace larder::scheduler
