#pragma once

// The common functions of policies for writing down wishes.

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/room.h"

namespace larder::scheduler {

// Returns the GPUs a job asks for: the stated number or, if no type has as many and the job is elastic, the most GPUs
// of one type.
std::uint32_t gpus_asked(const Snapshot& snapshot, const JobSpec& job);

// Returns a want for the job as it is. A running job keeps its GPUs, or gets another type if earlier jobs have taken
// its own. A waiting job gets the GPUs it asks for, on the type it insists on, or any.
Want want_as_it_is(const Snapshot& snapshot, std::uint32_t job);

// True if no policy may stop the job.
inline bool is_unstoppable(const JobState& job) {
    return job.running && !job.spec->preemptible;
}

// Returns expected_remaining_s() plus the cost of starting the job again.
double remaining_with_restart_s(const Snapshot& snapshot, const JobState& job);

// Returns the end of the period that contains `now_s`. Periods count from 0, so that all jobs' rounds and leases end
// together, and large gangs find room.
double period_end_s(double now_s, double period_s);

struct Ranked {
    double key = 0;
    std::uint32_t job = 0;
    // Compares the keys, then the order of submission.
    auto operator<=>(const Ranked&) const = default;
};

}  // namespace larder::scheduler
