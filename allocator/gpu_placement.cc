#include "allocator/gpu_placement.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "allocator/problem.h"
#include "allocator/solve.h"

namespace larder::allocator {
namespace {

using Placement = std::vector<GpuShare>;

// How good a placement is; more is better, compared in this order.
struct Score {
    double rate = 0;
    double near_bytes = 0;
    int nodes = 0;

    bool better_than(const Score& other) const {
        constexpr double kSame = 1e-9;
        if (rate > other.rate * (1 + kSame)) return true;
        if (rate < other.rate * (1 - kSame)) return false;
        if (near_bytes != other.near_bytes) return near_bytes > other.near_bytes;
        return nodes < other.nodes;
    }
};

class Search {
public:
    Search(const ClusterState& state, std::uint32_t job, const Objective& objective)
        : state_(state), job_(job), objective_(objective), free_(state.nodes.size()), cached_(state.nodes.size()) {
        std::vector<double> jobs_on(state.nodes.size());
        for (std::uint32_t n = 0; n < free_.size(); ++n) free_[n] = state.nodes[n].gpus;
        for (const Job& other : state.jobs) {
            for (const GpuShare& share : other.placement) {
                free_[share.node] -= std::min(free_[share.node], share.gpus);
                ++jobs_on[share.node];
            }
        }
        for (const NodeCache& there : state.datasets[wanted().dataset].cached) {
            cached_[there.node] = static_cast<double>(there.bytes());
        }
        for (std::uint32_t n = 0; n < free_.size(); ++n) {
            if (free_[n] > 0) usable_.push_back(n);
        }
        std::ranges::sort(usable_, {}, [&](std::uint32_t n) { return state.nodes[n].name; });
        for (const std::uint32_t n : usable_) {
            nic_left_.push_back(state.nodes[n].nic_bytes_per_second / (1 + jobs_on[n]));
            disk_left_.push_back(state.nodes[n].disk_read_bytes_per_second / (1 + jobs_on[n]));
        }
    }

    std::optional<Placement> run() {
        std::uint64_t available = 0;
        for (const std::uint32_t n : usable_) available += free_[n];
        if (wanted().gpus == 0 || available < wanted().gpus) return std::nullopt;
        const std::vector<Placement> starts = candidates();
        for (const Placement& placement : starts) consider(placement);
        // On a small cluster, one GPU at a time to wherever it does better.
        constexpr std::size_t kNodesMax = 16;
        while (best_ && usable_.size() <= kNodesMax && improve()) {
        }
        return best_;
    }

private:
    const Job& wanted() const { return state_.jobs[job_]; }

    // All free GPUs of one node after the other, in an order, until there are enough.
    Placement take_in_order(std::span<const std::uint32_t> order) const {
        Placement placement;
        std::uint32_t missing = wanted().gpus;
        for (const std::uint32_t n : order) {
            const std::uint32_t taken = std::min(missing, free_[n]);
            if (taken > 0) placement.push_back({.node = n, .gpus = taken});
            missing -= taken;
            if (missing == 0) break;
        }
        std::ranges::sort(placement, {}, &GpuShare::node);
        return placement;
    }

    // One GPU from each node in turn: as much network as there is.
    Placement spread() const {
        std::vector<std::uint32_t> taken(free_.size());
        for (std::uint32_t missing = wanted().gpus; missing > 0;) {
            for (const std::uint32_t n : usable_) {
                if (missing == 0 || taken[n] == free_[n]) continue;
                ++taken[n];
                --missing;
            }
        }
        Placement placement;
        for (std::uint32_t n = 0; n < taken.size(); ++n) {
            if (taken[n] > 0) placement.push_back({.node = n, .gpus = taken[n]});
        }
        return placement;
    }

    std::vector<Placement> candidates() const {
        constexpr std::size_t kSingleNodesMax = 8;
        std::vector<std::uint32_t> places(usable_.size());
        std::iota(places.begin(), places.end(), 0u);
        std::vector<Placement> found;
        const auto in_order_of = [&](auto&& worth) {
            std::vector<std::uint32_t> order = places;
            std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) { return worth(a) > worth(b); });
            std::vector<std::uint32_t> nodes;
            for (const std::uint32_t at : order) nodes.push_back(usable_[at]);
            found.push_back(take_in_order(nodes));
            std::size_t single = 0;
            for (const std::uint32_t n : nodes) {
                if (free_[n] < wanted().gpus || single++ == kSingleNodesMax) continue;
                found.push_back({{.node = n, .gpus = wanted().gpus}});
            }
        };
        in_order_of([&](std::uint32_t at) { return cached_[usable_[at]]; });
        in_order_of([&](std::uint32_t at) { return nic_left_[at]; });
        in_order_of([&](std::uint32_t at) { return disk_left_[at]; });
        in_order_of([&](std::uint32_t at) { return static_cast<double>(free_[usable_[at]]); });
        // The tightest fit leaves whole nodes to others.
        in_order_of([&](std::uint32_t at) {
            return free_[usable_[at]] >= wanted().gpus ? -static_cast<double>(free_[usable_[at]]) : -1e9;
        });
        found.push_back(spread());
        return found;
    }

    bool consider(const Placement& placement) {
        std::vector<std::pair<std::uint32_t, std::uint32_t>> key;
        for (const GpuShare& share : placement) key.emplace_back(share.node, share.gpus);
        if (!seen_.insert(std::move(key)).second) return false;
        if (objective_.placement_rules != nullptr && !objective_.placement_rules->allows(state_, job_, placement)) {
            return false;
        }
        const Score score = score_of(placement);
        if (best_ && !score.better_than(best_score_)) return false;
        best_ = placement;
        best_score_ = score;
        return true;
    }

    Score score_of(const Placement& placement) {
        trial_.jobs[job_].placement = placement;
        const Problem problem = make_problem(trial_);
        const Solution solution = solve(trial_, problem, objective_.kind);
        Score score{.nodes = static_cast<int>(placement.size())};
        for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
            if (problem.jobs[j].job == job_) score.rate = solution.steady_rates[j];
        }
        for (const GpuShare& share : placement) score.near_bytes += cached_[share.node] * share.gpus;
        return score;
    }

    bool improve() {
        const Placement from = *best_;
        for (const GpuShare& share : from) {
            for (const std::uint32_t to : usable_) {
                if (to == share.node) continue;
                Placement moved;
                std::uint32_t there = 0;
                for (const GpuShare& other : from) {
                    if (other.node == to) there = other.gpus;
                    if (other.node == share.node && other.gpus > 1) moved.push_back({other.node, other.gpus - 1});
                    if (other.node != share.node && other.node != to) moved.push_back(other);
                }
                if (there == free_[to]) continue;
                moved.push_back({.node = to, .gpus = there + 1});
                std::ranges::sort(moved, {}, &GpuShare::node);
                if (consider(moved)) return true;
            }
        }
        return false;
    }

    const ClusterState& state_;
    ClusterState trial_ = state_;
    std::uint32_t job_;
    const Objective& objective_;
    std::vector<std::uint32_t> free_;
    std::vector<double> cached_;  // of the job's dataset, per node
    std::vector<std::uint32_t> usable_;
    std::vector<double> nic_left_, disk_left_;  // by place in usable_
    std::set<std::vector<std::pair<std::uint32_t, std::uint32_t>>> seen_;
    std::optional<Placement> best_;
    Score best_score_;
};

}  // namespace

std::optional<std::vector<GpuShare>> place_job(const ClusterState& state, std::uint32_t job,
                                               const Objective& objective) {
    return Search(state, job, objective).run();
}

}  // namespace larder::allocator
