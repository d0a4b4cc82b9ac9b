#pragma once

// What larder-allocator is told of running jobs: the keys under [scheduler] of its file. Without GPUs it runs none.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "scheduler/policy.h"
#include "scheduler/tenant_config.h"

namespace larder::scheduler {

struct NodeConfig {
    unsigned gpus = 0;
    std::string gpu_type;  // empty: LiveConfig's
};

struct LiveConfig {
    unsigned gpus = 0;  // of one node, called as this machine is
    std::string gpu_type = "gpu";
    std::map<std::string, NodeConfig> nodes;  // instead of `gpus`
    std::string cells;                        // file of cells with guarantees; it names nodes and GPUs in place of both
    TenantConfigs tenants;
    std::string policy = "fifo-backfill";
    PolicyOptions policy_options;
    bool storage_blind = false;
    std::string directory;      // of the queue's record and of jobs' files; empty: the allocator's state
    std::string socket;         // of the node's daemon, for jobs' loaders
    unsigned history = 10'000;  // jobs that have ended and are kept
    std::string runner;         // empty: larder-runner beside this program

    bool runs_jobs() const { return gpus > 0 || !nodes.empty() || !cells.empty(); }
};

std::vector<ConfigKey> live_config_keys();
// `settings`: by index in live_config_keys(). An error names the setting.
// `empty_tables` as ConfigText has them: a tenant needs no settings.
Result<LiveConfig> read_live_config(std::span<const ConfigSetting> settings,
                                    std::span<const std::string> empty_tables = {});

// What decisions are made with, where no cells are given. `this_node`: the name of this machine. Tenants: "default"
// where none is configured.
GpuCluster gpu_cluster_of(const LiveConfig& config, const std::string& this_node);
Result<std::vector<Tenant>> tenants_of(const LiveConfig& config);

}  // namespace larder::scheduler
