#pragma once

// How much of the time each job should run on each type of GPU, as the fair policies choose it (Gavel, OSDI '20): a
// job that runs the part x of the time on a type makes x of its rate there, a gang of z GPUs takes z times x of the
// type's GPUs, and nobody runs more than all the time. All jobs are raised together to the highest level at which there
// are GPUs enough. With one type that is a closed form; with several a linear program for CLP, whose dual simplex
// starts from the basis of the last one. Jobs that are alike make one group, so that the program has as many columns as
// there are kinds of jobs.

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"

namespace larder::scheduler {

struct ShareGroup {
    std::uint32_t jobs = 1;
    double gpus = 1;            // of each
    std::vector<double> rates;  // of each, by type; 0: cannot run there
    // The sum of rate * share is to be at least floor + level * need.
    double need = 1;
    double floor = 0;
};

struct ShareProblem {
    std::vector<double> gpus_by_type;
    std::vector<ShareGroup> groups;
};

struct Shares {
    std::uint32_t types = 0;
    std::vector<double> parts;  // of the time, of each job of a group; by group, then type
    double level = 0;           // that all groups reach
    std::vector<bool> binding;  // by group, of ShareProgram: whether it keeps the level from being higher

    double part(std::size_t group, std::size_t type) const { return parts[group * types + type]; }
};

inline constexpr double kLevelMax = std::numeric_limits<double>::infinity();

// Of each job of the group.
double rate_of(const ShareProblem& problem, const Shares& shares, std::size_t group);

// That all groups reach.
double level_reached(const ShareProblem& problem, const Shares& shares);

// For one type. Whoever runs all the time is raised no more, and the others are raised on, as long as there are GPUs.
Shares closed_form_shares(const ShareProblem& problem);

// For several. What is left at the highest level (`rest_too`) goes where it makes the most of a job's fastest type.
class ShareProgram {
public:
    ShareProgram();
    ~ShareProgram();

    Result<Shares> solve(const ShareProblem& problem, bool rest_too = true);

private:
    struct Basis;
    std::unique_ptr<Basis> basis_;
};

}  // namespace larder::scheduler
