#pragma once

// The state of one HttpGet in the transfers, across its tries. Used on the transfers' thread only.

#include <cstdint>

#include "cache/remote/http_attempt.h"
#include "cache/remote/http_endpoint.h"

namespace larder::cache {

// A get waits for a turn, or has one or two tries in flight, or waits until the next try is due.
struct HttpFlight {
    HttpGet* get = nullptr;
    HttpEndpoint* endpoint = nullptr;
    HttpAttempt* running = nullptr;
    HttpAttempt* hedge = nullptr;
    std::int64_t submitted_ns = 0;
    std::int64_t failing_since_ns = 0;  // first failure, moved on by the time spent waiting for a turn; 0: none
    std::int64_t waiting_since_ns = 0;
    std::int64_t due_ns = 0;  // when to queue the next try; 0: none is planned
    unsigned failures = 0;
    unsigned changes = 0;
    bool has_retry_after = false;  // `due_ns` follows the server's Retry-After
    bool hedged = false;
    std::uint64_t deposit_bytes = 0;  // paid in advance for the second request; refunded when that request ends
};

}  // namespace larder::cache
