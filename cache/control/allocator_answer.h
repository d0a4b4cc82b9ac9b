#pragma once

// The allocator's answer to a report, checked and in this node's types: quotas, and the lease of its jobs' rates.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/control/job_limits.h"
#include "cache/store.h"

namespace larder::cache {

struct AllocatorAnswer {
    std::uint64_t plan = 0;               // number of the plan
    std::map<std::string, Quota> quotas;  // by dataset
    std::uint64_t lease = 0;              // number of the lease
    RateLease rates;
    std::vector<std::string> peers;  // endpoints of nodes whose cache may be read
    bool cut = false;                // the lease is less than planned: other nodes still hold the rest
};

// `version` is the protocol's (allocator/protocol/codec.h). The lease begins at `from_ns`. Errors name the JSON path of
// the wrong value.
Result<AllocatorAnswer> read_allocator_answer(std::string_view json, unsigned version, std::int64_t from_ns);

}  // namespace larder::cache
