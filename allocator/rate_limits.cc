#include "allocator/rate_limits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>

namespace larder::allocator {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr std::uint32_t kNoLimit = std::numeric_limits<std::uint32_t>::max();
constexpr double kRounding = 1e-12;  // of a bound, when asking whether rates fit it
constexpr int kBisections = 100;

}  // namespace

std::uint32_t RateLimits::add(double capacity) {
    if (std::isinf(capacity)) return kNoLimit;
    limits_.push_back({.capacity = capacity, .uses = {}});
    return static_cast<std::uint32_t>(limits_.size() - 1);
}

void RateLimits::use(std::uint32_t limit, std::uint32_t job, double per_byte, double least) {
    if (limit == kNoLimit || (per_byte <= 0 && least <= 0)) return;
    limits_[limit].uses.push_back({.job = job, .per_byte = per_byte, .least = least});
    if (per_byte > 0) uses_of_job_[job].push_back({.limit = limit, .per_byte = per_byte});
}

double RateLimits::used(const Limit& limit, std::span<const double> rates) const {
    double sum = 0;
    for (const Use& use : limit.uses) sum += use.at(rates[use.job]);
    return sum;
}

bool RateLimits::fits(std::span<const double> rates) const {
    return std::ranges::all_of(
        limits_, [&](const Limit& limit) { return used(limit, rates) <= limit.capacity * (1 + kRounding); });
}

// --- level by level

struct RateLimits::Filling {
    std::span<const double> low, slope, high;
    double level_max = 0;
    std::vector<double> rates;
    std::vector<char> settled;

    double at(std::uint32_t job, double level) const {
        return settled[job] ? rates[job] : std::clamp(level * slope[job], low[job], high[job]);
    }
    double used(const Limit& limit, double level) const {
        double sum = 0;
        for (const Use& use : limit.uses) sum += use.at(at(use.job, level));
        return sum;
    }
    // The highest level the bound allows, `from` at least.
    double level(const Limit& limit, double from) const {
        if (used(limit, level_max) <= limit.capacity) return kInfinite;
        double below = from;
        double above = level_max;
        for (int i = 0; i < kBisections && above - below > 1e-15 * above; ++i) {
            const double middle = (below + above) / 2;
            (used(limit, middle) <= limit.capacity ? below : above) = middle;
        }
        return below;
    }
};

std::vector<double> RateLimits::fill(std::span<const double> low, std::span<const double> slope,
                                     std::span<const double> high) const {
    Filling filling{.low = low, .slope = slope, .high = high, .rates = {}, .settled = {}};
    filling.rates.assign(low.size(), 0);
    filling.settled.assign(low.size(), 0);
    for (std::size_t j = 0; j < low.size(); ++j) {
        if (slope[j] > 0) filling.level_max = std::max(filling.level_max, high[j] / slope[j]);
    }
    // A bound's level only rises as others settle jobs below it, so the smallest, looked at again, is the next.
    using Entry = std::pair<double, std::uint32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    for (std::uint32_t i = 0; i < limits_.size(); ++i) queue.emplace(filling.level(limits_[i], 0), i);
    while (!queue.empty() && queue.top().first < kInfinite) {
        const auto [before, index] = queue.top();
        queue.pop();
        const Limit& limit = limits_[index];
        const double level = filling.level(limit, before);
        if (level > before * (1 + 1e-14) && !queue.empty() && level > queue.top().first) {
            if (level < kInfinite) queue.emplace(level, index);
            continue;
        }
        for (const Use& use : limit.uses) {
            if (filling.settled[use.job] || use.per_byte <= 0) continue;
            filling.rates[use.job] = filling.at(use.job, level);
            filling.settled[use.job] = 1;
        }
    }
    for (std::uint32_t j = 0; j < low.size(); ++j) filling.rates[j] = filling.settled[j] ? filling.rates[j] : high[j];
    return filling.rates;
}

// --- the largest sum

std::vector<double> RateLimits::maximize(std::span<const double> low, std::span<const double> high,
                                         std::span<const double> cost) const {
    std::vector<double> rates(low.begin(), low.end());
    std::vector<double> left;
    left.reserve(limits_.size());
    for (const Limit& limit : limits_) left.push_back(limit.capacity - used(limit, rates));
    std::vector<std::uint32_t> order(rates.size());
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) { return cost[a] < cost[b]; });
    for (const std::uint32_t job : order) {
        double more = high[job] - rates[job];
        for (const UseOf& use : uses_of_job_[job]) more = std::min(more, std::max(0.0, left[use.limit]) / use.per_byte);
        if (more <= 0) continue;
        rates[job] += more;
        for (const UseOf& use : uses_of_job_[job]) left[use.limit] -= more * use.per_byte;
    }
    return rates;
}

// --- the bounds of a cluster

RateLimits rate_limits(const ClusterState& state, const Problem& problem, std::span<const double> hit_ratios,
                       std::span<const std::vector<NodeCache>> quotas) {
    RateLimits limits(problem.jobs.size());
    const std::uint32_t remote = limits.add(problem.remote);
    std::vector<std::uint32_t> in, out, disk;
    for (const Node& node : state.nodes) {
        in.push_back(limits.add(node.nic_bytes_per_second));
        out.push_back(limits.add(node.nic_bytes_per_second));
        disk.push_back(limits.add(node.disk_read_bytes_per_second));
    }
    std::vector<double> part_of_node(state.nodes.size());  // of the job's GPUs
    std::vector<double> hits_at(state.nodes.size());       // of what the job reads
    for (std::uint32_t j = 0; j < problem.jobs.size(); ++j) {
        const JobTerms& job = problem.jobs[j];
        limits.use(remote, j, 1 - hit_ratios[j], job.bandwidth_floor);
        const auto& placement = state.jobs[job.job].placement;
        std::uint32_t gpus = 0;
        for (const GpuShare& share : placement) gpus += share.gpus;
        for (const GpuShare& share : placement) {
            part_of_node[share.node] =
                gpus > 0 ? static_cast<double>(share.gpus) / gpus : 1.0 / static_cast<double>(placement.size());
        }
        double quota_bytes = 0;
        for (const NodeCache& quota : quotas[job.dataset]) quota_bytes += static_cast<double>(quota.bytes());
        for (const NodeCache& quota : quotas[job.dataset]) {
            if (quota_bytes <= 0) break;
            const double hits = hit_ratios[j] * static_cast<double>(quota.bytes()) / quota_bytes;
            hits_at[quota.node] = hits;
            limits.use(out[quota.node], j, hits * (1 - part_of_node[quota.node]));
            limits.use(disk[quota.node], j, hit_ratios[j] * static_cast<double>(quota.disk_bytes) / quota_bytes);
        }
        // What a node caches itself does not come over its network.
        for (const GpuShare& share : placement) {
            limits.use(in[share.node], j, part_of_node[share.node] * (1 - hits_at[share.node]));
        }
        for (const GpuShare& share : placement) part_of_node[share.node] = 0;
        for (const NodeCache& quota : quotas[job.dataset]) hits_at[quota.node] = 0;
    }
    return limits;
}

}  // namespace larder::allocator
