#pragma once

// One complete simulation as a user describes it (trace, workload table, cluster, policy, cache system), and its
// results. The commands, the bench and the tests all run scenarios through this header.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/cells/cell_config.h"
#include "scheduler/simulator/simulation.h"
#include "scheduler/simulator/summary.h"
#include "scheduler/simulator/trace.h"

namespace larder::scheduler {

struct GpuGroup {
    std::string type;
    std::uint32_t gpus = 0;
};

// A loss of a node, named as in the cluster.
struct NamedNodeLoss {
    std::string node;
    double at_s = 0;
};

struct ScenarioOptions {
    std::string trace;  // a file, or one that parse_drawn() reads
    TraceOptions trace_options;
    std::string workload;          // a file; empty: default_workload()
    std::string throughputs;       // instead of a workload: a file of isolated throughputs
    std::string throughput_table;  // the name of the table in that file
    std::string pair_throughputs;  // a file of throughputs of pairs, beside `throughputs`
    WorkloadOptions workload_options;
    std::vector<GpuGroup> gpus{{.type = "v100", .gpus = 96}};
    std::uint32_t gpus_per_node = 8;
    std::string cells;  // a file; empty: any free GPU
    std::string policy = "fifo";
    std::string cache = "uniform+joint";
    std::string bandwidth_rule;  // empty: the default of the cache
    std::string objective;       // empty: the default of the policy
    SimulationOptions simulation;
    std::vector<NamedNodeLoss> node_losses;
    MeasuredJobs measured;
};

struct Scenario {
    Trace trace;
    Workload workload;
    GpuCluster cluster;
    std::optional<CellConfig> cells;
    std::uint32_t gpus = 0;
};

struct ScenarioReport {
    Scenario scenario;
    CacheOptions cache;
    SimulationOutcome outcome;
    Summary summary;
    double wall_s = 0;
};

GpuCluster make_cluster(std::span<const GpuGroup> gpus, std::uint32_t gpus_per_node);
// Parses "96" or "v100:36".
Result<GpuGroup> parse_gpu_group(std::string_view text);
// Parses "v100-3@60".
Result<NamedNodeLoss> parse_node_loss(std::string_view text);
// Places jobs in the scenario's cells if it has any, else on any free GPU.
Result<std::unique_ptr<Placer>> make_placer(const Scenario& scenario);
Result<Scenario> make_scenario(const ScenarioOptions& options);
Result<ScenarioReport> run_scenario(Scenario scenario, const ScenarioOptions& options);

}  // namespace larder::scheduler
