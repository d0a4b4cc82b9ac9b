#pragma once

// A queue for each tenant, first come first served, in which no job waits for another tenant's jobs: the view of a
// tenant alone, if places are guaranteed to it (cells). Not preemptive.

#include "scheduler/policy.h"

namespace larder::scheduler {

class TenantFifo final : public Policy {
public:
    std::string_view name() const override { return "tenant-fifo"; }
    bool preempts() const override { return false; }
    Result<Decision> decide(const Snapshot& snapshot) override;
};

}  // namespace larder::scheduler
