#include "scheduler/policies/fifo.h"

#include <algorithm>

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
    std::vector<std::uint32_t> waiting;
    std::vector<Ending> endings;
    const auto runs = [&](std::uint32_t j, std::uint32_t gpus) {
        if (!backfills_) return;
        endings.push_back({.at_s = snapshot.now_s + expected_remaining_s(snapshot, *snapshot.jobs[j]), .gpus = gpus});
    };
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        const JobState& job = *snapshot.jobs[j];
        if (job.running) {
            decision.wants.push_back({.job = j, .gpus = job.gpus, .gpu_type = job.gpu_type});
            free -= std::min(free, job.gpus);
            runs(j, job.gpus);
        } else {
            waiting.push_back(j);
        }
    }
    std::ranges::stable_sort(waiting, std::ranges::greater{},
                             [&](std::uint32_t j) { return snapshot.jobs[j]->spec->priority; });
    std::optional<Reservation> reserved;
    for (const std::uint32_t j : waiting) {
        const JobState& job = *snapshot.jobs[j];
        const std::uint32_t gpus = job.spec->gpus;
        if (!reserved) {
            decision.wants.push_back({.job = j, .gpus = gpus, .gpu_type = job.spec->gpu_type});
            if (gpus <= free) {
                free -= gpus;
                runs(j, gpus);
                continue;
            }
            if (!backfills_) break;
            reserved = reserve(endings, free, gpus);
            continue;
        }
        if (free == 0) break;
        if (gpus > free) continue;
        const bool ends_before = snapshot.now_s + expected_remaining_s(snapshot, job) <= reserved->start_s;
        if (!ends_before && gpus > reserved->spare_gpus) continue;
        if (!ends_before) reserved->spare_gpus -= gpus;
        free -= gpus;
        decision.wants.push_back({.job = j, .gpus = gpus, .gpu_type = job.spec->gpu_type});
    }
    return decision;
}

}  // namespace larder::scheduler
