#pragma once

// A remote of limited bandwidth that several readers share max-min fairly: a reader that asks for less than an equal
// share gets all that it asks for, and the others share the rest equally.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cache/shard/token_bucket.h"

namespace larder::bench {

// The order in which waiting requests are served (start-time fair queueing; Goyal, Vin, Cheng 1996). Positions count
// bytes. A request begins where the reader's previous request ends, or where the request that was served last begins,
// whichever is later. The waiting request that begins first is served next. One thread.
class FairOrder {
public:
    using Turn = std::pair<std::uint64_t, std::uint64_t>;  // where the request begins; its number

    explicit FairOrder(std::size_t readers) : ends_(readers) {}

    // Adds a request to those that wait.
    Turn add(std::size_t reader, std::uint64_t bytes);
    bool is_next(const Turn& turn) const { return *waiting_.begin() == turn; }
    // Removes the request, which is next.
    void serve(const Turn& turn);

private:
    std::vector<std::uint64_t> ends_;  // by reader: where its last request ends
    std::uint64_t served_ = 0;         // where the request that was served last begins
    std::uint64_t requests_ = 0;
    std::set<Turn> waiting_;
};

// Any thread.
class FairLimiter {
public:
    FairLimiter(double bytes_per_second, std::uint64_t burst_bytes, std::size_t readers);

    // Waits until it is the reader's turn to read `bytes`, and pays for them.
    void take(std::size_t reader, std::uint64_t bytes);

private:
    const SteadyClock clock_;
    cache::TokenBucket bucket_;
    std::mutex mutex_;
    std::condition_variable changed_;
    FairOrder order_;
};

}  // namespace larder::bench
