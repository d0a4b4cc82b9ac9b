#include "tests/oracle/small_lp.h"

#include <coin/ClpSimplex.hpp>
#include <coin/CoinPackedMatrix.hpp>

#include <algorithm>
#include <limits>

namespace larder::oracle {
namespace {

// Solves a program whose columns have one entry in each of up to two rows.
struct Columns {
    std::vector<double> lower, upper, cost;
    std::vector<int> rows;
    std::vector<double> values;
    std::vector<CoinBigIndex> starts{0};

    void add(double from, double to, double cost_of_each) {
        lower.push_back(from);
        upper.push_back(to);
        cost.push_back(cost_of_each);
    }
    void entry(int row, double value) {
        rows.push_back(row);
        values.push_back(value);
    }
    void end() { starts.push_back(static_cast<CoinBigIndex>(rows.size())); }

    void solve(ClpSimplex& model, const std::vector<double>& row_lower, const std::vector<double>& row_upper,
               Simplex simplex) const {
        const CoinPackedMatrix matrix(true, static_cast<int>(row_lower.size()), static_cast<int>(lower.size()),
                                      static_cast<CoinBigIndex>(values.size()), values.data(), rows.data(),
                                      starts.data(), nullptr);
        model.setLogLevel(0);
        model.setPrimalTolerance(1e-9);
        model.setDualTolerance(1e-9);
        model.loadProblem(matrix, lower.data(), upper.data(), cost.data(), row_lower.data(), row_upper.data());
        simplex == Simplex::primal ? model.primal() : model.dual();
    }
};

// Says up to which part of its dataset cached bytes save bandwidth for a job, and how much the whole dataset would.
struct Piece {
    double up_to = 1;
    double at_ideal = 0;
    double at_share = 0;
};

double need(double rate, double floor) {
    return std::max(rate, floor);
}

}  // namespace

LpSplit small_least_remote(const LpProblem& problem, const std::vector<double>& rates, bool keep_shares,
                           Simplex simplex) {
    const LpScale scale = scale_of(problem);
    std::vector<std::vector<Piece>> pieces(problem.caches.size());
    double without_cache = 0;
    double shares_without_cache = 0;
    for (std::size_t j = 0; j < rates.size(); ++j) {
        const LpJob& job = problem.jobs[j];
        std::vector<Piece>& of_cache = pieces[job.reads.front().cache];
        without_cache += need(rates[j], job.floor) / scale.rate;
        if (rates[j] > job.floor)
            of_cache.push_back({.up_to = 1 - job.floor / rates[j], .at_ideal = rates[j] / scale.rate});
        if (!keep_shares) continue;
        shares_without_cache += need(job.equal_rate, job.floor) / scale.rate;
        if (job.equal_rate > job.floor) {
            of_cache.push_back({.up_to = 1 - job.floor / job.equal_rate, .at_share = job.equal_rate / scale.rate});
        }
    }
    Columns columns;
    std::vector<std::size_t> cache_of_column;
    const auto groups = static_cast<int>(problem.group_cache.size());
    for (std::size_t i = 0; i < problem.caches.size(); ++i) {
        const LpCache& cache = problem.caches[i];
        // Adds up from the last bytes of the cache, so that rounding leaves no savings where there are none.
        std::vector<Piece>& of_cache = pieces[i];
        std::ranges::sort(of_cache, std::ranges::greater(), &Piece::up_to);
        double to = cache.cap / cache.size;
        double at_ideal = 0, at_share = 0;
        const auto add_down_to = [&](double from) {
            if (from >= to) return;
            const double least = std::clamp(cache.floor / cache.size - from, 0.0, to - from);
            columns.add(least, to - from, -at_ideal);
            columns.entry(static_cast<int>(cache.group), cache.size / scale.bytes);
            if (keep_shares && at_share > 0) columns.entry(groups, at_share);
            columns.end();
            cache_of_column.push_back(i);
            to = from;
        };
        for (const Piece& piece : of_cache) {
            add_down_to(piece.up_to);
            at_ideal += piece.at_ideal;
            at_share += piece.at_share;
        }
        add_down_to(0);
    }
    std::vector<double> row_lower, row_upper;
    for (const double bytes : problem.group_cache) {
        row_lower.push_back(-COIN_DBL_MAX);
        row_upper.push_back(bytes / scale.bytes);
    }
    if (keep_shares) {
        row_lower.push_back(shares_without_cache * (1 - 1e-12) - problem.remote / scale.rate);
        row_upper.push_back(COIN_DBL_MAX);
    }
    ClpSimplex model;
    columns.solve(model, row_lower, row_upper, simplex);
    LpSplit split;
    split.feasible = model.isProvenOptimal();
    if (!split.feasible) return split;
    split.remote = (without_cache + model.objectiveValue()) * scale.rate;
    split.cache.resize(problem.caches.size());
    const double* parts = model.primalColumnSolution();
    for (std::size_t c = 0; c < cache_of_column.size(); ++c) {
        split.cache[cache_of_column[c]] += parts[c] * problem.caches[cache_of_column[c]].size;
    }
    return split;
}

double small_largest_sum(const LpProblem& problem, const std::vector<double>& cache, Simplex simplex) {
    const LpScale scale = scale_of(problem);
    for (const double slack : {0.0, 1e-9, 1e-8, 1e-7}) {
        Columns columns;
        double left = problem.remote;
        double sum = 0;
        for (const LpJob& job : problem.jobs) {
            const LpRead& read = job.reads.front();
            const double miss = std::max(0.0, 1 - cache[read.cache] / problem.caches[read.cache].size);
            // The floor carries the job up to this rate, which nothing bounds.
            const double carried = miss > 0 ? std::min(job.ideal, job.floor / miss) : job.ideal;
            const double share = std::min(job.equal_rate * (1 - slack), job.ideal);
            sum += carried;
            left -= job.floor;
            if (carried >= job.ideal) continue;
            columns.add(std::max(0.0, share - carried) / scale.rate, (job.ideal - carried) / scale.rate, -1);
            columns.entry(0, miss);
            columns.end();
        }
        ClpSimplex model;
        columns.solve(model, {-COIN_DBL_MAX}, {left / scale.rate}, simplex);
        if (model.isProvenOptimal()) return sum - model.objectiveValue() * scale.rate;
    }
    return std::numeric_limits<double>::quiet_NaN();
}

double small_max_min_level(const LpProblem& problem, Simplex simplex) {
    return max_min_level(
        problem, [&](const std::vector<double>& rates) { return small_least_remote(problem, rates, false, simplex); });
}

}  // namespace larder::oracle
