#include "allocator/rate_limits.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <queue>

#include "allocator/cache_split.h"
#include "allocator/largest_within.h"
#include "allocator/linear_program.h"
#include "allocator/model.h"
#include "allocator/sorted_indices.h"

namespace larder::allocator {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kFull = 1e-15;  // the part of a bound that largest_within() leaves

}  // namespace

std::uint32_t RateLimits::add(double capacity) {
    if (std::isinf(capacity)) return kNoLimit;
    capacities_.push_back(capacity);
    return static_cast<std::uint32_t>(capacities_.size() - 1);
}

void RateLimits::finish() {
    for (std::size_t job = 1; job < uses_begin_.size(); ++job) {
        uses_begin_[job] = std::max(uses_begin_[job], uses_begin_[job - 1]);
    }
    limits_begin_.assign(capacities_.size() + 1, 0);
    for (const Use& use : uses_) ++limits_begin_[use.limit + 1];
    std::partial_sum(limits_begin_.begin(), limits_begin_.end(), limits_begin_.begin());
    if (capacities_.size() == 1) return;
    by_limit_.resize(uses_.size());
    std::vector<std::uint32_t> next(limits_begin_.begin(), limits_begin_.end() - 1);
    for (const Use& use : uses_) by_limit_[next[use.limit]++] = use;
}

RateLimits RateLimits::of_remote(const Problem& problem, std::span<const double> hit_ratios) {
    RateLimits limits(0);
    limits.add(problem.remote);
    const std::size_t jobs = problem.jobs.size();
    limits.uses_.resize(jobs);
    limits.uses_begin_.resize(jobs + 1);
    for (std::uint32_t j = 0; j < jobs; ++j) {
        limits.uses_[j] = {
            .limit = 0, .job = j, .per_byte = std::max(0.0, 1 - hit_ratios[j]), .least = problem.bandwidth_floors[j]};
        limits.uses_begin_[j + 1] = j + 1;
    }
    limits.limits_begin_ = {0, static_cast<std::uint32_t>(jobs)};
    return limits;
}

double RateLimits::used(std::uint32_t limit, std::span<const double> rates) const {
    double sum = 0;
    for (const Use& use : uses_of_limit(limit)) sum += use.load(rates[use.job]);
    return sum;
}

bool RateLimits::fits(std::span<const double> rates, double slack) const {
    for (std::uint32_t i = 0; i < capacities_.size(); ++i) {
        if (used(i, rates) > capacities_[i] * (1 + slack)) return false;
    }
    return true;
}

// --- level by level

// Each job's rate is clamp(level * slope, low, high). A job whose low and high are equal is settled.
struct RateLimits::Filling {
    std::span<const double> slope;
    std::vector<double> low, high;
    double level_max = 0;

    double rate_at(std::uint32_t job, double level) const {
        return std::min(std::max(level * slope[job], low[job]), high[job]);
    }
    double used(std::span<const Use> uses, double level) const {
        double sum = 0;
        for (const Use& use : uses) sum += use.load(rate_at(use.job, level));
        return sum;
    }
    // Returns the highest level the bound allows, `from` at least.
    double level(std::span<const Use> uses, double capacity, double level_min) const {
        const FunctionPoint highest{level_max, used(uses, level_max)};
        if (highest.value <= capacity) return kInfinite;
        const FunctionPoint lowest{level_min, used(uses, level_min)};
        if (lowest.value > capacity) return level_min;
        return largest_within(lowest, highest, capacity, [&](double at_level) { return used(uses, at_level); });
    }
};

std::vector<double> RateLimits::fill(std::span<const double> low, std::span<const double> slope,
                                     std::span<const double> high, std::size_t* turns) const {
    Filling filling{.slope = slope, .low = {low.begin(), low.end()}, .high = {high.begin(), high.end()}};
    for (std::size_t j = 0; j < low.size(); ++j) {
        if (slope[j] > 0) filling.level_max = std::max(filling.level_max, high[j] / slope[j]);
    }
    // A bound's level only rises while other bounds settle jobs below it. So the bound whose level, computed again, is
    // still the smallest is next.
    using Entry = std::pair<double, std::uint32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    const auto level_of = [&](std::uint32_t limit, double level_min) {
        return filling.level(uses_of_limit(limit), capacities_[limit], level_min);
    };
    for (std::uint32_t i = 0; i < capacities_.size(); ++i) {
        if (const double level = level_of(i, 0); level < kInfinite) queue.emplace(level, i);
    }
    while (!queue.empty()) {
        const auto [before, limit] = queue.top();
        queue.pop();
        if (turns != nullptr) ++*turns;
        // A full bound stays full. Its level would otherwise rise by the rounding of the sum at each turn: bounds that
        // floors fill would take millions of turns.
        const bool is_full = filling.used(uses_of_limit(limit), before) >= capacities_[limit] * (1 - kFull);
        const bool has_risen =
            !is_full && filling.used(uses_of_limit(limit), before * (1 + 1e-14)) <= capacities_[limit];
        const double level = has_risen ? level_of(limit, before) : before;
        if (has_risen && (level == kInfinite || (!queue.empty() && level > queue.top().first))) {
            if (level < kInfinite) queue.emplace(level, limit);
            continue;
        }
        for (const Use& use : uses_of_limit(limit)) {
            if (use.per_byte <= 0) continue;
            const double rate = filling.rate_at(use.job, level);
            // While its floor carries the job, a rising rate takes nothing from other jobs.
            const double carried = use.least / use.per_byte;
            filling.high[use.job] = rate < carried ? std::min(filling.high[use.job], carried) : rate;
            if (rate >= carried) filling.low[use.job] = rate;
        }
    }
    return filling.high;
}

// --- the largest sum

std::vector<double> RateLimits::maximize(std::span<const double> low, std::span<const double> high,
                                         std::span<const double> cost, std::span<const double> value,
                                         Effort effort) const {
    if (fits(high)) return {high.begin(), high.end()};
    std::vector<double> cheapest_first = raised(low, high, cost);
    if (capacities_.size() == 1) return cheapest_first;
    constexpr std::size_t kUsesMax = 128;
    if (effort == Effort::thorough && uses_.size() <= kUsesMax) {
        if (auto largest = largest_sum(low, high, value)) return *std::move(largest);
    }
    // Several bounds may bind. The part of them that a job takes may then matter more than its cost.
    std::vector<double> scarcity(low.size());
    for (std::uint32_t job = 0; job < scarcity.size(); ++job) {
        for (const Use& use : uses_of_job(job)) {
            // The largest part, because a sum would depend on the order of the bounds.
            if (capacities_[use.limit] > 0)
                scarcity[job] = std::max(scarcity[job], use.per_byte / capacities_[use.limit]);
        }
        scarcity[job] /= value[job];
    }
    std::vector<double> lightest_first = raised(low, high, scarcity);
    double gained = 0;
    for (std::size_t job = 0; job < scarcity.size(); ++job) {
        gained += value[job] * (lightest_first[job] - cheapest_first[job]);
    }
    return gained > 0 ? lightest_first : cheapest_first;
}

std::optional<std::vector<double>> RateLimits::largest_sum(std::span<const double> low, std::span<const double> high,
                                                           std::span<const double> value) const {
    LinearProgram program;
    // Rates count as parts of the way from low to high.
    double unit = 0;
    for (std::size_t job = 0; job < low.size(); ++job) unit = std::max(unit, value[job] * (high[job] - low[job]));
    for (std::size_t job = 0; job < low.size(); ++job) {
        program.add_column(0, 1, unit > 0 ? -value[job] * (high[job] - low[job]) / unit : 0);
    }
    for (std::uint32_t limit = 0; limit < capacities_.size(); ++limit) {
        const double capacity = capacities_[limit];
        if (capacity <= 0) return std::nullopt;
        // Every row of a load that a floor carries stands before the row of the bound.
        std::vector<std::pair<int, double>> terms;
        double left = capacity;
        for (const Use& use : uses_of_limit(limit)) {
            const double at_low = use.per_byte * low[use.job];
            const double rise = use.per_byte * (high[use.job] - low[use.job]);
            if (use.least <= at_low) {
                left -= at_low;
                terms.emplace_back(static_cast<int>(use.job), rise / capacity);
                continue;
            }
            left -= use.least;
            const int above = program.add_column(0, LinearProgram::kNoBound);
            program.add(above, 1);
            program.add(static_cast<int>(use.job), -rise / capacity);
            program.end_row((at_low - use.least) / capacity, LinearProgram::kNoBound);
            terms.emplace_back(above, 1);
        }
        for (const auto& [column, factor] : terms) program.add(column, factor);
        program.end_row(-LinearProgram::kNoBound, std::max(0.0, left / capacity));
    }
    const auto solution = program.minimise();
    if (!solution) return std::nullopt;
    // The program is exact to 1e-9 of its numbers.
    std::vector<double> rates(low.begin(), low.end());
    for (const double part : {1.0, 1 - 1e-9, 1 - 1e-8, 1 - 1e-7}) {
        for (std::size_t job = 0; job < low.size(); ++job) {
            rates[job] = low[job] + part * std::clamp((*solution)[job], 0.0, 1.0) * (high[job] - low[job]);
        }
        if (fits(rates)) return rates;
    }
    return std::nullopt;
}

std::vector<double> RateLimits::raised(std::span<const double> low, std::span<const double> high,
                                       std::span<const double> cost) const {
    std::vector<double> rates(low.begin(), low.end());
    std::vector<double> left(capacities_);
    for (std::uint32_t i = 0; i < left.size(); ++i) left[i] -= used(i, rates);
    // Jobs of one dataset are adjacent and have equal hit ratios: there are far fewer runs of equal costs than jobs.
    std::vector<double> costs;
    std::vector<std::uint32_t> begins;
    for (std::uint32_t job = 0; job < cost.size(); ++job) {
        if (!costs.empty() && cost[job] == costs.back()) continue;
        costs.push_back(cost[job]);
        begins.push_back(job);
    }
    begins.push_back(static_cast<std::uint32_t>(cost.size()));
    const auto raise = [&](std::uint32_t job) {
        double more = high[job] - rates[job];
        if (more <= 0) return;
        // A job's load on a bound does not grow until it exceeds the job's floor.
        const auto spare = [&](const Use& use) { return std::max(0.0, use.least - use.per_byte * rates[job]); };
        for (const Use& use : uses_of_job(job)) {
            if (use.per_byte > 0) more = std::min(more, (std::max(0.0, left[use.limit]) + spare(use)) / use.per_byte);
        }
        if (more <= 0) return;
        for (const Use& use : uses_of_job(job)) left[use.limit] -= std::max(0.0, more * use.per_byte - spare(use));
        rates[job] += more;
    };
    for (const std::uint32_t run : ascending(costs)) {
        for (std::uint32_t job = begins[run]; job < begins[run + 1]; ++job) raise(job);
    }
    return rates;
}

// --- the bounds of a cluster, and the rates within them

std::vector<double> hits_per_byte(const Problem& problem, std::span<const double> hit_ratios,
                                  std::span<const std::vector<NodeCache>> quotas) {
    const CacheSplit cache_bytes = split_of(problem, quotas);
    std::vector<double> per_byte(problem.jobs.size());
    for (std::uint32_t j = 0; j < per_byte.size(); ++j) {
        double weights = 0;
        for (const Read& read : problem.reads_of(j)) weights += read.part * cache_bytes[read.cache];
        per_byte[j] = weights > 0 ? hit_ratios[j] / weights : 0;
    }
    return per_byte;
}

std::vector<double> filled_hits_per_byte(const Problem& problem) {
    std::vector<double> per_byte(problem.jobs.size());
    for (std::uint32_t j = 0; j < per_byte.size(); ++j) {
        const std::span<const Read> reads = problem.reads_of(j);
        if (!reads.empty()) per_byte[j] = problem.gains_once_filled[j] / problem.caches[reads.front().cache].size;
    }
    return per_byte;
}

std::vector<double> reads_by_cache(const Problem& problem, std::span<const double> rates,
                                   std::span<const double> hits_per_byte) {
    std::vector<double> reads(problem.caches.size());
    for (std::uint32_t j = 0; j < problem.jobs.size(); ++j) {
        for (const Read& read : problem.reads_of(j)) reads[read.cache] += rates[j] * read.part * hits_per_byte[j];
    }
    return reads;
}

namespace {

// Rounding quotas to whole bytes may cost an equal share this fraction of its rate.
constexpr double kQuotaRounding = 1.2e-7;

// The highest demand on a node, in bytes per second.
struct NodeDemand {
    double in = 0;
    double out = 0;
    double disk = 0;
};

// Returns the demand on each node if every job reads at f* and no bytes are found on the node that reads them.
std::vector<NodeDemand> highest_demand(const Problem& problem, std::span<const double> hits_per_byte,
                                       std::span<const std::vector<NodeCache>> quotas) {
    std::vector<NodeDemand> demand(problem.group_of_node.size());
    for (std::uint32_t j = 0; j < problem.jobs.size(); ++j) {
        for (const JobRun& run : problem.runs_of(j)) demand[run.node].in += problem.ideals[j] * run.part;
    }
    const std::vector<double> hits = reads_by_cache(problem, problem.ideals, hits_per_byte);
    for (std::uint32_t i = 0; i < quotas.size(); ++i) {
        for (const NodeCache& quota : quotas[i]) {
            const double rate = hits[problem.cache_on(i, quota.node)];
            demand[quota.node].out += rate * static_cast<double>(quota.bytes());
            demand[quota.node].disk += rate * static_cast<double>(quota.disk_bytes);
        }
    }
    return demand;
}

// The numbers of a node's bounds.
struct NodeLimits {
    std::uint32_t in = RateLimits::kNoLimit;
    std::uint32_t out = RateLimits::kNoLimit;
    std::uint32_t disk = RateLimits::kNoLimit;

    bool any() const {
        return in != RateLimits::kNoLimit || out != RateLimits::kNoLimit || disk != RateLimits::kNoLimit;
    }
};

// Bounds the jobs' rates by the remote, each node's network in and out, and each node's disk. Nodes that can carry the
// highest possible demand of their jobs and their cache are left out. This leaves out most nodes. Every other node
// costs a few terms for each job that runs there or whose data it caches. `hit_ratios` and `per_byte` (hits_per_byte())
// are by index in Problem::jobs, `quotas` by dataset. The bounds hold for rates up to Problem::ideals.
RateLimits cluster_limits(const ClusterState& state, const Problem& problem, std::span<const double> hit_ratios,
                          std::span<const double> per_byte, std::span<const std::vector<NodeCache>> quotas) {
    const bool node_bounds = std::ranges::any_of(state.nodes, [](const ClusterNode& node) {
        return std::isfinite(node.nic_bytes_per_second) || std::isfinite(node.disk_read_bytes_per_second);
    });
    if (!node_bounds) return RateLimits::of_remote(problem, hit_ratios);

    const std::vector<double> average_per_byte = hits_per_byte(problem, hit_ratios, quotas);
    const std::vector<NodeDemand> demand = highest_demand(problem, per_byte, quotas);
    RateLimits limits(problem.jobs.size());
    const std::uint32_t remote = limits.add(problem.remote);
    std::vector<NodeLimits> limits_of(state.nodes.size());
    bool any = false;
    for (const std::uint32_t n : problem.nodes_in_order) {
        const auto add = [&](double demanded, double capacity) {
            constexpr double kAlmost = 1 - 1e-9;
            return demanded > capacity * kAlmost ? limits.add(capacity) : RateLimits::kNoLimit;
        };
        const ClusterNode& node = state.nodes[n];
        limits_of[n] = {.in = add(demand[n].in, node.nic_bytes_per_second),
                        .out = add(demand[n].out, node.nic_bytes_per_second),
                        .disk = add(demand[n].disk, node.disk_read_bytes_per_second)};
        any = any || limits_of[n].any();
    }
    if (!any) return RateLimits::of_remote(problem, hit_ratios);

    std::vector<double> part_of_node(state.nodes.size());  // the share of the job's bytes that is read there
    std::vector<double> part_of_group(problem.group_bytes.size());
    std::vector<double> hits_at(state.nodes.size());  // the share of the job's bytes that is found there
    std::vector<NodeCache> quotas_on_limited_nodes;   // the dataset's quotas on nodes that may be too slow
    for (std::uint32_t j = 0; j < problem.jobs.size(); ++j) {
        const std::uint32_t dataset = problem.jobs[j].dataset;
        if (j == problem.datasets[dataset].jobs_begin) {
            quotas_on_limited_nodes.clear();
            std::ranges::copy_if(quotas[dataset], std::back_inserter(quotas_on_limited_nodes),
                                 [&](const NodeCache& quota) { return limits_of[quota.node].any(); });
        }
        limits.use(remote, j, 1 - hit_ratios[j], problem.bandwidth_floors[j]);
        const std::span<const JobRun> runs = problem.runs_of(j);
        for (const JobRun& run : runs) part_of_node[run.node] = run.part;
        for (const Read& read : problem.reads_of(j)) part_of_group[problem.caches[read.cache].group] = read.part;
        for (const NodeCache& quota : quotas_on_limited_nodes) {
            const double in_group = part_of_group[problem.group_of_node[quota.node]];
            if (in_group <= 0) continue;
            const auto bytes = static_cast<double>(quota.bytes());
            hits_at[quota.node] = average_per_byte[j] * in_group * bytes;
            limits.use(limits_of[quota.node].out, j,
                       per_byte[j] * in_group * bytes * (1 - part_of_node[quota.node] / in_group));
            limits.use(limits_of[quota.node].disk, j, per_byte[j] * in_group * static_cast<double>(quota.disk_bytes));
        }
        // Bytes that a node caches itself do not cross its network.
        for (const JobRun& run : runs) {
            if (limits_of[run.node].in == RateLimits::kNoLimit) continue;
            const double in_group = part_of_group[problem.group_of_node[run.node]];
            limits.use(limits_of[run.node].in, j, run.part - run.part / in_group * hits_at[run.node]);
        }
        for (const JobRun& run : runs) part_of_node[run.node] = 0;
        for (const Read& read : problem.reads_of(j)) part_of_group[problem.caches[read.cache].group] = 0;
        for (const NodeCache& quota : quotas_on_limited_nodes) hits_at[quota.node] = 0;
    }
    limits.finish();
    return limits;
}

std::vector<double> rates_within(const RateLimits& limits, const Problem& problem, ObjectiveKind kind,
                                 std::span<const double> hits, Effort effort) {
    const std::size_t count = problem.jobs.size();
    std::vector<double> low(count), high(count), slopes, costs, values;
    for (std::size_t j = 0; j < count; ++j) {
        const JobTerms& job = problem.jobs[j];
        high[j] = predicted_rate(problem.ideals[j], problem.bandwidth_caps[j], hits[j]);
        low[j] = std::min(problem.equal_rates[j], high[j]);
        if (kind == ObjectiveKind::max_min) {
            slopes.push_back(std::max(job.weight * problem.equal_rates[j], 1e-9 * problem.ideals[j]));
        } else {
            costs.push_back((1 - hits[j]) / job.value);
            values.push_back(job.value);
        }
    }
    if (kind == ObjectiveKind::equal_shares || kind == ObjectiveKind::pinned) {
        for (std::size_t j = 0; j < count; ++j) {
            high[j] = predicted_rate(problem.ideals[j], problem.jobs[j].equal_bandwidth, hits[j]);
        }
        return limits.fill(std::vector<double>(count), high, high);
    }
    bool fits = limits.fits(low);
    if (!fits && limits.fits(low, kQuotaRounding)) {
        for (const double part : {1e-9, 1e-8, 1e-7}) {
            if (fits) break;
            for (double& rate : low) rate *= 1 - part;
            fits = limits.fits(low);
        }
    }
    if (!fits) {
        for (std::size_t j = 0; j < count; ++j) {
            low[j] = std::min(low[j], predicted_rate(problem.ideals[j], problem.jobs[j].equal_bandwidth, hits[j]));
        }
        if (!limits.fits(low)) low = limits.fill(std::vector<double>(count), low, low);
    }
    return kind == ObjectiveKind::max_min ? limits.fill(low, slopes, high)
                                          : limits.maximize(low, high, costs, values, effort);
}

}  // namespace

std::vector<double> rates_for(const ClusterState& state, const Problem& problem, ObjectiveKind kind,
                              std::span<const double> hits, std::span<const double> hits_per_byte,
                              const std::vector<std::vector<NodeCache>>& quotas, Effort effort, bool* nodes_bind) {
    const RateLimits limits = cluster_limits(state, problem, hits, hits_per_byte, quotas);
    std::vector<double> rates = rates_within(limits, problem, kind, hits, effort);
    if (nodes_bind == nullptr) return rates;
    *nodes_bind = false;
    if (limits.count() <= 1) return rates;
    const std::vector<double> free = rates_within(RateLimits::of_remote(problem, hits), problem, kind, hits, effort);
    for (std::size_t j = 0; j < rates.size(); ++j) *nodes_bind = *nodes_bind || rates[j] < free[j] * (1 - 1e-6);
    return rates;
}

}  // namespace larder::allocator
