#pragma once

// The blocks of one dataset that this node holds. A DatasetStore belongs to one data-plane thread and makes every
// decision of uniform caching: which blocks are admitted, into which segment, and which segments are dropped when a
// quota shrinks. It never evicts a block to admit another. Blocks are named by block_id, which is stable across the
// dataset's versions.
//
// The life of an admission: `reserve` gives room in a segment, or says why not. The caller then fills the room (memory:
// in place, then `commit`; disk: `write` from a slot, which commits by itself) or returns it with `abandon`.
// Persistence is the Index's (cache/store/index.h): commits and drops are posted to its thread and reach LMDB in groups
// after the bytes are on disk. At start-up cache/store/recovery.h finds the segments of an earlier run and `recover`
// adopts them.
//
// The shared window is no part of the cache. It keeps blocks in memory that have no room in the cache, and that several
// jobs are about to read. Blocks there can be found; the oldest segment makes way for a new block.
//
// A tier's use (record bytes: header, payload, padding; live, reserved or dead) never exceeds its quota, except between
// recovery and the first set_quota. Make all calls on the owning thread. Only the first use of the segment directory
// blocks; `find` and `commit` allocate nothing once warm.

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cache/device.h"
#include "cache/protocol/record.h"
#include "cache/store/block_table.h"
#include "cache/store/disk_segments.h"
#include "cache/store/segment.h"
#include "cache/store/segment_space.h"
#include "cache/store/stored_block.h"

namespace larder::cache {

class Index;
struct RecoveredSegment;

struct Quota {
    std::uint64_t memory_bytes = 0;
    std::uint64_t disk_bytes = 0;

    bool operator==(const Quota&) const = default;
};

// The place of a cached block: its record (RecordHeader, payload) begins at `offset` of `segment`. To read the record
// from disk, read record_bytes(payload_bytes, segment->alignment()) bytes.
struct BlockLocation {
    const Segment* segment = nullptr;
    std::uint64_t offset = 0;
    std::uint32_t payload_bytes = 0;
    std::uint32_t payload_crc = 0;
    std::uint32_t raw_bytes = 0;  // size of the block; more than payload_bytes if the payload is compressed

    bool compressed() const { return raw_bytes != payload_bytes; }
    bool is_cached() const { return !segment->in_window(); }
};

enum class Refusal : std::uint8_t { quota_reached, disk_full, disk_failed, busy, already_cached };
inline constexpr std::size_t kRefusalCount = 5;

// Room for one record. It references its segment until commit, abandon or the end of write.
struct Reservation {
    Segment* segment = nullptr;
    std::uint64_t offset = 0;  // of the record in the segment
    std::uint32_t block_id = 0;
    std::uint32_t payload_bytes = 0;
    protocol::CompressedBlock of;  // set before commit or write if the payload is compressed
    bool on_disk() const { return segment->tier() == Tier::disk; }
};

// A record that is being written to disk. The caller owns it, and the memory of `record`, until `finished` has run.
struct StoreWrite : Operation {
    Reservation reservation;
    // Page-aligned memory of record_bytes(payload_bytes, segment alignment) bytes or more: kRecordHeaderBytes for the
    // header, which the store fills in, the payload, and padding, which the store zeroes.
    std::span<std::byte> record;
    std::uint32_t payload_crc = 0;
    // 0: the block can be found. -ECANCELED: its segment was dropped meanwhile. Other -errno: the room was returned, or
    // retired if the disk cannot write there.
    void (*finished)(StoreWrite& write, std::int32_t result) noexcept = nullptr;

    // Used by the store.
    DatasetStore* store = nullptr;
    StoreWrite* next = nullptr;
    std::uint64_t written_bytes = 0;
};

struct StoreUsage {
    std::uint64_t memory_bytes = 0;  // counted against the quota: records with padding, dead ones included
    std::uint64_t disk_bytes = 0;
    std::uint64_t memory_allocated_bytes = 0;  // sizes of the segments
    std::uint64_t disk_allocated_bytes = 0;
    std::uint64_t payload_bytes = 0;       // of blocks that can be found, both tiers, uncompressed
    std::uint64_t record_bytes = 0;        // of the same blocks: what their records take of the quota
    std::uint64_t disk_payload_bytes = 0;  // the parts of both that are on the disk
    std::uint64_t disk_record_bytes = 0;
    std::uint64_t blocks = 0;
    std::uint32_t memory_segments = 0;
    std::uint32_t disk_segments = 0;
    std::uint32_t draining_segments = 0;  // dropped, but still referenced
    // These are the shared window's, which no other figure counts.
    std::uint64_t window_bytes = 0;  // records with padding
    std::uint64_t window_allocated_bytes = 0;
    std::uint64_t window_blocks = 0;
};

struct StoreOptions {
    std::uint64_t dataset_id = 0;
    std::uint32_t block_id_end = 0;  // ids are below it; grows with new versions
    std::uint32_t block_bytes_max = 0;
    std::string segment_directory;     // holds the disk segments; empty: memory only
    std::uint32_t disk_alignment = 0;  // of records; 0: taken from the file system, after making the directory
    std::uint64_t write_bytes_in_flight_max = std::uint64_t{64} << 20;
    // Takes the mapping of a dropped segment and frees it on a thread that may block: unmapping a gigabyte takes 100 ms
    // and more. If empty, the store unmaps it on its own thread.
    std::function<void(std::shared_ptr<const Mapping>)> unmap_on_another_thread;
};

class DatasetStore {
public:
    // `device`, `clock` and `index` must outlive the store. Without an index only the segments themselves persist.
    DatasetStore(StoreOptions options, Device& device, const Clock& clock, Index* index);
    // Destroy the store after its last operation: run the device until operations_in_flight() is 0, or stop the device.
    // Disk segments stay for the next start.
    ~DatasetStore();
    DatasetStore(const DatasetStore&) = delete;
    DatasetStore& operator=(const DatasetStore&) = delete;

    // Adopts the segments that recovery found. Call it before first use, and set_quota after it.
    void recover(std::vector<RecoveredSegment> segments);

    std::optional<BlockLocation> find(std::uint32_t block_id) const;
    // True if the block can be found, and not only in the shared window.
    bool is_cached(std::uint32_t block_id) const {
        const auto found = find(block_id);
        return found && found->is_cached();
    }

    // Reserves room for one record in the tier, or says why not. Callers ask memory first, and disk if memory refuses.
    // A block has one reservation at a time: a second one gets already_cached.
    std::expected<Reservation, Refusal> reserve(Tier tier, std::uint32_t block_id, std::uint32_t payload_bytes);

    // Callbacks of a drop; each may be empty. `unread_blocks` returns how many of the segment's blocks some running job
    // has yet to read. `dropping` runs before the segment is dropped, while its blocks can still be found. `forgetting`
    // runs for a block that is dropped alone: its record stays.
    struct DropObserver {
        std::function<std::uint64_t(const Segment&)> unread_blocks;
        std::function<void(const Segment&)> dropping;
        std::function<void(std::uint32_t block_id, std::uint32_t raw_bytes)> forgetting;
    };

    // Reserves room for one record in the shared window, or nothing: the window is too small, or all of it is being
    // filled. Segments make way: first those that nobody has yet to read, then the oldest.
    std::optional<Reservation> reserve_in_window(std::uint32_t block_id, std::uint32_t payload_bytes,
                                                 const DropObserver& observer);
    // Sets the bytes of the shared window, and drops segments until it fits: those that are being filled last. No bytes
    // leave no segment.
    void set_window(std::uint64_t bytes, const DropObserver& observer);
    std::uint64_t window_bytes() const { return space(Room::window).quota_bytes(); }

    // True if either tier's quota has room now for one record with this payload.
    bool has_room(std::uint32_t payload_bytes) const;

    // Returns the reason why a record would be refused now: quota_reached if neither tier's quota has room; disk_full
    // or disk_failed if memory's quota has none and the disk admits nothing. nullopt: the record would be admitted.
    std::optional<Refusal> why_no_room(std::uint32_t payload_bytes) const;

    // Memory tier: the memory of the payload, to be filled before commit.
    std::span<std::byte> payload(const Reservation& reservation) const;
    // Memory tier: makes the block findable. False if the segment was dropped meanwhile.
    bool commit(const Reservation& reservation, std::uint32_t payload_crc);
    // Disk tier: writes the record, makes the block findable, then calls `finished`, never from inside this call. False
    // if the segment was dropped meanwhile: nothing is written, `finished` is not called, and the reservation has
    // ended.
    [[nodiscard]] bool write(StoreWrite& write);
    void abandon(const Reservation& reservation);

    // Drops one block, because its bytes did not match their CRC. Its record stays, dead, and counts against the quota
    // until its segment is dropped or the daemon restarts.
    void forget(std::uint32_t block_id);
    // Drops one block, because the disk failed to read it. Nothing is written to its place again while the segment
    // lives, also after a restart.
    void retire(std::uint32_t block_id);

    // A referenced segment keeps its fd and mapping, even after it is dropped.
    void add_reference(const Segment& segment);
    void drop_reference(const Segment& segment);

    // Sets the quota, then drops whole segments until each tier's use fits: fewest unread blocks first, newest first on
    // a tie.
    void set_quota(Quota quota, const DropObserver& observer);
    // Drops all segments and deletes their files, because the dataset is being removed.
    void clear(const DropObserver& observer);
    // Drops blocks that no live version uses: blocks whose bit in `live` is 0. Ids beyond the end of `live` count as
    // live. A segment that held some of these blocks is dropped once it is empty, or if there is no room for another
    // block and a quarter or more of the segment is dead.
    void drop_dead_blocks(std::span<const std::uint64_t> live, const DropObserver& observer);
    // Raises the limits for a new version of the dataset.
    void grow_block_ids(std::uint32_t block_id_end, std::uint32_t block_bytes_max);

    Quota quota() const;
    StoreUsage usage() const;
    // Number of refusals by the disk tier, which is asked last.
    std::uint64_t admissions_refused(Refusal refusal) const;
    // True from the time the disk was found full until it admits again. The disk is retried every 10 s.
    bool disk_full() const;
    // Returns the reason why the disk admits nothing at present, including disk_full.
    const std::optional<Error>& disk_problem() const;
    // Makes the next admission try a full or failing disk at once, without waiting for the 10 s to pass.
    void retry_disk();
    // Returns the reason why the memory tier could not get its latest segment. Meanwhile blocks go to disk.
    const std::optional<Error>& memory_problem() const { return memory_problem_; }
    std::uint32_t operations_in_flight() const;

    // Checks all accounts and aborts the process if they do not add up; for tests.
    void check_invariants() const;

private:
    friend class DiskSegments;
    // The two tiers and the shared window: each has segments and a quota of its own.
    enum class Room : std::uint8_t { memory = 0, disk = 1, window = 2 };
    static constexpr std::size_t kRooms = 3;
    static_assert(static_cast<int>(Tier::memory) == 0 && static_cast<int>(Tier::disk) == 1);

    // The bytes and number of one room's blocks that can be found, as in StoreUsage.
    struct Found {
        std::uint64_t payload_bytes = 0;
        std::uint64_t record_bytes = 0;
        std::uint64_t blocks = 0;

        bool operator==(const Found&) const = default;
    };

    static Room room_of(const Segment& segment) {
        return segment.in_window() ? Room::window : static_cast<Room>(segment.tier());
    }
    SegmentSpace& space(Room room) { return spaces_[static_cast<std::size_t>(room)]; }
    const SegmentSpace& space(Room room) const { return spaces_[static_cast<std::size_t>(room)]; }
    Found& found(const Segment& segment) { return found_[static_cast<std::size_t>(room_of(segment))]; }
    std::expected<Reservation, Refusal> reserve_in_memory(std::uint32_t block_id, std::uint32_t payload_bytes);
    std::expected<Reservation, Refusal> reserve_on_disk(std::uint32_t block_id, std::uint32_t payload_bytes);
    Reservation make_reservation(SegmentSpace::Place place, std::uint32_t block_id, std::uint32_t payload_bytes);
    bool add_memory_segment(std::uint64_t size_bytes, bool in_window);
    bool drop_from_window(const DropObserver& observer, bool also_filling = false);
    void add_disk_segment(std::uint64_t size_bytes, std::uint32_t alignment);
    void add_segment(std::unique_ptr<Segment> segment, bool accepts_records);
    void adopt(RecoveredSegment recovered);
    std::uint32_t next_segment_id();
    bool make_findable(const Reservation& reservation, std::uint32_t payload_crc);
    void add_entry(Segment& segment, const StoredBlock& block);
    void remove_entry(const Segment& segment, std::uint32_t block_id);
    void drop_block(std::uint32_t block_id, std::uint32_t id_left);
    void clear_entry(const Segment& segment, std::uint32_t block_id, std::uint32_t id_left = StoredBlock::kDroppedId);
    void release_space(const Reservation& reservation);
    void retire_space(const Reservation& reservation);
    void drop(Segment& segment);
    void shrink(Room room, const DropObserver& observer);
    void release(Segment& segment);
    void end_reservation(Segment& segment);
    void put_segment_into_index(Segment& segment);
    void remove_segment_from_index(const Segment& segment);
    void drop_failed_segment(Segment& segment);
    void finish_write(StoreWrite& write, std::int32_t result);

    StoreOptions options_;
    const Clock& clock_;
    Index* index_;
    BlockTable table_;
    std::array<SegmentSpace, kRooms> spaces_;
    DiskSegments disk_;
    std::vector<std::unique_ptr<Segment>> segments_;  // by slot; null where free
    std::vector<std::uint32_t> free_slots_;
    std::vector<std::unique_ptr<Segment>> draining_;
    std::array<Found, kRooms> found_{};
    std::uint64_t write_bytes_in_flight_ = 0;
    std::optional<Error> memory_problem_;
    std::int64_t memory_retry_at_ns_ = 0;
    bool quota_set_ = false;
    std::uint32_t next_id_without_index_ = 1;  // without an index
    std::array<std::uint64_t, kRefusalCount> refused_{};
};

}  // namespace larder::cache
