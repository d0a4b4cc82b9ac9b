#pragma once

// Linear programs that find quotas in small clusters whose disks or networks bind, where placing cache after cache
// (balanced_placement.h) misses some. At given rates, the quotas that the remote, the disks and the networks can carry
// are the solutions of a linear program. So a max-min level is found exactly. If the rates are to be chosen, too, the
// program has products of rates and quotas. Near a point these are nearly linear: this is successive linear programming
// (F. Palacios-Gomez et al., Management Science 28, 1982). The caller takes a step if the rates that its quotas allow
// are better, and else tries a shorter one.

#include <optional>
#include <span>
#include <vector>

#include "allocator/problem.h"
#include "allocator/state.h"

namespace larder::allocator {

// True if the cluster is small enough to solve about a hundred of these programs for each plan.
bool has_small_programs(const ClusterState& state, const Problem& problem);

// Returns quotas by dataset that carry these rates (by index in Problem::jobs) with the least remote bandwidth; nullopt
// if there are none.
std::optional<std::vector<std::vector<NodeCache>>> quotas_that_carry(const ClusterState& state, const Problem& problem,
                                                                     std::span<const double> rates);

// Returns quotas that allow about the largest sum of value * rate that there is near `quotas` and `rates`: no rate is
// to move by more than the part `reach` of its ideal, or to fall below its equal share. No part of a dataset in one
// place moves by more than `reach`. nullopt if there are none.
std::optional<std::vector<std::vector<NodeCache>>> quotas_a_step_from(const ClusterState& state, const Problem& problem,
                                                                      const std::vector<std::vector<NodeCache>>& quotas,
                                                                      std::span<const double> rates, double reach);

}  // namespace larder::allocator
