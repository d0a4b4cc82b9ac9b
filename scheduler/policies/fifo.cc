#include "scheduler/policies/fifo.h"

#include <algorithm>
#include <optional>

#include "scheduler/gpu_quotas.h"
#include "scheduler/policies/wants.h"

namespace larder::scheduler {
namespace {

struct Ending {
    double at_s = 0;
    const JobSpec* job = nullptr;
    std::uint32_t type = 0;
    std::uint32_t gpus = 0;
    bool claims = true;
};

// The planned start of the first waiting job: when enough GPUs come free for it, and which other GPUs are free then.
struct Reservation {
    double start_s = kNever;
    Room spare;
};

// Returns the time to the job's end if it ran there.
double remaining_s(const Snapshot& snapshot, const JobState& job, std::uint32_t type, std::uint32_t gpus) {
    const double rate = expected_rate(snapshot, job, type, gpus);
    return rate <= 0 ? kNever : job.remaining_bytes / rate;
}

// nullopt: the job would not fit even if all others had ended.
std::optional<Reservation> reserve(std::vector<Ending>& endings, const Room& free, const JobSpec& job,
                                   std::uint32_t gpus) {
    std::ranges::stable_sort(endings, {}, &Ending::at_s);
    Room room_then = free;
    for (const Ending& ending : endings) {
        room_then.release(*ending.job, ending.type, ending.gpus, ending.claims);
        if (!room_then.fits(job, ending.type, gpus)) continue;
        room_then.take(job, ending.type, gpus, true);
        return Reservation{.start_s = ending.at_s, .spare = room_then};
    }
    return std::nullopt;
}

}  // namespace

Result<Decision> Fifo::decide(const Snapshot& snapshot) {
    Decision decision;
    decision.skips_blocked = backfills_;
    Room free(snapshot);
    GpuQuotas quotas(snapshot.tenants);
    std::vector<std::uint32_t> waiting;
    std::vector<Ending> endings;
    const auto add_running = [&](std::uint32_t j, std::uint32_t type, std::uint32_t gpus, bool claims) {
        const JobState& job = *snapshot.jobs[j];
        free.take(*job.spec, type, gpus, claims);
        if (!backfills_) return;
        const double left_s =
            job.running ? expected_remaining_s(snapshot, job) : remaining_s(snapshot, job, type, gpus);
        endings.push_back(
            {.at_s = snapshot.now_s + left_s, .job = job.spec, .type = type, .gpus = gpus, .claims = claims});
    };
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        const JobState& job = *snapshot.jobs[j];
        if (!job.running) {
            waiting.push_back(j);
            continue;
        }
        decision.wants.push_back(want_as_it_is(snapshot, j));
        quotas.take(job.spec->tenant, job.gpus);
        if (job.packed_with == nullptr) add_running(j, job.gpu_type, job.gpus, !job.opportunistic);
    }
    const auto priority = [&](std::uint32_t j) { return snapshot.jobs[j]->spec->priority; };
    if (!std::ranges::is_sorted(waiting, std::ranges::greater{}, priority)) {
        std::ranges::stable_sort(waiting, std::ranges::greater{}, priority);
    }
    std::optional<Reservation> reserved;
    // True if the job ends before the first waiting job can start. False if that start is unknown, because it depends
    // on jobs of unknown work.
    const auto ends_before = [&](const JobState& job, std::uint32_t type, std::uint32_t gpus) {
        return reserved->start_s < kNever &&
               snapshot.now_s + remaining_s(snapshot, job, type, gpus) <= reserved->start_s;
    };
    const auto may_run = [&](const JobState& job, std::uint32_t type, std::uint32_t gpus) {
        if (!free.fits(*job.spec, type, gpus)) return false;
        return !reserved || ends_before(job, type, gpus) || reserved->spare.fits(*job.spec, type, gpus);
    };
    for (const std::uint32_t j : waiting) {
        const JobState& job = *snapshot.jobs[j];
        Want want = want_as_it_is(snapshot, j);
        const std::uint32_t gpus = quotas.allowed(*job.spec, want.gpus);
        if (gpus == 0) {
            decision.wants.push_back(want);
            continue;
        }
        const std::uint32_t type =
            free.fastest_type(*job.spec, [&](std::uint32_t candidate) { return may_run(job, candidate, gpus); });
        if (type == kNoGpuType) {
            if (reserved) continue;
            decision.wants.push_back(want);
            if (!backfills_) break;
            reserved = reserve(endings, free, *job.spec, gpus);
            continue;
        }
        if (reserved) want.gpu_type = type;
        decision.wants.push_back(want);
        quotas.take(job.spec->tenant, gpus);
        if (!reserved) {
            add_running(j, type, gpus, true);
            continue;
        }
        free.take(*job.spec, type, gpus, true);
        if (!ends_before(job, type, gpus)) reserved->spare.take(*job.spec, type, gpus, true);
        if (free.is_empty()) break;
    }
    return decision;
}

}  // namespace larder::scheduler
