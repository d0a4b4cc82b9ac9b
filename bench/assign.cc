// How long does a plan take, and is it optimal? Runs assign() on clusters of 10,000 jobs and solves the same problem as
// the smallest linear programs that say the same (CLP): one split of the cache and one sum of rates for efficiency; for
// max-min a bisection over splits. The faster of the primal and the dual simplex method counts. Also times a second
// plan, which weighs new quotas against those in force, with filled caches. The cases add what the daemon's plans have:
// the floor of each leased job, and nodes whose network or disk binds.

#include "allocator/assign.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "base/heap.h"
#include "bench/bench_options.h"
#include "bench/cost.h"
#include "bench/median.h"
#include "bench/slow_nodes.h"
#include "tests/oracle/cluster_lp.h"
#include "tests/oracle/small_lp.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

using namespace allocator;

enum class Bounds : std::uint8_t {
    none,         // only the remote and the cache bind
    floors,       // each job has the floor of its lease
    slow_nodes,   // floors; a tenth of the nodes have one job, no cache, and a network that is too slow for the job
    shared_nodes  // floors; a tenth of the nodes have a network and a disk that are too slow for their jobs and cache
};

struct Size {
    std::uint32_t jobs;
    std::uint32_t datasets;
    std::uint32_t nodes;
};

constexpr double kLeaseFloor = 1 << 20;

std::string_view name_of(Bounds bounds) {
    switch (bounds) {
        case Bounds::none: return "none";
        case Bounds::floors: return "floors";
        case Bounds::slow_nodes: return "floors, slow nodes";
        case Bounds::shared_nodes: return "floors, shared nodes";
    }
    return "";
}

// No linear program says that products of rates and hit ratios bind, as they do for cache on nodes that are too slow.
bool has_program(Bounds bounds) {
    return bounds != Bounds::shared_nodes;
}

// Jobs have one GPU, datasets 10 GB to 2 TB; the remote carries an eighth of what all jobs read at f*.
ClusterState cluster(const Size& size, Bounds bounds) {
    std::mt19937_64 random(size.jobs);
    const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
    ClusterState state;
    const std::uint32_t slow_nodes = bounds == Bounds::slow_nodes ? (size.nodes + 9) / 10 : 0;
    const std::uint32_t fast_nodes = size.nodes - slow_nodes;
    std::vector<std::uint32_t> node_of_job;
    node_of_job.reserve(size.jobs);
    for (std::uint32_t j = 0; j < slow_nodes; ++j) node_of_job.push_back(j * 10);
    for (std::uint32_t j = 0; node_of_job.size() < size.jobs; ++j) {
        const std::uint32_t fast = j % fast_nodes;
        node_of_job.push_back(slow_nodes == 0 ? fast : fast / 9 * 10 + fast % 9 + 1);
    }
    for (std::uint32_t n = 0; n < size.nodes; ++n) {
        state.nodes.push_back({.name = "node-" + std::to_string(n),
                               .gpus = (size.jobs + fast_nodes - 1) / fast_nodes,
                               .memory_bytes = 16'000'000'000,
                               .disk_bytes = 100'000'000'000});
        ClusterNode& node = state.nodes.back();
        if (bounds == Bounds::slow_nodes && is_slow_node(n)) node.memory_bytes = node.disk_bytes = 0;
        if (bounds != Bounds::shared_nodes) continue;
        node.nic_bytes_per_second = is_slow_node(n) ? 1e9 : 12.5e9;
        node.disk_read_bytes_per_second = is_slow_node(n) ? 5e8 : 12e9;
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
        job.placement.push_back({.node = node_of_job[j], .gpus = 1});
        if (bounds != Bounds::none) job.bandwidth_floor_bytes_per_second = kLeaseFloor;
        ideals += job.ideal_bytes_per_second;
        if (j < slow_nodes) state.nodes[node_of_job[j]].nic_bytes_per_second = 0.3 * job.ideal_bytes_per_second;
        state.jobs.push_back(job);
    }
    if (bounds != Bounds::none) state.lease_floor_bytes_per_second = kLeaseFloor;
    state.remote_bytes_per_second = ideals / 8;
    return state;
}

// Returns the same problem with the nodes' networks as bounds on f*, which says the same if a slow node has one job and
// no cache.
ClusterState with_bounded_ideals(ClusterState state) {
    for (ClusterJob& job : state.jobs) {
        ClusterNode& node = state.nodes[job.placement.front().node];
        job.ideal_bytes_per_second = std::min(job.ideal_bytes_per_second, node.nic_bytes_per_second);
    }
    for (ClusterNode& node : state.nodes) node.nic_bytes_per_second = kUnlimited;
    return state;
}

// Returns the number of nodes whose network or disk is used up.
std::size_t bound_nodes(const ClusterState& state, const Plan& plan) {
    std::vector<double> in(state.nodes.size()), out(state.nodes.size()), disk(state.nodes.size());
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        const std::uint32_t home = state.jobs[j].placement.front().node;
        const DatasetPlan& dataset = plan.datasets[state.jobs[j].dataset];
        in[home] += plan.jobs[j].steady_bytes_per_second;
        if (dataset.quota_bytes == 0) continue;
        const double per_byte = plan.jobs[j].steady_bytes_per_second * plan.jobs[j].steady_hit_ratio /
                                static_cast<double>(dataset.quota_bytes);
        for (const NodeCache& quota : dataset.quotas) {
            (quota.node == home ? in[home] : out[quota.node]) +=
                (quota.node == home ? -per_byte : per_byte) * static_cast<double>(quota.bytes());
            disk[quota.node] += per_byte * static_cast<double>(quota.disk_bytes);
        }
    }
    std::size_t bound = 0;
    for (std::size_t n = 0; n < state.nodes.size(); ++n) {
        const auto used_up = [](double used, double capacity) { return used >= capacity * (1 - 1e-6); };
        const ClusterNode& node = state.nodes[n];
        bound += used_up(in[n], node.nic_bytes_per_second) || used_up(out[n], node.nic_bytes_per_second) ||
                 used_up(disk[n], node.disk_read_bytes_per_second);
    }
    return bound;
}

// Returns, for efficiency, the remote bytes per second with every job at f*; for max-min, the smallest ratio of rate to
// equal share among jobs that are below f* and above their equal share.
double objective_value(const ClusterState& state, const Plan& plan, ObjectiveKind kind) {
    double remote = 0;
    double smallest = std::numeric_limits<double>::infinity();
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        const double ideal = state.jobs[j].ideal_bytes_per_second;
        const JobPlan& job = plan.jobs[j];
        remote += std::max(ideal * (1 - job.steady_hit_ratio), state.jobs[j].bandwidth_floor_bytes_per_second);
        const double ratio = job.steady_bytes_per_second / job.equal_share_bytes_per_second;
        if (job.steady_bytes_per_second < ideal * (1 - 1e-9) && ratio > 1 + 1e-9) smallest = std::min(smallest, ratio);
    }
    return kind == ObjectiveKind::efficiency ? remote : smallest;
}

double oracle_value(const oracle::ClusterLp& program, ObjectiveKind kind, oracle::Simplex simplex) {
    if (kind == ObjectiveKind::max_min) return oracle::small_max_min_level(program.problem(), simplex);
    // Minimises the remote bandwidth first, then maximises the sum of rates under that split.
    const oracle::LpSplit split = oracle::small_least_remote(program.problem(), program.ideals(), true, simplex);
    oracle::small_largest_sum(program.problem(), split.cache, simplex);
    return split.remote;
}

ClusterState with_quotas_in_force(ClusterState state, const Plan& plan) {
    for (std::size_t i = 0; i < state.datasets.size(); ++i) {
        state.datasets[i].quotas = plan.datasets[i].quotas;
        state.datasets[i].cached = plan.datasets[i].quotas;
    }
    return state;
}

// The costs of several runs.
struct Costs {
    std::vector<double> wall_ms, cpu_ms;

    void add(const Cost& cost) {
        wall_ms.push_back(cost.wall_ms);
        cpu_ms.push_back(cost.cpu_ms);
    }
};

Result<boost::json::object> measure(const Size& size, Bounds bounds, ObjectiveKind kind, std::uint32_t repeats) {
    const ClusterState state = cluster(size, bounds);
    Result<Plan> plan = allocator::assign(state, {.kind = kind});
    if (!plan) return std::unexpected(plan.error());
    const ClusterState bounded = with_bounded_ideals(state);
    std::optional<oracle::ClusterLp> program;
    if (has_program(bounds)) program.emplace(bounded, *plan);
    double lp_value = 0;
    Costs first, second, linear;
    std::vector<double> ratios;
    const ClusterState filled = with_quotas_in_force(state, *plan);
    // Freeing the previous plan is not timed.
    std::optional<Result<Plan>> timed_plan;
    const auto time_plan = [&](const ClusterState& problem) {
        timed_plan.reset();
        return cost_of([&] { timed_plan.emplace(allocator::assign(problem, {.kind = kind})); });
    };
    for (std::uint32_t i = 0; i < repeats; ++i) {
        first.add(time_plan(state));
        if (!program) continue;
        const auto time_program = [&](oracle::Simplex simplex) {
            return cost_of([&] { lp_value = oracle_value(*program, kind, simplex); });
        };
        const Cost primal = time_program(oracle::Simplex::primal);
        const Cost dual = time_program(oracle::Simplex::dual);
        linear.add(primal.cpu_ms < dual.cpu_ms ? primal : dual);
        ratios.push_back(linear.cpu_ms.back() / first.cpu_ms.back());
    }
    plan = std::move(*timed_plan);
    for (std::uint32_t i = 0; i < repeats; ++i) second.add(time_plan(filled));
    if (!*timed_plan) return std::unexpected(timed_plan->error());
    if (!plan) return std::unexpected(plan.error());
    boost::json::object row{{"bounds", name_of(bounds)},
                            {"objective", allocator::name(kind)},
                            {"jobs", size.jobs},
                            {"datasets", size.datasets},
                            {"nodes", size.nodes},
                            {"bound_nodes", bound_nodes(state, *plan)},
                            {"load", load_average()},
                            {"ms", median(first.wall_ms)},
                            {"cpu_ms", median(first.cpu_ms)},
                            {"again_ms", median(second.wall_ms)},
                            {"again_cpu_ms", median(second.cpu_ms)},
                            {"lp_ms", nullptr},
                            {"lp_cpu_ms", nullptr},
                            {"times", nullptr},
                            {"max_abs_diff", nullptr}};
    if (program) {
        row["lp_ms"] = median(linear.wall_ms);
        row["lp_cpu_ms"] = median(linear.cpu_ms);
        row["times"] = median(ratios);
        const double value = objective_value(bounded, *plan, kind);
        row["max_abs_diff"] = value == lp_value ? 0 : std::abs(value / lp_value - 1);
    }
    return row;
}

void print(const boost::json::array& rows) {
    cli::Table table({"bounds", "objective", ">assign", ">CPU", ">second plan", ">CPU", ">linear program", ">CPU",
                      ">times", ">difference", ">bound nodes"});
    const auto text = [](const boost::json::value& value, const char* format) {
        char formatted[32] = "-";
        if (!value.is_null()) std::snprintf(formatted, sizeof formatted, format, value.to_number<double>());
        return std::string(formatted);
    };
    for (const auto& row : rows) {
        table.add({std::string(row.at("bounds").as_string()), std::string(row.at("objective").as_string()),
                   text(row.at("ms"), "%.2f ms"), text(row.at("cpu_ms"), "%.2f ms"),
                   text(row.at("again_ms"), "%.2f ms"), text(row.at("again_cpu_ms"), "%.2f ms"),
                   text(row.at("lp_ms"), "%.1f ms"), text(row.at("lp_cpu_ms"), "%.1f ms"),
                   text(row.at("times"), "%.1f"), text(row.at("max_abs_diff"), "%.1e"),
                   text(row.at("bound_nodes"), "%.0f")});
    }
    const auto& size = rows.front();
    std::printf("%s jobs, %s datasets, %s nodes; load %.1f\n%s",
                cli::format_count(size.at("jobs").to_number<std::uint64_t>()).c_str(),
                cli::format_count(size.at("datasets").to_number<std::uint64_t>()).c_str(),
                cli::format_count(size.at("nodes").to_number<std::uint64_t>()).c_str(), load_average(),
                table.text().c_str());
}

}  // namespace

Result<boost::json::value> assign(const BenchOptions& options) {
    keep_freed_memory();  // as larder-allocator does
    Size size{.jobs = 10'000, .datasets = 1000, .nodes = 1000};
    if (options.quick) size = {.jobs = 200, .datasets = 20, .nodes = 20};
    boost::json::array rows;
    for (const Bounds bounds : {Bounds::none, Bounds::floors, Bounds::slow_nodes, Bounds::shared_nodes}) {
        for (const ObjectiveKind kind : {ObjectiveKind::efficiency, ObjectiveKind::max_min}) {
            const auto row = measure(size, bounds, kind, options.quick ? 3 : 31);
            if (!row) return std::unexpected(row.error());
            rows.push_back(*row);
        }
    }
    if (!options.json) print(rows);
    return rows;
}

}  // namespace larder::bench
