#pragma once

// Runs all HTTP requests of a process, on one thread with one libcurl multi handle. Connections are kept open and
// shared; HTTP/2 is used if the server offers it. A flaky remote costs time, never data:
//
// - A failed request is retried with exponential backoff until it has failed for `retry_for_ns`. While an endpoint
//   answers nothing, all requests to it share one backoff of at most a second.
// - The number of requests in flight at an endpoint adapts to its latency and its 503s (ConcurrencyLimit). Further
//   requests wait in order.
// - With `hedge`, a request slower than 99 % of the recent ones gets a second request beside it. The first answer wins.
// - Bytes received beyond the answer are paid for by the request's RemotePayer.
// - An endpoint that answers nothing for a second has an outage, reported when it begins and when it ends.
//
// `submit` may be called from any thread and does not block. `HttpGet::done` runs on the transfers' thread and must be
// quick. `cancel` returns when no request of the owner is in flight; no `done` of that owner runs after that.

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/remote/http_get.h"
#include "cache/remote/http_outage.h"

namespace larder::cache {

struct HttpSettings {
    std::int64_t connect_timeout_ms = 5'000;
    std::int64_t stall_timeout_s = 10;  // a try fails if its average is below 4 KiB/s for this long
    // The time limit of a try, plus 1 s for each 64 KiB requested. Ends answers that arrive slowly but do not stall.
    std::int64_t request_timeout_s = 300;
    std::string ca_file;  // PEM; empty: the system's certificate authorities
};

struct HttpTransfersOptions {
    HttpSettings settings;
    std::int64_t retry_for_ns = 60'000'000'000;
    unsigned connections_max = 64;  // for each endpoint
    bool hedge = false;
    // Called when an outage begins and when it ends, on the transfers' thread. May be empty.
    std::function<void(const HttpOutage&)> on_outage;
};

struct HttpStatistics {
    std::uint64_t requests = 0;  // all tries, with retries and hedges
    std::uint64_t retries = 0;
    std::uint64_t overloads = 0;
    std::uint64_t hedges = 0;
    std::uint64_t hedges_won = 0;
    std::uint64_t outages = 0;  // outages begun
};

class HttpTransfers {
public:
    static Result<std::unique_ptr<HttpTransfers>> start(const HttpTransfersOptions& options);
    ~HttpTransfers();
    HttpTransfers(const HttpTransfers&) = delete;
    HttpTransfers& operator=(const HttpTransfers&) = delete;

    void submit(HttpGet& get);
    void cancel(const void* owner);
    // Submits `get` and waits for its end. After a stop request the outcome is HttpOutcome::cancelled. Do not call on
    // the transfers' thread.
    void run(HttpGet& get, const std::stop_token& stop = {});

    HttpStatistics statistics() const;
    // The outages that last. Any thread.
    std::vector<HttpOutage> outages() const;

private:
    class Loop;
    explicit HttpTransfers(std::unique_ptr<Loop> loop);
    std::unique_ptr<Loop> loop_;
};

}  // namespace larder::cache
