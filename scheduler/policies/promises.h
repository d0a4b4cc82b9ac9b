#pragma once

// Decides which deadlines are promised, and by which leases (Chronus, SoCC '21). A promised job gets the latest leases
// that meet its deadline, so that all GPUs before them are left to whatever comes later. Leases are given in the order
// of latest starts, so that jobs with the least time to spare choose first. The order is computed again
// at each decision, and gangs that fitted together once may not fit when others have come or gone. So the times behind
// a promise are kept (JobState::promised), and apply wherever the new order would break a promise. A new job is
// promised its deadline if the order with this job keeps its promise and all earlier ones, or if the leases that
// earlier promises leave free meet its deadline. As long as rates do not change and no GPUs are lost, every promise is
// met. A gang counts with its rate on many nodes, because it may start again where few nodes have no room for it.

#include <span>
#include <vector>

#include "scheduler/policies/lease_plan.h"
#include "scheduler/room.h"

namespace larder::scheduler {

struct Promise {
    LeaseDemand demand;
    LeaseFit fit;
    double latest_start_s = 0;
    bool strict = false;
    bool promised_before = false;
    bool within_lease = false;
    std::uint32_t holds_claim_of = kNoTenant;  // see claim_of()
    bool met = false;
    bool hopeless = false;  // could not be met even with no other promises
};

bool has_deadline(const JobState& job);
// Returns the tenant whose claim covers the job's GPUs; kNoTenant: none.
std::uint32_t claim_of(const JobState& job);

// Returns what the job needs from a plan, on as many nodes as it has GPUs. `all` is the room of the whole cluster.
LeaseDemand demand_of(const Snapshot& snapshot, const Room& all, std::uint32_t job);

// Returns a Promise for every job that may be stopped and has a strict deadline, or with `soft_too` any deadline, and
// for jobs promised before. The order is that in which promises are considered: jobs promised before, then strict ones,
// then the others, each by latest start.
std::vector<Promise> find_promises(const Snapshot& snapshot, bool soft_too);

// Adds to `ends_s` each start and end of promised times that is later than its first element, so that leases end there.
// Leaves out starts that are not before its last element. `ends_s` is ascending on entry and on return.
void add_promised_ends(const Snapshot& snapshot, std::vector<double>& ends_s);

// Sets `fit`, `met` and `hopeless` of each promise. On entry, the GPUs of jobs that must not be stopped and of
// jobs within a lease are taken in `plan`; on return also the leases of all promises that are met.
void admit_by_latest_start(const Snapshot& snapshot, LeasePlan& plan, std::vector<Promise>& promises);

}  // namespace larder::scheduler
