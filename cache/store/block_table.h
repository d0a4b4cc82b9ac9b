#pragma once

// The block look-up of the hot path: one 16-byte entry per block_id, in a flat array. An entry is absent, pending (room
// is reserved), or says where the block's record is. The decompressed sizes of compressed blocks are in a second array,
// which exists only if there are such blocks.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/store/stored_block.h"

namespace larder::cache {

class BlockTable {
public:
    static constexpr std::uint32_t kAbsent = 0xffffffff;
    static constexpr std::uint32_t kPending = 0xfffffffe;

    struct Entry {
        std::uint32_t slot = kAbsent;  // the segment's index in its store, or kAbsent, kPending
        std::uint32_t offset_units = 0;
        std::uint32_t payload_bytes = 0;
        std::uint32_t payload_crc = 0;

        bool found() const { return slot < kPending; }
        std::uint64_t offset() const { return offset_units * kOffsetUnitBytes; }
    };
    static_assert(sizeof(Entry) == 16);

    explicit BlockTable(std::uint32_t block_id_end) : entries_(block_id_end) {}

    std::uint32_t block_id_end() const { return static_cast<std::uint32_t>(entries_.size()); }
    void grow(std::uint32_t block_id_end) {
        if (block_id_end > entries_.size()) entries_.resize(block_id_end);
    }
    const Entry& operator[](std::uint32_t block_id) const { return entries_[block_id]; }
    void prefetch(std::uint32_t block_id) const {
        if (block_id < entries_.size()) __builtin_prefetch(&entries_[block_id], 1);
    }
    std::uint64_t found_count() const { return found_count_; }

    void set_pending(std::uint32_t block_id) { entries_[block_id].slot = kPending; }
    // The size of the block once decompressed.
    std::uint32_t raw_bytes(std::uint32_t block_id) const {
        const bool compressed = block_id < raw_bytes_.size() && raw_bytes_[block_id] > 0;
        return compressed ? raw_bytes_[block_id] : entries_[block_id].payload_bytes;
    }
    // `raw_bytes` is 0 if the block is not compressed.
    void set(std::uint32_t block_id, Entry entry, std::uint32_t raw_bytes = 0) {
        if (raw_bytes > 0 && raw_bytes_.size() < entries_.size()) raw_bytes_.resize(entries_.size());
        if (block_id < raw_bytes_.size()) raw_bytes_[block_id] = raw_bytes;
        found_count_ += entries_[block_id].found() ? 0u : 1u;
        entries_[block_id] = entry;
    }
    void clear(std::uint32_t block_id) {
        if (block_id < raw_bytes_.size()) raw_bytes_[block_id] = 0;
        found_count_ -= entries_[block_id].found() ? 1u : 0u;
        entries_[block_id] = Entry{};
    }

private:
    std::vector<Entry> entries_;
    std::vector<std::uint32_t> raw_bytes_;
    std::uint64_t found_count_ = 0;
};

}  // namespace larder::cache
