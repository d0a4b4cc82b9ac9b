#include "scheduler/policies/round.h"

#include <algorithm>
#include <tuple>

namespace larder::scheduler {
namespace {

constexpr double kPartMin = 1e-6;
constexpr double kPartSmall = 0.02;  // not worth changing GPUs for

struct Pair {
    std::int32_t priority = 0;
    double urgency = 0;
    bool runs_there = false;
    std::uint32_t at = 0;  // index in jobs
    std::uint32_t type = 0;
};

// Every job counts as if it had already run for a tenth of a round, so that a new job starts soon, but not regardless
// of its share.
double urgency(const Snapshot& snapshot, const JobState& job, std::uint32_t type, double part, double round_s) {
    const double possible_run_s = full_recent_run_s(snapshot.now_s - job.spec->submit_s + round_s);
    return part * possible_run_s / (recent_run_s(job, type, snapshot.now_s) + round_s / 10);
}

}  // namespace

void want_round(const Snapshot& snapshot, std::span<const RoundJob> jobs, double round_s, Decision& decision) {
    std::vector<std::uint32_t> left;
    for (const GpuTypeState& type : snapshot.gpu_types) left.push_back(type.gpus);
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        const JobState& job = *snapshot.jobs[j];
        if (!is_unstoppable(job) && !holds_lease(job, snapshot.now_s)) continue;
        left[job.gpu_type] -= std::min(left[job.gpu_type], job.gpus);
        Want want = want_as_it_is(snapshot, j);
        want.promised = true;
        decision.wants.push_back(want);
    }
    const double end_s = period_end_s(snapshot.now_s, round_s);
    std::vector<Pair> pairs;
    std::vector<bool> chosen(jobs.size());
    bool settled = true;  // no job has to wait or to change its type
    for (std::uint32_t i = 0; i < jobs.size(); ++i) {
        const JobState& job = *snapshot.jobs[jobs[i].job];
        std::uint32_t types = 0;
        const double largest = std::ranges::max(jobs[i].parts);
        for (std::uint32_t type = 0; type < left.size(); ++type) {
            const double part = jobs[i].parts[type];
            if (part <= kPartMin || (part < kPartSmall && part < largest)) continue;
            ++types;
            if (holds_lease(job, snapshot.now_s)) continue;
            pairs.push_back({.priority = job.spec->priority,
                             .urgency = urgency(snapshot, job, type, part, round_s),
                             .runs_there = job.running && job.gpu_type == type,
                             .at = i,
                             .type = type});
        }
        settled = settled && types < 2;
        chosen[i] = holds_lease(job, snapshot.now_s);
    }
    std::ranges::sort(pairs, [](const Pair& a, const Pair& b) {
        return std::tuple(-a.priority, -a.urgency, !a.runs_there, a.at, a.type) <
               std::tuple(-b.priority, -b.urgency, !b.runs_there, b.at, b.type);
    });
    const auto add_want = [&](const RoundJob& job, std::uint32_t type) {
        Want wanted;
        wanted.job = job.job;
        wanted.gpus = job.gpus;
        wanted.gpu_type = type;
        wanted.lease_s = end_s - snapshot.now_s;
        decision.wants.push_back(wanted);
    };
    std::vector<std::uint32_t> passed_over;
    for (const Pair& pair : pairs) {
        if (chosen[pair.at]) continue;
        const RoundJob& job = jobs[pair.at];
        if (left[pair.type] < job.gpus) {
            passed_over.push_back(pair.at);
            continue;
        }
        left[pair.type] -= job.gpus;
        chosen[pair.at] = true;
        add_want(job, pair.type);
    }
    // Jobs without any share come after jobs that found no room on the types where they have a share.
    for (std::uint32_t i = 0; i < jobs.size(); ++i) passed_over.push_back(i);
    for (const std::uint32_t i : passed_over) {
        if (chosen[i]) continue;
        chosen[i] = true;
        settled = false;
        const JobState& job = *snapshot.jobs[jobs[i].job];
        // The round must be worth the restart.
        if (job.running || 2 * job.spec->restart_s <= round_s) add_want(jobs[i], job.spec->gpu_type);
    }
    if (!settled) decision.next_s = std::min(decision.next_s, end_s);
}

}  // namespace larder::scheduler
