#pragma once

// Moves cache off nodes whose disk or outgoing network cannot carry every job's equal share. Such a node exchanges its
// most read bytes with the least read bytes of nodes of its group that have load to spare, tier by tier. So each
// dataset keeps its bytes in the group, and every job its hit ratio.

#include <vector>

#include "allocator/problem.h"

namespace larder::allocator {

// Returns the quotas (by dataset, each by node) after the exchanges. Held quotas stay. Loads stay
// too high where no exchange helps.
std::vector<std::vector<NodeCache>> relieve_nodes(const ClusterState& state, const Problem& problem,
                                                  const std::vector<std::vector<NodeCache>>& quotas);

}  // namespace larder::allocator
