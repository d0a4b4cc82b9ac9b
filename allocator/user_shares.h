#pragma once

// Fair shares of the remote's bandwidth between users. An objective compares jobs, and believes the f* that their
// clients measured. So a user with many jobs, or with a forged f*, could take the bandwidth of other users. assign()
// therefore guarantees bandwidth to each user first: what its jobs need, up to a fair share by weight. The objective
// divides the rest, and the parts within a user. Pure functions. Any thread.

#include <optional>
#include <span>
#include <vector>

#include "allocator/plan.h"
#include "allocator/state.h"

namespace larder::allocator {

struct UserClaim {
    double need = 0;    // the most that it takes; not negative
    double weight = 1;  // above 0
};

// Divides `total` among the claims by weight, and gives none more than it needs (water-filling). The rest of
// claims with small needs goes to the others. The sum is the total, or the sum of the needs if that is less.
std::vector<double> fair_shares(double total, std::span<const UserClaim> claims);

// Returns each user's guarantee as bandwidth floors of its jobs, in a copy of `state`; nullopt if the plan gives every
// user its guarantee already, or if all running jobs belong to one user. A job needs f* (1 - h), with h as in the plan,
// and no more than its nodes' networks carry. A user's weight is the sum of the weights of its admitted jobs, and 1 for
// all its other jobs together, since clients choose their names and number. Floors within a user follow the plan.
std::optional<ClusterState> with_user_floors(const ClusterState& state, const Plan& plan);

}  // namespace larder::allocator
