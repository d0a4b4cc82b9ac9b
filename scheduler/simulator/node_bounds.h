#pragma once

// Disks and networks of single nodes, which bind beside the remote: what a node's disk reads of the cache that lies
// there, what comes to the node's jobs over its network, and what its cache sends to others. Where all nodes' cache is
// one pool it lies spread evenly over them; where each caches for itself, a job finds there what it hits there.

#include "scheduler/simulator/running_job.h"

namespace larder::scheduler {

// Whether any of them can bind.
bool nodes_bind(const SimulationOptions& options);
// The most that networks let through, before a plan is made: Reader::ideal.
void bound_ideals(const ReadersState& state, std::span<SimulatedJob* const> jobs);
// With the rates of a plan: where a bound is exceeded, those who use it give way alike. Reader::rate and cap.
void bound_rates(const ReadersState& state, std::span<SimulatedJob* const> jobs);

}  // namespace larder::scheduler
