#pragma once

// First come, first served: jobs in the order of priority, then submission; no job is ever stopped. Strict: no job
// starts before an earlier one. With backfill: a later job may start if that does not delay the first waiting job, as
// far as remaining times are known (EASY backfilling, Lifka '95).

#include "scheduler/policy.h"

namespace larder::scheduler {

class Fifo final : public Policy {
public:
    explicit Fifo(bool backfills) : backfills_(backfills) {}
    std::string_view name() const override { return backfills_ ? "fifo-backfill" : "fifo"; }
    bool preempts() const override { return false; }
    Result<Decision> decide(const Snapshot& snapshot) override;

private:
    bool backfills_;
};

}  // namespace larder::scheduler
