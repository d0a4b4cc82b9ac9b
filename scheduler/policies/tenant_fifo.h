#pragma once

// Each tenant has a queue of its own, first come, first served: no job waits for another tenant's jobs. With guaranteed
// cells (cells.h), each tenant is served as if it were alone in the cluster. Not preemptive.

#include "scheduler/policy.h"

namespace larder::scheduler {

class TenantFifo final : public Policy {
public:
    std::string_view name() const override { return "tenant-fifo"; }
    bool preempts() const override { return false; }
    Result<Decision> decide(const Snapshot& snapshot) override;
};

}  // namespace larder::scheduler
