#pragma once

// Computes how much of the time each job should run on each type of GPU, for the fair policies (Gavel, OSDI '20). A job
// that runs on a type for the part x of the time makes x times its rate there. A gang of z GPUs then takes z times x of
// the type's GPUs. No job runs for more than all the time. All jobs are raised together to the highest level that the
// GPUs allow. With one type a closed form gives the shares; with several types a linear program does, solved by CLP,
// whose dual simplex starts from the last basis. Similar jobs form one group, so that the size of the program depends
// on the kinds of jobs, not on their number.

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"

namespace larder::scheduler {

struct ShareGroup {
    std::uint32_t jobs = 1;
    double gpus = 1;            // of each job
    std::vector<double> rates;  // of each job, by type; 0: cannot run there
    // The sum of rate * share must be at least floor + level * need.
    double need = 1;
    double floor = 0;
};

// Two jobs of one GPU each that may share a GPU of the type: one job of each group or, if the groups are the same, two
// jobs of it.
struct SharePair {
    std::uint32_t first = 0;  // at most `second`
    std::uint32_t second = 0;
    std::uint32_t type = 0;
    double first_rate = 0;  // beside the other job
    double second_rate = 0;

    double jobs_of(std::size_t group) const { return (first == group ? 1 : 0) + (second == group ? 1 : 0); }
    // Returns the rate of all its jobs that belong to the group.
    double rate_of(std::size_t group) const {
        return (first == group ? first_rate : 0) + (second == group ? second_rate : 0);
    }
};

struct ShareProblem {
    std::vector<double> gpus_by_type;
    std::vector<ShareGroup> groups;
    std::vector<SharePair> pairs;  // only ShareProgram uses them
};

struct Shares {
    std::uint32_t types = 0;
    // The part of the time that each job of a group runs on a type without sharing. Index: group * types + type.
    std::vector<double> parts;
    // The number of GPUs that have such a pair at a time, on average. Index: pair.
    std::vector<double> pair_gpus;
    double level = 0;           // the level that all groups reach
    std::vector<bool> binding;  // by group, set by ShareProgram: true if the group keeps the level from being higher

    double part(std::size_t group, std::size_t type) const { return parts[group * types + type]; }
};

inline constexpr double kLevelMax = std::numeric_limits<double>::infinity();

// Returns the rate of each job of the group.
double rate_of(const ShareProblem& problem, const Shares& shares, std::size_t group);

// Returns the level that all groups reach.
double level_reached(const ShareProblem& problem, const Shares& shares);

// Computes shares for one type. A group that runs all the time is raised no further; the others are raised on as long
// as GPUs are left.
Shares closed_form_shares(const ShareProblem& problem);

// Computes shares for several types. With `spreads_rest`, GPUs that are left once the level is highest go where they
// add most to the sum over jobs of GPUs * rate / rate on the job's fastest type.
class ShareProgram {
public:
    ShareProgram();
    ~ShareProgram();

    Result<Shares> solve(const ShareProblem& problem, bool spreads_rest = true);

private:
    struct Basis;
    std::unique_ptr<Basis> basis_;
};

}  // namespace larder::scheduler
