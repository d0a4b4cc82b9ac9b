#pragma once

// "What if": the result of assign() on a changed copy of the cluster, beside the result for the cluster as it is. A
// pure function: nothing is applied. Both results follow the rules of a real plan, hysteresis included.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocator/assign.h"
#include "allocator/cluster.h"
#include "allocator/state.h"
#include "base/error.h"

namespace larder::allocator {

struct AddedJob {
    JobRegistration spec;  // of it, `user` is whose job it would be
    std::string dataset;
    std::optional<std::uint64_t> dataset_size_bytes;  // for a dataset that no node has yet
    // The nodes the job runs on, with `gpus` spread over them. Empty: free GPUs are found for it, or, without GPUs, it
    // runs evenly on all nodes.
    std::vector<std::string> nodes;
    std::uint32_t gpus = 0;
};

// A dataset's quota over all nodes, fixed as by an operator's pin.
struct AddedPin {
    std::string dataset;
    std::uint64_t bytes = 0;
};

struct WhatIfChange {
    std::optional<double> remote_bytes_per_second;
    std::int64_t cache_bytes = 0;  // more or less than now, spread over nodes and tiers in proportion to what they have
    std::vector<AddedPin> pins;
    std::vector<AddedJob> add_jobs;
    std::vector<std::string> remove_jobs;
    std::optional<ObjectiveKind> objective;
};

struct WhatIfOutcome {
    ClusterState state;
    Objective objective;
    Plan plan;
};

struct Comparison {
    WhatIfOutcome before;
    WhatIfOutcome after;
};

// Errors: invalid_argument names the field; not_found names the job, dataset or node; already_exists names a job that
// already runs.
Result<Comparison> what_if(const ClusterState& state, const Objective& objective, const WhatIfChange& change);

}  // namespace larder::allocator
