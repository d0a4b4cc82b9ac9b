#pragma once

// A node's part of an allocator's plan, as the answer to a report says it: quotas, and leased rates.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/control/job_limits.h"
#include "cache/store.h"

namespace larder::cache {

struct NodePlan {
    std::uint64_t plan = 0;
    std::map<std::string, Quota> quotas;  // by dataset
    std::uint64_t lease = 0;              // its number
    RateLease rates;
    std::vector<std::string> peers;  // endpoints of nodes whose cache may be read
    bool cut = false;                // it is less than the plan has for this node: others hold the rest yet
};

// The lease lasts as long from `from_ns` as the text says. Strict: errors name the field.
Result<NodePlan> read_node_plan(std::string_view json, std::int64_t from_ns);

}  // namespace larder::cache
