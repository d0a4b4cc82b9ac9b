#include "scheduler/simulator/scenario.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

#include "allocator/protocol/objective.h"
#include "base/clock.h"
#include "scheduler/cells/cell_config_toml.h"
#include "scheduler/cells/cells.h"
#include "scheduler/placement/free_pool.h"
#include "scheduler/simulator/generate.h"

namespace larder::scheduler {
namespace {

// Reads an objective of the allocator. Pins are an operator's, and a simulation has none.
Result<allocator::ObjectiveKind> simulated_objective(std::string_view text) {
    const auto kind = allocator::parse_objective(text);
    if (kind && *kind == allocator::ObjectiveKind::pinned) {
        return fail(ErrorCode::invalid_argument,
                    "objective \"pinned\" follows an operator's pins, but a simulation has none");
    }
    return kind;
}

Result<WorkloadTable> table_of(const ScenarioOptions& options) {
    if (!options.throughputs.empty()) {
        auto table = read_throughputs(options.throughputs, options.throughput_table);
        if (!table || options.pair_throughputs.empty()) return table;
        if (auto read = read_pair_throughputs(options.pair_throughputs, *table); !read) {
            return std::unexpected(read.error());
        }
        return table;
    }
    return options.workload.empty() ? parse_workload(default_workload()) : read_workload(options.workload);
}

}  // namespace

GpuCluster make_cluster(std::span<const GpuGroup> gpus, std::uint32_t gpus_per_node) {
    GpuCluster cluster;
    for (const GpuGroup& group : gpus) {
        const auto type = static_cast<std::uint32_t>(cluster.gpu_types.size());
        cluster.gpu_types.push_back(group.type);
        for (std::uint32_t made = 0; made < group.gpus; made += gpus_per_node) {
            cluster.nodes.push_back({.name = group.type + "-" + std::to_string(made / gpus_per_node),
                                     .gpu_type = type,
                                     .gpus = std::min(gpus_per_node, group.gpus - made)});
        }
    }
    return cluster;
}

Result<GpuGroup> parse_gpu_group(std::string_view text) {
    GpuGroup group{.type = "v100"};
    const std::size_t colon = text.find(':');
    if (colon != std::string_view::npos) group.type = text.substr(0, colon);
    const std::string_view number = colon == std::string_view::npos ? text : text.substr(colon + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), group.gpus);
    constexpr std::uint32_t kGpusMax = 1'000'000;
    if (error != std::errc() || end != number.data() + number.size() || group.gpus == 0 || group.gpus > kGpusMax ||
        group.type.empty()) {
        return fail(ErrorCode::invalid_argument, "\"" + std::string(text) + "\" is neither GPUS nor TYPE:GPUS");
    }
    return group;
}

Result<NamedNodeLoss> parse_node_loss(std::string_view text) {
    const std::size_t at = text.rfind('@');
    NamedNodeLoss loss{.node = std::string(text.substr(0, std::min(at, text.size())))};
    const std::string_view number = at == std::string_view::npos ? "" : text.substr(at + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), loss.at_s);
    if (error != std::errc() || end != number.data() + number.size() || loss.node.empty() || !(loss.at_s >= 0) ||
        std::isinf(loss.at_s)) {
        return fail(ErrorCode::invalid_argument,
                    "\"" + std::string(text) + "\" is not NODE@SECONDS, such as v100-3@60");
    }
    return loss;
}

Result<Scenario> make_scenario(const ScenarioOptions& options) {
    Scenario scenario;
    if (is_drawn(options.trace)) {
        auto drawn = parse_drawn(options.trace);
        if (!drawn) return std::unexpected(drawn.error());
        drawn->seed = options.workload_options.seed;
        auto trace = draw(*drawn);
        if (!trace) return std::unexpected(trace.error());
        scenario.trace = std::move(*trace);
    } else {
        auto read = read_trace(options.trace, options.trace_options);
        if (!read) return std::unexpected(read.error());
        scenario.trace = std::move(*read);
    }
    const auto table = table_of(options);
    if (!table) return std::unexpected(table.error());
    if (options.gpus_per_node == 0 || options.gpus_per_node > kGpusPerNodeMax) {
        return fail(ErrorCode::invalid_argument, "GPUs per node must be from 1 to " + std::to_string(kGpusPerNodeMax));
    }
    if (options.cells.empty()) {
        scenario.cluster = make_cluster(options.gpus, options.gpus_per_node);
    } else {
        auto cells = load_cell_config(options.cells);
        if (!cells) return std::unexpected(cells.error());
        scenario.cluster = cluster_of(*cells);
        std::set<std::string_view> machines;
        for (const GpuNode& node : scenario.cluster.nodes) {
            if (machines.insert(node.name).second) continue;
            return fail(ErrorCode::invalid_argument,
                        options.cells + ": node \"" + node.name +
                            "\" has GPUs of two types, and simulations know only nodes of one "
                            "type: give its types different nodes");
        }
        scenario.cells = std::move(*cells);
    }
    for (const GpuNode& node : scenario.cluster.nodes) scenario.gpus += node.gpus;
    auto workload = make_workload(scenario.trace, *table, scenario.cluster.gpu_types, options.workload_options);
    if (!workload) return std::unexpected(workload.error());
    scenario.workload = std::move(*workload);
    return scenario;
}

Result<std::unique_ptr<Placer>> make_placer(const Scenario& scenario) {
    if (!scenario.cells) return std::make_unique<FreePool>(scenario.cluster);
    std::vector<std::string> tenants;
    tenants.reserve(scenario.workload.tenants.size());
    for (const Tenant& tenant : scenario.workload.tenants) tenants.push_back(tenant.name);
    return Cells::create(*scenario.cells, scenario.cluster, tenants);
}

Result<ScenarioReport> run_scenario(Scenario scenario, const ScenarioOptions& options) {
    ScenarioReport report;
    auto cache = parse_cache(options.cache, options.bandwidth_rule);
    if (!cache) return std::unexpected(cache.error());
    cache->objective = objective_of(options.policy);
    if (!options.objective.empty()) {
        const auto objective = simulated_objective(options.objective);
        if (!objective) return std::unexpected(objective.error());
        cache->objective = *objective;
    }
    cache->own_caches = options.simulation.cache.own_caches;
    cache->epochs_known = options.simulation.cache.epochs_known;
    report.cache = *cache;
    SimulationOptions simulation = options.simulation;
    simulation.cache = *cache;
    for (const NamedNodeLoss& loss : options.node_losses) {
        const auto& nodes = scenario.cluster.nodes;
        const auto node = std::ranges::find(nodes, loss.node, &GpuNode::name);
        if (node == nodes.end()) {
            return fail(ErrorCode::invalid_argument, "there is no node \"" + loss.node + "\": the nodes are " +
                                                         nodes.front().name + " to " + nodes.back().name);
        }
        simulation.node_losses.push_back({.node = static_cast<std::uint32_t>(node - nodes.begin()), .at_s = loss.at_s});
    }
    const auto policy = make_policy(options.policy, simulation.policy);
    if (!policy) return std::unexpected(policy.error());
    report.scenario = std::move(scenario);
    simulation.storage.nic_bytes_per_second =
        simulation.node_nic_bytes_per_second * static_cast<double>(report.scenario.cluster.nodes.size());
    const auto placer = make_placer(report.scenario);
    if (!placer) return std::unexpected(placer.error());
    SteadyClock clock;
    const std::int64_t begin_ns = clock.now_ns();
    auto outcome = simulate(report.scenario.workload, report.scenario.cluster, **policy, **placer, simulation);
    if (!outcome) return std::unexpected(outcome.error());
    report.wall_s = static_cast<double>(clock.now_ns() - begin_ns) / 1e9;
    report.outcome = std::move(*outcome);
    report.summary = summarise(report.scenario.workload, report.outcome, report.scenario.gpus, options.measured);
    return report;
}

}  // namespace larder::scheduler
