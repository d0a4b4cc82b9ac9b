#pragma once

// The rate limit of one job on one node: remote bytes may be taken at `rate` on average, and `burst` at once. One
// bucket serves all sessions of the job on all data-plane threads, so its state is a single atomic word: the time at
// which the bucket will be full again (the generic cell rate algorithm, ITU-T I.371), and which limit is in force. A
// take that meets a change of the limit starts again, so no byte is lost or charged at the wrong rate. A block larger
// than the burst waits for a full bucket and then makes the bucket negative. No call waits, except for a change of the
// limit.

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>

#include "cache/remote.h"

namespace larder::cache {

class TokenBucket final : public RemotePayer {
public:
    // Returns how long the machine has been suspended, as larder::slept_ns does.
    using SleptTime = std::int64_t (*)();

    // Starts without a limit. `slept` is for the expiry of limits; null: the machine never sleeps.
    explicit TokenBucket(SleptTime slept = nullptr) : slept_(slept) {}

    // Any thread. Rate 0 means no limit. Bytes owed under the old rate stay owed. The limit does not expire.
    void set_limit(double rate_bytes_per_second, std::uint64_t burst_bytes, std::int64_t now_ns);

    // Any thread. At `expires_ns` the limit becomes `rate_bytes_per_second` and `burst_bytes`, even if no
    // other thread runs then: nodes rely on the rates of other nodes to expire on time. `expires_ns` counts the time
    // for which the machine was suspended: it is compared with the time of a call plus the slept time. The next
    // set_limit cancels the expiry.
    void set_expiry(std::int64_t expires_ns, double rate_bytes_per_second, std::uint64_t burst_bytes);

    // Any thread. True if the bytes may be read from the remote now; they are then paid for.
    bool try_take(std::uint64_t bytes, std::int64_t now_ns);

    // Any thread. Pays for bytes that have already been read. The bucket may go below zero.
    void pay(std::uint64_t bytes, std::int64_t now_ns) override;

    // Any thread. Refunds bytes that were paid for but not read.
    void refund(std::uint64_t bytes) override;

    // Adds tokens that other buckets left unused. They stay beside the burst until a take needs them; at most a burst,
    // or `bytes` if that is more, is kept. The expiry of the limit drops them. Any thread.
    void give(std::uint64_t bytes);

    // One thread. Returns the tokens that the bucket could not keep since the last call, because it was full. Returns 0
    // if the limit has changed, or the last call is more than half a second ago.
    std::uint64_t collect_unused(std::int64_t now_ns);

    // The earliest time at which try_take of `bytes` can succeed if nobody else takes any.
    std::int64_t ready_at_ns(std::uint64_t bytes) const override;

    // Any thread. True if nothing is owed, so that the whole burst is available.
    bool is_full(std::int64_t now_ns) const {
        const State state = this->state();
        return !state.limit->is_set() || state.full_at_ns <= now_ns;
    }

    bool limited() const { return state().limit->is_set(); }
    double rate_bytes_per_second(std::int64_t now_ns) const {
        const Limit& limit = *state().limit;
        return (is_expired(limit, now_ns) ? limit.rate_after_expiry : limit.rate).load(std::memory_order_relaxed);
    }
    std::uint64_t burst_bytes() const { return state().limit->burst.load(std::memory_order_relaxed); }
    std::uint64_t taken_bytes() const { return taken_.load(std::memory_order_relaxed); }

private:
    static constexpr std::int64_t kNever_ns = std::numeric_limits<std::int64_t>::max();
    static constexpr int kIndexBits = 3;
    static constexpr std::size_t kLimits = std::size_t{1} << kIndexBits;

    struct Limit {
        std::atomic<double> rate{0};  // bytes per second; 0: no limit
        std::atomic<std::uint64_t> burst{0};
        std::atomic<std::int64_t> expires_ns{kNever_ns};        // with the slept time
        std::atomic<std::int64_t> expires_awake_ns{kNever_ns};  // without it: if the machine does not sleep any more
        std::atomic<double> rate_after_expiry{0};
        std::atomic<std::uint64_t> burst_after_expiry{0};

        bool is_set() const { return rate.load(std::memory_order_relaxed) > 0; }
        std::int64_t duration_ns(std::uint64_t bytes) const;
    };
    // The state word, taken apart: full_at_ns above kIndexBits bits that hold the index of the limit in force.
    struct State {
        std::int64_t word;
        std::int64_t full_at_ns;
        const Limit* limit;
    };

    std::int64_t slept_ns() const { return slept_ == nullptr ? 0 : slept_(); }
    // Reads the slept time only if the limit expires at all.
    bool is_expired(const Limit& limit, std::int64_t now_ns) const {
        const std::int64_t expires_ns = limit.expires_ns.load(std::memory_order_acquire);
        return expires_ns != kNever_ns && now_ns + slept_ns() >= expires_ns;
    }
    State state() const;
    // Sets full_at_ns under the limit of `seen`. False if the state is no longer `seen`.
    bool replace(const State& seen, std::int64_t full_at_ns);
    void change_limit(double rate_bytes_per_second, std::uint64_t burst_bytes, std::int64_t now_ns);
    void expire_if_due(std::int64_t now_ns);
    bool use_given(std::int64_t now_ns);

    // The state at the last call of collect_unused().
    struct Collected {
        std::int64_t at_ns = 0;
        const Limit* limit = nullptr;
        std::uint64_t taken_bytes = 0;
        double owed_bytes = 0;
        double ahead_bytes = 0;  // reported as unused too early, because a take was half done
    };

    // A new limit goes into the next entry, so takes under the old limit never see half of a new one.
    const SleptTime slept_;
    std::array<Limit, kLimits> limits_;
    std::atomic<std::int64_t> word_{0};
    std::atomic<std::uint64_t> taken_{0};
    std::atomic<std::uint64_t> given_{0};
    Collected collected_;
    std::mutex changing_;  // held while a limit is changed
};

// A burst that allows the full rate without bunching: 50 ms of the rate, at least 1 MiB.
std::uint64_t default_burst_bytes(double rate_bytes_per_second);

}  // namespace larder::cache
