#include "loader/block_table.h"

#include "base/assert.h"
#include "base/hash.h"

namespace larder::detail {

BlockTable::BlockTable() {
    grow();
}

std::uint32_t& BlockTable::bucket(std::uint32_t block) {
    return buckets_[mix64(block) & (buckets_.size() - 1)];
}

BlockTable::Acquired BlockTable::acquire(std::uint32_t block) {
    for (std::uint32_t link = bucket(block); link != 0; link = entries_[link - 1].next_in_bucket) {
        BlockEntry& entry = entries_[link - 1];
        if (entry.block == block) return {.tag = link - 1, .fresh = entry.references++ == 0};
    }
    if (free_.empty()) grow();
    const std::uint32_t tag = free_.back();
    free_.pop_back();
    std::uint32_t& head = bucket(block);
    entries_[tag] = {
        .state = BlockState::wanted, .block = block, .references = 1, .next_in_bucket = head, .order = order_++};
    head = tag + 1;
    return {.tag = tag, .fresh = true};
}

void BlockTable::erase(std::uint32_t tag) {
    BlockEntry& entry = entries_[tag];
    LARDER_ASSERT(entry.state != BlockState::unused && entry.references == 0);
    std::uint32_t* link = &bucket(entry.block);
    while (*link != tag + 1) link = &entries_[*link - 1].next_in_bucket;
    *link = entry.next_in_bucket;
    entry.state = BlockState::unused;
    entry.raw.reset();
    free_.push_back(tag);
}

void BlockTable::grow() {
    const std::size_t before = entries_.size();
    const std::size_t after = before == 0 ? 256 : before * 2;
    entries_.resize(after);
    free_.reserve(after);
    for (std::size_t tag = after; tag-- > before;) free_.push_back(static_cast<std::uint32_t>(tag));
    buckets_.assign(after, 0);
    for (std::size_t tag = 0; tag < before; ++tag) {
        BlockEntry& entry = entries_[tag];
        if (entry.state == BlockState::unused) continue;
        std::uint32_t& head = bucket(entry.block);
        entry.next_in_bucket = head;
        head = static_cast<std::uint32_t>(tag) + 1;
    }
}

}  // namespace larder::detail
