#pragma once

// Bounds on the jobs' rates. Each bounds the load on one resource: the sum over jobs of the job's rate times the bytes
// that cross the resource per byte the job reads. Within the bounds, rates are raised level by level (max-min: exact),
// or greedily for a large sum. rates_for() makes the bounds of a cluster whose cache has its place, and the rates.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "allocator/problem.h"
#include "allocator/protocol/objective.h"

namespace larder::allocator {

// `thorough`: in small clusters where nodes bind, linear programs find what heuristics miss. This takes tens of
// milliseconds for a plan.
enum class Effort : std::uint8_t { usual, thorough };

class RateLimits {
public:
    // The number that stands for an unlimited bound.
    static constexpr std::uint32_t kNoLimit = std::numeric_limits<std::uint32_t>::max();

    explicit RateLimits(std::size_t jobs) : uses_begin_(jobs + 1) { uses_.reserve(jobs); }

    // Adds a bound and returns its number. An unlimited bound is left out, and `use` of it does nothing.
    std::uint32_t add(double capacity);
    // The job takes `per_byte` of the bound for each byte it reads, never less than `least`. Call it in the jobs'
    // order.
    void use(std::uint32_t limit, std::uint32_t job, double per_byte, double least = 0) {
        if (limit == kNoLimit || (per_byte <= 0 && least <= 0)) return;
        uses_.push_back({.limit = limit, .job = job, .per_byte = std::max(0.0, per_byte), .least = least});
        uses_begin_[job + 1] = static_cast<std::uint32_t>(uses_.size());
    }
    std::size_t count() const { return capacities_.size(); }
    // Call it after the last use.
    void finish();
    // Bounds by the remote alone: job j takes 1 - hit_ratios[j] of it, and never less than its floor. finish() was
    // already called on the result.
    static RateLimits of_remote(const Problem& problem, std::span<const double> hit_ratios);

    // Returns rates clamp(level * slope, low, high), each with the highest level its bounds allow. When a bound is
    // reached, the jobs that use it stop and the level of the others rises on. A job that still takes only its `least`
    // of a full bound goes on rising until per_byte * rate reaches `least`. The rates `low` must keep all bounds. Adds
    // to `turns`, if not null, how often a bound was looked at.
    std::vector<double> fill(std::span<const double> low, std::span<const double> slope, std::span<const double> high,
                             std::size_t* turns = nullptr) const;
    // Returns rates with a large sum of value * rate, at least `low`: cheapest `cost` first, each as high as its bounds
    // allow. With several bounds, jobs that take little of them first if that gives a larger sum. `thorough`: the
    // largest sum there is, if there are few jobs.
    std::vector<double> maximize(std::span<const double> low, std::span<const double> high,
                                 std::span<const double> cost, std::span<const double> value, Effort effort) const;

    // True if no bound is exceeded by more than the fraction `slack` of it.
    bool fits(std::span<const double> rates, double slack = kRounding) const;

private:
    static constexpr double kRounding = 1e-12;

    struct Use {
        std::uint32_t limit;
        std::uint32_t job;
        double per_byte;
        double least;
        double load(double rate) const { return per_byte * rate > least ? per_byte * rate : least; }
    };
    struct Filling;

    std::span<const Use> uses_of_job(std::uint32_t job) const {
        return std::span(uses_).subspan(uses_begin_[job], uses_begin_[job + 1] - uses_begin_[job]);
    }
    std::span<const Use> uses_of_limit(std::uint32_t limit) const {
        const std::span<const Use> all = capacities_.size() == 1 ? uses_ : by_limit_;
        return all.subspan(limits_begin_[limit], limits_begin_[limit + 1] - limits_begin_[limit]);
    }
    double used(std::uint32_t limit, std::span<const double> rates) const;
    // Returns the rates with the largest sum, by a linear program.
    std::optional<std::vector<double>> largest_sum(std::span<const double> low, std::span<const double> high,
                                                   std::span<const double> value) const;
    // Raises jobs from `low` one after another, cheapest first, each as high as its bounds allow.
    std::vector<double> raised(std::span<const double> low, std::span<const double> high,
                               std::span<const double> cost) const;

    std::vector<double> capacities_;
    std::vector<Use> uses_;  // by job
    std::vector<std::uint32_t> uses_begin_;
    std::vector<Use> by_limit_;  // empty if there is only one bound
    std::vector<std::uint32_t> limits_begin_;
};

// Each part of a job hits the nodes of its group in proportion to the bytes they cache. Returns, by job, the share of
// its bytes that comes from a node, for each byte the node caches, in a group where all of the job runs.
std::vector<double> hits_per_byte(const Problem& problem, std::span<const double> hit_ratios,
                                  std::span<const std::vector<NodeCache>> quotas);
// Returns the same for quotas that are filled.
std::vector<double> filled_hits_per_byte(const Problem& problem);
// Returns, by cache, the bytes per second that jobs at these rates read from it, for each byte cached.
std::vector<double> reads_by_cache(const Problem& problem, std::span<const double> rates,
                                   std::span<const double> hits_per_byte);

// Returns the rates these hit ratios allow, by the objective. No job falls below its equal share's rate. If the cache
// is not yet as planned and those rates do not fit, the lower bound is the rate from an equal share of bandwidth.
// `hits` are by index in Problem::jobs, `quotas` by dataset. `hits_per_byte` are what nodes read and send: once quotas
// are filled, that is more than the average hits of a job whose quota has yet to be filled. `nodes_bind`, if not null,
// is set to true if a job would be faster without the limits of disks and networks.
std::vector<double> rates_for(const ClusterState& state, const Problem& problem, ObjectiveKind kind,
                              std::span<const double> hits, std::span<const double> hits_per_byte,
                              const std::vector<std::vector<NodeCache>>& quotas, Effort effort,
                              bool* nodes_bind = nullptr);

}  // namespace larder::allocator
