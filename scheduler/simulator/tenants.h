#pragma once

// Reads tenants from TOML like the daemon's config file: [scheduler.tenant.NAME] with weight, parent and gpu_quota.

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "scheduler/snapshot.h"

namespace larder::scheduler {

// Tenants in the order of their names. invalid_argument names the line, the key, the value and what is allowed.
// `source` names the text in errors.
Result<std::vector<Tenant>> parse_tenants(std::string_view toml, std::string_view source);
Result<std::vector<Tenant>> read_tenants(const std::string& path);

}  // namespace larder::scheduler
