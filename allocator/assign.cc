#include "allocator/assign.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <ranges>
#include <utility>

#include "allocator/balanced_placement.h"
#include "allocator/bandwidth_limits.h"
#include "allocator/cache_split.h"
#include "allocator/gpu_placement.h"
#include "allocator/guessed_rates.h"
#include "allocator/model.h"
#include "allocator/node_relief.h"
#include "allocator/problem.h"
#include "allocator/quota_program.h"
#include "allocator/rate_limits.h"
#include "allocator/sorted_indices.h"
#include "allocator/user_shares.h"
#include "base/assert.h"

namespace larder::allocator {

// --- quotas and rates for jobs that all have GPUs

namespace {

constexpr int kRoundsMax = 3;  // times to solve again with rates bounded by disk and network

// Returns the bandwidth the rates need plus an equal part of the rest: estimates err, and unused bandwidth helps no
// job. For equal_shares the grants are just the equal shares.
std::vector<double> bandwidth_grants(const Problem& problem, ObjectiveKind kind, std::span<const double> rates,
                                     std::span<const double> hits) {
    std::vector<double> grant(rates.size());
    if (kind == ObjectiveKind::equal_shares) {
        for (std::size_t j = 0; j < rates.size(); ++j) grant[j] = problem.jobs[j].equal_bandwidth;
        return grant;
    }
    double left = problem.remote;
    for (std::size_t j = 0; j < rates.size(); ++j) {
        grant[j] = std::max(rates[j] * (1 - hits[j]), problem.bandwidth_floors[j]);
        left -= grant[j];
    }
    const double part = rates.empty() ? 0 : std::max(0.0, left) / static_cast<double>(rates.size());
    for (std::size_t j = 0; j < rates.size(); ++j)
        grant[j] = std::min(grant[j] + part, std::max(grant[j], problem.bandwidth_caps[j]));
    return grant;
}

std::vector<double> steady_hits(const Problem& problem, const std::vector<std::vector<NodeCache>>& quotas) {
    const std::vector<CachedPart> parts = problem.cached_parts(split_of(problem, quotas));
    std::vector<double> hits(problem.jobs.size());
    for (std::size_t j = 0; j < hits.size(); ++j) hits[j] = problem.steady_hit_ratio(j, parts);
    return hits;
}

// Lowers the ideals of jobs bound by a disk or a network to their rates, so that cache is chosen for those rates. A job
// counts as bound by them if it stays below f* and below the rate its cap allows while the remote has bandwidth left.
// Returns true if there was such a job.
bool lower_to_bounded_rates(const Problem& problem, const Solution& solution, std::vector<double>& ideals) {
    bool any = false;
    double left = problem.remote;
    for (std::size_t j = 0; j < ideals.size(); ++j) {
        const double misses = solution.steady_rates[j] * (1 - solution.steady_hit_ratios[j]);
        left -= std::max(misses, problem.bandwidth_floors[j]);
    }
    for (std::size_t j = 0; j < ideals.size(); ++j) {
        const double rate = solution.steady_rates[j];
        if (rate >= ideals[j] * (1 - 1e-9)) continue;
        const double hits = solution.steady_hit_ratios[j];
        const double highest = predicted_rate(ideals[j], problem.bandwidth_caps[j], hits);
        const double more = (highest - rate) * (1 - hits);
        const bool remote_bound = more > 0 && left <= 1e-6 * problem.remote;
        if (rate >= highest * (1 - 1e-9) || remote_bound || rate <= 0) continue;
        ideals[j] = rate;
        any = true;
    }
    return any;
}

// Keeps these quotas, and only finds the rates.
Solution solve_with_quotas(const ClusterState& state, const Problem& problem, ObjectiveKind kind,
                           std::vector<std::vector<NodeCache>> quotas, Effort effort, bool* nodes_bind = nullptr) {
    Solution solution{.quotas = std::move(quotas)};
    solution.steady_hit_ratios = steady_hits(problem, solution.quotas);
    solution.steady_rates = rates_for(state, problem, kind, solution.steady_hit_ratios, filled_hits_per_byte(problem),
                                      solution.quotas, effort, nodes_bind);
    return solution;
}

// True if the objective chooses quotas. It then also guarantees each job its equal share.
bool chooses_quotas(ObjectiveKind kind) {
    return kind != ObjectiveKind::equal_shares && kind != ObjectiveKind::pinned;
}

// True if every job reaches its equal share's rate. With `otherwise`: or the rate that it has in that solution.
bool reaches_equal_shares(const Problem& problem, const Solution& solution, const Solution* otherwise = nullptr) {
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
        double least = problem.equal_rates[j];
        if (otherwise != nullptr) least = std::min(least, otherwise->steady_rates[j]);
        if (solution.steady_rates[j] < least * (1 - 1e-6)) return false;
    }
    return true;
}

// Returns the remote bytes per second of all jobs in the steady state.
double steady_remote(const Problem& problem, const Solution& solution) {
    double sum = 0;
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
        sum += solution.steady_rates[j] * (1 - solution.steady_hit_ratios[j]);
    }
    return sum;
}

// Returns the sum of the jobs' rates, each times its value to the objective.
double sum_of_values(const Problem& problem, const Solution& solution) {
    double sum = 0;
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) sum += problem.jobs[j].value * solution.steady_rates[j];
    return sum;
}

// Returns the fraction by which `after` is better than `before`, in the objective's own terms.
double gain(const Problem& problem, ObjectiveKind kind, const Solution& before, const Solution& after) {
    // The smallest ratio counts, of the jobs whose rate differs: a job that a node holds down in both says nothing.
    const auto smallest = [&](const Solution& solution, const Solution& other) {
        double ratio = std::numeric_limits<double>::infinity();
        for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
            const double equal_rate = problem.equal_rates[j];
            const double rate = solution.steady_rates[j];
            if (equal_rate <= 0 || std::abs(rate - other.steady_rates[j]) <= 1e-9 * rate) continue;
            // A job at the highest rate that f* and its cap allow cannot improve, so it does not hold the others down.
            const double most = std::isinf(problem.bandwidth_caps[j]) ? problem.ideals[j] : highest_rate(problem, j);
            if (rate < most * (1 - 1e-6)) ratio = std::min(ratio, rate / (problem.jobs[j].weight * equal_rate));
        }
        return ratio;
    };
    const auto relative = [](double old_value, double new_value) {
        if (old_value == new_value) return 0.0;
        if (std::isinf(old_value)) return -1.0;
        // Sums may differ in their last digits with the order of the lists.
        if (std::abs(new_value - old_value) <= 1e-9 * old_value) return 0.0;
        return old_value > 0 ? (new_value - old_value) / old_value : std::numeric_limits<double>::infinity();
    };
    if (kind == ObjectiveKind::max_min) {
        const double change = relative(smallest(before, after), smallest(after, before));
        if (change != 0) return change;
    }
    const double change = relative(sum_of_values(problem, before), sum_of_values(problem, after));
    if (change != 0) return change;
    return relative(steady_remote(problem, after), steady_remote(problem, before));
}

using Quotas = std::vector<std::vector<NodeCache>>;

// Mixes quotas, node by node: `second` counts for `part`, `first` for the rest. Both are sorted by node.
Quotas mixed(const ClusterState& state, const Problem& problem, const Quotas& first, const Quotas& second,
             double part) {
    const auto lerp = [&](std::uint64_t a, std::uint64_t b) {
        return static_cast<std::uint64_t>(std::lerp(static_cast<double>(a), static_cast<double>(b), part));
    };
    Quotas both(first.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
        auto a = first[i].begin();
        auto b = second[i].begin();
        while (a != first[i].end() || b != second[i].end()) {
            NodeCache from_a, from_b;
            const bool takes_a = b == second[i].end() || (a != first[i].end() && a->node <= b->node);
            const bool takes_b = a == first[i].end() || (b != second[i].end() && b->node <= a->node);
            if (takes_a) from_a = *a++;
            if (takes_b) from_b = *b++;
            both[i].push_back({.node = takes_a ? from_a.node : from_b.node,
                               .memory_bytes = lerp(from_a.memory_bytes, from_b.memory_bytes),
                               .disk_bytes = lerp(from_a.disk_bytes, from_b.disk_bytes)});
        }
    }
    restore_floors(state, problem, both);
    return both;
}

// Solves for the running jobs, with quotas made for all jobs that take turns (`averages`). If these quotas leave a
// running job below its equal share, they move towards equal ones as far as needed.
Solution solve_for_rotation(const ClusterState& state, const Problem& averages, const Problem& running,
                            ObjectiveKind kind, Effort effort, std::vector<std::vector<NodeCache>> quotas) {
    Solution solution = solve_with_quotas(state, running, kind, std::move(quotas), effort);
    if (!chooses_quotas(kind) || reaches_equal_shares(running, solution)) return solution;
    const CacheSplit split = towards_equal_split(running, split_of(running, solution.quotas));
    solution = solve_with_quotas(state, running, kind, place_quotas(state, averages, split, averages.ideals), effort);
    return towards_equal_quotas(state, running, kind, effort, std::move(solution));
}

// Looks for better quotas where disks or networks bind, in a limited number of tries. The best solution seen so far
// leads the search. If that one leaves a job below its equal share, the best one that does not is kept beside it.
class NodeSearch {
public:
    NodeSearch(const ClusterState& state, const Problem& problem, ObjectiveKind kind, Effort effort, Solution first)
        : state_(state),
          problem_(problem),
          kind_(kind),
          effort_(effort),
          best_(std::move(first)),
          best_reaches_(reaches_equal_shares(problem, best_)),
          tries_(tries_in_time(problem)),
          uses_programs_(effort == Effort::thorough && has_small_programs(state, problem)) {
        highest_.reserve(problem.jobs.size());
        for (std::size_t j = 0; j < problem.jobs.size(); ++j) highest_.push_back(highest_rate(problem, j));
    }

    const Solution& best() const { return best_; }
    // Returns the best solution that lets every job reach its equal share: one that was seen, or the best one once its
    // quotas have moved as far as needed. If there is none, returns the best one.
    Solution take() {
        if (best_reaches_ || !fair_) return std::move(best_);
        Solution moved = towards_equal_quotas(state_, problem_, kind_, effort_, std::move(best_));
        const bool is_better = reaches_equal_shares(problem_, moved) && gain(problem_, kind_, *fair_, moved) > 0;
        return is_better ? std::move(moved) : *std::move(fair_);
    }

    // Returns true if every job reaches `rates` with these quotas.
    bool consider(Quotas quotas, std::span<const double> rates) {
        Solution solution = solve_with_quotas(state_, problem_, kind_, std::move(quotas), Effort::usual);
        bool reached = true;
        for (std::size_t j = 0; j < rates.size(); ++j) {
            reached = reached && solution.steady_rates[j] >= rates[j] * (1 - 1e-6);
        }
        take_if_better(std::move(solution));
        return reached;
    }
    // Divides the best split of `bounded` among the nodes so that they can carry its ideals best, or the best rates
    // yet.
    void balance(const Problem& bounded) {
        if (tries_ <= 0) return;
        tries_ -= 2;
        const CacheSplit split = split_for(bounded, kind_);
        consider(balanced_quotas(state_, problem_, split, bounded.ideals), {});
        consider(balanced_quotas(state_, problem_, split, std::vector<double>(best_.steady_rates)), {});
    }
    void raise() {
        if (kind_ == ObjectiveKind::max_min) return raise_level();
        if (uses_programs_) return climb_from_several_starts();
        raise_one_by_one(problem_.equal_rates);
        raise_one_by_one(std::vector<double>(best_.steady_rates));
    }

private:
    void take_if_better(Solution solution) {
        bool reaches = reaches_equal_shares(problem_, solution);
        if (gain(problem_, kind_, best_, solution) > 0) {
            std::swap(best_, solution);
            std::swap(best_reaches_, reaches);
        }
        if (best_reaches_ || !reaches) return;
        if (!fair_ || gain(problem_, kind_, *fair_, solution) > 0) fair_ = std::move(solution);
    }

    bool carries(std::span<const double> rates) {
        --tries_;
        if (!uses_programs_) return consider(carrying_quotas(state_, problem_, rates), rates);
        auto quotas = quotas_that_carry(state_, problem_, rates);
        return quotas && consider(*std::move(quotas), rates);
    }
    double slope(std::size_t job) const { return problem_.jobs[job].weight * problem_.equal_rates[job]; }

    // Looks for the highest level at which the nodes carry all jobs.
    void raise_level() {
        double low = std::numeric_limits<double>::infinity();
        double high = 0;
        for (std::size_t j = 0; j < highest_.size(); ++j) {
            if (!(slope(j) > 0)) continue;
            low = std::min(low, 1 / problem_.jobs[j].weight);
            high = std::max(high, highest_[j] / slope(j));
        }
        std::vector<double> rates(highest_.size());
        const auto carries_level = [&](double level) {
            for (std::size_t j = 0; j < rates.size(); ++j) {
                rates[j] = std::min(std::max(level * slope(j), problem_.equal_rates[j]), highest_[j]);
            }
            return carries(rates);
        };
        if (tries_ <= 0 || !(low < high) || carries_level(high)) return;
        while (tries_ > 0 && high > low * (1 + 1e-8)) {
            const double level = std::sqrt(low * high);
            (carries_level(level) ? low : high) = level;
        }
    }

    // Raises one job after another as far as the nodes carry it, the cheapest first.
    void raise_one_by_one(std::vector<double> rates) {
        std::vector<double> costs;
        costs.reserve(rates.size());
        for (std::size_t j = 0; j < rates.size(); ++j) {
            costs.push_back((1 - best_.steady_hit_ratios[j]) / problem_.jobs[j].value);
        }
        if (tries_ <= 0 || !carries(rates)) return;
        for (const std::uint32_t j : ascending(costs)) {
            constexpr int kHalvings = 6;
            double low = rates[j];
            double high = highest_[j];
            for (int i = 0; i <= kHalvings && high > low * (1 + 1e-3); ++i) {
                if (tries_ <= 0) return;
                rates[j] = i == 0 ? high : (low + high) / 2;
                (carries(rates) ? low : high) = rates[j];
            }
            rates[j] = low;
        }
    }

    double value_of(const Solution& solution) const { return sum_of_values(problem_, solution); }

    // Goes from solution to better solution until no step improves much.
    void climb_from(Quotas start) {
        Solution at = solve_with_quotas(state_, problem_, kind_, std::move(start), Effort::thorough);
        constexpr double kReachMax = 0.5;
        constexpr double kReachMin = 1e-3;
        double reach = kReachMax;
        bool reaches = reaches_equal_shares(problem_, at);
        while (reach > kReachMin && tries_-- > 0) {
            auto quotas = quotas_a_step_from(state_, problem_, at.quotas, at.steady_rates, reach);
            if (!quotas) {
                reach /= 4;
                continue;
            }
            Solution next = solve_with_quotas(state_, problem_, kind_, *std::move(quotas), Effort::thorough);
            const bool next_reaches = reaches_equal_shares(problem_, next);
            if (next_reaches < reaches || (next_reaches == reaches && value_of(next) <= value_of(at) * (1 + 1e-6))) {
                reach /= 4;
                continue;
            }
            at = std::move(next);
            reaches = next_reaches;
            reach = std::min(kReachMax, 2 * reach);
        }
        if (reaches) take_if_better(std::move(at));
    }

    void climb_from_several_starts() {
        climb_from(best_.quotas);
        climb_from(equal_quotas(state_, problem_));
        // One job after another about as fast as it can be, the others at their equal shares.
        std::vector<double> rates = problem_.equal_rates;
        for (std::size_t j = 0; j < rates.size(); ++j) {
            for (const double part : {1.0, 0.5, 0.25, 0.125}) {
                rates[j] = std::lerp(problem_.equal_rates[j], highest_[j], part);
                auto quotas = quotas_that_carry(state_, problem_, rates);
                if (!quotas) continue;
                climb_from(*std::move(quotas));
                break;
            }
            rates[j] = problem_.equal_rates[j];
        }
        // The same rates with as little remote bandwidth as possible.
        rates = best_.steady_rates;
        for (double& rate : rates) rate *= 1 - 1e-8;
        if (auto quotas = quotas_that_carry(state_, problem_, rates)) {
            take_if_better(solve_with_quotas(state_, problem_, kind_, *std::move(quotas), Effort::thorough));
        }
    }

    const ClusterState& state_;
    const Problem& problem_;
    ObjectiveKind kind_;
    Effort effort_;
    Solution best_;
    bool best_reaches_;             // lets every job reach its equal share
    std::optional<Solution> fair_;  // the best that does, if `best_` does not
    int tries_;
    bool uses_programs_;
    std::vector<double> highest_;
};

}  // namespace

Solution solve(const ClusterState& state, const Problem& problem, ObjectiveKind kind, Effort effort) {
    bool nodes_bind = false;
    Solution first = solve_with_quotas(state, problem, kind, choose_quotas(state, problem, kind, problem.ideals),
                                       Effort::usual, &nodes_bind);
    if (!nodes_bind || !chooses_quotas(kind)) return first;

    NodeSearch search(state, problem, kind, effort, std::move(first));
    search.balance(problem);
    search.raise();
    // Jobs that stay below f* need less cache: solve again with their rates as their ideals.
    Problem bounded = problem;
    for (int round = 1; round <= kRoundsMax; ++round) {
        std::vector<double> ideals = bounded.ideals;
        if (!lower_to_bounded_rates(problem, search.best(), ideals)) break;
        for (std::size_t j = 0; j < ideals.size(); ++j) {
            bounded.ideals[j] = ideals[j];
            bounded.equal_rates[j] = std::min(problem.equal_rates[j], ideals[j]);
        }
        search.consider(choose_quotas(state, bounded, kind, ideals), {});
        search.balance(bounded);
    }
    return search.take();
}

bool PlanValue::better_than(const PlanValue& other, double least) const {
    LARDER_ASSERT(ratios.size() == other.ratios.size());
    for (std::size_t i = 0; i < ratios.size(); ++i) {
        if (ratios[i] > other.ratios[i] * (1 + least)) return true;
        if (ratios[i] * (1 + least) < other.ratios[i]) return false;
    }
    return sum > other.sum + least * ideal;
}

PlanValue plan_value(const ClusterState& state, const Problem& problem, ObjectiveKind kind, const Solution& solution,
                     std::uint32_t job) {
    PlanValue value;
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
        const JobTerms& terms = problem.jobs[j];
        const double rate = solution.steady_rates[j];
        const double ideal = state.jobs[terms.job].ideal_bytes_per_second;
        value.sum += terms.value * rate;
        if (terms.job == job) value.ideal = terms.value * ideal;
        if (kind == ObjectiveKind::max_min && ideal > 0) value.ratios.push_back(rate / (terms.weight * ideal));
    }
    std::ranges::sort(value.ratios);
    return value;
}

PlanValue quick_plan_value(const ClusterState& state, ObjectiveKind kind, std::uint32_t job) {
    const Problem problem = problem_for(state, kind, CountedJobs::running);
    return plan_value(
        state, problem, kind,
        solve_with_quotas(state, problem, kind, choose_quotas(state, problem, kind, problem.ideals), Effort::usual),
        job);
}

Solution towards_equal_quotas(const ClusterState& state, const Problem& problem, ObjectiveKind kind, Effort effort,
                              Solution best) {
    if (!chooses_quotas(kind) || reaches_equal_shares(problem, best)) return best;
    Quotas relieved = relieve_nodes(state, problem, best.quotas);
    if (relieved != best.quotas) {
        Solution solution = solve_with_quotas(state, problem, kind, std::move(relieved), effort);
        if (reaches_equal_shares(problem, solution)) return solution;
    }
    // Equal quotas are one for each dataset and node: in a large group, this takes long.
    const Quotas equal = equal_quotas(state, problem);
    Solution found = solve_with_quotas(state, problem, kind, equal, effort);
    if (!reaches_equal_shares(problem, found)) return best;
    double reaches = 0;
    double misses = 1;
    for (int i = 0; i < 5; ++i) {
        const double part = (reaches + misses) / 2;
        Solution trial =
            solve_with_quotas(state, problem, kind, mixed(state, problem, equal, best.quotas, part), effort);
        if (reaches_equal_shares(problem, trial)) {
            reaches = part;
            found = std::move(trial);
        } else {
            misses = part;
        }
    }
    return found;
}

// --- spare room

namespace {

struct Share {
    std::uint32_t dataset = 0;
    std::uint64_t wanted_bytes = 0;
    NodeCache given;
};

// Deals `room` in equal parts, none above its wanted bytes. The smallest come first, so that the room they leave goes
// to the others.
void deal(std::uint64_t room, std::vector<Share>& shares, std::uint64_t NodeCache::* tier) {
    for (std::size_t i = 0; i < shares.size(); ++i) {
        const std::uint64_t part = std::min(room / (shares.size() - i), shares[i].wanted_bytes);
        shares[i].given.*tier += part;
        shares[i].wanted_bytes -= part;
        room -= part;
    }
}

// Returns the datasets that jobs read, by index in the state.
std::vector<bool> datasets_read(const ClusterState& state) {
    std::vector<bool> is_read(state.datasets.size());
    for (const ClusterJob& job : state.jobs) {
        if (!job.placement.empty() || job.waits_for_turn()) is_read[job.dataset] = true;
    }
    return is_read;
}

bool has_unread_quotas(const ClusterState& state) {
    const std::vector<bool> is_read = datasets_read(state);
    for (std::size_t i = 0; i < is_read.size(); ++i) {
        if (!is_read[i] && !state.datasets[i].quotas.empty()) return true;
    }
    return false;
}

}  // namespace

ClusterState without_spare_room(const ClusterState& state) {
    ClusterState trimmed = state;
    const std::vector<bool> is_read = datasets_read(state);
    for (std::size_t i = 0; i < trimmed.datasets.size(); ++i) {
        if (is_read[i]) continue;
        ClusterDataset& dataset = trimmed.datasets[i];
        for (NodeCache& quota : dataset.quotas) {
            if (dataset.is_held_on(quota.node)) continue;
            const auto found = std::ranges::find(dataset.cached, quota.node, &NodeCache::node);
            const NodeCache cached = found == dataset.cached.end() ? NodeCache{} : *found;
            quota.memory_bytes = std::min(quota.memory_bytes, cached.memory_bytes);
            quota.disk_bytes = std::min(quota.disk_bytes, cached.disk_bytes);
        }
    }
    return trimmed;
}

void give_spare_room(const ClusterState& state, Plan& plan) {
    std::vector<NodeCache> room(state.nodes.size());
    for (std::size_t n = 0; n < room.size(); ++n) {
        room[n].memory_bytes = state.nodes[n].memory_bytes;
        room[n].disk_bytes = state.nodes[n].disk_bytes;
    }
    // Bytes that each peer group already has of a dataset: more than the dataset's size is useless there.
    std::vector<std::vector<std::pair<std::uint32_t, std::uint64_t>>> bytes_in_groups(state.datasets.size());
    const auto bytes_in_group = [&](std::uint32_t dataset, std::uint32_t group) -> std::uint64_t& {
        const auto found =
            std::ranges::find(bytes_in_groups[dataset], group, [](const auto& entry) { return entry.first; });
        return found != bytes_in_groups[dataset].end() ? found->second
                                                       : bytes_in_groups[dataset].emplace_back(group, 0).second;
    };
    for (std::uint32_t i = 0; i < plan.datasets.size(); ++i) {
        for (const NodeCache& quota : plan.datasets[i].quotas) {
            room[quota.node].memory_bytes -= quota.memory_bytes;
            room[quota.node].disk_bytes -= quota.disk_bytes;
            bytes_in_group(i, state.nodes[quota.node].peer_group) += quota.bytes();
        }
    }
    std::vector<bool> is_read(state.datasets.size());
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        if (plan.jobs[j].running || state.jobs[j].waits_for_turn()) is_read[state.jobs[j].dataset] = true;
    }
    std::vector<std::vector<std::uint32_t>> idle(state.nodes.size());
    for (std::uint32_t i = 0; i < state.datasets.size(); ++i) {
        if (is_read[i]) continue;
        for (const NodeCache& quota : state.datasets[i].quotas) {
            if (!state.datasets[i].is_held_on(quota.node)) idle[quota.node].push_back(i);
        }
    }
    std::vector<Share> shares;
    for (std::uint32_t node = 0; node < room.size(); ++node) {
        if (idle[node].empty() || room[node].bytes() == 0) continue;
        const std::uint32_t group = state.nodes[node].peer_group;
        shares.clear();
        for (const std::uint32_t i : idle[node]) {
            // A group needs a dataset only once. The operator's cap holds for all groups together.
            const ClusterDataset& dataset = state.datasets[i];
            const std::uint64_t size_left = dataset.size_bytes - std::min(dataset.size_bytes, bytes_in_group(i, group));
            const std::uint64_t planned_bytes = plan.datasets[i].quota_bytes;
            const std::uint64_t cap_left = dataset.quota_cap_bytes - std::min(dataset.quota_cap_bytes, planned_bytes);
            const std::uint64_t wanted_bytes = std::min(size_left, cap_left);
            if (wanted_bytes > 0) {
                shares.push_back({.dataset = i, .wanted_bytes = wanted_bytes, .given = {.node = node}});
            }
        }
        const auto smallest_first = [&](const Share& a, const Share& b) {
            return a.wanted_bytes != b.wanted_bytes ? a.wanted_bytes < b.wanted_bytes
                                                    : state.datasets[a.dataset].name < state.datasets[b.dataset].name;
        };
        std::ranges::sort(shares, smallest_first);
        deal(room[node].memory_bytes, shares, &NodeCache::memory_bytes);
        std::ranges::sort(shares, smallest_first);
        deal(room[node].disk_bytes, shares, &NodeCache::disk_bytes);
        for (const Share& share : shares) {
            if (share.given.bytes() == 0) continue;
            NodeCache& quota = quota_on(plan.datasets[share.dataset].quotas, node);
            quota.memory_bytes += share.given.memory_bytes;
            quota.disk_bytes += share.given.disk_bytes;
            plan.datasets[share.dataset].quota_bytes += share.given.bytes();
            bytes_in_group(share.dataset, group) += share.given.bytes();
        }
    }
}

// --- the plan

namespace {

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

// Returns how many bytes of the datasets' floors are yet to be cached, and have quotas on nodes where jobs are
// expected.
std::uint64_t bytes_to_warm_as_expected(const ClusterState& state, const Quotas& quotas) {
    std::uint64_t sum = 0;
    std::vector<std::uint64_t> cached_on;
    for (std::size_t i = 0; i < quotas.size(); ++i) {
        const ClusterDataset& dataset = state.datasets[i];
        if (dataset.expected_on.empty()) continue;
        const std::uint64_t floor_bytes = std::min(dataset.quota_floor_bytes, dataset.size_bytes);
        std::uint64_t cached_bytes = 0;
        cached_on.assign(state.nodes.size(), 0);
        for (const NodeCache& cached : dataset.cached) {
            cached_on[cached.node] = cached.bytes();
            cached_bytes += cached.bytes();
        }
        std::uint64_t free_bytes = 0;
        for (const NodeCache& quota : quotas[i]) {
            if (!std::ranges::binary_search(dataset.expected_on, quota.node)) continue;
            free_bytes += quota.bytes() - std::min(quota.bytes(), cached_on[quota.node]);
        }
        sum += std::min(free_bytes, floor_bytes - std::min(floor_bytes, cached_bytes));
    }
    return sum;
}

std::uint64_t moved_bytes(const ClusterState& state, const Quotas& quotas) {
    std::uint64_t moved = 0;
    std::vector<std::uint64_t> cached_on(state.nodes.size());  // of one dataset at a time
    for (std::size_t i = 0; i < quotas.size(); ++i) {
        for (const NodeCache& cached : state.datasets[i].cached) cached_on[cached.node] = cached.bytes();
        for (const NodeCache& quota : quotas[i]) {
            // A quota set by hand may be larger than its dataset.
            const std::uint64_t wanted = std::min(quota.bytes(), state.datasets[i].size_bytes);
            moved += wanted - std::min(wanted, cached_on[quota.node]);
        }
        for (const NodeCache& cached : state.datasets[i].cached) cached_on[cached.node] = 0;
    }
    return moved;
}

// `placed` lists the jobs that had no GPUs before this plan.
Plan plan_of(const ClusterState& state, std::span<const std::uint32_t> placed, const Problem& problem,
             ObjectiveKind kind, Effort effort, Solution solution) {
    const std::vector<double>& hits = problem.effective_hit_ratios;
    const std::vector<double> rates =
        rates_for(state, problem, kind, hits, hits_per_byte(problem, hits, solution.quotas), solution.quotas, effort);
    const std::vector<double> bandwidths = bandwidth_grants(problem, kind, rates, hits);
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
        job.bandwidth_bytes_per_second = bandwidths[j];
        job.equal_share_bytes_per_second = problem.equal_rates[j];
        job.hit_ratio = hits[j];
        job.predicted_bytes_per_second = rates[j];
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

Plan assign_by_objective(const ClusterState& given, const Objective& objective) {
    const bool places_jobs = objective.place_jobs && std::ranges::any_of(given.jobs, &ClusterJob::waits_for_gpus);
    const bool trims = objective.spare_room && has_unread_quotas(given);
    ClusterState changed;  // a copy takes time on a large cluster
    if (trims) {
        changed = without_spare_room(given);
    } else if (places_jobs) {
        changed = given;
    }
    std::vector<std::uint32_t> placed;
    if (places_jobs) placed = place_waiting(changed, objective);
    const ClusterState& state = places_jobs || trims ? changed : given;

    const auto problem_of = [&](CountedJobs counted) { return problem_for(state, objective.kind, counted); };
    const bool takes_turns = std::ranges::any_of(
        state.jobs, [](const ClusterJob& job) { return job.waits_for_turn() || job.time_share < 1; });
    const Problem problem = problem_of(takes_turns ? CountedJobs::by_time_share : CountedJobs::running);
    Solution solution = towards_equal_quotas(state, problem, objective.kind, objective.effort,
                                             solve(state, problem, objective.kind, objective.effort));
    bool kept = false;
    const Quotas in_force = quotas_in_force(state);
    if (chooses_quotas(objective.kind) && objective.hysteresis > 0 && may_keep_quotas(state, problem, in_force)) {
        Solution unchanged = solve_with_quotas(state, problem, objective.kind, in_force, objective.effort);
        // No job may stay below its equal share, or be warmed on other nodes than expected, only because the quotas are
        // kept. Quotas are whole bytes on every node.
        const std::uint64_t warmed = bytes_to_warm_as_expected(state, in_force) + state.nodes.size();
        kept = bytes_to_warm_as_expected(state, solution.quotas) <= warmed &&
               reaches_equal_shares(problem, unchanged, &solution) &&
               gain(problem, objective.kind, unchanged, solution) < objective.hysteresis;
        if (kept) solution = std::move(unchanged);
    }
    Plan plan;
    if (takes_turns) {
        const Problem running = problem_of(CountedJobs::running);
        Solution in_turn =
            solve_for_rotation(state, problem, running, objective.kind, objective.effort, std::move(solution.quotas));
        kept = kept && in_turn.quotas == in_force;
        plan = plan_of(state, placed, running, objective.kind, objective.effort, std::move(in_turn));
    } else {
        plan = plan_of(state, placed, problem, objective.kind, objective.effort, std::move(solution));
    }
    plan.kept_quotas = kept;
    if (chooses_quotas(objective.kind) && objective.spare_room) give_spare_room(state, plan);
    return plan;
}

}  // namespace

Result<Plan> assign(const ClusterState& state, const Objective& objective) {
    if (auto valid = validate(state); !valid) return std::unexpected(valid.error());
    Plan plan = assign_by_objective(state, objective);
    std::optional<ClusterState> floored;
    if (chooses_quotas(objective.kind) && gives_cache_to_guesses(state, plan)) {
        floored = with_cached_floors(state, assign_by_objective(without_guesses(state), objective));
        plan = assign_by_objective(*floored, objective);
    }
    const auto guaranteed = with_user_floors(floored ? *floored : state, plan);
    if (guaranteed) plan = assign_by_objective(*guaranteed, objective);
    return plan;
}

}  // namespace larder::allocator
