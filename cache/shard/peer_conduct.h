#pragma once

// Remembers whether one peer sent wrong bytes to this node. Such a peer is not read from for a minute;
// the time doubles with each repetition, up to an hour. The directory and all shards share the object. Any thread.

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace larder::cache {

class PeerConduct {
public:
    static constexpr std::int64_t kFirstExclusion_ns = 60'000'000'000;
    static constexpr std::int64_t kExclusionMax_ns = 3'600'000'000'000;

    // True if this begins an exclusion. Reads that were in flight when the peer was excluded do not count again.
    bool note_wrong_bytes(std::int64_t now_ns) {
        wrong_.fetch_add(1, std::memory_order_relaxed);
        std::int64_t until_ns = excluded_until_ns_.load(std::memory_order_relaxed);
        if (until_ns > now_ns) return false;
        const unsigned before = exclusions_.load(std::memory_order_relaxed);
        const std::int64_t for_ns = std::min(kExclusionMax_ns, kFirstExclusion_ns << std::min(before, 6u));
        if (!excluded_until_ns_.compare_exchange_strong(until_ns, now_ns + for_ns, std::memory_order_relaxed)) {
            return false;
        }
        exclusions_.store(before + 1, std::memory_order_relaxed);
        return true;
    }
    bool is_excluded(std::int64_t now_ns) const { return excluded_until_ns() > now_ns; }
    std::int64_t excluded_until_ns() const { return excluded_until_ns_.load(std::memory_order_relaxed); }
    std::uint64_t wrong_blocks() const { return wrong_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint64_t> wrong_{0};
    std::atomic<unsigned> exclusions_{0};
    std::atomic<std::int64_t> excluded_until_ns_{0};
};

}  // namespace larder::cache
