#pragma once

// A ClusterState prepared for arithmetic: the jobs that count, grouped by dataset and sorted (so that sums and ties do
// not depend on the order of the state), with each job's equal share of everything. Cache is counted by dataset and
// peer group: all of it is within reach of the ranks that run in the group.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "allocator/model.h"
#include "allocator/protocol/objective.h"
#include "allocator/state.h"
#include "base/assert.h"

namespace larder::allocator {

struct JobTerms {
    std::uint32_t job = 0;      // index in the state
    std::uint32_t dataset = 0;  // index in the state
    double weight = 1;
    double time_share = 1;       // the part of the time that the job counts for
    double value = 1;            // the objective's gain from a byte per second of the job's rate
    double equal_bandwidth = 0;  // its bandwidth from an equal share of everything
};

// The part of a job's bytes that is read through a GroupCache.
struct Read {
    std::uint32_t cache = 0;  // in Problem::caches
    double part = 0;
};

// One node of a job, and the part of the job's bytes that is read there.
struct JobRun {
    std::uint32_t node = 0;
    double part = 0;
};

// The parts of a dataset in one cache: what is cached now and stays, and what is added.
struct CachedPart {
    double kept = 0;
    double added = 0;
};

// The cache of one dataset in one peer group.
struct GroupCache {
    std::uint32_t dataset = 0;
    std::uint32_t group = 0;
    double size = 0;    // of the dataset
    double floor = 0;   // this cache's part of the dataset's floor; the cap likewise
    double cap = 0;     // at most the size
    double cached = 0;  // now
    double equal_cache = 0;

    CachedPart part(double bytes) const {
        const double whole = hit_ratio(bytes, size);
        const double kept = std::min(whole, hit_ratio(cached, size));
        return {.kept = kept, .added = whole - kept};
    }
};

struct DatasetTerms {
    std::uint32_t jobs_begin = 0;  // its jobs that count, in Problem::jobs
    std::uint32_t jobs_end = 0;
    std::uint32_t caches_begin = 0;  // in Problem::caches
    std::uint32_t caches_end = 0;
};

inline constexpr std::uint32_t kNoTerms = std::numeric_limits<std::uint32_t>::max();

struct Problem {
    double remote = 0;                         // bytes per second
    bool limits_bandwidth = false;             // some job that gains by cache has a floor or a cap
    std::vector<double> group_bytes;           // cache of each peer group
    std::vector<std::uint32_t> group_of_node;  // by index in the state
    std::vector<JobTerms> jobs;
    // Indexed as `jobs`. Kept apart from `jobs`, because most loops over all jobs need no other field.
    std::vector<double> ideals;       // f*, or less where disk or network bind
    std::vector<double> equal_rates;  // e: the rate from an equal share of everything, disks and networks included
    std::vector<double> effective_hit_ratios;  // from the cache as it is
    std::vector<double> bandwidth_floors;
    std::vector<double> bandwidth_caps;
    std::vector<double> gains_of_kept;   // of_kept of cache_gains() in model.h
    std::vector<double> gains_of_added;  // of_added, likewise
    std::vector<double>
        gains_once_filled;  // the same of a block in all epochs but the first: 1, or less in the last epoch
    std::vector<std::uint32_t> reads_begin;   // in `reads`; one more than there are jobs
    std::vector<std::uint32_t> runs_begin;    // in `runs`, likewise
    std::vector<std::uint32_t> terms_of_job;  // in `jobs`, by index in the state; kNoTerms: not counted
    std::vector<Read> reads;
    std::vector<JobRun> runs;
    std::vector<GroupCache> caches;             // in an order independent of the state's
    std::vector<DatasetTerms> datasets;         // by index in the state
    std::vector<std::uint32_t> nodes_in_order;  // indices in the state, in an order independent of the state's

    // Returns the reads and the runs of a job, by its index in `jobs`.
    std::span<const Read> reads_of(std::size_t job) const {
        return std::span(reads).subspan(reads_begin[job], reads_begin[job + 1] - reads_begin[job]);
    }
    std::span<const JobRun> runs_of(std::size_t job) const {
        return std::span(runs).subspan(runs_begin[job], runs_begin[job + 1] - runs_begin[job]);
    }
    // Returns the index of the dataset's cache on this node. The dataset must have cache, a quota or readers in its
    // group.
    std::uint32_t cache_on(std::uint32_t dataset, std::uint32_t node) const {
        const DatasetTerms& terms = datasets[dataset];
        const auto of_dataset = std::span(caches).subspan(terms.caches_begin, terms.caches_end - terms.caches_begin);
        const std::uint32_t group = group_of_node[node];
        auto found = of_dataset.begin();
        if (of_dataset.size() > 1) found = std::ranges::lower_bound(of_dataset, group, {}, &GroupCache::group);
        LARDER_ASSERT(found != of_dataset.end() && found->group == group);
        return terms.caches_begin + static_cast<std::uint32_t>(found - of_dataset.begin());
    }
    // Returns how much of its dataset each cache holds with these bytes; both are by index in `caches`.
    std::vector<CachedPart> cached_parts(std::span<const double> bytes) const;
    // Returns the part of the job's remaining reads that hit if caches hold these parts from now on.
    double steady_hit_ratio(std::size_t job, std::span<const CachedPart> parts) const {
        double kept = 0;
        double added = 0;
        for (const Read& read : reads_of(job)) {
            kept += read.part * parts[read.cache].kept;
            added += read.part * parts[read.cache].added;
        }
        return std::min(1.0, kept * gains_of_kept[job] + added * gains_of_added[job]);
    }
    // Returns the bytes that a cache must hold for the job to hit this part of its reads there, as far as cache helps.
    double bytes_for(std::size_t job, const GroupCache& cache, double hits) const;
};

// Selects the jobs that count. `running`: the running jobs, as they are. `by_time_share`: also the jobs that take
// turns, each with its averages over the turns (its time_share of f* and of its equal share). Caches have the same
// indices for both, and equal shares of cache count all jobs that take turns.
enum class CountedJobs : std::uint8_t { running, by_time_share };

Problem make_problem(const ClusterState& state, CountedJobs counted = CountedJobs::running);
// Does the same, but a job's value is its weight times the number of its GPUs that a byte per second keeps at work.
Problem make_utilisation_problem(const ClusterState& state, CountedJobs counted = CountedJobs::running);
// Makes the problem whose values are those of the objective.
Problem problem_for(const ClusterState& state, ObjectiveKind kind, CountedJobs counted = CountedJobs::running);

}  // namespace larder::allocator
