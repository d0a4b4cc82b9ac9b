#include "cache/shard/token_bucket.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/assert.h"

namespace larder::cache {

std::uint64_t default_burst_bytes(double rate_bytes_per_second) {
    return std::max<std::uint64_t>(std::uint64_t{1} << 20, static_cast<std::uint64_t>(rate_bytes_per_second * 0.05));
}

std::int64_t TokenBucket::Limit::duration_ns(std::uint64_t bytes) const {
    constexpr double kMost_ns = 1e17;  // three years: keeps full_at_ns within its bits
    return static_cast<std::int64_t>(
        std::min(static_cast<double>(bytes) / rate.load(std::memory_order_relaxed) * 1e9, kMost_ns));
}

TokenBucket::State TokenBucket::state() const {
    const std::int64_t word = word_.load(std::memory_order_acquire);
    return {
        .word = word, .full_at_ns = word >> kIndexBits, .limit = &limits_[static_cast<std::size_t>(word) % kLimits]};
}

bool TokenBucket::replace(const State& seen, std::int64_t full_at_ns) {
    std::int64_t expected = seen.word;
    const std::int64_t index = seen.word & static_cast<std::int64_t>(kLimits - 1);
    return word_.compare_exchange_weak(expected, full_at_ns * static_cast<std::int64_t>(kLimits) + index,
                                       std::memory_order_acq_rel);
}

void TokenBucket::set_limit(double rate_bytes_per_second, std::uint64_t burst_bytes, std::int64_t now_ns) {
    expire_if_due(now_ns);
    const std::lock_guard lock(changing_);
    change_limit(rate_bytes_per_second, burst_bytes, now_ns);
}

void TokenBucket::set_expiry(std::int64_t expires_ns, double rate_bytes_per_second, std::uint64_t burst_bytes) {
    LARDER_ASSERT(rate_bytes_per_second > 0);
    const std::lock_guard lock(changing_);
    Limit& limit = limits_[static_cast<std::size_t>(word_.load(std::memory_order_relaxed)) % kLimits];
    limit.rate_after_expiry.store(rate_bytes_per_second, std::memory_order_relaxed);
    limit.burst_after_expiry.store(burst_bytes, std::memory_order_relaxed);
    limit.expires_awake_ns.store(expires_ns - slept_ns(), std::memory_order_relaxed);
    limit.expires_ns.store(expires_ns, std::memory_order_release);
}

void TokenBucket::expire_if_due(std::int64_t now_ns) {
    if (!is_expired(*state().limit, now_ns)) return;
    const std::lock_guard lock(changing_);
    const Limit& limit = *state().limit;
    if (!is_expired(limit, now_ns)) return;
    // If the machine has slept, the limit was in force until it fell asleep, which is as good as now: this clock stood
    // still meanwhile.
    change_limit(limit.rate_after_expiry.load(std::memory_order_relaxed),
                 limit.burst_after_expiry.load(std::memory_order_relaxed),
                 std::min(now_ns, limit.expires_awake_ns.load(std::memory_order_relaxed)));
    given_.store(0, std::memory_order_relaxed);
}

// The caller holds `changing_`.
void TokenBucket::change_limit(double rate_bytes_per_second, std::uint64_t burst_bytes, std::int64_t now_ns) {
    LARDER_ASSERT(rate_bytes_per_second >= 0);
    State before = state();
    const std::size_t next = (static_cast<std::size_t>(before.word) + 1) % kLimits;
    Limit& limit = limits_[next];
    limit.rate.store(rate_bytes_per_second, std::memory_order_relaxed);
    limit.burst.store(burst_bytes, std::memory_order_relaxed);
    limit.expires_ns.store(kNever_ns, std::memory_order_relaxed);
    const double old_rate = before.limit->rate.load(std::memory_order_relaxed);
    for (;;) {
        const double owed_bytes = before.full_at_ns > now_ns && old_rate > 0
                                      ? static_cast<double>(before.full_at_ns - now_ns) * 1e-9 * old_rate
                                      : 0;
        const std::int64_t owed_ns =
            rate_bytes_per_second > 0 ? limit.duration_ns(static_cast<std::uint64_t>(std::ceil(owed_bytes))) : 0;
        const std::int64_t after = (now_ns + owed_ns) * static_cast<std::int64_t>(kLimits);
        if (word_.compare_exchange_weak(before.word, after + static_cast<std::int64_t>(next),
                                        std::memory_order_acq_rel))
            return;
        before = state();
    }
}

bool TokenBucket::try_take(std::uint64_t bytes, std::int64_t now_ns) {
    expire_if_due(now_ns);
    for (State now = state(); now.limit->is_set(); now = state()) {
        const std::int64_t cost_ns = now.limit->duration_ns(bytes);
        const std::int64_t burst_ns = now.limit->duration_ns(now.limit->burst.load(std::memory_order_relaxed));
        const std::int64_t needed_ns = std::min(cost_ns, burst_ns);
        const std::int64_t owed_until_ns = std::max(now.full_at_ns, now_ns);
        if (owed_until_ns - now_ns + needed_ns > burst_ns) {
            if (use_given(now_ns)) continue;
            return false;
        }
        if (replace(now, owed_until_ns + cost_ns)) break;
    }
    taken_.fetch_add(bytes, std::memory_order_relaxed);
    return true;
}

void TokenBucket::pay(std::uint64_t bytes, std::int64_t now_ns) {
    expire_if_due(now_ns);
    for (State now = state(); now.limit->is_set(); now = state()) {
        if (replace(now, std::max(now.full_at_ns, now_ns) + now.limit->duration_ns(bytes))) break;
    }
    taken_.fetch_add(bytes, std::memory_order_relaxed);
}

void TokenBucket::refund(std::uint64_t bytes) {
    for (State now = state(); now.limit->is_set(); now = state()) {
        if (replace(now, now.full_at_ns - now.limit->duration_ns(bytes))) break;
    }
    taken_.fetch_sub(bytes, std::memory_order_relaxed);
}

void TokenBucket::give(std::uint64_t bytes) {
    const std::uint64_t most = std::max(bytes, burst_bytes());
    std::uint64_t before = given_.load(std::memory_order_relaxed);
    while (!given_.compare_exchange_weak(before, std::min(before + bytes, most), std::memory_order_relaxed)) {
    }
}

// Pays debts of the bucket with given tokens. Returns false if there are no such tokens, or no debts.
bool TokenBucket::use_given(std::int64_t now_ns) {
    const std::uint64_t given = given_.exchange(0, std::memory_order_relaxed);
    if (given == 0) return false;
    for (State now = state(); now.limit->is_set(); now = state()) {
        const double rate = now.limit->rate.load(std::memory_order_relaxed);
        const double owed = static_cast<double>(std::max<std::int64_t>(0, now.full_at_ns - now_ns)) * 1e-9 * rate;
        const auto used = std::min(given, static_cast<std::uint64_t>(owed));
        if (!replace(now, now.full_at_ns - now.limit->duration_ns(used))) continue;
        given_.fetch_add(given - used, std::memory_order_relaxed);
        return used > 0;
    }
    return true;
}

std::uint64_t TokenBucket::collect_unused(std::int64_t now_ns) {
    constexpr std::int64_t kMost_ns = 500'000'000;
    const State now = state();
    const double rate = now.limit->rate.load(std::memory_order_relaxed);
    const double owed = static_cast<double>(std::max<std::int64_t>(0, now.full_at_ns - now_ns)) * 1e-9 * rate;
    const Collected before = std::exchange(
        collected_, {.at_ns = now_ns, .limit = now.limit, .taken_bytes = taken_bytes(), .owed_bytes = owed});
    const std::int64_t passed_ns = now_ns - before.at_ns;
    if (rate == 0 || before.limit != now.limit || passed_ns > kMost_ns || is_expired(*now.limit, now_ns)) return 0;
    // Refunds may make the difference negative.
    const auto taken = static_cast<double>(static_cast<std::int64_t>(collected_.taken_bytes - before.taken_bytes));
    const double unused =
        rate * static_cast<double>(passed_ns) * 1e-9 - taken + (owed - before.owed_bytes) - before.ahead_bytes;
    if (unused >= 0) return static_cast<std::uint64_t>(unused);
    collected_.ahead_bytes = -unused;
    return 0;
}

std::int64_t TokenBucket::ready_at_ns(std::uint64_t bytes) const {
    const State now = state();
    if (!now.limit->is_set()) return 0;
    const std::int64_t burst_ns = now.limit->duration_ns(now.limit->burst.load(std::memory_order_relaxed));
    return now.full_at_ns + std::min(now.limit->duration_ns(bytes), burst_ns) - burst_ns;
}

}  // namespace larder::cache
