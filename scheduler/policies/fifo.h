#pragma once

// First come, first served: jobs in the order of priority, then submission, and none is ever stopped. Strict: nobody
// starts before whoever came earlier. With backfill: a later job may start if that does not delay the first one that
// waits, as far as remaining times are known (EASY backfilling, Lifka '95).

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
