#pragma once

// Bounds of the disks and networks of single nodes, in addition to the remote's. A node's disk reads the cache that
// lies on the node. A node's network carries what its jobs receive and what its cache sends to other nodes. If the
// caches of all nodes form one pool, the pool is spread evenly over the nodes. If each node caches for itself, all hits
// of a job are on its own nodes. If each job has a cache, it lies on the job's nodes, by its GPUs there. A cache of
// another node is read over the network.

#include "scheduler/simulator/running_job.h"

namespace larder::scheduler {

// True if any node bound is set.
bool has_node_bounds(const SimulationOptions& options);
// Reduces SimulatedReader::ideal to the node bounds, before a plan is made.
void bound_ideals(const ReadersState& state, std::span<SimulatedJob* const> jobs);
// Reduces SimulatedReader::rate of a plan to the node bounds, and sets SimulatedReader::cap where they bind. All jobs
// that use an exceeded bound are slowed down by the same factor.
void bound_rates(const ReadersState& state, std::span<SimulatedJob* const> jobs);

}  // namespace larder::scheduler
