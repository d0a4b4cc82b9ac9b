#pragma once

// The blocks that this process wants, awaits or holds. Each has one entry with a reference count. The entry's index is
// a small number, which is also its tag on the wire. Entries are found by block number, so a block that several samples
// need is fetched once. Pure bookkeeping, no I/O; allocates nothing once warm.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/protocol/wire.h"
#include "loader/client_session_memory.h"

namespace larder::detail {

enum class BlockState : std::uint8_t {
    unused,
    wanted,     // queued for a slot
    requested,  // the daemon is fetching it
    ready,
    failed,
};

inline constexpr std::uint32_t kNoTag = ~std::uint32_t{0};
inline constexpr std::uint64_t kNoBundle = 0;

struct BlockEntry {
    BlockState state = BlockState::unused;
    protocol::BlockStatus status = protocol::BlockStatus::ok;  // when failed
    std::uint16_t system_errno = 0;                            // when failed
    bool has_slot = false;                                     // in the current session
    bool had_slot = false;                                     // at slot_page, in the current session
    bool found = true;                                         // `acquire` finds it by its block's number
    bool past = false;                                         // acquired before `forget_blocks`
    bool is_refetch = false;  // a refetch: the block came before with `damaged_crc`, and its content was damaged
    std::uint32_t damaged_crc = 0;
    std::uint32_t compressed_crc = 0;    // of a refetch that is compressed at the remote: CRC of the compressed bytes
    std::uint32_t refetch_tag = kNoTag;  // the entry of the refetch, once this block turned out to be damaged
    std::uint32_t block = 0;
    std::uint32_t length = 0;
    std::uint32_t references = 0;
    std::uint32_t handed_out = 0;  // references by batches that the caller has
    std::uint32_t slot_page = 0;
    std::uint32_t slot_run = 0;
    std::uint32_t next_in_bucket = 0;                            // 1 + entry; 0 ends the chain
    std::uint64_t order = 0;                                     // rank in the order of first requests
    std::uint64_t bundle = kNoBundle;                            // blocks of one bundle lie in one slab
    std::uint64_t pass = 0;                                      // the client's last pass that wanted the block
    bool counted = false;                                        // in the statistics of this pass
    bool copied = false;                                         // from its slot into `raw`
    protocol::BlockSource source = protocol::BlockSource::none;  // when ready
    std::int64_t requested_ns = 0;
    const std::byte* data = nullptr;        // when ready
    ClientSessionMemory* memory = nullptr;  // when ready: the memory that holds data, unless `raw` does
    MappedSegment* segment = nullptr;       // when ready: the segment that holds data, unless a slot does
    std::unique_ptr<std::byte[]> raw;       // when ready: the bytes of a decompressed or copied block
    std::uint32_t raw_bytes = 0;
    std::string damage;  // if `is_refetch`: the damage that was found

    std::span<const std::byte> bytes() const { return {data, raw ? raw_bytes : length}; }
};

class ClientBlockTable {
public:
    struct Acquired {
        std::uint32_t tag;
        bool fresh;  // the entry had no references before
    };

    ClientBlockTable();

    // Returns the block's entry with one more reference. A new entry is `wanted`, but not yet in any queue.
    Acquired acquire(std::uint32_t block);
    // Adds an entry for the block that is not found by number, with one reference.
    std::uint32_t acquire_duplicate(std::uint32_t block);
    // Makes an entry of `acquire_duplicate` the one that is found by its block's number, in place of the former one.
    void make_current(std::uint32_t tag);
    // No present entry is found by its block's number any more. Each stays until it is erased.
    void forget_blocks();
    // Erases an entry without references.
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
    std::vector<std::uint32_t> buckets_;  // 1 + entry; as many buckets as entries, a power of two
    std::uint64_t order_ = 0;
};

}  // namespace larder::detail
