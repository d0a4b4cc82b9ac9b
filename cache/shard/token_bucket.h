#pragma once

// The rate limit of one job on one node: remote bytes may be taken at `rate` on average, and `burst` at once. One
// bucket serves all sessions of the job, on whichever data-plane threads they are, so its state is a single atomic
// word: the time at which the bucket will be full again (the generic cell rate algorithm, ITU-T I.371). A block larger
// than the burst is paid for by waiting for a full bucket and letting it go negative by that block.

#include <atomic>
#include <cstdint>

#include "cache/remote.h"

namespace larder::cache {

class TokenBucket final : public RemotePayer {
public:
    // No limit until one is set.
    TokenBucket() = default;

    // Any thread. Rate 0 means no limit. What is owed under the old rate stays owed.
    void set_limit(double rate_bytes_per_second, std::uint64_t burst_bytes, std::int64_t now_ns);

    // Any thread. True when the bytes may be read from the remote now; they are then paid for.
    bool try_take(std::uint64_t bytes, std::int64_t now_ns);

    // Any thread. They have been read; the bucket goes as far below zero as that takes.
    void pay(std::uint64_t bytes, std::int64_t now_ns) override;

    // Any thread. Of what was paid, so much was not read after all.
    void give_back(std::uint64_t bytes) override;

    // When try_take of so many bytes can next succeed, if nobody else takes any.
    std::int64_t ready_at_ns(std::uint64_t bytes) const override;

    // Any thread. Nothing is owed: all of the burst can be had.
    bool is_full(std::int64_t now_ns) const {
        return !limited() || full_at_ns_.load(std::memory_order_relaxed) <= now_ns;
    }

    bool limited() const { return rate_bytes_per_second() > 0; }
    double rate_bytes_per_second() const { return rate_.load(std::memory_order_relaxed); }
    std::uint64_t burst_bytes() const { return burst_.load(std::memory_order_relaxed); }
    std::uint64_t taken_bytes() const { return taken_.load(std::memory_order_relaxed); }

private:
    std::int64_t duration_ns(std::uint64_t bytes) const;

    std::atomic<double> rate_{0};
    std::atomic<std::uint64_t> burst_{0};
    std::atomic<std::int64_t> full_at_ns_{0};
    std::atomic<std::uint64_t> taken_{0};
};

// A burst that lets a rate be reached without bunching: 50 ms of it, at least 1 MiB.
std::uint64_t default_burst_bytes(double rate_bytes_per_second);

}  // namespace larder::cache
