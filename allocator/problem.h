#pragma once

// A ClusterState made ready for arithmetic: the running jobs only, grouped by dataset and in an order of their own (so
// that sums and ties come out the same however the state was listed), with each job's equal share of everything worked
// out.

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/state.h"

namespace larder::allocator {

struct JobTerms {
    std::uint32_t job = 0;      // index in the state
    std::uint32_t dataset = 0;  // index in the state
    double ideal = 0;           // f*, or less where disk or network bind
    double weight = 1;
    double equal_rate = 0;       // e: the rate from an equal share of everything
    double equal_bandwidth = 0;  // that share's bandwidth
    double bandwidth_floor = 0;
    double bandwidth_cap = 0;
    double effective_hit_ratio = 0;  // from the cache as it is
    bool gains = true;               // reads on after this epoch, so cache given now pays
};

struct DatasetTerms {
    double size = 0;
    double floor = 0;
    double cap = 0;     // at most the size
    double cached = 0;  // now
    double equal_cache = 0;
    std::uint32_t jobs_begin = 0;  // its running jobs in Problem::jobs
    std::uint32_t jobs_end = 0;
};

struct Problem {
    double remote = 0;  // bytes per second
    double cache = 0;   // bytes, of all nodes
    std::vector<JobTerms> jobs;
    std::vector<DatasetTerms> datasets;  // by index in the state
    // In an order that does not depend on the state's: names break the ties.
    std::vector<std::uint32_t> datasets_in_order;
    std::vector<std::uint32_t> nodes_in_order;

    std::span<const JobTerms> jobs_of(std::uint32_t dataset) const {
        const DatasetTerms& of = datasets[dataset];
        return std::span(jobs).subspan(of.jobs_begin, of.jobs_end - of.jobs_begin);
    }
    // A job's hit ratio when its dataset has so much cache and its epochs begin with it.
    double steady_hit_ratio(const JobTerms& job, double cached_bytes) const;
};

Problem make_problem(const ClusterState& state);

}  // namespace larder::allocator
