#pragma once

// The keys under [scheduler] of larder-allocator's configuration file. Without GPUs in this section,
// larder-allocator runs no jobs.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "scheduler/live/submission.h"
#include "scheduler/policy.h"
#include "scheduler/tenant_config.h"

namespace larder::scheduler {

struct NodeConfig {
    unsigned gpus = 0;
    std::string gpu_type;  // empty: LiveConfig::gpu_type
};

struct LiveConfig {
    unsigned gpus = 0;  // of the only node, which is named like this machine
    std::string gpu_type = "gpu";
    std::map<std::string, NodeConfig> nodes;  // instead of `gpus`
    std::string cells;                        // file of cells with guarantees, instead of `gpus` and `nodes`
    bool agent_has_nodes = false;             // the nodes are those of the agent, instead of all of these
    TenantConfigs tenants;
    std::string policy = "fifo-backfill";
    PolicyOptions policy_options;
    bool storage_blind = false;
    std::string directory;       // for the queue's record and jobs' files; empty: the allocator's state
    std::string socket;          // socket of the node's daemon, for jobs' loaders
    unsigned history = 10'000;   // number of ended jobs to keep
    bool has_agent = false;      // jobs run through a cluster manager's agent, not as processes of this machine
    double start_timeout_s = 0;  // for an attempt to begin; 0: none
    std::string output_url;      // as in AgentEngine
    std::string runner;          // empty: larder-runner beside this program

    bool runs_jobs() const { return gpus > 0 || !nodes.empty() || !cells.empty() || agent_has_nodes; }
};

std::vector<ConfigKey> live_config_keys();
// `settings` refer to rules by their index in live_config_keys(). An error names the setting. `empty_tables` (see
// ConfigText) may name tenants that have no settings.
Result<LiveConfig> read_live_config(std::span<const ConfigSetting> settings,
                                    std::span<const std::string> empty_tables = {});

// gpu_cluster_of() returns the cluster if no cells are given, without nodes if they are the agent's; `this_node` is the
// name of this machine. tenants_of() returns the configured tenants, or one named "default" if there are none.
GpuCluster gpu_cluster_of(const LiveConfig& config, const std::string& this_node);
Result<std::vector<Tenant>> tenants_of(const LiveConfig& config);
// Returns who may submit for each of tenants_of(). A name that is no user of this machine is the name of a token or a
// certificate only. Looks users up, which may block.
std::vector<SubmitRule> submit_rules_of(const LiveConfig& config);

}  // namespace larder::scheduler
