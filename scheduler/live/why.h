#pragma once

// "Why is my job waiting?", in one paragraph that names what binds: GPUs, the place, its turn, a quota, jobs before it,
// a deadline; and of a running job whether its GPUs or storage bind its rate. Pure: from what the last decision left.

#include <string>
#include <string_view>

#include "scheduler/live/queue.h"
#include "scheduler/live/rate_bound.h"
#include "scheduler/live/storage_view.h"
#include "scheduler/snapshot.h"

namespace larder::scheduler {

struct Why {
    std::string_view binding;  // "gpus", "place", "turn", "quota", "dependencies", "remote_bandwidth", ...; see docs
    std::string text;
};

struct WhyContext {
    const JobQueue& queue;
    const GpuCluster& cluster;
    const Placer& placer;
    std::span<const Tenant> tenants;
    const StorageView& view;
    RateBound bound;  // of the job, where its rate is below f*
    std::string_view policy;
    std::string_view output;  // where its output is
    double now_s = 0;
};

Why why(const JobRecord& job, const WhyContext& context);
// For its log: "waits: too few GPUs are free".
std::string_view text_of(WaitsFor why);

}  // namespace larder::scheduler
