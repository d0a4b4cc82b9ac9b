#include "allocator/gpu_placement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "allocator/problem.h"

namespace larder::allocator {
namespace {

// Free GPUs taken from usable nodes. `place` is an index in Search::nodes_, which is sorted by name so that nothing
// depends on the state's order.
struct Taken {
    std::uint32_t place = 0;
    std::uint32_t gpus = 0;

    auto operator<=>(const Taken&) const = default;
};
using Gang = std::vector<Taken>;

// Ranks gangs. More is better; fields are compared in this order.
struct Score {
    PlanValue plan;  // empty in estimates
    double rate = 0;
    double near_bytes = 0;
    std::size_t nodes = 0;
    std::uint64_t gpus_left = 0;

    bool better_than(const Score& other) const {
        constexpr double kSame = 1e-9;
        constexpr double kSamePlan = 1e-6;  // levels of max_min are found by bisection
        if (plan.better_than(other.plan, kSamePlan)) return true;
        if (other.plan.better_than(plan, kSamePlan)) return false;
        if (rate > other.rate * (1 + kSame)) return true;
        if (rate < other.rate * (1 - kSame)) return false;
        if (near_bytes > other.near_bytes * (1 + kSame)) return true;
        if (near_bytes < other.near_bytes * (1 - kSame)) return false;
        return nodes != other.nodes ? nodes < other.nodes : gpus_left < other.gpus_left;
    }
};

constexpr double kUnbound = std::numeric_limits<double>::infinity();

struct UsableNode {
    std::uint32_t node = 0;
    std::uint32_t free = 0;
    double cached = 0;  // bytes of the job's dataset
    double jobs = 0;
    double nic = 0;  // the job's share, if shared equally with those jobs
    double disk = 0;
};

// Returns how many plans may be solved to place one job. The time of a plan grows with the size of the state, and every
// waiting job has to be placed.
std::size_t trials(const ClusterState& state) {
    constexpr std::size_t kWork = 2'000'000;
    const std::size_t size = (state.jobs.size() + state.datasets.size()) * state.nodes.size();
    const auto waiting = std::ranges::count_if(state.jobs, &ClusterJob::waits_for_gpus);
    return kWork / (size * static_cast<std::size_t>(waiting));
}

class Search {
public:
    Search(const ClusterState& state, std::uint32_t job, const Objective& objective)
        : state_(state), job_(job), objective_(objective), wanted_(state.jobs[job].gpus) {
        std::vector<UsableNode> nodes(state.nodes.size());
        for (std::uint32_t n = 0; n < nodes.size(); ++n) nodes[n] = {.node = n, .free = state.nodes[n].gpus};
        for (const ClusterJob& other : state.jobs) {
            for (const GpuShare& share : other.placement) {
                nodes[share.node].free -= std::min(nodes[share.node].free, share.gpus);
                ++nodes[share.node].jobs;
            }
        }
        for (const NodeCache& cache : dataset().cached) nodes[cache.node].cached = static_cast<double>(cache.bytes());
        for (UsableNode& node : nodes) {
            node.nic = state.nodes[node.node].nic_bytes_per_second / (1 + node.jobs);
            node.disk = state.nodes[node.node].disk_read_bytes_per_second / (1 + node.jobs);
        }
        for (const NodeCache& cache : dataset().cached) {
            if (cache.disk_bytes == 0) continue;
            const double from_disk = static_cast<double>(cache.disk_bytes) / static_cast<double>(dataset().size_bytes);
            const auto slowest = disks_.try_emplace(state.nodes[cache.node].peer_group, kUnbound).first;
            slowest->second = std::min(slowest->second, nodes[cache.node].disk / std::min(1.0, from_disk));
        }
        for (const UsableNode& node : nodes) {
            if (node.free == 0) continue;
            available_ += node.free;
            nodes_.push_back(node);
        }
        std::ranges::sort(nodes_, {}, [&](const UsableNode& node) -> auto& { return state.nodes[node.node].name; });
    }

    std::optional<GpuShares> run() {
        if (wanted_ == 0 || available_ < wanted_) return std::nullopt;
        trials_left_ = trials(state_);
        // One solved plan alone would have nothing to be compared with.
        if (trials_left_ < 2) trials_left_ = 0;
        if (trials_left_ > 0) trial_ = state_;
        for (const Gang& gang : candidates()) consider(gang);
        if (!best_) search_allowed();
        constexpr std::size_t kNodesMax = 16;
        while (best_ && nodes_.size() <= kNodesMax && trials_left_ > 0 && improve()) {
        }
        if (!best_) return std::nullopt;
        return placement_of(*best_);
    }

private:
    const ClusterDataset& dataset() const { return state_.datasets[state_.jobs[job_].dataset]; }

    GpuShares placement_of(const Gang& gang) const {
        GpuShares placement;
        for (const auto& [place, gpus] : gang) placement.push_back({.node = nodes_[place].node, .gpus = gpus});
        std::ranges::sort(placement, {}, &GpuShare::node);
        return placement;
    }

    // Takes all free GPUs of one node after the other, in this order, until there are enough.
    Gang take_in_order(std::span<const std::uint32_t> order) const {
        Gang gang;
        std::uint32_t missing = wanted_;
        for (const std::uint32_t place : order) {
            const std::uint32_t gpus = std::min(missing, nodes_[place].free);
            gang.push_back({.place = place, .gpus = gpus});
            missing -= gpus;
            if (missing == 0) break;
        }
        std::ranges::sort(gang);
        return gang;
    }

    // Takes GPUs from every node, as evenly as possible, for as much network as possible.
    Gang spread() const {
        std::vector<std::uint32_t> order(nodes_.size());
        std::iota(order.begin(), order.end(), 0u);
        std::ranges::stable_sort(order, {}, [&](std::uint32_t place) { return nodes_[place].free; });
        Gang gang;
        std::uint32_t missing = wanted_;
        for (std::size_t k = 0; k < order.size() && missing > 0; ++k) {
            const auto nodes_left = static_cast<std::uint32_t>(order.size() - k);
            const std::uint32_t share = missing / nodes_left + (missing % nodes_left > 0 ? 1 : 0);
            const std::uint32_t gpus = std::min(share, nodes_[order[k]].free);
            gang.push_back({.place = order[k], .gpus = gpus});
            missing -= gpus;
        }
        std::ranges::sort(gang);
        return gang;
    }

    // Returns the gangs to try, best estimate first.
    std::vector<Gang> candidates() const {
        constexpr std::size_t kSingleNodesMax = 8;
        std::vector<Gang> found;
        const auto add_in_order_of = [&](auto&& worth) {
            std::vector<std::uint32_t> order(nodes_.size());
            std::iota(order.begin(), order.end(), 0u);
            std::ranges::stable_sort(
                order, [&](std::uint32_t a, std::uint32_t b) { return worth(nodes_[a]) > worth(nodes_[b]); });
            found.push_back(take_in_order(order));
            std::size_t single = 0;
            for (const std::uint32_t place : order) {
                if (nodes_[place].free < wanted_) continue;
                if (single++ == kSingleNodesMax) break;
                found.push_back({{.place = place, .gpus = wanted_}});
            }
        };
        add_in_order_of([](const UsableNode& node) { return node.cached; });
        add_in_order_of([](const UsableNode& node) { return node.nic; });
        add_in_order_of([](const UsableNode& node) { return node.disk; });
        add_in_order_of([](const UsableNode& node) { return node.free; });
        // The tightest fit leaves whole nodes to others.
        add_in_order_of(
            [&](const UsableNode& node) { return node.free >= wanted_ ? -static_cast<double>(node.free) : -kUnbound; });
        found.push_back(spread());
        std::vector<std::pair<Score, std::size_t>> ranked;
        ranked.reserve(found.size());
        for (std::size_t i = 0; i < found.size(); ++i) ranked.emplace_back(estimate(found[i]), i);
        std::ranges::stable_sort(ranked, [](const auto& a, const auto& b) { return a.first.better_than(b.first); });
        std::vector<Gang> sorted;
        sorted.reserve(found.size());
        for (const auto& [score, index] : ranked) sorted.push_back(std::move(found[index]));
        return sorted;
    }

    // Returns a score with all fields but the rate.
    Score score_without_rate(const Gang& gang) const {
        Score score{.nodes = gang.size()};
        for (const auto& [place, gpus] : gang) {
            score.near_bytes += nodes_[place].cached * gpus;
            score.gpus_left += nodes_[place].free - gpus;
        }
        return score;
    }

    // Estimates the rate that networks and disks allow, shared equally with the jobs that are there. A disk serves all
    // GPUs of the gang in its peer group, on whatever node.
    Score estimate(const Gang& gang) const {
        Score score = score_without_rate(gang);
        score.rate = state_.jobs[job_].ideal_bytes_per_second;
        const auto size = static_cast<double>(dataset().size_bytes);
        std::map<std::uint32_t, std::uint32_t> gpus_in_group;
        for (const auto& [place, gpus] : gang) {
            const UsableNode& node = nodes_[place];
            const double missed = static_cast<double>(gpus) / wanted_ * (1 - std::min(1.0, node.cached / size));
            if (missed > 0) score.rate = std::min(score.rate, node.nic / missed);
            gpus_in_group[state_.nodes[node.node].peer_group] += gpus;
        }
        for (const auto& [group, gpus] : gpus_in_group) {
            const auto slowest = disks_.find(group);
            if (slowest != disks_.end()) score.rate = std::min(score.rate, slowest->second * wanted_ / gpus);
        }
        return score;
    }

    bool consider(const Gang& gang) {
        if (best_ && trials_left_ == 0) return false;
        if (!seen_.insert(gang).second) return false;
        const GpuShares placement = placement_of(gang);
        if (objective_.placement_rules != nullptr && !objective_.placement_rules->allows(state_, job_, placement)) {
            return false;
        }
        Score score;
        if (trials_left_ > 0) {
            --trials_left_;
            score = solve_and_score(gang, placement);
        }
        if (best_ && !score.better_than(best_score_)) return false;
        best_ = gang;
        best_score_ = score;
        return true;
    }

    Score solve_and_score(const Gang& gang, const GpuShares& placement) {
        trial_.jobs[job_].placement = placement;
        const Problem problem = problem_for(trial_, objective_.kind);
        const Solution solution = towards_equal_quotas(trial_, problem, objective_.kind, Effort::usual,
                                                       solve(trial_, problem, objective_.kind, Effort::usual));
        Score score = score_without_rate(gang);
        score.plan = plan_value(trial_, problem, objective_.kind, solution, job_);
        score.rate = solution.steady_rates[problem.terms_of_job[job_]];
        return score;
    }

    // Called when the rules forbid the best candidates: tries gangs of neighbouring nodes, then any gang, asking the
    // rules for one after the other.
    void search_allowed() {
        std::size_t asks_left = 10'000;
        Gang gang;
        const auto try_gangs_from = [&](const auto& self, std::uint32_t place, std::uint32_t missing,
                                        std::uint64_t available) -> void {
            if (missing == 0) {
                --asks_left;
                consider(gang);
                return;
            }
            if (place == nodes_.size() || available < missing) return;
            const std::uint32_t free = nodes_[place].free;
            for (std::uint32_t gpus = std::min(free, missing);; --gpus) {
                if (best_ || asks_left == 0) return;
                if (gpus > 0) gang.push_back({.place = place, .gpus = gpus});
                self(self, place + 1, missing - gpus, available - free);
                if (gpus == 0) return;
                gang.pop_back();
            }
        };
        // Most rules are about nodes that lie together, and such nodes have similar names.
        std::vector<std::uint32_t> order(nodes_.size());
        std::iota(order.begin(), order.end(), 0u);
        std::uint64_t left = available_;
        for (std::uint32_t first = 0; left >= wanted_; left -= nodes_[first++].free) {
            consider(take_in_order(std::span(order).subspan(first)));
        }
        try_gangs_from(try_gangs_from, 0, wanted_, available_);
    }

    // Moves all, half or one of a node's GPUs to another node.
    bool improve() {
        const Gang before = *best_;
        for (const Taken& source : before) {
            for (std::uint32_t target = 0; target < nodes_.size(); ++target) {
                if (target == source.place) continue;
                const auto taken_from_target = std::ranges::find(before, target, &Taken::place);
                const std::uint32_t gpus_on_target = taken_from_target == before.end() ? 0 : taken_from_target->gpus;
                const std::uint32_t most = std::min(source.gpus, nodes_[target].free - gpus_on_target);
                for (const std::uint32_t moved : {most, most / 2, std::min(most, 1u)}) {
                    if (moved == 0) continue;
                    Gang gang;
                    for (const Taken& taken : before) {
                        const std::uint32_t left = taken.gpus - (taken.place == source.place ? moved : 0);
                        if (taken.place != target && left > 0) gang.push_back({.place = taken.place, .gpus = left});
                    }
                    gang.push_back({.place = target, .gpus = gpus_on_target + moved});
                    std::ranges::sort(gang);
                    if (consider(gang)) return true;
                }
            }
        }
        return false;
    }

    const ClusterState& state_;
    const std::uint32_t job_;
    const Objective& objective_;
    const std::uint32_t wanted_;
    std::vector<UsableNode> nodes_;
    std::map<std::uint32_t, double>
        disks_;                    // by peer group: bytes/s of the dataset that can be read before a disk binds
    std::uint64_t available_ = 0;  // GPUs
    ClusterState trial_;
    std::size_t trials_left_ = 0;
    std::set<Gang> seen_;
    std::optional<Gang> best_;
    Score best_score_;
};

}  // namespace

std::optional<GpuShares> place_job(const ClusterState& state, std::uint32_t job, const Objective& objective) {
    return Search(state, job, objective).run();
}

}  // namespace larder::allocator
