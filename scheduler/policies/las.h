#pragma once

// Least attained service, in queues (Tiresias, NSDI '19: discretized two-dimensional LAS). A job goes down a queue each
// time its GPU time passes a threshold, and jobs of upper queues stop those of lower ones. Within a queue the job that
// started first goes first, so that equals do not take turns. A job that has waited `promote_after` times as long as it
// ever ran returns to the first queue, and keeps that place, by a lease, for as much GPU time as the first queue is
// wide. The policy needs no knowledge of the jobs or of storage.

#include <vector>

#include "scheduler/policies/wants.h"

namespace larder::scheduler {

class Las final : public Policy {
public:
    explicit Las(const PolicyOptions& options)
        : queue_gpu_s_(options.queue_gpu_s), promote_after_(options.promote_after) {}
    std::string_view name() const override { return "las"; }
    bool preempts() const override { return true; }
    Result<Decision> decide(const Snapshot& snapshot) override;

private:
    struct Place {
        std::size_t queue = 0;
        double first_started_s = 0;
        std::uint32_t job = 0;
        bool promoted = false;
    };

    Place place(const Snapshot& snapshot, std::uint32_t job) const;
    // Returns when the job would change its queue if it keeps running (`runs`) or waiting.
    double next_change_s(const Snapshot& snapshot, const Place& place, bool runs, std::uint32_t gpus) const;

    std::vector<double> queue_gpu_s_;
    double promote_after_;
    std::vector<Place> places_;  // kept to reuse its memory
};

}  // namespace larder::scheduler
