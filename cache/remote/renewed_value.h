#pragma once

// A value that is valid for a limited time, such as keys or a token. It is fetched again before it expires, on a thread
// of its own. Until the new value arrives, readers get the old one. Values are secrets: they are never logged.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/server/logging.h"

namespace larder::cache {

// Returns the time to wait before the next renewal: until five minutes before the value expires, or for half of the
// remaining time if that is longer. After a failed renewal: a quarter of the remaining time, or the time since the
// value expired, so that this time doubles with each failure; at most a minute. At least a second.
std::int64_t renewal_delay_ns(std::int64_t remaining_ns, bool failed);

template <typename Value>
class RenewedValue {
public:
    struct Fetched {
        Value value;
        std::int64_t expires_unix_ns = 0;  // 0: never
    };
    using Fetch = std::function<Result<Fetched>()>;

    // `fetched` is the first value. `name` is for the log: "cannot renew NAME".
    RenewedValue(std::string name, Fetch fetch, Fetched fetched)
        : name_(std::move(name)), fetch_(std::move(fetch)), fetched_(std::move(fetched)) {
        renewal_thread_ = std::jthread([this](const std::stop_token& stop) { renew(stop); });
    }

    // Any thread; neither call blocks.
    Value value() const {
        const std::scoped_lock lock(mutex_);
        return fetched_.value;
    }
    // Why the last renewal failed; empty if it did not.
    std::string renewal_error() const {
        const std::scoped_lock lock(mutex_);
        return renewal_error_;
    }
    // True if the value has expired, or does so within `ns`.
    bool expires_within(std::int64_t ns) const {
        const std::scoped_lock lock(mutex_);
        return remaining_ns() <= ns;
    }

private:
    void renew(const std::stop_token& stop) {
        std::unique_lock lock(mutex_);
        bool failed = false;
        while (!stop.stop_requested()) {
            const std::int64_t wait_ns = renewal_delay_ns(remaining_ns(), failed);
            changed_.wait_for(lock, stop, std::chrono::nanoseconds(wait_ns), [] { return false; });
            if (stop.stop_requested()) return;
            lock.unlock();
            auto fetched = fetch_();
            lock.lock();
            failed = !fetched;
            if (fetched) {
                fetched_ = std::move(*fetched);
                renewal_error_.clear();
            } else {
                renewal_error_ = fetched.error().message;
                log_warn("cannot renew " + name_, {{"error", fetched.error().message}});
            }
        }
    }

    std::int64_t remaining_ns() const {
        return fetched_.expires_unix_ns == 0 ? std::numeric_limits<std::int64_t>::max()
                                             : fetched_.expires_unix_ns - unix_time_ns();
    }

    const std::string name_;
    const Fetch fetch_;
    mutable std::mutex mutex_;
    std::condition_variable_any changed_;
    Fetched fetched_;
    std::string renewal_error_;
    std::jthread renewal_thread_;
};

}  // namespace larder::cache
