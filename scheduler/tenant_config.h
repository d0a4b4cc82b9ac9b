#pragma once

// Reads the tables [scheduler.tenant.NAME] of the daemon's and the simulator's configuration. The simulator needs
// weight, parent and gpu_quota only.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/server/config_text.h"
#include "scheduler/snapshot.h"

namespace larder::scheduler {

struct TenantConfig {
    double weight = 1;
    std::string parent;
    std::optional<unsigned> gpu_quota;
    std::optional<std::vector<std::string>> submitters;  // who may submit for the tenant; nullopt: everyone
    std::optional<std::int32_t> priority_max;            // nullopt: any priority
    std::optional<double> weight_max;                    // of a job; nullopt: as SubmitRule::weight_max
};

using TenantConfigs = std::map<std::string, TenantConfig>;

std::span<const ConfigRule<TenantConfigs>> tenant_rules();
// Adds the tenants whose tables are empty. `empty_tables`: as in ConfigText.
void add_bare_tenants(TenantConfigs& tenants, std::span<const std::string> empty_tables);
// Returns the tenants in the order of names. invalid_argument: a parent does not exist, or is its own ancestor.
Result<std::vector<Tenant>> tenants_of(const TenantConfigs& configs);

}  // namespace larder::scheduler
