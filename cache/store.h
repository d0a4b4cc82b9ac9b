#pragma once

// The blocks of one dataset that this node holds. A DatasetStore belongs to one data-plane thread and makes every
// decision of uniform caching: what is admitted, into which segment, and which segments go when a quota shrinks. It
// never replaces a block by another. Blocks are named by block_id, stable across the dataset's versions.
//
// The life of an admission: `reserve` gives room in a segment (or says why not), the caller fills it (memory: in
// place; disk: `write` from a slot), then `commit` makes the block findable, or `abandon` gives the room up.
// Persistence is the Index's (cache/store/index.h): commits and drops are posted to its thread and reach LMDB in groups
// after the bytes are down. All calls on the owning thread; nothing blocks; `find` and `commit` allocate nothing once
// warm.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cache/device.h"

namespace larder::cache {

enum class Tier : std::uint8_t { memory = 0, disk = 1 };

struct Quota {
    std::uint64_t memory_bytes = 0;
    std::uint64_t disk_bytes = 0;
};

class Index;
class Segment;

// Where a cached block is: a record (RecordHeader, payload) at `offset` of `segment`.
struct BlockLocation {
    const Segment* segment = nullptr;
    std::uint64_t offset = 0;
    std::uint32_t payload_bytes = 0;
    std::uint32_t payload_crc = 0;
};

// An append-only store of blocks: a file, or sealed shared memory.
class Segment {
public:
    std::uint32_t id() const { return id_; }
    Tier tier() const { return tier_; }
    int fd() const { return fd_.get(); }  // disk: O_DIRECT file; memory: the memfd to hand to clients
    std::uint64_t size_bytes() const { return size_bytes_; }
    std::uint64_t used_bytes() const { return used_bytes_; }  // appended so far, header page included
    std::uint32_t alignment() const { return alignment_; }    // of records
    std::byte* memory() const { return memory_.data(); }      // null on disk
    std::span<const std::uint32_t> block_ids() const { return block_ids_; }

private:
    friend class DatasetStore;
    friend struct SegmentAccess;
    std::uint32_t id_ = 0;
    Tier tier_ = Tier::disk;
    bool ready_ = false;
    bool dropped_ = false;
    FileDescriptor fd_;
    Mapping memory_;
    std::uint64_t size_bytes_ = 0;
    std::uint64_t used_bytes_ = 0;
    std::uint32_t alignment_ = 4096;
    std::uint32_t references_ = 0;  // reads, writes and reservations in flight: the fd lives until they end
    std::vector<std::uint32_t> block_ids_;
};

enum class Refusal : std::uint8_t { quota_reached, disk_full, busy, already_cached };

struct Reservation {
    Segment* segment = nullptr;
    std::uint64_t offset = 0;  // of the record in the segment
    std::uint32_t block_id = 0;
    std::uint32_t payload_bytes = 0;
};

struct StoreUsage {
    std::uint64_t memory_bytes = 0;  // stored records, padding included
    std::uint64_t disk_bytes = 0;
    std::uint64_t payload_bytes = 0;  // of findable blocks, both tiers
    std::uint64_t blocks = 0;
    std::uint32_t memory_segments = 0;
    std::uint32_t disk_segments = 0;
};

struct StoreOptions {
    std::uint64_t dataset_id = 0;
    std::uint32_t block_id_end = 0;     // ids are below it; grows with new versions
    std::uint32_t block_bytes_max = 0;
    std::string segment_directory;      // for disk segments: <directory>/<segment id, 8 hex digits>.segment
    std::uint64_t write_bytes_in_flight_max = std::uint64_t{64} << 20;
};

class DatasetStore {
public:
    // `device`, `index` must outlive it. `index` may be null: then nothing persists (memory only).
    DatasetStore(StoreOptions options, Device& device, Index* index);
    ~DatasetStore();

    // Takes in what the Index loaded or a scan found; before first use.
    struct RecoveredSegment;
    Result<void> recover(std::span<const RecoveredSegment> segments);

    std::optional<BlockLocation> find(std::uint32_t block_id) const;

    // Room for one record, in memory while the memory quota lasts, else on disk.
    std::expected<Reservation, Refusal> reserve(std::uint32_t block_id, std::uint32_t payload_bytes);

    // Memory tier: the payload's place, to be filled before commit.
    std::span<std::byte> payload(const Reservation& reservation) const;
    // Disk tier: writes header and payload from `record`, which begins with kRecordHeaderBytes for the header and is
    // padded (zeroed here) to the segment's alignment; the memory must be page-aligned. `done(result)`: 0 or -errno; the block
    // is committed by then when 0, abandoned otherwise.
    struct Write;
    void write(Write& write);

    // Memory tier: makes the block findable.
    void commit(const Reservation& reservation, std::uint32_t payload_crc);
    void abandon(const Reservation& reservation);

    // A block whose bytes did not match their CRC: out it goes.
    void forget(std::uint32_t block_id);

    // While a segment is referenced its fd and mapping stay, even if it is dropped meanwhile.
    void add_reference(const Segment& segment);
    void drop_reference(const Segment& segment);

    // Sets the quota; drops whole segments until use fits, lowest `unread_blocks(segment)` first (ties: newest first).
    // `on_drop` hears of each block taken out and of each segment before it goes.
    struct DropObserver {
        std::function<std::uint64_t(const Segment&)> unread_blocks;
        std::function<void(const Segment&)> dropping;
    };
    void set_quota(Quota quota, const DropObserver& observer);
    // Drops everything and deletes the files: the dataset is being removed.
    void clear(const DropObserver& observer);
    void grow_block_ids(std::uint32_t block_id_end, std::uint32_t block_bytes_max);

    Quota quota() const;
    StoreUsage usage() const;
    std::uint64_t admissions_refused(Refusal refusal) const;
    // True once after the disk was found full, until it admits again.
    bool disk_full() const;
};

}  // namespace larder::cache
