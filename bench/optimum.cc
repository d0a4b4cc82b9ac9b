// Plans for small random clusters beside the best plans there are, which an
// independent program finds (tests/oracle/steady_optimum.h). Every objective is
// measured in its own value.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "allocator/assign.h"
#include "allocator/protocol/objective.h"
#include "bench/bench_options.h"
#include "tests/oracle/small_cluster.h"
#include "tests/oracle/steady_optimum.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace json = boost::json;
namespace {

using allocator::ClusterState;
using allocator::ObjectiveKind;
using allocator::Plan;

constexpr std::uint64_t kClusters = 10'000;
constexpr std::uint64_t kClustersQuick = 60;
constexpr double kProven = 0.002;
constexpr double kTolerance = 1e-5;  // within which the programs' values are exact

std::vector<double> steady_rates(const Plan& plan) {
    std::vector<double> rates;
    rates.reserve(plan.jobs.size());
    for (const allocator::JobPlan& job : plan.jobs) rates.push_back(job.steady_bytes_per_second);
    return rates;
}

// The cluster with nodes that carry everything.
ClusterState without_node_limits(ClusterState state) {
    for (allocator::ClusterNode& node : state.nodes) {
        node.disk_read_bytes_per_second = allocator::kUnlimited;
        node.nic_bytes_per_second = allocator::kUnlimited;
    }
    return state;
}

// Returns by how much the plan's cache lowers the remote bytes per second that
// jobs need at f*.
double planned_saving(const ClusterState& state, const Plan& plan) {
    double saving = 0;
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        const allocator::ClusterJob& job = state.jobs[j];
        const double misses = job.ideal_bytes_per_second * (1 - plan.jobs[j].steady_hit_ratio);
        const double floor = job.bandwidth_floor_bytes_per_second;
        saving += std::max(job.ideal_bytes_per_second, floor) - std::max(misses, floor);
    }
    return saving;
}

struct Gaps {
    std::vector<double> plan_ms;
    std::vector<std::pair<double, std::uint64_t>> gaps;  // each with its seed
    std::uint64_t unproved = 0;                          // the search ended before its bound was near enough
    std::uint64_t impossible = 0;                        // plans that the oracle says cannot be

    double percentile(double part) const {
        return gaps.empty() ? 0 : gaps[static_cast<std::size_t>(part * static_cast<double>(gaps.size() - 1))].first;
    }
};

void judge(const ClusterState& state, std::uint64_t seed, ObjectiveKind kind, const Plan& plan, Gaps& gaps) {
    if (kind == ObjectiveKind::max_min) {
        const double planned = oracle::level_of(state, steady_rates(plan));
        const double best = oracle::largest_level(state);
        if (std::isinf(planned)) return gaps.gaps.emplace_back(0, seed), void();
        if (best < planned * (1 - 0.002)) ++gaps.impossible;
        gaps.gaps.emplace_back(std::max(0.0, 1 - planned / best), seed);
        return;
    }
    if (kind == ObjectiveKind::efficiency) {
        const double planned = planned_saving(state, plan);
        const double best = oracle::largest_saving(state);
        double ideals = 0;
        for (const allocator::ClusterJob& job : state.jobs) ideals += job.ideal_bytes_per_second;
        if (planned > best + kTolerance * ideals) ++gaps.impossible;
        // The difference is only rounding where nothing is saved.
        gaps.gaps.emplace_back(best > kTolerance * ideals ? std::max(0.0, 1 - planned / best) : 0, seed);
        return;
    }
    const std::vector<double> values = oracle::values_of(state, kind);
    double planned = 0;
    for (std::size_t j = 0; j < values.size(); ++j) planned += values[j] * plan.jobs[j].steady_bytes_per_second;
    const oracle::LargestSum best = oracle::largest_sum_of_rates(state, values, planned, {.gap = kProven});
    if (planned > best.relaxed * (1 + kTolerance)) ++gaps.impossible;
    if (best.bound > best.reached * (1 + 2 * kProven)) ++gaps.unproved;
    gaps.gaps.emplace_back(1 - planned / best.reached, seed);
}

}  // namespace

Result<json::value> optimum(const BenchOptions& options) {
    const std::uint64_t clusters = options.quick ? kClustersQuick : kClusters;
    constexpr ObjectiveKind kKinds[] = {ObjectiveKind::max_min, ObjectiveKind::throughput, ObjectiveKind::utilisation,
                                        ObjectiveKind::efficiency};
    std::vector<Gaps> gaps(std::size(kKinds));
    double share_error = 0;
    std::uint64_t share_error_seed = 0;
    for (std::uint64_t seed = 0; seed < clusters; ++seed) {
        const ClusterState state = oracle::small_cluster(seed);
        const std::vector<double> equal = oracle::equal_share_rates(state);
        const ClusterState fast_nodes = without_node_limits(state);
        for (std::size_t k = 0; k < gaps.size(); ++k) {
            // Efficiency is about all jobs at f*, which slow nodes cannot carry.
            const ClusterState& judged = kKinds[k] == ObjectiveKind::efficiency ? fast_nodes : state;
            const auto started = std::chrono::steady_clock::now();
            const auto plan = allocator::assign(judged, {.kind = kKinds[k]});
            const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - started;
            gaps[k].plan_ms.push_back(took.count());
            if (!plan) return std::unexpected(plan.error());
            for (std::size_t j = 0; &judged == &state && j < equal.size(); ++j) {
                const double ours = plan->jobs[j].equal_share_bytes_per_second;
                const double error = std::abs(ours - equal[j]) / std::max(ours, equal[j]);
                if (error > share_error) share_error_seed = seed;
                share_error = std::max(share_error, error);
            }
            judge(judged, seed, kKinds[k], *plan, gaps[k]);
        }
    }
    json::array rows;
    cli::Table table({"objective", ">clusters", ">median gap", ">99th", ">worst", ">seed", ">unproved", ">impossible",
                      ">plan ms", ">longest"});
    const auto percent = [](double part) {
        char text[32];
        std::snprintf(text, sizeof text, "%.2f %%", 100 * part);
        return std::string(text);
    };
    const auto milliseconds = [](double ms) {
        char text[32];
        std::snprintf(text, sizeof text, "%.2f", ms);
        return std::string(text);
    };
    for (std::size_t k = 0; k < gaps.size(); ++k) {
        std::ranges::sort(gaps[k].gaps);
        std::ranges::sort(gaps[k].plan_ms);
        const double median_ms = gaps[k].plan_ms[gaps[k].plan_ms.size() / 2];
        const double longest_ms = gaps[k].plan_ms.back();
        const auto [worst, seed] = gaps[k].gaps.back();
        const std::string objective(name(kKinds[k]));
        table.add({objective, std::to_string(gaps[k].gaps.size()), percent(gaps[k].percentile(0.5)),
                   percent(gaps[k].percentile(0.99)), percent(worst), std::to_string(seed),
                   std::to_string(gaps[k].unproved), std::to_string(gaps[k].impossible), milliseconds(median_ms),
                   milliseconds(longest_ms)});
        rows.push_back(json::object{{"objective", objective},
                                    {"clusters", gaps[k].gaps.size()},
                                    {"gap_median", gaps[k].percentile(0.5)},
                                    {"gap_p99", gaps[k].percentile(0.99)},
                                    {"gap_worst", worst},
                                    {"worst_seed", seed},
                                    {"unproved", gaps[k].unproved},
                                    {"impossible", gaps[k].impossible},
                                    {"plan_ms_median", median_ms},
                                    {"plan_ms_longest", longest_ms}});
    }
    if (!options.json) {
        std::fputs(table.text().c_str(), stdout);
        std::printf("equal shares differ by at most %.3g (seed %llu)\n", share_error,
                    static_cast<unsigned long long>(share_error_seed));
    }
    return json::object{
        {"objectives", std::move(rows)}, {"equal_share_error", share_error}, {"equal_share_seed", share_error_seed}};
}

}  // namespace larder::bench
