#pragma once

// A least-recently-used cache of blocks in memory, as in conventional data-loading caches. Jobs on a node share one.
// Any thread.

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace larder::bench {

class LruStore {
public:
    using Bytes = std::shared_ptr<const std::vector<std::byte>>;

    explicit LruStore(std::uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

    // Returns null if the block is not cached.
    Bytes look_up(std::uint32_t dataset, std::uint32_t block);
    // Evicts the least recently used blocks until the block fits. Does nothing if it is cached, or larger than the
    // cache.
    void insert(std::uint32_t dataset, std::uint32_t block, const Bytes& bytes);

private:
    struct Entry {
        std::uint64_t key;
        Bytes bytes;
    };

    static std::uint64_t key_of(std::uint32_t dataset, std::uint32_t block) {
        return std::uint64_t{dataset} << 32 | block;
    }

    const std::uint64_t capacity_bytes_;
    std::mutex mutex_;
    std::uint64_t bytes_ = 0;
    std::list<Entry> recent_first_;
    std::unordered_map<std::uint64_t, std::list<Entry>::iterator> cached_;
};

}  // namespace larder::bench
