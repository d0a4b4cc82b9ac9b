#pragma once

// Gives the room that a plan leaves over to the datasets that no job reads at present: their cached blocks stay, they
// can be warmed, and their next job finds its quota in place. This costs no remote byte: nothing is fetched for a quota
// alone, and the next plan takes the room back at once.

#include "allocator/plan.h"
#include "allocator/state.h"

namespace larder::allocator {

// Deals out each node's spare memory, then disk, in equal parts among the node's datasets without running jobs, within
// their sizes and caps. A dataset is on a node if it has a quota there in `state`, even 0.
void give_spare_room(const ClusterState& state, Plan& plan);

// Returns `state` with the quotas of unread datasets cut to their cached bytes, so that room that was spare before is
// no reason to keep the old quotas.
ClusterState without_spare_room(const ClusterState& state);

}  // namespace larder::allocator
