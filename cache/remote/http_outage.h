#pragma once

// A time in which nothing that was asked of one endpoint had an answer.

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
    std::string endpoint;        // "https://host:port"
    std::int64_t began_ns = 0;   // the first failure after the last answer
    std::int64_t ended_ns = 0;   // 0: it lasts
    bool answers = false;        // how it ended: with an answer, or because nobody asks any more
    std::uint64_t failures = 0;  // of tries
    std::string why;             // the last failure
};

// The outages of all endpoints. Call `tell` on one thread, the rest on any.
class HttpOutages {
public:
    // `listener` hears of each outage when it begins and when it ends, on the thread of `tell`. May be empty.
    explicit HttpOutages(std::function<void(const HttpOutage&)> listener) : listener_(std::move(listener)) {}

    // An outage of this endpoint has begun, or ended. Does nothing without one.
    void tell(const std::string& endpoint, std::optional<HttpOutage> outage);
    std::vector<HttpOutage> lasting() const;
    std::uint64_t begun() const { return begun_.load(std::memory_order_relaxed); }

private:
    std::function<void(const HttpOutage&)> listener_;
    std::atomic<std::uint64_t> begun_{0};
    mutable std::mutex mutex_;  // over what follows
    std::vector<HttpOutage> lasting_;
};

}  // namespace larder::cache
