#pragma once

// Command line options of one simulation, shared by `simulate`, `simulate compare` and `simulate capacity`.

#include <optional>

#include "scheduler/simulator/scenario.h"

namespace CLI {
class App;
}

namespace larder::cli {

struct SimulateOptions {
    scheduler::ScenarioOptions scenario;
    std::vector<std::string> gpus{"96"};
    std::optional<std::uint64_t> cache_bytes;
    std::optional<double> remote_bytes_per_second;
    std::string checkpoint_bandwidth;
    std::vector<std::string> node_losses;
    std::optional<double> node_disk_bytes_per_second;
    std::optional<double> node_nic_bytes_per_second;
    bool own_caches = false;
    std::string placement = "plan";
    bool reported_plans = false;
    bool storage_blind = false;
    std::string epochs_known = "yes";
    std::string tenants;
    std::string tenant_weights;
    std::string measure;

    // Converts options in units and text into the scenario's fields.
    Result<void> settle();
};

void add_trace_options(CLI::App& app, SimulateOptions& options);
// Adds --arrivals-faster: how much faster jobs arrive than in the trace.
void add_arrivals_option(CLI::App& app, SimulateOptions& options);
// Adds --measure: which jobs are measured.
void add_measure_option(CLI::App& app, SimulateOptions& options);
// Adds options for the GPUs, and for the tenants' cells.
void add_gpu_options(CLI::App& app, SimulateOptions& options);
// Adds options for the GPUs as add_gpu_options does, and for checkpoints, disks, networks and failures of nodes.
void add_cluster_options(CLI::App& app, SimulateOptions& options);
void add_policy_options(CLI::App& app, SimulateOptions& options);
// Adds options for what plans know of jobs. `both`: epochs may be known and not known, in turn.
void add_knowledge_options(CLI::App& app, SimulateOptions& options, bool both = false);
// Adds options for one policy, one cache system, one cache size and one bandwidth.
void add_choice_options(CLI::App& app, SimulateOptions& options);

}  // namespace larder::cli
