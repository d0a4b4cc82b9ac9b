#pragma once

// One get on its way through the transfers, between its tries. The transfers' thread only.

#include <cstdint>

#include "cache/remote/http_attempt.h"
#include "cache/remote/http_endpoint.h"

namespace larder::cache {

// The tries that run for it, or when the next is due.
struct HttpFlight {
    HttpGet* get = nullptr;
    HttpEndpoint* endpoint = nullptr;
    HttpAttempt* running = nullptr;
    HttpAttempt* hedge = nullptr;
    std::int64_t submitted_ns = 0;
    std::int64_t failing_since_ns = 0;  // 0: the last try did not fail. Waiting for a turn does not count
    std::int64_t waiting_since_ns = 0;
    std::int64_t due_ns = 0;  // of the next try; 0: none is planned
    unsigned failures = 0;
    unsigned changes = 0;
    bool told_when = false;  // the server said how long the next try is to wait
    bool hedged = false;
    std::uint64_t deposit_bytes = 0;  // what the second request may take, paid until it is known
};

}  // namespace larder::cache
