#pragma once

// The room that a plan leaves over, because no running job gains by it, goes to the datasets nobody reads at present:
// what is cached of them stays, they can be warmed, and their next job finds its quota already there. It costs no
// remote byte: nothing is fetched for a quota alone, and the next plan takes it back at once.

#include "allocator/plan.h"
#include "allocator/state.h"

namespace larder::allocator {

// Deals out each node's spare memory, then disk, in equal parts among the datasets without running jobs that are there
// (that have a quota there in `state`, were it 0), within their sizes and caps.
void give_spare_room(const ClusterState& state, Plan& plan);

// `state` with the quotas in force of datasets nobody reads cut to what is cached of them, so that room that was spare
// before is no reason to leave things as they are.
ClusterState without_spare_room(const ClusterState& state);

}  // namespace larder::allocator
