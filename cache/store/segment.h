#pragma once

// A segment: an append-only store of one dataset's blocks, either a preallocated file on disk (O_DIRECT where the file
// system allows it) or a sealed memfd that clients map read-only. Both hold records (cache/protocol/record.h) at
// multiples of `alignment`. A disk segment begins with a header page that names it (cache/store/segment_header.h). Only
// its DatasetStore changes a segment. Readers keep a segment alive with DatasetStore::add_reference.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cache/device.h"

namespace larder::cache {

enum class Tier : std::uint8_t { memory = 0, disk = 1 };

inline constexpr std::uint32_t kMemoryAlignment = 64;  // of records in memory

class DatasetStore;
struct StoreWrite;

class Segment {
public:
    std::uint32_t id() const { return id_; }  // unique on the node, never reused
    Tier tier() const { return tier_; }
    int fd() const { return fd_.get(); }  // disk: the file, -1 while it is being created; memory: the memfd for clients
    std::uint64_t size_bytes() const { return size_bytes_; }
    std::uint64_t tail_bytes() const { return tail_bytes_; }  // where the next record goes
    std::uint32_t alignment() const { return alignment_; }    // of records
    std::byte* memory() const { return memory_.data(); }      // null on disk
    bool dropped() const { return dropped_; }                 // no longer findable; alive while referenced
    bool in_window() const { return in_window_; }             // of the shared window, which is no part of the cache
    std::span<const std::uint32_t> block_ids() const { return block_ids_; }  // committed, in order of commit

private:
    friend class DatasetStore;
    friend class SegmentSpace;
    friend class DiskSegments;
    friend Result<std::unique_ptr<Segment>> make_memory_segment(std::uint32_t id, std::uint64_t size_bytes);

    // Backs memory up to `end` with huge pages. Called as records are placed, so that unused memory is not backed.
    void back_memory(std::uint64_t end);

    enum class State : std::uint8_t { creating, ready, failed };

    Tier tier_ = Tier::memory;
    State state_ = State::ready;
    bool dropped_ = false;
    bool sealed_ = false;
    bool in_window_ = false;
    std::uint32_t id_ = 0;
    std::uint32_t slot_ = 0;  // in the store's array of segments
    std::uint32_t alignment_ = kMemoryAlignment;
    std::uint32_t references_ = 0;  // reservations, writes, reads and operations in flight
    unsigned bad_places_ = 0;       // writes that failed because of the place
    std::uint32_t unwritten_ = 0;   // reservations whose record is not written yet, nor given up
    FileDescriptor fd_;
    Mapping memory_;
    std::uint64_t backed_bytes_ = 0;  // of memory_
    std::uint64_t size_bytes_ = 0;
    std::uint64_t tail_bytes_ = 0;
    std::uint64_t used_bytes_ = 0;      // record bytes counted against the quota: live, reserved and dead
    bool closed_ = false;               // takes no more records
    std::uint64_t unusable_bytes_ = 0;  // given back in a closed segment
    std::vector<std::uint32_t> block_ids_;

    // Disk only: creation and removal.
    struct alignas(4096) HeaderPage {
        std::byte bytes[4096];
    };
    struct Step : Operation {
        Segment* segment = nullptr;
        class DiskSegments* disk = nullptr;
    };
    Step step_;
    std::string path_;
    std::unique_ptr<HeaderPage> header_page_;
    StoreWrite* waiting_writes_ = nullptr;  // in order, until the file is ready
    StoreWrite* waiting_writes_last_ = nullptr;
};

// Makes a memory segment of `size_bytes`, sealed so that nobody else can write, shrink or grow it.
Result<std::unique_ptr<Segment>> make_memory_segment(std::uint32_t id, std::uint64_t size_bytes);

}  // namespace larder::cache
