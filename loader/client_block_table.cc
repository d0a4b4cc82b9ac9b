#include "loader/client_block_table.h"

#include "base/assert.h"
#include "base/hash.h"

namespace larder::detail {

ClientBlockTable::ClientBlockTable() {
    grow();
}

std::uint32_t& ClientBlockTable::bucket(std::uint32_t block) {
    return buckets_[mix64(block) & (buckets_.size() - 1)];
}

ClientBlockTable::Acquired ClientBlockTable::acquire(std::uint32_t block) {
    for (std::uint32_t link = bucket(block); link != 0; link = entries_[link - 1].next_in_bucket) {
        BlockEntry& entry = entries_[link - 1];
        if (entry.block == block) return {.tag = link - 1, .fresh = entry.references++ == 0};
    }
    const std::uint32_t tag = take_free();
    entries_[tag] = {.state = BlockState::wanted, .block = block, .references = 1, .order = order_++};
    link(tag);
    return {.tag = tag, .fresh = true};
}

std::uint32_t ClientBlockTable::acquire_duplicate(std::uint32_t block) {
    const std::uint32_t tag = take_free();
    entries_[tag] = {.state = BlockState::wanted, .found = false, .block = block, .references = 1, .order = order_++};
    return tag;
}

void ClientBlockTable::make_current(std::uint32_t tag) {
    LARDER_ASSERT(!entries_[tag].found);
    for (std::uint32_t at = bucket(entries_[tag].block); at != 0; at = entries_[at - 1].next_in_bucket) {
        if (entries_[at - 1].block != entries_[tag].block) continue;
        unlink(at - 1);
        entries_[at - 1].found = false;
        break;
    }
    entries_[tag].found = true;
    link(tag);
}

void ClientBlockTable::forget_blocks() {
    buckets_.assign(buckets_.size(), 0);
    for (BlockEntry& entry : entries_) {
        if (entry.state == BlockState::unused) continue;
        entry.found = false;
        entry.past = true;
    }
}

std::uint32_t ClientBlockTable::take_free() {
    if (free_.empty()) grow();
    const std::uint32_t tag = free_.back();
    free_.pop_back();
    return tag;
}

void ClientBlockTable::link(std::uint32_t tag) {
    std::uint32_t& head = bucket(entries_[tag].block);
    entries_[tag].next_in_bucket = head;
    head = tag + 1;
}

void ClientBlockTable::unlink(std::uint32_t tag) {
    std::uint32_t* link = &bucket(entries_[tag].block);
    while (*link != tag + 1) link = &entries_[*link - 1].next_in_bucket;
    *link = entries_[tag].next_in_bucket;
}

void ClientBlockTable::erase(std::uint32_t tag) {
    BlockEntry& entry = entries_[tag];
    LARDER_ASSERT(entry.state != BlockState::unused && entry.references == 0);
    if (entry.found) unlink(tag);
    entry.state = BlockState::unused;
    entry.raw.reset();
    free_.push_back(tag);
}

void ClientBlockTable::grow() {
    const std::size_t before = entries_.size();
    const std::size_t after = before == 0 ? 256 : before * 2;
    entries_.resize(after);
    free_.reserve(after);
    for (std::size_t tag = after; tag-- > before;) free_.push_back(static_cast<std::uint32_t>(tag));
    buckets_.assign(after, 0);
    for (std::size_t tag = 0; tag < before; ++tag) {
        const BlockEntry& entry = entries_[tag];
        if (entry.state != BlockState::unused && entry.found) link(static_cast<std::uint32_t>(tag));
    }
}

}  // namespace larder::detail
