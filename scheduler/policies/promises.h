#pragma once

// Which deadlines are promised, and by which leases (Chronus, SoCC '21). Leases are laid in the order of latest starts,
// so that long jobs with time to spare make way for short ones without. That order is made anew at each decision, and
// gangs that fitted together once may not when others have come or gone: so the times that promises rest on are kept
// (JobState::promised), and hold wherever the new order would break a promise. A newcomer is promised its deadline if
// all promises before hold beside its own, in the new order or in what the kept times leave free. As long as rates are
// what they were and GPUs are not lost, a promise is met.

#include <span>
#include <vector>

#include "scheduler/policies/lease_plan.h"

namespace larder::scheduler {

struct Promise {
    LeaseDemand demand;
    LeaseFit fit;
    double latest_start_s = 0;
    bool strict = false;
    bool old = false;    // was promised before
    bool holds = false;  // is within a lease
    std::uint32_t holds_claim_of = kNoTenant;
    bool met = false;
    bool hopeless = false;  // could not be met even if it were alone
};

bool has_deadline(const JobState& job);
// Whose claim the GPUs that it has are of; kNoTenant: nobody's.
std::uint32_t claim_of(const JobState& job);

// Of every job with a deadline that may be stopped, in the order in which they are looked at: those promised before,
// then strict ones, each by latest start.
std::vector<Promise> find_promises(const Snapshot& snapshot);

// The times that promises rest on end at some of these. Adds those after the first of `ends_s`, which rise.
void add_promised_ends(const Snapshot& snapshot, std::vector<double>& ends_s);

// Sets `fit`, `met` and `hopeless` of each. `plan`: with all that is taken but by promises without a lease now;
// afterwards with the leases of those that are met.
void admit_by_latest_start(const Snapshot& snapshot, LeasePlan& plan, std::vector<Promise>& promises);

}  // namespace larder::scheduler
