#pragma once

// What policies have in common when they write down their wishes.

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/room.h"

namespace larder::scheduler {

// The GPUs a job asks for: what it states, or, where no type has as many and it is elastic, as many as there are of
// one.
std::uint32_t gpus_asked(const Snapshot& snapshot, const JobSpec& job);

// A running job as it is, or on another type if its own is taken by those before it; a waiting one with the GPUs it
// asks for, on the type it insists on or any.
Want want_as_it_is(const Snapshot& snapshot, std::uint32_t job);

// Whether no policy may stop it.
inline bool is_pinned(const JobState& job) {
    return job.running && !job.spec->preemptible;
}

// expected_remaining_s(), and what starting it again costs before that.
double remaining_with_restart_s(const Snapshot& snapshot, const JobState& job);

// When the period that `now_s` lies in ends, periods being counted from 0. So that all jobs' rounds and leases end
// together, and large gangs find room.
double period_end_s(double now_s, double period_s);

struct Ranked {
    double key = 0;
    std::uint32_t job = 0;
    // By key, then in the order of submission.
    auto operator<=>(const Ranked&) const = default;
};

}  // namespace larder::scheduler
