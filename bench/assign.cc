// How long does a plan take, and is it optimal? Runs assign() on clusters of thousands of jobs and solves the same
// problem as a linear program (CLP) for comparison: one program for efficiency; for max-min a bisection over programs,
// each starting from the basis of the last. Also times a second plan, which weighs new quotas against those in force,
// with filled caches.

#include "allocator/assign.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "base/clock.h"
#include "base/heap.h"
#include "bench/bench_options.h"
#include "bench/median.h"
#include "tests/oracle/cluster_lp.h"
#include "tests/oracle/lp.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

using namespace allocator;

struct Size {
    std::uint32_t jobs;
    std::uint32_t datasets;
    std::uint32_t nodes;
    bool solves_lp;
};

// Jobs have one GPU, datasets 10 GB to 2 TB; the remote carries an eighth of what all jobs read at f*.
ClusterState cluster(const Size& size) {
    std::mt19937_64 random(size.jobs);
    const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
    ClusterState state;
    const std::uint32_t gpus = (size.jobs + size.nodes - 1) / size.nodes;
    for (std::uint32_t n = 0; n < size.nodes; ++n) {
        ClusterNode node{.name = "node-" + std::to_string(n),
                         .gpus = gpus,
                         .memory_bytes = 16'000'000'000,
                         .disk_bytes = 100'000'000'000};
        // The linear programs do not model disks and networks.
        if (!size.solves_lp) {
            node.disk_read_bytes_per_second = 6e9;
            node.nic_bytes_per_second = 12.5e9;
        }
        state.nodes.push_back(node);
    }
    for (std::uint32_t i = 0; i < size.datasets; ++i) {
        state.datasets.push_back({.name = "dataset-" + std::to_string(i),
                                  .size_bytes = static_cast<std::uint64_t>(1e10 * std::pow(200, uniform()))});
    }
    double ideals = 0;
    for (std::uint32_t j = 0; j < size.jobs; ++j) {
        ClusterJob job{.name = "job-" + std::to_string(j),
                       .dataset = static_cast<std::uint32_t>(random() % size.datasets),
                       .gpus = 1};
        job.ideal_bytes_per_second = 2e7 * std::pow(50, uniform());
        job.placement.push_back({.node = j % size.nodes, .gpus = 1});
        ideals += job.ideal_bytes_per_second;
        state.jobs.push_back(job);
    }
    state.remote_bytes_per_second = ideals / 8;
    return state;
}

// Returns, for efficiency, the remote bytes per second with every job at f*; for max-min, the smallest ratio of rate to
// equal share among jobs below f*.
double objective_value(const ClusterState& state, const Plan& plan, ObjectiveKind kind) {
    double remote = 0;
    double smallest = std::numeric_limits<double>::infinity();
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        const double ideal = state.jobs[j].ideal_bytes_per_second;
        const JobPlan& job = plan.jobs[j];
        remote += ideal * (1 - job.steady_hit_ratio);
        if (job.steady_bytes_per_second < ideal * (1 - 1e-9)) {
            smallest = std::min(smallest, job.steady_bytes_per_second / job.equal_share_bytes_per_second);
        }
    }
    return kind == ObjectiveKind::efficiency ? remote : smallest;
}

double oracle_value(const oracle::ClusterLp& program, ObjectiveKind kind) {
    if (kind == ObjectiveKind::max_min) return oracle::max_min_level(program.problem());
    // Minimises the remote bandwidth first, then maximises the sum of rates under that split.
    const oracle::LpSplit split = oracle::least_remote(program.problem(), program.ideals(), true);
    oracle::largest_sum(program.problem(), split.cache);
    return split.remote;
}

template <typename Work>
double milliseconds(const Work& work) {
    const SteadyClock clock;
    const std::int64_t began_ns = clock.now_ns();
    work();
    return static_cast<double>(clock.now_ns() - began_ns) * 1e-6;
}

ClusterState with_quotas_in_force(ClusterState state, const Plan& plan) {
    for (std::size_t i = 0; i < state.datasets.size(); ++i) {
        state.datasets[i].quotas = plan.datasets[i].quotas;
        state.datasets[i].cached = plan.datasets[i].quotas;
    }
    return state;
}

Result<boost::json::object> measure(const Size& size, ObjectiveKind kind, std::uint32_t repeats) {
    const ClusterState state = cluster(size);
    Result<Plan> plan = allocator::assign(state, {.kind = kind});
    if (!plan) return std::unexpected(plan.error());
    std::optional<oracle::ClusterLp> program;
    if (size.solves_lp) program.emplace(state, *plan);
    double lp_value = 0;
    std::vector<double> times, second_plan_times, lp_times, ratios;
    const ClusterState filled = with_quotas_in_force(state, *plan);
    // Freeing the previous plan is not timed.
    std::optional<Result<Plan>> timed_plan;
    const auto time_plan = [&](const ClusterState& problem) {
        timed_plan.reset();
        return milliseconds([&] { timed_plan.emplace(allocator::assign(problem, {.kind = kind})); });
    };
    for (std::uint32_t i = 0; i < repeats; ++i) {
        times.push_back(time_plan(state));
        if (!program) continue;
        lp_times.push_back(milliseconds([&] { lp_value = oracle_value(*program, kind); }));
        ratios.push_back(lp_times.back() / times.back());
    }
    plan = std::move(*timed_plan);
    for (std::uint32_t i = 0; i < repeats; ++i) second_plan_times.push_back(time_plan(filled));
    if (!*timed_plan) return std::unexpected(timed_plan->error());
    if (!plan) return std::unexpected(plan.error());
    boost::json::object row{{"objective", allocator::name(kind)},
                            {"jobs", size.jobs},
                            {"datasets", size.datasets},
                            {"nodes", size.nodes},
                            {"ms", median(times)},
                            {"again_ms", median(second_plan_times)},
                            {"lp_ms", nullptr},
                            {"times", nullptr},
                            {"max_abs_diff", nullptr}};
    if (program) {
        row["lp_ms"] = median(lp_times);
        row["times"] = median(ratios);
        row["max_abs_diff"] = std::abs(objective_value(state, *plan, kind) / lp_value - 1);
    }
    return row;
}

void print(const boost::json::array& rows) {
    cli::Table table({"objective", ">jobs", ">datasets", ">nodes", ">assign", ">second plan", ">linear program",
                      ">times", ">difference"});
    for (const auto& row : rows) {
        char text[5][32] = {"", "", "-", "-", "-"};
        const double ms = row.at("ms").as_double();
        std::snprintf(text[0], sizeof text[0], "%.2f ms", ms);
        std::snprintf(text[1], sizeof text[1], "%.2f ms", row.at("again_ms").as_double());
        if (!row.at("lp_ms").is_null()) {
            std::snprintf(text[2], sizeof text[2], "%.0f ms", row.at("lp_ms").as_double());
            std::snprintf(text[3], sizeof text[3], "%.0f", row.at("times").as_double());
            std::snprintf(text[4], sizeof text[4], "%.1e", row.at("max_abs_diff").as_double());
        }
        table.add({std::string(row.at("objective").as_string()),
                   cli::format_count(row.at("jobs").to_number<std::uint64_t>()),
                   cli::format_count(row.at("datasets").to_number<std::uint64_t>()),
                   cli::format_count(row.at("nodes").to_number<std::uint64_t>()), text[0], text[1], text[2], text[3],
                   text[4]});
    }
    std::printf("%s", table.text().c_str());
}

}  // namespace

Result<boost::json::value> assign(const BenchOptions& options) {
    keep_freed_memory();  // as larder-allocator does
    std::vector<Size> sizes = {{10'000, 1000, 1000, false}, {4000, 1000, 1000, true}};
    if (options.quick) sizes = {{1000, 100, 100, false}, {200, 20, 20, true}};
    boost::json::array rows;
    for (const Size& size : sizes) {
        for (const ObjectiveKind kind : {ObjectiveKind::efficiency, ObjectiveKind::max_min}) {
            const auto row = measure(size, kind, options.quick ? 3 : 31);
            if (!row) return std::unexpected(row.error());
            rows.push_back(*row);
        }
    }
    if (!options.json) print(rows);
    return rows;
}

}  // namespace larder::bench
