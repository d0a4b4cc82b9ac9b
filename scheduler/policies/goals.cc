#include "scheduler/policies/goals.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "scheduler/policies/wants.h"

namespace larder::scheduler {
namespace {

constexpr std::size_t kGoalsMax = 1000;  // a decision plans no more jobs than these
constexpr double kLittleSlack = 0.5;     // time to spare, relative to the remaining time, below which time is tight

struct Goal {
    double value_per_gpu_s = 0;
    double end_s = 0;       // the earliest possible
    std::uint32_t job = 0;  // index in Snapshot::jobs
};

std::vector<Goal> goals_of(const Snapshot& snapshot, std::span<const Promise> promises) {
    std::vector<bool> is_promised(snapshot.jobs.size());
    for (const Promise& promise : promises) is_promised[promise.demand.job] = promise.met || promise.promised_before;
    std::vector<Goal> goals;
    for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
        const JobState& job = *snapshot.jobs[j];
        if (!has_deadline(job) || job.spec->service != ServiceClass::soft_deadline) continue;
        if (!job.spec->preemptible || is_promised[j]) continue;
        const double remaining_s = remaining_with_restart_s(snapshot, job);
        const double end_s = snapshot.now_s + remaining_s;
        const double value = value_of_end(*job.spec, end_s);
        if (value <= 0) continue;
        const double gpu_s = std::max(1.0, remaining_s) * job.spec->gpus;
        goals.push_back({.value_per_gpu_s = value / gpu_s, .end_s = end_s, .job = j});
    }
    std::ranges::sort(goals, {}, [](const Goal& goal) { return std::pair(-goal.value_per_gpu_s, goal.job); });
    if (goals.size() > kGoalsMax) goals.resize(kGoalsMax);
    return goals;
}

}  // namespace

GoalPlan plan_goals(const Snapshot& snapshot, std::span<const Promise> promises, LeasePlan& plan) {
    GoalPlan found;
    const Room all(snapshot);
    for (const Goal& goal : goals_of(snapshot, promises)) {
        const JobSpec& spec = *snapshot.jobs[goal.job]->spec;
        LeaseDemand demand = demand_of(snapshot, all, goal.job);
        double until_s = value_until_s(spec, goal.end_s);
        while (until_s != kNever) {
            demand.deadline_s = until_s;
            const LeaseFit fit = plan.fit_late(demand);
            if (fit.meets(until_s)) {
                plan.take(fit, demand);
                const double start_s = plan.start_s(fit.leases.front());
                const double slack_s = start_s - snapshot.now_s;
                if (slack_s < kLittleSlack * (goal.end_s - snapshot.now_s)) found.tight = true;
                if (fit.starts_now()) found.urgent.push_back({.job = goal.job, .gpu_type = fit.gpu_type});
                break;
            }
            until_s = value_until_s(spec, std::nextafter(until_s, kNever));
            found.tight = true;
        }
    }
    return found;
}

}  // namespace larder::scheduler
