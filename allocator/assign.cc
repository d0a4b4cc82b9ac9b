#include "allocator/assign.h"

#include <algorithm>
#include <ranges>

#include "allocator/gpu_placement.h"
#include "allocator/problem.h"
#include "allocator/quota_placement.h"
#include "allocator/solve.h"
#include "allocator/spare_room.h"

namespace larder::allocator {
namespace {

using Quotas = std::vector<std::vector<NodeCache>>;

Quotas quotas_in_force(const ClusterState& state) {
    Quotas quotas;
    for (const ClusterDataset& dataset : state.datasets) quotas.push_back(dataset.quotas);
    return quotas;
}

// True if `quotas` respect every dataset's floor, cap and held quotas, within rounding.
bool may_keep_quotas(const ClusterState& state, const Problem& problem, const Quotas& quotas) {
    const CacheSplit split = split_of(problem, quotas);
    // Quotas are whole bytes on every node.
    const double slack = static_cast<double>(state.nodes.size());
    for (std::size_t i = 0; i < split.size(); ++i) {
        const GroupCache& cache = problem.caches[i];
        // Quotas that operators hold may be larger than the dataset.
        if (state.datasets[cache.dataset].held.empty() && split[i] > cache.cap) return false;
        if (split[i] + slack < cache.floor) return false;
    }
    for (std::size_t i = 0; i < quotas.size(); ++i) {
        for (const NodeCache& fixed : state.datasets[i].held) {
            const auto found = std::ranges::find(quotas[i], fixed.node, &NodeCache::node);
            const NodeCache now = found == quotas[i].end() ? NodeCache{.node = fixed.node} : *found;
            if (now != fixed) return false;
        }
    }
    std::vector<NodeCache> used(state.nodes.size());
    for (const NodeCache& quota : quotas | std::views::join) {
        used[quota.node].memory_bytes += quota.memory_bytes;
        used[quota.node].disk_bytes += quota.disk_bytes;
    }
    for (std::size_t n = 0; n < used.size(); ++n) {
        if (used[n].memory_bytes > state.nodes[n].memory_bytes || used[n].disk_bytes > state.nodes[n].disk_bytes) {
            return false;
        }
    }
    return std::ranges::any_of(split, [](double bytes) { return bytes > 0; });
}

std::uint64_t moved_bytes(const ClusterState& state, const Quotas& quotas) {
    std::uint64_t moved = 0;
    for (std::size_t i = 0; i < quotas.size(); ++i) {
        for (const NodeCache& quota : quotas[i]) {
            const auto found = std::ranges::find(state.datasets[i].cached, quota.node, &NodeCache::node);
            const std::uint64_t bytes = found == state.datasets[i].cached.end() ? 0 : found->bytes();
            // A quota set by hand may be larger than its dataset.
            const std::uint64_t wanted = std::min(quota.bytes(), state.datasets[i].size_bytes);
            moved += wanted - std::min(wanted, bytes);
        }
    }
    return moved;
}

// `placed` lists the jobs that had no GPUs before this plan.
Plan plan_of(const ClusterState& state, std::span<const std::uint32_t> placed, const Problem& problem,
             Solution solution) {
    Plan plan;
    plan.steady_remote_bytes_per_second = steady_remote(problem, solution);
    plan.moved_bytes = moved_bytes(state, solution.quotas);
    plan.datasets.reserve(solution.quotas.size());
    for (auto& quotas : solution.quotas) {
        DatasetPlan& dataset = plan.datasets.emplace_back();
        for (const NodeCache& quota : quotas) dataset.quota_bytes += quota.bytes();
        dataset.quotas = std::move(quotas);
    }
    plan.jobs.reserve(state.jobs.size());
    for (const std::uint32_t j : problem.terms_of_job) {
        JobPlan& job = plan.jobs.emplace_back();
        if (j == kNoTerms) continue;
        job.running = true;
        job.bandwidth_bytes_per_second = solution.bandwidths[j];
        job.equal_share_bytes_per_second = problem.equal_rates[j];
        job.hit_ratio = problem.effective_hit_ratios[j];
        job.predicted_bytes_per_second = solution.rates[j];
        job.steady_hit_ratio = solution.steady_hit_ratios[j];
        job.steady_bytes_per_second = solution.steady_rates[j];
    }
    for (const std::uint32_t job : placed) plan.jobs[job].found_placement = state.jobs[job].placement;
    return plan;
}

// Gives GPUs to jobs that have none, by weight, then by name. Returns the jobs that got some.
std::vector<std::uint32_t> place_waiting(ClusterState& state, const Objective& objective) {
    std::vector<std::uint32_t> waiting;
    for (std::uint32_t i = 0; i < state.jobs.size(); ++i) {
        if (state.jobs[i].waits_for_gpus()) waiting.push_back(i);
    }
    std::ranges::sort(waiting, [&](std::uint32_t a, std::uint32_t b) {
        const ClusterJob& left = state.jobs[a];
        const ClusterJob& right = state.jobs[b];
        return left.weight != right.weight ? left.weight > right.weight : left.name < right.name;
    });
    for (const std::uint32_t job : waiting) {
        if (auto found = place_job(state, job, objective)) state.jobs[job].placement = std::move(*found);
    }
    std::erase_if(waiting, [&](std::uint32_t job) { return state.jobs[job].placement.empty(); });
    return waiting;
}

}  // namespace

Result<Plan> assign(const ClusterState& given, const Objective& objective) {
    if (auto valid = validate(given); !valid) return std::unexpected(valid.error());
    const bool places_jobs = objective.place_jobs && std::ranges::any_of(given.jobs, &ClusterJob::waits_for_gpus);
    ClusterState changed;
    if (objective.spare_room) {
        changed = without_spare_room(given);
    } else if (places_jobs) {
        changed = given;
    }
    std::vector<std::uint32_t> placed;
    if (places_jobs) placed = place_waiting(changed, objective);
    const ClusterState& state = places_jobs || objective.spare_room ? changed : given;

    const auto problem_of = [&](CountedJobs counted) {
        return objective.kind == ObjectiveKind::utilisation ? make_utilisation_problem(state, counted)
                                                            : make_problem(state, counted);
    };
    const bool takes_turns = std::ranges::any_of(
        state.jobs, [](const ClusterJob& job) { return job.waits_for_turn() || job.time_share < 1; });
    const Problem problem = problem_of(takes_turns ? CountedJobs::by_time_share : CountedJobs::running);
    Solution solution = solve(state, problem, objective.kind);
    const bool chooses_quotas =
        objective.kind != ObjectiveKind::equal_shares && objective.kind != ObjectiveKind::pinned;
    bool kept = false;
    const Quotas in_force = quotas_in_force(state);
    if (chooses_quotas && objective.hysteresis > 0 && may_keep_quotas(state, problem, in_force)) {
        Solution unchanged = solve_with_quotas(state, problem, objective.kind, in_force);
        // No job may stay below its equal share only because the quotas are kept.
        kept = reaches_equal_shares(problem, unchanged) &&
               gain(problem, objective.kind, unchanged, solution) < objective.hysteresis;
        if (kept) solution = std::move(unchanged);
    }
    Plan plan;
    if (takes_turns) {
        const Problem running = problem_of(CountedJobs::running);
        Solution in_turn = solve_for_rotation(state, problem, running, objective.kind, std::move(solution.quotas));
        kept = kept && in_turn.quotas == in_force;
        plan = plan_of(state, placed, running, std::move(in_turn));
    } else {
        plan = plan_of(state, placed, problem, std::move(solution));
    }
    plan.kept_quotas = kept;
    if (chooses_quotas && objective.spare_room) give_spare_room(state, plan);
    return plan;
}

}  // namespace larder::allocator
