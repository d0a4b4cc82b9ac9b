#pragma once

// Keeps a guess from taking cache. Until a new job's f* is measured, its plan assumes the highest f* that is possible.
// Quotas for that f* may take cached bytes from the datasets of other jobs, and give the room back a few seconds later,
// when those bytes are lost. So assign() leaves these datasets what is cached, as far as the jobs whose f* is known
// agree: they may still take cache from each other. Pure functions. Any thread.

#include "allocator/plan.h"
#include "allocator/state.h"

namespace larder::allocator {

// True if the plan takes cached bytes, which the quotas in force cover, from a dataset that a job with a known f*
// reads, while a job with a guessed f* runs (ClusterJob::ideal_is_guess).
bool gives_cache_to_guesses(const ClusterState& state, const Plan& plan);

// Returns `state` without the jobs whose f* is a guess.
ClusterState without_guesses(const ClusterState& state);

// Returns `state` with floors under the datasets that jobs with a known f* read: what is cached within the quotas in
// force, but no more than the dataset gets in `of_known_jobs`, the plan for without_guesses().
ClusterState with_cached_floors(const ClusterState& state, const Plan& of_known_jobs);

}  // namespace larder::allocator
