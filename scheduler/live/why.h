#pragma once

// Answers "why is my job waiting?" in one paragraph that names what holds the job up: GPUs, the place, its turn, a
// quota, jobs before it, a deadline. For a running job it says whether GPUs or storage limit the rate. Pure: based on
// the state after the last decision.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "allocator/rate_bound.h"
#include "scheduler/live/node_drain.h"
#include "scheduler/live/queue.h"
#include "scheduler/live/storage_view.h"
#include "scheduler/snapshot.h"

namespace larder::scheduler {

struct Why {
    std::string_view binding;  // "gpus", "place", "turn", "quota", "dependencies", "remote_bandwidth", ...; see docs
    std::string text;
    // A waiting job's place among those that wait, by priority and then by submission, from 1; and when enough
    // GPUs will be free for it alone, if the ends of the jobs that have them are known. Policies may choose otherwise.
    std::optional<std::uint64_t> place{};
    std::optional<double> starts_unix_s{};
};

struct WhyContext {
    const JobQueue& queue;
    const GpuCluster& cluster;
    const Placer& placer;
    std::span<const Tenant> tenants;
    const NodeDrains& drains;
    const StorageView& view;
    allocator::RateBound bound;  // what limits the job if its rate is below f*
    std::string_view policy;
    std::string_view output;  // where its output is; empty: unknown
    double now_s = 0;
};

Why why(const JobRecord& job, const WhyContext& context);
// Returns the text for a job's log, such as "waits: too few GPUs are free".
std::string_view text_of(WaitsFor why);

}  // namespace larder::scheduler
