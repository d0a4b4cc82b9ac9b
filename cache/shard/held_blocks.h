#pragma once

// Which blocks of a dataset this node holds, for the control plane to read while the shard goes on: a bit a block id,
// written by the shard alone. A reader sees each bit as it was a moment ago, and learns from `changes` whether a look
// is worth it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace larder::cache {

class HeldBlocks {
public:
    // Takes over what `before` says, where there is one: block ids only grow.
    explicit HeldBlocks(std::uint32_t block_id_end, const HeldBlocks* before = nullptr)
        : words_((std::size_t{block_id_end} + 63) / 64) {
        if (before == nullptr) return;
        for (std::size_t i = 0; i < before->words_.size() && i < words_.size(); ++i) {
            words_[i].store(before->words_[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
        }
        changes_.store(before->changes() + 1, std::memory_order_relaxed);
    }

    // The shard's.
    void set(std::uint32_t block_id, bool held) {
        if (block_id / 64 >= words_.size()) return;
        std::atomic<std::uint64_t>& word = words_[block_id / 64];
        const std::uint64_t bit = std::uint64_t{1} << (block_id % 64);
        const std::uint64_t was = word.load(std::memory_order_relaxed);
        word.store(held ? was | bit : was & ~bit, std::memory_order_relaxed);
        changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }

    // Any thread.
    bool holds(std::uint32_t block_id) const {
        return block_id / 64 < words_.size() &&
               ((words_[block_id / 64].load(std::memory_order_relaxed) >> (block_id % 64)) & 1) != 0;
    }
    // Rises with every change.
    std::uint64_t changes() const { return changes_.load(std::memory_order_acquire); }

private:
    std::vector<std::atomic<std::uint64_t>> words_;
    std::atomic<std::uint64_t> changes_{0};
};

}  // namespace larder::cache
