#pragma once

// All HTTP GETs of a process, on one thread with one libcurl multi handle: connections are kept and shared, HTTP/2 is
// used where it is offered, and a flaky remote costs time, never data. What fails is asked again with exponential
// backoff until it has failed for `retry_for_ns`; requests to one endpoint adapt to its latency and to its 503s
// (ConcurrencyLimit), the rest wait in order; where asked to, a request slower than 99 of 100 gets a second one beside
// it, and the first answer counts. What comes besides the answer is paid for by the asker (RemotePayer). An endpoint
// that answers nothing for a second has an outage, which is told when it begins and when it ends.
//
// `submit` may be called from any thread and does not block; `HttpGet::done` runs on the transfers' thread and must be
// quick. `cancel` returns when nothing of that owner is under way any more, with no `done` to come.

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/remote/http_attempt.h"
#include "cache/remote/http_outage.h"

namespace larder::cache {

struct HttpTransfersOptions {
    HttpSettings settings;
    std::int64_t retry_for_ns = 60'000'000'000;
    unsigned connections_max = 64;  // to one endpoint
    bool hedge = false;
    // Hears of each outage twice, on the transfers' thread. May be empty.
    std::function<void(const HttpOutage&)> on_outage;
};

struct HttpStatistics {
    std::uint64_t requests = 0;  // tries, in all
    std::uint64_t retries = 0;
    std::uint64_t overloads = 0;
    std::uint64_t hedges = 0;
    std::uint64_t hedges_won = 0;
    std::uint64_t outages = 0;  // begun
};

class HttpTransfers {
public:
    static Result<std::unique_ptr<HttpTransfers>> start(const HttpTransfersOptions& options);
    ~HttpTransfers();
    HttpTransfers(const HttpTransfers&) = delete;
    HttpTransfers& operator=(const HttpTransfers&) = delete;

    void submit(HttpGet& get);
    void cancel(const void* owner);
    // Submits and waits for the end, or until `stop` is asked for: then it is HttpOutcome::cancelled. Not from the
    // transfers' thread.
    void run(HttpGet& get, const std::stop_token& stop = {});

    HttpStatistics statistics() const;
    // Those that last. Any thread.
    std::vector<HttpOutage> outages() const;

private:
    class Loop;
    explicit HttpTransfers(std::unique_ptr<Loop> loop);
    std::unique_ptr<Loop> loop_;
};

}  // namespace larder::cache
