#pragma once

// An outage is a time in which one endpoint answered no request.

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace larder::cache {

struct HttpOutage {
    std::string endpoint;          // "https://host:port"
    std::int64_t began_ns = 0;     // the first failure after the last answer
    std::int64_t ended_ns = 0;     // 0: the outage lasts
    bool ended_by_answer = false;  // true: an answer ended the outage; false: no requests were made any more
    std::uint64_t failures = 0;    // number of failed tries
    std::string why;               // message of the last failure
};

// The outages of all endpoints. Call `tell` on one thread, the rest on any.
class HttpOutages {
public:
    // `listener` is called when an outage begins and when it ends, on the thread of `tell`, before `lasting` shows the
    // change: what a status shows is in the log. May be empty.
    explicit HttpOutages(std::function<void(const HttpOutage&)> listener) : listener_(std::move(listener)) {}

    // Records that an outage of `endpoint` has begun or ended. Does nothing if `outage` is nullopt.
    void tell(const std::string& endpoint, std::optional<HttpOutage> outage);
    std::vector<HttpOutage> lasting() const;
    std::uint64_t begun() const { return begun_.load(std::memory_order_relaxed); }

private:
    std::function<void(const HttpOutage&)> listener_;
    std::atomic<std::uint64_t> begun_{0};
    mutable std::mutex mutex_;  // guards the members below
    std::vector<HttpOutage> lasting_;
};

}  // namespace larder::cache
