#pragma once

// Time slicing with packing, growing and migration (Gandiva, OSDI '18). While more GPUs are asked for than there are,
// jobs take turns by rounds, whoever has waited longest first, and two jobs that allow it share GPUs where that makes
// more than turns would; they are parted again when it does not. While there are GPUs to spare, nobody shares any and
// elastic jobs grow into them. A job that lies on more nodes than it needs to moves when that pays.

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
