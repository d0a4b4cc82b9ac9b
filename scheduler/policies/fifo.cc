#include "scheduler/policies/fifo.h"

#include <algorithm>

#include "scheduler/policies/wants.h"
#include "scheduler/quota.h"

namespace larder::scheduler {
namespace {

struct Ending {
    double at_s = 0;
    std::uint32_t gpus = 0;
};

// What keeps the first waiting job's start where it is: by when enough GPUs come free for it, and how many more than it
// needs are free then.
struct Reservation {
    double start_s = kNever;
    std::uint32_t spare_gpus = 0;
};

Reservation reserve(std::vector<Ending> endings, std::uint32_t gpus_free, std::uint32_t gpus_wanted) {
    std::ranges::sort(endings, {}, &Ending::at_s);
    for (const Ending& ending : endings) {
        gpus_free += ending.gpus;
        if (gpus_free >= gpus_wanted) return {.start_s = ending.at_s, .spare_gpus = gpus_free - gpus_wanted};
    }
    return {};
}

}  // namespace

Result<Decision> Fifo::decide(const Snapshot& snapshot) {
    Decision decision;
    decision.passes_over = backfills_;
    std::uint32_t free = snapshot.gpus();
    Quotas quotas(snapshot.tenants);
    std::vector<std::uint32_t> waiting;
    std::vector<Ending> endings;
    const auto runs = [&](std::uint32_t j, std::uint32_t gpus) {
        if (!backfills_) return;
        endings.push_back({.at_s = snapshot.now_s + expected_remaining_s(snapshot, *snapshot.jobs[j]), .gpus = gpus});
    };
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        const JobState& job = *snapshot.jobs[j];
        if (job.running) {
            decision.wants.push_back(want_as_it_is(snapshot, j));
            free -= std::min(free, job.gpus);
            quotas.take(job.spec->tenant, job.gpus);
            runs(j, job.gpus);
        } else {
            waiting.push_back(j);
        }
    }
    const auto priority = [&](std::uint32_t j) { return snapshot.jobs[j]->spec->priority; };
    if (!std::ranges::is_sorted(waiting, std::ranges::greater{}, priority)) {
        std::ranges::stable_sort(waiting, std::ranges::greater{}, priority);
    }
    std::optional<Reservation> reserved;
    for (const std::uint32_t j : waiting) {
        const JobState& job = *snapshot.jobs[j];
        const Want want = want_as_it_is(snapshot, j);
        const std::uint32_t gpus = quotas.allowed(*job.spec, want.gpus);
        const bool waits_for_gpus = gpus > free;
        if (gpus > 0 && reserved) {
            if (waits_for_gpus) continue;
            const bool ends_before = snapshot.now_s + expected_remaining_s(snapshot, job) <= reserved->start_s;
            if (!ends_before && gpus > reserved->spare_gpus) continue;
            if (!ends_before) reserved->spare_gpus -= gpus;
        }
        decision.wants.push_back(want);
        if (waits_for_gpus) {
            if (!backfills_) break;
            reserved = reserve(endings, free, gpus);
            continue;
        }
        free -= gpus;
        quotas.take(job.spec->tenant, gpus);
        if (!reserved) runs(j, gpus);
        if (reserved && free == 0) break;
    }
    return decision;
}

}  // namespace larder::scheduler
