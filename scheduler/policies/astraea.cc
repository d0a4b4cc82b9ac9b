#include "scheduler/policies/astraea.h"

#include <algorithm>
#include <queue>
#include <vector>

namespace larder::scheduler {
namespace {

struct Queue {
    double gpu_s = 0;  // in the window, plus the GPU time given in this decision
    double weight = 1;
    std::vector<Ranked> jobs;  // the job with the least GPU time first
    std::size_t next = 0;
};

}  // namespace

Result<Decision> Astraea::decide(const Snapshot& snapshot) {
    Decision decision;
    decision.wants.reserve(snapshot.jobs.size());
    const double lease_end_s = period_end_s(snapshot.now_s, lease_s_);
    const double lease_s = lease_end_s - snapshot.now_s;
    Room room(snapshot);
    std::vector<Queue> queues(snapshot.tenants.size());
    for (std::size_t t = 0; t < queues.size(); ++t) {
        queues[t].gpu_s = snapshot.tenants[t].gpu_time.sum(snapshot.now_s, window_);
        queues[t].weight = snapshot.tenants[t].weight;
    }
    std::vector<Ranked> starving;
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        const JobState& job = *snapshot.jobs[j];
        Queue& queue = queues[job.spec->tenant];
        if (is_unstoppable(job) || holds_lease(job, snapshot.now_s)) {
            Want want = want_as_it_is(snapshot, j);
            want.promised = true;
            room.take(job);
            queue.gpu_s += job.gpus * lease_s;
            decision.wants.push_back(want);
        } else if (!job.running && snapshot.now_s - job.waiting_since_s >= starve_s_) {
            starving.push_back({.key = job.waiting_since_s, .job = j});
        } else {
            queue.jobs.push_back({.key = job.gpu_time.sum(snapshot.now_s, window_) / job.spec->weight, .job = j});
        }
    }
    bool all_run = true;
    const auto want_next = [&](std::uint32_t j) {
        Want want = want_as_it_is(snapshot, j);
        want.lease_s = lease_s;
        if (room.take(*snapshot.jobs[j], want) == kNoGpuType) {
            all_run = false;
        } else {
            queues[snapshot.jobs[j]->spec->tenant].gpu_s += want.gpus * lease_s;
        }
        decision.wants.push_back(want);
    };
    std::ranges::sort(starving);
    for (const Ranked& ranked : starving) want_next(ranked.job);

    std::priority_queue<Ranked, std::vector<Ranked>, std::greater<>> turns;  // tenants, in Ranked::job
    const auto push_turn = [&](std::uint32_t tenant) {
        const Queue& queue = queues[tenant];
        if (queue.next < queue.jobs.size()) turns.push({.key = queue.gpu_s / queue.weight, .job = tenant});
    };
    for (std::uint32_t tenant = 0; tenant < queues.size(); ++tenant) {
        std::ranges::sort(queues[tenant].jobs);
        push_turn(tenant);
    }
    while (!turns.empty()) {
        const std::uint32_t tenant = turns.top().job;
        turns.pop();
        want_next(queues[tenant].jobs[queues[tenant].next++].job);
        push_turn(tenant);
    }
    if (!all_run) decision.next_s = lease_end_s;
    return decision;
}

}  // namespace larder::scheduler
