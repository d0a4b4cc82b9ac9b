#include "tests/oracle/lp.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/oracle/linear_program.h"

namespace larder::oracle {
namespace {

constexpr double kRounding = 1e-9;  // relative tolerance within which equal shares fit

// True if any job has a limit. Programs without limits are smaller; the assign bench times those.
bool has_limits(const LpProblem& problem) {
    return std::ranges::any_of(problem.jobs, [](const LpJob& job) { return job.floor > 0 || std::isfinite(job.cap); });
}

// Columns: the part of its dataset that each cache holds, then each job's bandwidth; with `keep_shares` and limits also
// each job's bandwidth at its equal share. Rows: the groups' cache; with `keep_shares` the bandwidth of all equal
// shares, and with limits each of them; each job's rate (bandwidth + rate * cached part >= rate). With `within_caps`
// bandwidths keep to the jobs' caps.
class LeastRemote {
public:
    LeastRemote(const LpProblem& problem, bool keep_shares, bool within_caps)
        : problem_(problem),
          scale_(scale_of(problem)),
          caches_(static_cast<int>(problem.caches.size())),
          jobs_(static_cast<int>(problem.jobs.size())) {
        std::vector<double> lower, upper, cost;
        for (const LpCache& cache : problem.caches) {
            lower.push_back(cache.floor / cache.size);
            upper.push_back(cache.cap / cache.size);
            cost.push_back(0);
        }
        const auto add_bandwidths = [&](bool capped, double cost_of_each) {
            for (const LpJob& job : problem.jobs) {
                lower.push_back(job.floor / scale_.rate);
                upper.push_back(capped && std::isfinite(job.cap) ? job.cap / scale_.rate : COIN_DBL_MAX);
                cost.push_back(cost_of_each);
            }
        };
        add_bandwidths(within_caps, 1);
        const bool with_share_columns = keep_shares && has_limits(problem);
        if (with_share_columns) add_bandwidths(true, 0);

        Rows rows;
        for (std::size_t group = 0; group < problem.group_cache.size(); ++group) {
            for (int i = 0; i < caches_; ++i) {
                const LpCache& cache = problem.caches[static_cast<std::size_t>(i)];
                if (cache.group == group) rows.add(i, cache.size / scale_.bytes);
            }
            rows.end(-COIN_DBL_MAX, problem.group_cache[group] / scale_.bytes);
        }
        if (keep_shares && !with_share_columns) {
            // Adds the row sum of e * (1 - part) <= remote.
            std::vector<double> coefficients(problem.caches.size());
            double sum = 0;
            for (const LpJob& job : problem.jobs) {
                for (const LpRead& read : job.reads)
                    coefficients[read.cache] += read.part * job.equal_rate / scale_.rate;
                sum += job.equal_rate / scale_.rate;
            }
            for (int i = 0; i < caches_; ++i) rows.add(i, coefficients[static_cast<std::size_t>(i)]);
            rows.end(sum - problem.remote / scale_.rate, COIN_DBL_MAX);
        }
        if (with_share_columns) {
            for (int j = 0; j < jobs_; ++j) rows.add(caches_ + jobs_ + j, 1);
            rows.end(-COIN_DBL_MAX, problem.remote / scale_.rate);
            for (int j = 0; j < jobs_; ++j) {
                const LpJob& job = problem.jobs[static_cast<std::size_t>(j)];
                for (const LpRead& read : job.reads) {
                    rows.add(static_cast<int>(read.cache), read.part * job.equal_rate / scale_.rate);
                }
                rows.add(caches_ + jobs_ + j, 1);
                rows.end(job.equal_rate / scale_.rate * (1 - kRounding), COIN_DBL_MAX);
            }
        }
        first_job_row_ =
            static_cast<int>(problem.group_cache.size()) + (keep_shares ? 1 : 0) + (with_share_columns ? jobs_ : 0);
        for (int j = 0; j < jobs_; ++j) {
            const LpJob& job = problem.jobs[static_cast<std::size_t>(j)];
            for (const LpRead& read : job.reads) {
                rows.add(static_cast<int>(read.cache), read.part * job.ideal / scale_.rate);
            }
            rows.add(caches_ + j, 1);
            rows.end(job.ideal / scale_.rate, COIN_DBL_MAX);
        }
        rows.load_into(model_, lower, upper, cost);
    }

    LpSplit solve(const std::vector<double>& rates) {
        for (int j = 0; j < jobs_; ++j) {
            const double rate = rates[static_cast<std::size_t>(j)] / scale_.rate;
            for (const LpRead& read : problem_.jobs[static_cast<std::size_t>(j)].reads) {
                model_.modifyCoefficient(first_job_row_ + j, static_cast<int>(read.cache), read.part * rate, true);
            }
            model_.setRowLower(first_job_row_ + j, rate);
        }
        // Starts from the last basis if there is one.
        if (solved_) {
            model_.dual();
        } else {
            model_.initialSolve();
        }
        solved_ = true;
        LpSplit split;
        split.feasible = model_.isProvenOptimal();
        if (!split.feasible) return split;
        split.remote = model_.objectiveValue() * scale_.rate;
        const double* parts = model_.primalColumnSolution();
        for (int i = 0; i < caches_; ++i) {
            split.cache.push_back(parts[i] * problem_.caches[static_cast<std::size_t>(i)].size);
        }
        return split;
    }

private:
    const LpProblem& problem_;
    LpScale scale_;
    int caches_;
    int jobs_;
    int first_job_row_ = 1;
    bool solved_ = false;
    ClpSimplex model_;
};

// Returns the largest sum with every job between its equal share, reduced by `slack`, and f*; NaN if infeasible.
double largest_sum_with(const LpProblem& problem, const std::vector<double>& cache, double slack) {
    const LpScale scale = scale_of(problem);
    std::vector<double> lower, upper, misses;  // columns: rates, then bandwidths where there are limits
    Rows rows;
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
        const LpJob& job = problem.jobs[j];
        double miss = 1;
        for (const LpRead& read : job.reads) miss -= read.part * cache[read.cache] / problem.caches[read.cache].size;
        miss = std::max(0.0, miss);
        const double highest = miss > 0 ? std::min(job.ideal, job.cap / miss) : job.ideal;
        lower.push_back(std::min(job.equal_rate * (1 - slack), highest) / scale.rate);
        upper.push_back(highest / scale.rate);
        misses.push_back(miss);
    }
    const bool limited = has_limits(problem);
    for (std::size_t j = 0; j < problem.jobs.size(); ++j) {
        if (limited) {
            lower.push_back(problem.jobs[j].floor / scale.rate);
            upper.push_back(COIN_DBL_MAX);
            rows.add(static_cast<int>(problem.jobs.size() + j), 1);
        } else {
            rows.add(static_cast<int>(j), misses[j]);
        }
    }
    rows.end(-COIN_DBL_MAX, problem.remote / scale.rate);
    for (std::size_t j = 0; limited && j < problem.jobs.size(); ++j) {
        rows.add(static_cast<int>(j), -misses[j]);
        rows.add(static_cast<int>(problem.jobs.size() + j), 1);
        rows.end(0, COIN_DBL_MAX);
    }
    ClpSimplex model;
    std::vector<double> cost(problem.jobs.size(), 1);
    cost.resize(lower.size(), 0);
    rows.load_into(model, lower, upper, cost);
    model.setOptimizationDirection(-1);
    model.initialSolve();
    return model.isProvenOptimal() ? model.objectiveValue() * scale.rate : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

LpScale scale_of(const LpProblem& problem) {
    LpScale scale;
    for (const LpCache& cache : problem.caches) scale.bytes = std::max(scale.bytes, cache.size);
    for (const LpJob& job : problem.jobs) scale.rate = std::max(scale.rate, job.ideal);
    return scale;
}

LpSplit least_remote(const LpProblem& problem, const std::vector<double>& rates, bool keep_shares) {
    return LeastRemote(problem, keep_shares, false).solve(rates);
}

double largest_sum(const LpProblem& problem, const std::vector<double>& cache) {
    // Quotas are whole bytes, and this rounding may reduce an equal share in its last digits.
    for (const double slack : {0.0, 1e-9, 1e-8, 1e-7}) {
        const double sum = largest_sum_with(problem, cache, slack);
        if (!std::isnan(sum)) return sum;
    }
    return std::numeric_limits<double>::quiet_NaN();
}

double max_min_level(const LpProblem& problem) {
    LeastRemote least(problem, false, true);
    return max_min_level(problem, [&](const std::vector<double>& rates) { return least.solve(rates); });
}

double max_min_level(const LpProblem& problem,
                     const std::function<LpSplit(const std::vector<double>& rates)>& least_remote_at) {
    std::vector<double> rates;
    rates.reserve(problem.jobs.size());
    for (const LpJob& job : problem.jobs) rates.push_back(job.highest);
    if (const LpSplit all = least_remote_at(rates); all.feasible && all.remote <= problem.remote)
        return std::numeric_limits<double>::infinity();
    double low = 0;
    double high = 0;
    for (const LpJob& job : problem.jobs) high = std::max(high, job.highest / (job.weight * job.equal_rate));
    while (high - low > 1e-9 * high) {
        const double middle = (low + high) / 2;
        for (std::size_t j = 0; j < rates.size(); ++j) {
            const LpJob& job = problem.jobs[j];
            rates[j] = std::min(std::max(middle * job.weight * job.equal_rate, job.equal_rate), job.highest);
        }
        const LpSplit split = least_remote_at(rates);
        (split.feasible && split.remote <= problem.remote ? low : high) = middle;
    }
    return low;
}

}  // namespace larder::oracle
