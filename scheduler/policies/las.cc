#include "scheduler/policies/las.h"

#include <algorithm>
#include <tuple>

namespace larder::scheduler {
namespace {

// A threshold or a wait counts as reached this many seconds early, so that rounding does not cause a second decision
// right after the first.
constexpr double kSlackS = 1e-3;

}  // namespace

Las::Place Las::place(const Snapshot& snapshot, std::uint32_t j) const {
    const JobState& job = *snapshot.jobs[j];
    const double slack_gpu_s = kSlackS * std::max(1U, job.running ? job.gpus : job.spec->gpus);
    const auto above = std::ranges::upper_bound(queue_gpu_s_, job.attained_gpu_s + slack_gpu_s);
    Place place{.queue = static_cast<std::size_t>(above - queue_gpu_s_.begin()),
                .first_started_s = job.first_started_s,
                .job = j};
    if (place.queue == 0) return place;
    if (job.running) {
        if (holds_lease(job, snapshot.now_s)) place.queue = 0;
    } else if (snapshot.now_s - job.waiting_since_s + kSlackS >= promote_after_ * job.ran_s) {
        place.queue = 0;
        place.promoted = true;
    }
    return place;
}

double Las::next_change_s(const Snapshot& snapshot, const Place& place, bool runs, std::uint32_t gpus) const {
    const JobState& job = *snapshot.jobs[place.job];
    double at_s = kNever;
    if (!job.running && place.queue > 0) at_s = job.waiting_since_s + promote_after_ * job.ran_s;
    if (!runs) return at_s;
    if (holds_lease(job, snapshot.now_s)) return job.lease_until_s;
    if (place.promoted) return snapshot.now_s + queue_gpu_s_.front() / gpus;
    if (place.queue == queue_gpu_s_.size()) return at_s;
    return std::min(at_s, snapshot.now_s + (queue_gpu_s_[place.queue] - job.attained_gpu_s) / gpus);
}

Result<Decision> Las::decide(const Snapshot& snapshot) {
    places_.clear();
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) places_.push_back(place(snapshot, j));
    std::ranges::sort(places_, {},
                      [](const Place& place) { return std::tuple(place.queue, place.first_started_s, place.job); });
    Decision decision;
    decision.wants.reserve(places_.size());
    std::uint32_t left = snapshot.gpus();
    for (const Place& place : places_) {
        Want want = want_as_it_is(snapshot, place.job);
        if (place.promoted) want.lease_s = queue_gpu_s_.front() / want.gpus;
        const bool runs = want.gpus <= left;
        if (runs) left -= want.gpus;
        decision.next_s = std::min(decision.next_s, next_change_s(snapshot, place, runs, want.gpus));
        decision.wants.push_back(want);
    }
    return decision;
}

}  // namespace larder::scheduler
