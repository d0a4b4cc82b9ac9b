#pragma once

// The blocks this process wants, awaits or holds: each has one entry, named by a small number that is also its tag on
// the wire, and a count of who refers to it. Entries are found by block number, so a block that several samples need is
// fetched once. Pure bookkeeping, no I/O; allocates nothing once warm.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/protocol/wire.h"
#include "loader/session_memory.h"

namespace larder::detail {

enum class BlockState : std::uint8_t {
    unused,
    wanted,     // in the queue for a slot
    requested,  // the daemon is at it
    ready,
    failed,
};

inline constexpr std::uint32_t kNoTag = ~std::uint32_t{0};
inline constexpr std::uint64_t kNoBundle = 0;

struct BlockEntry {
    BlockState state = BlockState::unused;
    protocol::BlockStatus status = protocol::BlockStatus::ok;  // when failed
    std::uint16_t system_errno = 0;                            // when failed
    bool has_slot = false;                                     // of the present session
    bool had_slot = false;                                     // at slot_page, of the present session
    bool found = true;                                         // by its block's number
    bool past = false;                                         // acquired before `forget_blocks`
    bool anew = false;  // it came before with `damaged_crc`, and is damaged by what stands in it
    std::uint32_t damaged_crc = 0;
    std::uint32_t compressed_crc = 0;   // when it came anew and is compressed at the remote: of the bytes it came in
    std::uint32_t asked_anew = kNoTag;  // the entry that was made when this one turned out to be damaged
    std::uint32_t block = 0;
    std::uint32_t length = 0;
    std::uint32_t references = 0;
    std::uint32_t handed_out = 0;  // references by batches that the caller has
    std::uint32_t slot_page = 0;
    std::uint32_t slot_run = 0;
    std::uint32_t next_in_bucket = 0;                            // 1 + entry; 0 ends the chain
    std::uint64_t order = 0;                                     // in which it was first wanted
    std::uint64_t bundle = kNoBundle;                            // what it lies in one slab with
    std::uint64_t pass = 0;                                      // the client's pass that last wanted it
    bool counted = false;                                        // in the statistics, in this pass
    bool copied = false;                                         // from its slot into `raw`
    protocol::BlockSource source = protocol::BlockSource::none;  // when ready
    std::int64_t requested_ns = 0;
    const std::byte* data = nullptr;   // when ready
    SessionMemory* memory = nullptr;   // when ready: where data lies, if not in `raw`
    MappedSegment* segment = nullptr;  // the same, if not in a slot
    std::unique_ptr<std::byte[]> raw;  // when ready: a compressed block's bytes once decompressed, or a copied block's
    std::uint32_t raw_bytes = 0;
    std::string damage;  // when `anew`: what was found

    std::span<const std::byte> bytes() const { return {data, raw ? raw_bytes : length}; }
};

class BlockTable {
public:
    struct Acquired {
        std::uint32_t tag;
        bool fresh;  // nobody referred to it before
    };

    BlockTable();

    // The block's entry with one reference more; a new one is `wanted` (not yet in any queue).
    Acquired acquire(std::uint32_t block);
    // An entry beside the block's own, not found by number, with one reference.
    std::uint32_t acquire_beside(std::uint32_t block);
    // Such an entry takes the place of the block's own, which is found no more.
    void put_first(std::uint32_t tag);
    // No entry is found by its block's number any more; each stays until it is erased.
    void forget_blocks();
    // Forgets an entry nobody refers to.
    void erase(std::uint32_t tag);

    BlockEntry& operator[](std::uint32_t tag) { return entries_[tag]; }
    const BlockEntry& operator[](std::uint32_t tag) const { return entries_[tag]; }
    bool contains(std::uint32_t tag) const {
        return tag < entries_.size() && entries_[tag].state != BlockState::unused;
    }
    std::uint32_t tag_end() const { return static_cast<std::uint32_t>(entries_.size()); }

private:
    std::uint32_t& bucket(std::uint32_t block);
    std::uint32_t take_free();
    void link(std::uint32_t tag);
    void unlink(std::uint32_t tag);
    void grow();

    std::vector<BlockEntry> entries_;
    std::vector<std::uint32_t> free_;
    std::vector<std::uint32_t> buckets_;  // 1 + entry; a power of two, as many as entries
    std::uint64_t order_ = 0;
};

}  // namespace larder::detail
