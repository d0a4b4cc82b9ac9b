#include "allocator/cache_split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <ranges>
#include <utility>

#include "allocator/bandwidth_limits.h"
#include "allocator/largest_within.h"
#include "allocator/model.h"
#include "allocator/sort_few.h"
#include "allocator/sorted_indices.h"

namespace larder::allocator {

// --- how much cache each dataset gets

namespace {

constexpr std::size_t kBisections = 60;  // enough to bisect [0, 1] to a double's precision

// Returns rate(j) for each index j in Problem::jobs.
std::vector<double> rates_of(const Problem& problem, auto&& rate) {
    std::vector<double> rates;
    rates.reserve(problem.jobs.size());
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) rates.push_back(rate(j));
    return rates;
}

// Gives each group's room to its caches. Every cache starts with its floor.
class Filling {
public:
    explicit Filling(const Problem& problem)
        : problem_(problem), split_(problem.caches.size()), room_(problem.group_bytes) {
        for (std::uint32_t i = 0; i < split_.size(); ++i) {
            split_[i] = problem.caches[i].floor;
            room_[problem.caches[i].group] -= split_[i];
        }
    }

    void give(std::uint32_t i, double bytes_max) {
        double& left = room_[problem_.caches[i].group];
        const double bytes = std::clamp(bytes_max - split_[i], 0.0, std::max(0.0, left));
        split_[i] += bytes;
        left -= bytes;
    }
    // Fills the caches in order of density, densest first.
    void give_by(std::span<const double> density) {
        for (const std::uint32_t i : descending(density)) {
            if (density[i] <= 0) break;
            give(i, problem_.caches[i].cap);
        }
    }
    void keep_cached() {
        for (std::uint32_t i = 0; i < split_.size(); ++i) {
            give(i, std::min(problem_.caches[i].cached, problem_.caches[i].cap));
        }
    }
    CacheSplit take() { return std::move(split_); }

private:
    const Problem& problem_;
    CacheSplit split_;
    std::vector<double> room_;
};

// The savings of cache at some rates.
struct Savings {
    std::vector<double> density;    // remote bytes per second that a byte of each cache saves, if it has yet to be read
    std::vector<double> unbounded;  // the same without jobs that have floors
    std::vector<double> kept;       // what a byte that is cached now saves beyond a byte that has yet to be read
    std::vector<Saving> bounded;    // of jobs that have floors

    // Returns a density that no byte of a cache exceeds.
    double highest_density() const {
        double sum = std::ranges::max(unbounded);
        for (const double more : kept) sum += more;
        for (const Saving& saving : bounded) sum += saving.density;
        return sum;
    }
};

// Fills the caches in order of density, after each has its bytes in `least` (empty: 0).
CacheSplit fill(const Problem& problem, Savings savings, std::span<const double> least) {
    Filling filling(problem);
    for (std::uint32_t i = 0; i < least.size(); ++i) filling.give(i, least[i]);
    const std::vector<Saving> pieces = pieces_of(problem, savings.unbounded, savings.kept, std::move(savings.bounded));
    std::vector<double> piece_densities;
    piece_densities.reserve(pieces.size());
    for (const Saving& piece : pieces) piece_densities.push_back(piece.density);
    for (const std::uint32_t p : descending(piece_densities)) {
        if (piece_densities[p] <= 0) break;
        filling.give(pieces[p].cache, pieces[p].up_to_bytes);
    }
    filling.keep_cached();
    // The rest goes to cache that would save something if rates were higher than assumed.
    filling.give_by(savings.density);
    return filling.take();
}

}  // namespace

std::vector<double> reads_per_byte(const Problem& problem, std::span<const double> rates) {
    std::vector<double> sums(problem.caches.size());
    for (std::size_t j = 0; j < rates.size(); ++j) {
        for (const Read& read : problem.reads_of(j)) {
            sums[read.cache] += read.part * (rates[j] * problem.gains_once_filled[j]);
        }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] /= problem.caches[i].size;
    return sums;
}

namespace {

Savings savings_of(const Problem& problem, std::span<const double> rates) {
    const std::size_t count = problem.caches.size();
    Savings savings{.density = std::vector<double>(count),
                    .unbounded = std::vector<double>(count),
                    .kept = std::vector<double>(count)};
    for (std::size_t j = 0; j < rates.size(); ++j) {
        const double if_added = rates[j] * problem.gains_of_added[j];
        const double if_unbounded = has_floor(problem, j) ? 0 : if_added;
        const double more = has_floor(problem, j) ? 0 : rates[j] * problem.gains_of_kept[j] - if_added;
        for (const Read& read : problem.reads_of(j)) {
            savings.density[read.cache] += read.part * if_added;
            savings.unbounded[read.cache] += read.part * if_unbounded;
            savings.kept[read.cache] += read.part * more;
        }
    }
    if (problem.limits_bandwidth) savings.bounded = savings_with_floors(problem, rates, savings.kept);
    for (std::uint32_t i = 0; i < count; ++i) {
        savings.density[i] /= problem.caches[i].size;
        savings.unbounded[i] /= problem.caches[i].size;
        savings.kept[i] /= problem.caches[i].size;
    }
    return savings;
}

// Mixes two vectors: `second` counts for `part`, `first` for the rest.
std::vector<double> mixed(std::span<const double> first, std::span<const double> second, double part) {
    std::vector<double> both(first.size());
    for (std::size_t i = 0; i < both.size(); ++i) both[i] = std::lerp(first[i], second[i], part);
    return both;
}

Savings blended(const Savings& first, const Savings& second, double part) {
    Savings both{.density = mixed(first.density, second.density, part),
                 .unbounded = mixed(first.unbounded, second.unbounded, part),
                 .kept = mixed(first.kept, second.kept, part),
                 .bounded = {}};
    for (const auto& [savings, weight] : {std::pair(&first, 1 - part), std::pair(&second, part)}) {
        for (Saving saving : savings->bounded) {
            saving.density *= weight;
            both.bounded.push_back(saving);
        }
    }
    return both;
}

// Returns the split that needs least remote bandwidth at these rates, among the splits that let jobs with a bandwidth
// cap read at `promised`. Cache that saves nothing keeps the bytes that are cached already.
CacheSplit best_split(const Problem& problem, std::span<const double> rates, std::span<const double> promised) {
    return fill(problem, savings_of(problem, rates), least_cache(problem, promised));
}

// Returns the remote bandwidth that the jobs need at these rates. The result also exceeds Problem::remote if one job
// needs more than its cap.
double least_remote(const Problem& problem, std::span<const double> rates, std::span<const CachedPart> parts) {
    double needed = 0;
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
        const double misses = rates[j] * (1 - problem.steady_hit_ratio(j, parts));
        needed += std::max(misses, problem.bandwidth_floors[j]);
    }
    return std::max(needed, problem.remote * largest_cap_excess(problem, rates, parts));
}
double least_remote(const Problem& problem, std::span<const double> rates, const CacheSplit& split) {
    return least_remote(problem, rates, problem.cached_parts(split));
}

// Returns rates between equal shares and f* with the largest sum, for this split. Empty if equal shares do not fit.
std::vector<double> largest_rates(const Problem& problem, const CacheSplit& split) {
    std::vector<double> rates = problem.equal_rates;
    const std::vector<CachedPart> parts = problem.cached_parts(split);
    double left = problem.remote - least_remote(problem, rates, parts);
    if (left < -1e-9 * problem.remote) return {};
    std::vector<double> miss(rates.size());
    std::vector<double> cost(rates.size());
    for (std::uint32_t j = 0; j < rates.size(); ++j) {
        miss[j] = 1 - problem.steady_hit_ratio(j, parts);
        cost[j] = miss[j] / problem.jobs[j].value;
    }
    for (const std::uint32_t j : ascending(cost)) {
        const double wanted =
            std::max(0.0, predicted_rate(problem.ideals[j], problem.bandwidth_caps[j], 1 - miss[j]) - rates[j]);
        const double unused_floor = std::max(0.0, problem.bandwidth_floors[j] - rates[j] * miss[j]);
        const double free = std::max(0.0, left) + unused_floor;
        const double given = miss[j] <= 0 ? wanted : std::min(wanted, free / miss[j]);
        rates[j] += given;
        left -= std::max(0.0, given * miss[j] - unused_floor);
    }
    return rates;
}

// Two neighbours among the splits for blends of some savings with the savings at equal shares' rates. `fitting` is the
// last that lets every job reach its equal share's rate. `saving` is the next one, towards the given savings alone.
// Both are the same if even that split lets them, or if none does.
struct SplitsAtShares {
    CacheSplit fitting;
    CacheSplit saving;
};

// Finds them by so many bisections. Without any, returns the split for the given savings alone.
SplitsAtShares splits_at_shares(const Problem& problem, const Savings& savings, std::size_t bisections) {
    const std::vector<double>& equals = problem.equal_rates;
    const std::vector<double> least = least_cache(problem, equals);
    const auto shares_fit = [&](const CacheSplit& trial) {
        return least_remote(problem, equals, trial) <= problem.remote;
    };
    CacheSplit saving = fill(problem, savings, least);
    if (bisections == 0 || shares_fit(saving)) return {.fitting = saving, .saving = saving};
    const Savings of_equals = savings_of(problem, equals);
    const auto split_at = [&](double part) { return fill(problem, blended(savings, of_equals, part), least); };
    CacheSplit fitting = split_at(1);
    if (!shares_fit(fitting)) return {.fitting = fitting, .saving = fitting};
    // The bandwidth needed falls in steps as the part rises.
    double low = 0;
    double high = 1;
    for (std::size_t i = 0; i < bisections; ++i) {
        const double middle = (low + high) / 2;
        CacheSplit trial = split_at(middle);
        const bool fits = shares_fit(trial);
        (fits ? high : low) = middle;
        (fits ? fitting : saving) = std::move(trial);
    }
    return {.fitting = std::move(fitting), .saving = std::move(saving)};
}

// Returns the split that needs the least remote bandwidth at f*, of the splits that let every job reach its equal
// share's rate. This is a linear program with one constraint more than at f* alone: its multiplier blends the two
// densities. At the right multiplier two splits are equally good, and the mixture of them that just meets the
// constraint is the optimum.
CacheSplit efficiency_split(const Problem& problem) {
    const auto [fitting, saving] = splits_at_shares(problem, savings_of(problem, problem.ideals), kBisections);
    if (fitting == saving) return fitting;
    const auto mixture = [&](double part) { return mixed(fitting, saving, part); };
    const auto needed = [&](double part) { return least_remote(problem, problem.equal_rates, mixture(part)); };
    return mixture(largest_within({0, needed(0)}, {1, needed(1)}, problem.remote, needed));
}

// The rates of the levels of max-min: weight * equal share's rate * level, at least the equal share's rate, and at most
// the highest rate that the job's cap allows.
class Levels {
public:
    explicit Levels(const Problem& problem)
        : problem_(problem),
          highest_(rates_of(problem, [&](std::size_t j) { return highest_rate(problem, j); })),
          slopes_(rates_of(problem, [&](std::size_t j) { return problem.jobs[j].weight * problem.equal_rates[j]; })),
          rates_(highest_) {
        for (const JobTerms& job : problem.jobs) bottom_ = std::min(bottom_, (1 - 1e-9) / job.weight);
        for (std::size_t j = 0; j < slopes_.size(); ++j) {
            if (slopes_[j] > 0) top_ = std::max(top_, problem.ideals[j] / slopes_[j]);
        }
    }

    std::span<const double> highest() const { return highest_; }
    // Up to this level, all jobs have their equal shares' rates.
    double bottom() const { return bottom_; }
    // From this level on, all jobs have their highest rates.
    double top() const { return top_; }
    std::span<const double> rates_at(double level) {
        for (std::size_t j = 0; j < rates_.size(); ++j) rates_[j] = rate_at(j, level);
        return rates_;
    }
    // Returns the highest level, `level` at least, at which the jobs need no more than the remote with this split. Jobs
    // with caps count as if they needed no more than these.
    double raised_from(double level, const CacheSplit& split) const {
        const std::vector<CachedPart> parts = problem_.cached_parts(split);
        const auto misses = rates_of(problem_, [&](std::size_t j) { return 1 - problem_.steady_hit_ratio(j, parts); });
        const auto needed = [&](double at) {
            double sum = 0;
            for (std::size_t j = 0; j < misses.size(); ++j) {
                const double used = std::min(rate_at(j, at) * misses[j], problem_.bandwidth_caps[j]);
                sum += std::max(used, problem_.bandwidth_floors[j]);
            }
            return sum;
        };
        const FunctionPoint from{level, needed(level)};
        const FunctionPoint to{top_, needed(top_)};
        if (from.value > problem_.remote || to.x <= from.x) return level;
        return to.value <= problem_.remote ? to.x : largest_within(from, to, problem_.remote, needed);
    }

private:
    double rate_at(std::size_t j, double level) const {
        return std::min(std::max(level * slopes_[j], problem_.equal_rates[j]), highest_[j]);
    }

    const Problem& problem_;
    std::vector<double> highest_;
    std::vector<double> slopes_;
    std::vector<double> rates_;
    double bottom_ = std::numeric_limits<double>::max();
    double top_ = 0;
};

// Returns the split that makes the smallest rate / (weight * equal share) as large as possible (SiloD, section 5.2).
// Alternates between the best split for a level and the highest level for this split. No split needs less bandwidth at
// a level than the best one, so the levels rise towards the highest one. A few rounds suffice, as in Newton's method.
CacheSplit max_min_split(const Problem& problem) {
    Levels levels(problem);
    CacheSplit best = best_split(problem, levels.highest(), levels.highest());
    if (problem.jobs.empty() || least_remote(problem, levels.highest(), best) <= problem.remote) return best;

    const auto needed = [&](double level) {
        const std::span<const double> rates = levels.rates_at(level);
        best = best_split(problem, rates, rates);
        return least_remote(problem, rates, best);
    };
    // Starts from the split for the highest rates if equal shares fit, else from the split for equal shares. With that
    // one they fit, perhaps only up to rounding. If they exceed the remote by rounding, their split is kept.
    FunctionPoint reached{levels.bottom(), least_remote(problem, levels.rates_at(levels.bottom()), best)};
    if (reached.value > problem.remote) reached.value = needed(levels.bottom());
    for (int round = 0; reached.value <= problem.remote && reached.x < levels.top(); ++round) {
        constexpr double kPrecision = 1e-9;  // about that of quotas of whole bytes
        constexpr int kManyRounds = 20;
        // The split may be one of several that need as little, and need more at any higher level: so it is left.
        double level = std::max(levels.raised_from(reached.x, best), reached.x * (1 + kPrecision));
        if (round == kManyRounds) level = levels.top();
        CacheSplit before = best;
        const FunctionPoint next{level, needed(level)};
        if (next.value <= problem.remote) {
            reached = next;
            continue;
        }
        if (level <= reached.x * (1 + kPrecision)) return before;
        // A job with a cap needs more cache at this level, which others then lack.
        needed(largest_within(reached, next, problem.remote, needed));
        break;
    }
    return best;
}

// Alternates between the largest rates for a split and the best split for these rates, while the value of the rates
// grows. Keeps the best split found.
class Climb {
public:
    explicit Climb(const Problem& problem) : problem_(problem), best_(efficiency_split(problem)) {
        best_rates_ = largest_rates(problem, best_);
        best_value_ = value_of(best_rates_);
        climb(best_, best_rates_);
    }

    void climb_from(CacheSplit split) {
        if (std::ranges::find(left_, split) != left_.end()) return;
        std::vector<double> rates = largest_rates(problem_, split);
        climb(std::move(split), std::move(rates));
    }
    const CacheSplit& best() const { return best_; }
    const std::vector<double>& best_rates() const { return best_rates_; }

private:
    // `found` has the largest rates for `split`.
    void climb(CacheSplit split, std::vector<double> found) {
        constexpr int kRounds = 20;
        double before = -1;
        for (int round = 0; round < kRounds; ++round) {
            const double value = value_of(found);
            if (found.empty() || value <= before * (1 + 1e-12)) return;
            before = value;
            CacheSplit next = best_split(problem_, found, found);
            if (value > best_value_) {
                best_value_ = value;
                best_ = split;
                best_rates_ = std::move(found);
            }
            left_.push_back(std::move(split));
            // Climbs from different starts often meet, and the last split of a climb is the best one for its own rates.
            if (std::ranges::find(left_, next) != left_.end()) return;
            found = largest_rates(problem_, next);
            split = std::move(next);
        }
    }
    double value_of(const std::vector<double>& rates) const {
        double value = 0;
        for (std::size_t j = 0; j < rates.size(); ++j) value += problem_.jobs[j].value * rates[j];
        return value;
    }

    const Problem& problem_;
    CacheSplit best_;
    std::vector<double> best_rates_;  // empty: equal shares do not fit
    double best_value_ = 0;
    std::vector<CacheSplit> left_;  // splits that a climb has gone on from
};

CacheSplit split_for_equal_rates(const Problem& problem) {
    const std::vector<double>& equals = problem.equal_rates;
    return best_split(problem, equals, equals);
}

CacheSplit equal_split(const Problem& problem) {
    CacheSplit split;
    for (const GroupCache& cache : problem.caches) split.push_back(cache.equal_cache);
    return split;
}

// Local search: fills one cache before all others, as far as equal shares allow, and the rest as in the best split so
// far. With many jobs there are fewer moves and fewer bisections in each, so that a plan stays fast.
void move_caches(const Problem& problem, Climb& climb, std::size_t tries) {
    constexpr std::size_t kMovesMax = 64;
    std::size_t moves = 0;
    for (std::size_t first = 0; first < problem.caches.size(); ++first) {
        if (climb.best_rates().empty()) break;
        Savings savings = savings_of(problem, climb.best_rates());
        if (savings.density[first] == 0) continue;
        if (++moves > std::min(kMovesMax, tries)) break;
        const double most = savings.highest_density();
        savings.density[first] += most;
        savings.unbounded[first] += most;
        climb.climb_from(splits_at_shares(problem, savings, std::min(kBisections, tries)).fitting);
    }
}

// Returns how often a search may look at all jobs.
std::size_t tries_for(const Problem& problem, std::size_t jobs_max) {
    return jobs_max / std::max<std::size_t>(1, problem.jobs.size());
}

// Returns the split with the largest sum of rates found by alternating rates and cache from several starts.
CacheSplit throughput_split(const Problem& problem) {
    Climb climb(problem);
    climb.climb_from(split_for_equal_rates(problem));
    climb.climb_from(max_min_split(problem));
    climb.climb_from(equal_split(problem));
    move_caches(problem, climb, tries_for(problem, 20'000));
    return climb.best();
}

// Does the same from fewer starts, for plans that are made often. Rates count by JobTerms::value.
CacheSplit utilisation_split(const Problem& problem) {
    Climb climb(problem);
    // One start values a cache by the work that its hits alone keep going.
    const auto values = rates_of(problem, [&](std::size_t j) { return problem.jobs[j].value * problem.ideals[j]; });
    const std::size_t tries = tries_for(problem, 500);
    climb.climb_from(splits_at_shares(problem, savings_of(problem, values), std::min(kBisections, tries)).fitting);
    climb.climb_from(split_for_equal_rates(problem));
    move_caches(problem, climb, tries);
    return climb.best();
}

CacheSplit pinned_split(const Problem& problem) {
    CacheSplit split;
    for (const GroupCache& cache : problem.caches) split.push_back(cache.floor);
    return split;
}

}  // namespace

CacheSplit split_for(const Problem& problem, ObjectiveKind kind) {
    switch (kind) {
        case ObjectiveKind::efficiency: return efficiency_split(problem);
        case ObjectiveKind::max_min: return max_min_split(problem);
        case ObjectiveKind::throughput: return throughput_split(problem);
        case ObjectiveKind::utilisation: return utilisation_split(problem);
        case ObjectiveKind::equal_shares: return equal_split(problem);
        case ObjectiveKind::pinned: return pinned_split(problem);
    }
    return pinned_split(problem);
}

CacheSplit towards_equal_split(const Problem& problem, const CacheSplit& split) {
    const std::vector<double>& equals = problem.equal_rates;
    CacheSplit equal = equal_split(problem);
    const auto mixture = [&](double part) { return mixed(equal, split, part); };
    const auto needed = [&](double part) { return least_remote(problem, equals, mixture(part)); };
    const double remote = problem.remote * (1 + 1e-9);  // equal shares fit, up to rounding
    const FunctionPoint whole{1, needed(1)};
    if (whole.value <= remote) return split;
    const FunctionPoint none{0, needed(0)};
    if (none.value > remote) return equal;
    return mixture(largest_within(none, whole, remote, needed));
}

// --- where it lies

namespace {

constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();

// The cache room left on each node.
class NodeRoom {
public:
    NodeRoom(const ClusterState& state, const Problem& problem)
        : left_(state.nodes.size()),
          rank_(state.nodes.size()),
          by_rank_(problem.nodes_in_order),
          group_of_node_(problem.group_of_node),
          widest_(problem.group_bytes.size()) {
        for (std::uint32_t i = 0; i < by_rank_.size(); ++i) rank_[by_rank_[i]] = i;
        for (std::uint32_t n = 0; n < left_.size(); ++n) {
            left_[n] = {
                .node = n, .memory_bytes = state.nodes[n].memory_bytes, .disk_bytes = state.nodes[n].disk_bytes};
        }
    }

    std::uint32_t rank(std::uint32_t node) const { return rank_[node]; }

    // Takes up to `bytes`, memory first, at most the given bytes of each tier. Returns the room it took.
    NodeCache take(std::uint32_t node, std::uint64_t bytes, std::uint64_t memory_max, std::uint64_t disk_max) {
        NodeCache taken{.node = node};
        taken.memory_bytes = std::min({bytes, memory_max, left_[node].memory_bytes});
        taken.disk_bytes = std::min({bytes - taken.memory_bytes, disk_max, left_[node].disk_bytes});
        left_[node].memory_bytes -= taken.memory_bytes;
        left_[node].disk_bytes -= taken.disk_bytes;
        return taken;
    }

    // Returns the node of the group with most room; nullopt if all are full. After the first call, the room of nodes
    // may only shrink (by `take`).
    std::optional<std::uint32_t> widest(std::uint32_t group) {
        if (!heaps_built_) {
            for (const std::uint32_t node : by_rank_) {
                if (left_[node].bytes() == 0) continue;
                widest_[group_of_node_[node]].push_back({left_[node].bytes(), rank_[node]});
            }
            for (auto& heap : widest_) std::ranges::make_heap(heap, kNarrower);
            heaps_built_ = true;
        }
        auto& heap = widest_[group];
        while (!heap.empty()) {
            const auto [bytes, rank] = heap.front();
            const std::uint32_t node = by_rank_[rank];
            if (bytes > 0 && bytes == left_[node].bytes()) return node;
            std::ranges::pop_heap(heap, kNarrower);
            heap.pop_back();
            if (left_[node].bytes() == 0) continue;
            heap.push_back({left_[node].bytes(), rank});
            std::ranges::push_heap(heap, kNarrower);
        }
        return std::nullopt;
    }

private:
    using Entry = std::pair<std::uint64_t, std::uint32_t>;  // bytes left, rank
    static constexpr auto kNarrower = [](const Entry& a, const Entry& b) {
        return a.first != b.first ? a.first < b.first : a.second > b.second;
    };

    std::vector<NodeCache> left_;
    std::vector<std::uint32_t> rank_;
    const std::vector<std::uint32_t>& by_rank_;
    const std::vector<std::uint32_t>& group_of_node_;
    std::vector<std::vector<Entry>> widest_;  // by group
    bool heaps_built_ = false;
};

// Rounds up like ceil, which is a function call if the processor is not known to have an instruction for it.
std::uint64_t rounded_up(double bytes) {
    const auto whole = static_cast<std::int64_t>(bytes);
    return static_cast<std::uint64_t>(whole + (static_cast<double>(whole) < bytes ? 1 : 0));
}

struct Placed {
    std::uint32_t dataset = 0;
    NodeCache cache;
};

// Returns the indices of `placed`, node by node.
std::vector<std::uint32_t> by_node(std::span<const Placed> placed, std::size_t nodes) {
    std::vector<std::uint32_t> next(nodes + 1);
    for (const Placed& piece : placed) ++next[piece.cache.node + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    std::vector<std::uint32_t> order(placed.size());
    for (std::uint32_t i = 0; i < placed.size(); ++i) order[next[placed[i].cache.node]++] = i;
    return order;
}

// Returns each dataset's quotas by node, with the pieces placed on one node added up.
std::vector<std::vector<NodeCache>> by_dataset(std::span<const Placed> placed, std::size_t datasets,
                                               std::size_t nodes) {
    std::vector<std::uint32_t> count(datasets);
    for (const Placed& piece : placed) ++count[piece.dataset];
    std::vector<std::vector<NodeCache>> quotas(datasets);
    for (std::size_t i = 0; i < datasets; ++i) quotas[i].reserve(count[i]);
    for (const std::uint32_t i : by_node(placed, nodes)) {
        const NodeCache& quota = placed[i].cache;
        std::vector<NodeCache>& dataset_quotas = quotas[placed[i].dataset];
        if (!dataset_quotas.empty() && dataset_quotas.back().node == quota.node) {
            dataset_quotas.back().memory_bytes += quota.memory_bytes;
            dataset_quotas.back().disk_bytes += quota.disk_bytes;
        } else {
            dataset_quotas.push_back(quota);
        }
    }
    return quotas;
}

struct Reader {
    double rate = 0;
    std::uint32_t node = 0;
};

// Finds the group's nodes where the dataset's jobs run, with their read rates, fastest first. `rate_at`, by node, is
// below 0 for all nodes before and after the call.
void find_readers(const Problem& problem, const GroupCache& cache, std::span<const double> rates, const NodeRoom& room,
                  std::vector<double>& rate_at, std::vector<Reader>& found) {
    found.clear();
    const DatasetTerms& terms = problem.datasets[cache.dataset];
    for (std::uint32_t j = terms.jobs_begin; j < terms.jobs_end; ++j) {
        for (const JobRun& run : problem.runs_of(j)) {
            if (problem.group_of_node[run.node] != cache.group) continue;
            if (rate_at[run.node] < 0) {
                rate_at[run.node] = 0;
                found.push_back({.node = run.node});
            }
            rate_at[run.node] += rates[j] * run.part;
        }
    }
    for (Reader& reader : found) reader.rate = std::exchange(rate_at[reader.node], -1);
    // A dataset's jobs are listed slowest first, so the list most often only needs reversing.
    if (std::ranges::adjacent_find(found, std::ranges::greater_equal(), &Reader::rate) == found.end()) {
        std::ranges::reverse(found);
        return;
    }
    const auto slowness = [](const Reader& reader) { return -reader.rate; };
    sort_few(std::span(found), slowness);
    sort_equal(std::span(found), slowness,
               [&](const Reader& a, const Reader& b) { return room.rank(a.node) < room.rank(b.node); });
}

// Offers the cache's bytes that are `left` to the group's nodes where jobs are expected, in equal parts as far as they
// have room. `take` gives a node as many bytes as fit, and lowers `left`.
void give_to_expected(const ClusterState& state, const Problem& problem, const GroupCache& cache, const NodeRoom& room,
                      const std::uint64_t& left, auto take) {
    if (left == 0 || state.datasets[cache.dataset].expected_on.empty()) return;
    std::vector<std::uint32_t> nodes = state.datasets[cache.dataset].expected_on;
    std::erase_if(nodes, [&](std::uint32_t node) { return problem.group_of_node[node] != cache.group; });
    std::ranges::sort(nodes, {}, [&](std::uint32_t node) { return room.rank(node); });
    for (std::size_t k = 0; k < nodes.size(); ++k) {
        const std::size_t count = nodes.size() - k;
        take(nodes[k], (left + count - 1) / count);
    }
    for (const std::uint32_t node : nodes) take(node, left);
}

}  // namespace

std::vector<std::vector<NodeCache>> place_quotas(const ClusterState& state, const Problem& problem,
                                                 const CacheSplit& split, std::span<const double> rates) {
    std::vector<double> density(split.size());
    for (std::uint32_t j = 0; j < problem.jobs.size(); ++j) {
        for (const Read& read : problem.reads_of(j)) density[read.cache] += read.part * rates[j];
    }
    for (std::uint32_t i = 0; i < split.size(); ++i) density[i] /= problem.caches[i].size;
    const std::vector<std::uint32_t> order = descending(density);

    NodeRoom room(state, problem);
    std::vector<std::uint64_t> left(split.size());
    for (const std::uint32_t i : order) left[i] = static_cast<std::uint64_t>(std::max(0.0, split[i]));
    std::vector<Placed> placed;
    placed.reserve(problem.runs.size() + state.nodes.size());
    for (const std::uint32_t i : order) {
        const GroupCache& cache = problem.caches[i];
        for (const NodeCache& held : state.datasets[cache.dataset].held) {
            if (problem.group_of_node[held.node] != cache.group || held.bytes() == 0) continue;
            const NodeCache taken = room.take(held.node, held.bytes(), held.memory_bytes, held.disk_bytes);
            left[i] -= std::min(left[i], taken.bytes());
            placed.push_back({.dataset = cache.dataset, .cache = taken});
        }
    }
    const auto take = [&](std::uint32_t i, std::uint32_t node, std::uint64_t bytes, std::uint64_t memory_max = kAny,
                          std::uint64_t disk_max = kAny) {
        if (state.datasets[problem.caches[i].dataset].is_held_on(node)) return;
        const NodeCache taken = room.take(node, std::min(bytes, left[i]), memory_max, disk_max);
        if (taken.bytes() == 0) return;
        left[i] -= taken.bytes();
        placed.push_back({.dataset = problem.caches[i].dataset, .cache = taken});
    };
    // Cached bytes stay where they are, even if other datasets want the room.
    std::vector<NodeCache> cached;
    for (const std::uint32_t i : order) {
        const GroupCache& cache = problem.caches[i];
        if (cache.cached <= 0) continue;
        cached.clear();
        std::uint64_t cached_bytes = 0;
        for (const NodeCache& piece : state.datasets[cache.dataset].cached) {
            if (problem.group_of_node[piece.node] != cache.group) continue;
            cached.push_back(piece);
            cached_bytes += piece.bytes();
        }
        // If all of it stays, the order does not matter.
        if (cached_bytes > left[i]) {
            std::ranges::sort(cached, {}, [&](const NodeCache& piece) { return room.rank(piece.node); });
        }
        for (const NodeCache& piece : cached) take(i, piece.node, piece.bytes(), piece.memory_bytes, piece.disk_bytes);
    }
    std::vector<Reader> readers;
    std::vector<double> rate_at(state.nodes.size(), -1);
    for (const std::uint32_t i : order) {
        if (left[i] == 0) continue;
        find_readers(problem, problem.caches[i], rates, room, rate_at, readers);
        double rate_left = 0;
        for (const Reader& reader : readers) rate_left += reader.rate;
        for (const Reader& reader : readers) {
            const double part = rate_left > 0 ? std::min(1.0, reader.rate / rate_left) : 1;
            take(i, reader.node, rounded_up(part * static_cast<double>(left[i])));
            rate_left -= reader.rate;
        }
        for (const Reader& reader : readers) {
            if (left[i] == 0) break;
            take(i, reader.node, left[i]);
        }
    }
    for (const std::uint32_t i : order) {
        give_to_expected(state, problem, problem.caches[i], room, left[i],
                         [&](std::uint32_t node, std::uint64_t bytes) { take(i, node, bytes); });
    }
    for (const std::uint32_t i : order) {
        if (left[i] == 0) continue;
        while (left[i] > 0) {
            const auto node = room.widest(problem.caches[i].group);
            // The dataset gets no more where its quota is held, so the rest finds no room.
            if (!node || state.datasets[problem.caches[i].dataset].is_held_on(*node)) break;
            take(i, *node, left[i]);
        }
    }
    return by_dataset(placed, state.datasets.size(), state.nodes.size());
}

std::vector<std::vector<NodeCache>> choose_quotas(const ClusterState& state, const Problem& problem, ObjectiveKind kind,
                                                  std::span<const double> rates) {
    return place_quotas(state, problem, split_for(problem, kind), rates);
}

void restore_floors(const ClusterState& state, const Problem& problem, std::vector<std::vector<NodeCache>>& quotas) {
    const CacheSplit split = split_of(problem, quotas);
    std::vector<std::uint64_t> missing(split.size());
    for (std::size_t i = 0; i < split.size(); ++i) {
        missing[i] = static_cast<std::uint64_t>(std::max(0.0, problem.caches[i].floor - split[i]));
    }
    if (std::ranges::all_of(missing, [](std::uint64_t bytes) { return bytes == 0; })) return;
    NodeRoom room(state, problem);
    for (const NodeCache& quota : quotas | std::views::join) {
        room.take(quota.node, quota.bytes(), quota.memory_bytes, quota.disk_bytes);
    }
    for (std::size_t i = 0; i < split.size(); ++i) {
        const std::uint32_t dataset = problem.caches[i].dataset;
        const auto take = [&](std::uint32_t node, std::uint64_t bytes) {
            if (state.datasets[dataset].is_held_on(node)) return false;
            const NodeCache taken = room.take(node, bytes, kAny, kAny);
            if (taken.bytes() == 0) return true;
            missing[i] -= taken.bytes();
            NodeCache& quota = quota_on(quotas[dataset], node);
            quota.memory_bytes += taken.memory_bytes;
            quota.disk_bytes += taken.disk_bytes;
            return true;
        };
        give_to_expected(state, problem, problem.caches[i], room, missing[i], take);
        while (missing[i] > 0) {
            const auto node = room.widest(problem.caches[i].group);
            if (!node || !take(*node, missing[i])) break;
        }
    }
}

std::vector<std::vector<NodeCache>> equal_quotas(const ClusterState& state, const Problem& problem) {
    std::vector<NodeCache> room(state.nodes.size());
    for (std::size_t n = 0; n < room.size(); ++n) {
        room[n].memory_bytes = state.nodes[n].memory_bytes;
        room[n].disk_bytes = state.nodes[n].disk_bytes;
    }
    std::vector<std::vector<NodeCache>> quotas(state.datasets.size());
    std::vector<double> left = equal_split(problem);
    for (std::uint32_t i = 0; i < quotas.size(); ++i) {
        for (const NodeCache& held : state.datasets[i].held) {
            quotas[i].push_back(held);
            room[held.node].memory_bytes -= held.memory_bytes;
            room[held.node].disk_bytes -= held.disk_bytes;
            left[problem.cache_on(i, held.node)] -= static_cast<double>(held.bytes());
        }
    }
    std::vector<double> room_in_group(problem.group_bytes.size());
    std::vector<std::vector<std::uint32_t>> nodes_in_group(problem.group_bytes.size());
    for (std::uint32_t n = 0; n < room.size(); ++n) {
        room_in_group[problem.group_of_node[n]] += static_cast<double>(room[n].bytes());
        nodes_in_group[problem.group_of_node[n]].push_back(n);
    }
    for (std::size_t i = 0; i < left.size(); ++i) {
        const GroupCache& cache = problem.caches[i];
        const double part = std::clamp(left[i] / room_in_group[cache.group], 0.0, 1.0);
        if (!(part > 0)) continue;
        for (const std::uint32_t n : nodes_in_group[cache.group]) {
            if (state.datasets[cache.dataset].is_held_on(n)) continue;
            const auto part_of = [&](std::uint64_t bytes) {
                return static_cast<std::uint64_t>(part * static_cast<double>(bytes));
            };
            const NodeCache quota{
                .node = n, .memory_bytes = part_of(room[n].memory_bytes), .disk_bytes = part_of(room[n].disk_bytes)};
            if (quota.bytes() > 0) quotas[cache.dataset].push_back(quota);
        }
    }
    for (std::vector<NodeCache>& dataset : quotas) std::ranges::sort(dataset, {}, &NodeCache::node);
    restore_floors(state, problem, quotas);
    return quotas;
}

CacheSplit split_of(const Problem& problem, std::span<const std::vector<NodeCache>> quotas) {
    CacheSplit bytes(problem.caches.size());
    for (std::uint32_t i = 0; i < quotas.size(); ++i) {
        for (const NodeCache& quota : quotas[i]) {
            bytes[problem.cache_on(i, quota.node)] += static_cast<double>(quota.bytes());
        }
    }
    return bytes;
}

}  // namespace larder::allocator
