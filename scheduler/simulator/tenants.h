#pragma once

// Tenants as the daemon's file has them: [scheduler.tenant.NAME] with weight,
// parent and gpu_quota.

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "scheduler/snapshot.h"

namespace larder::scheduler {

// By name. invalid_argument names the line, the key, the value and what is
// allowed. `source`: what errors call the text.
Result<std::vector<Tenant>> parse_tenants(std::string_view toml, std::string_view source);
Result<std::vector<Tenant>> read_tenants(const std::string& path);

}  // namespace larder::scheduler
