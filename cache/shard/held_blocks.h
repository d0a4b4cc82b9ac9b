#pragma once

// The blocks of a dataset that this node holds, one bit per block id. Only the shard writes the bits; the control plane
// reads them while the shard runs. A reader may see slightly stale bits. A reader that compares `changes` with its
// earlier value learns whether any bit has changed.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace larder::cache {

class HeldBlocks {
public:
    // Copies the bits of `before` if it is not null. Block ids only grow.
    explicit HeldBlocks(std::uint32_t block_id_end, const HeldBlocks* before = nullptr)
        : words_((std::size_t{block_id_end} + 63) / 64) {
        if (before == nullptr) return;
        for (std::size_t i = 0; i < before->words_.size() && i < words_.size(); ++i) {
            words_[i].store(before->words_[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
        }
        changes_.store(before->changes() + 1, std::memory_order_relaxed);
    }

    // The shard's thread only.
    void set(std::uint32_t block_id, bool held) {
        if (block_id / 64 >= words_.size()) return;
        std::atomic<std::uint64_t>& word = words_[block_id / 64];
        const std::uint64_t bit = std::uint64_t{1} << (block_id % 64);
        const std::uint64_t old_word = word.load(std::memory_order_relaxed);
        word.store(held ? old_word | bit : old_word & ~bit, std::memory_order_relaxed);
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
