#pragma once

// [scheduler.tenant.NAME] with weight, parent and gpu_quota: tenants as the daemon's file has them, and the
// simulator's.

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
};

using TenantConfigs = std::map<std::string, TenantConfig>;

std::span<const ConfigRule<TenantConfigs>> tenant_rules();
// Tenants of whom nothing is said but that there are such. `empty_tables` as ConfigText has them.
void add_bare_tenants(TenantConfigs& tenants, std::span<const std::string> empty_tables);
// By name. invalid_argument: a parent is nobody, or its own.
Result<std::vector<Tenant>> tenants_of(const TenantConfigs& configs);

}  // namespace larder::scheduler
