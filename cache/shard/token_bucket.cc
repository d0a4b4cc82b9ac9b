#include "cache/shard/token_bucket.h"

#include <algorithm>

#include "base/assert.h"

namespace larder::cache {

std::uint64_t default_burst_bytes(double rate_bytes_per_second) {
    return std::max<std::uint64_t>(std::uint64_t{1} << 20, static_cast<std::uint64_t>(rate_bytes_per_second * 0.05));
}

std::int64_t TokenBucket::duration_ns(std::uint64_t bytes) const {
    return static_cast<std::int64_t>(static_cast<double>(bytes) / rate_.load(std::memory_order_relaxed) * 1e9);
}

void TokenBucket::set_limit(double rate_bytes_per_second, std::uint64_t burst_bytes, std::int64_t now_ns) {
    expire_if_due(now_ns);
    expires_ns_.store(kNever_ns, std::memory_order_relaxed);
    change_limit(rate_bytes_per_second, burst_bytes, now_ns);
}

void TokenBucket::set_expiry(std::int64_t expires_ns, double rate_bytes_per_second, std::uint64_t burst_bytes) {
    LARDER_ASSERT(rate_bytes_per_second > 0);
    rate_after_expiry_.store(rate_bytes_per_second, std::memory_order_relaxed);
    burst_after_expiry_.store(burst_bytes, std::memory_order_relaxed);
    expires_ns_.store(expires_ns, std::memory_order_release);
}

// If one thread expires a limit while another sets a limit, the rate after the expiry may stay in place until the next
// set_limit. That rate may be too low, but is never too high.
void TokenBucket::expire_if_due(std::int64_t now_ns) {
    std::int64_t expires_ns = expires_ns_.load(std::memory_order_acquire);
    if (now_ns < expires_ns) return;
    const double rate = rate_after_expiry_.load(std::memory_order_relaxed);
    const std::uint64_t burst_bytes = burst_after_expiry_.load(std::memory_order_relaxed);
    if (!expires_ns_.compare_exchange_strong(expires_ns, kNever_ns, std::memory_order_relaxed)) return;
    change_limit(rate, burst_bytes, expires_ns);
}

void TokenBucket::change_limit(double rate_bytes_per_second, std::uint64_t burst_bytes, std::int64_t now_ns) {
    LARDER_ASSERT(rate_bytes_per_second >= 0);
    const double old_rate = rate_.load(std::memory_order_relaxed);
    std::int64_t full_at_ns = full_at_ns_.load(std::memory_order_relaxed);
    const double owed_bytes =
        full_at_ns > now_ns && old_rate > 0 ? static_cast<double>(full_at_ns - now_ns) * 1e-9 * old_rate : 0;
    const std::int64_t owed_ns =
        rate_bytes_per_second > 0 ? static_cast<std::int64_t>(owed_bytes / rate_bytes_per_second * 1e9) : 0;
    burst_.store(burst_bytes, std::memory_order_relaxed);
    full_at_ns_.store(now_ns + owed_ns, std::memory_order_relaxed);
    rate_.store(rate_bytes_per_second, std::memory_order_relaxed);
}

bool TokenBucket::try_take(std::uint64_t bytes, std::int64_t now_ns) {
    expire_if_due(now_ns);
    if (limited()) {
        const std::int64_t cost_ns = duration_ns(bytes);
        const std::int64_t burst_ns = duration_ns(burst_bytes());
        const std::int64_t needed_ns = std::min(cost_ns, burst_ns);
        std::int64_t full_at_ns = full_at_ns_.load(std::memory_order_relaxed);
        for (;;) {
            const std::int64_t owed_until_ns = std::max(full_at_ns, now_ns);
            if (owed_until_ns - now_ns + needed_ns > burst_ns) return false;
            if (full_at_ns_.compare_exchange_weak(full_at_ns, owed_until_ns + cost_ns, std::memory_order_relaxed))
                break;
        }
    }
    taken_.fetch_add(bytes, std::memory_order_relaxed);
    return true;
}

void TokenBucket::pay(std::uint64_t bytes, std::int64_t now_ns) {
    expire_if_due(now_ns);
    if (limited()) {
        const std::int64_t cost_ns = duration_ns(bytes);
        std::int64_t full_at_ns = full_at_ns_.load(std::memory_order_relaxed);
        while (!full_at_ns_.compare_exchange_weak(full_at_ns, std::max(full_at_ns, now_ns) + cost_ns,
                                                  std::memory_order_relaxed)) {
        }
    }
    taken_.fetch_add(bytes, std::memory_order_relaxed);
}

void TokenBucket::refund(std::uint64_t bytes) {
    if (limited()) full_at_ns_.fetch_sub(duration_ns(bytes), std::memory_order_relaxed);
    taken_.fetch_sub(bytes, std::memory_order_relaxed);
}

std::int64_t TokenBucket::ready_at_ns(std::uint64_t bytes) const {
    if (!limited()) return 0;
    const std::int64_t burst_ns = duration_ns(burst_bytes());
    return full_at_ns_.load(std::memory_order_relaxed) + std::min(duration_ns(bytes), burst_ns) - burst_ns;
}

}  // namespace larder::cache
