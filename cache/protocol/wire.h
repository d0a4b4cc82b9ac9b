#pragma once

// The protocol between a client and its node's daemon. Two channels:
//
// 1. A Unix SOCK_SEQPACKET socket for control. Client sends OpenRequest and gets OpenReply (with the manifest's fd),
//    sends AttachRequest and gets AttachReply (with three fds: ring memory, slot memory, request eventfd). Afterwards
//    the daemon may send SegmentMessage{added} (with the segment's fd) and SegmentMessage{dropped}; the client answers
//    the latter with SegmentMessage{unmapped}. Closing the socket ends the session and frees all it held.
// 2. Ring memory, shared by both: RingControl, then `ring_entries` Requests, then `ring_entries` Completions. Single
//    producer, single consumer each way; indices run freely and are taken modulo ring_entries (a power of two). A
//    session that reads in shared order has its share behind them: a bit for each block of the manifest.
//
// Slot memory is `slot_bytes` of pages, written only by the daemon and mapped read-only by the client. The client
// chooses the place of each fetched block, as a page number; the daemon refuses pages that the client still holds. A
// block in a slot, like a block on disk, is a RecordHeader followed by the payload (see record.h).
//
// Neither side trusts the other: the daemon copies an entry before it reads it and validates each field. A client may
// change the flags of a descriptor that it shares with the daemon, so the daemon makes no call on a descriptor that
// these flags could turn into a blocking call.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cache/protocol/take_log.h"

namespace larder::protocol {

inline constexpr std::uint32_t kMagic = 0x5244524c;  // "LRDR"
inline constexpr std::uint32_t kVersion = 9;
inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::uint32_t kRingEntriesMax = 1u << 16;
inline constexpr std::uint64_t kSlotBytesMax = std::uint64_t{1} << 42;
inline constexpr std::size_t kNameBytesMax = 256;
inline constexpr std::size_t kErrorBytesMax = 1024;

enum class MessageKind : std::uint32_t {
    open = 1,
    attach = 2,
    segment_added = 3,
    segment_dropped = 4,
    segment_unmapped = 5,
    explain = 6
};

struct OpenRequest {
    std::uint32_t magic;
    std::uint32_t version;
    MessageKind kind;
    std::uint32_t reserved;
    std::uint64_t manifest_version;  // 0: the newest
    char dataset[kNameBytesMax];     // NUL-terminated
    char job[kNameBytesMax];         // NUL-terminated
};

// Carries one fd (the manifest, read-only) when `status` is 0.
struct OpenReply {
    std::uint32_t magic;
    std::uint32_t version;
    MessageKind kind;
    std::uint32_t status;  // 0, or 1 + ErrorCode
    std::uint64_t manifest_version;
    std::uint64_t manifest_bytes;
    char error[kErrorBytesMax];  // NUL-terminated
};

// The order in which a session reads blocks.
enum class ReadOrder : std::uint32_t {
    random = 0,      // the client chooses, at random
    sequential = 1,  // the client chooses, not at random: admit by hash
    shared = 2,      // the daemon chooses, so that one fetch serves all sessions with this order
};

struct AttachRequest {
    std::uint32_t magic;
    MessageKind kind;
    std::uint32_t ring_entries;
    ReadOrder order;
    std::uint64_t slot_bytes;
};

// Carries three fds (ring memory, slot memory, request eventfd) when `status` is 0.
struct AttachReply {
    std::uint32_t magic;
    MessageKind kind;
    std::uint32_t status;
    std::uint32_t reserved;
    std::uint64_t session_id;
    char error[kErrorBytesMax];
};

// Asks why the last read of a block's object failed, on a separate connection that ends with the reply. A daemon that
// does not know the message closes the connection.
struct ExplainRequest {
    std::uint32_t magic;
    std::uint32_t version;
    MessageKind kind;
    std::uint32_t block;             // index in the manifest
    std::uint64_t manifest_version;  // 0: the newest
    char dataset[kNameBytesMax];     // NUL-terminated
};

struct ExplainReply {
    std::uint32_t magic;
    MessageKind kind;
    char reason[kErrorBytesMax];  // NUL-terminated; empty: unknown
};

// `segment_added` carries one fd.
struct SegmentMessage {
    std::uint32_t magic;
    MessageKind kind;
    std::uint32_t segment;
    std::uint32_t reserved;
    std::uint64_t segment_bytes;
};

enum class RequestOperation : std::uint8_t {
    fetch = 1,    // read `block` into the slot at `slot_page` (or reply with its place in memory)
    release = 2,  // the slot that begins at `slot_page` is no longer read
    // A fetch of a block whose earlier bytes, of checksum `damaged_crc`, look damaged to the client by their content.
    // The daemon reads the remote again and compares: different bytes replace the cached ones; the same bytes are
    // object_corrupt.
    refetch = 3,
    // Choose the block to read next (ReadOrder::shared). `block` is the number of the client's pass. With the first
    // request of a pass the daemon copies the session's share from ring memory: the blocks that it has yet to read. The
    // daemon chooses each of them once. The completion has the block's index as its `offset`, and the length 1, or 0 if
    // no block is left.
    choose = 4,
};

struct Request {
    RequestOperation operation;
    std::uint8_t reserved[3];
    std::uint32_t tag;          // chosen by the client; returned in the completion
    std::uint32_t block;        // index in the session's manifest; choose: the number of the pass
    std::uint32_t slot_page;    // slot offset / kPageBytes
    std::uint32_t epoch;        // of the job, for counting its unread blocks
    std::uint32_t damaged_crc;  // CRC32C of the damaged bytes in the remote's form; 0: unknown to the client
    std::uint32_t reserved2[2];
};
static_assert(sizeof(Request) == 32);

enum class BlockStatus : std::uint8_t {
    ok = 0,
    object_changed = 1,  // size or mtime differ from the manifest's
    object_missing = 2,
    object_truncated = 3,  // fewer bytes than its stat said
    remote_failed = 4,     // system_errno says why
    object_corrupt = 5,    // two reads did not match the manifest's checksum, or gave bytes that a client found damaged
};

// peer: another node's cache.
enum class BlockSource : std::uint8_t { none = 0, memory = 1, disk = 2, remote = 3, peer = 4 };
inline constexpr std::size_t kBlockSources = 5;

// With a `segment` (ids begin at 1), the payload is at `offset` of that memory segment, and the slot named in the
// request is free again. A miss that was admitted to memory also completes this way, with source `remote`. With segment
// 0, the payload is at `offset` of slot memory until the client releases the slot. With a status other than ok, the
// slot is free again. After SegmentMessage{dropped} no later completion names that segment; completions published
// before it may still be in the ring, so the client takes those completions first and then unmaps.
struct Completion {
    std::uint32_t tag;
    BlockStatus status;
    BlockSource source;
    std::uint16_t system_errno;
    std::uint32_t segment;
    std::uint32_t length;
    std::uint64_t offset;
    std::uint32_t
        raw_bytes;  // 0: the payload is the block; else the payload is a zstd frame, and the block has this size
    std::uint32_t reserved;
};
static_assert(sizeof(Completion) == 32);

// The first page of ring memory. Each index has one writer and a cache line to itself.
struct RingControl {
    alignas(64) std::atomic<std::uint32_t> request_tail;     // client
    alignas(64) std::atomic<std::uint32_t> request_head;     // daemon
    alignas(64) std::atomic<std::uint32_t> completion_tail;  // daemon
    alignas(64) std::atomic<std::uint32_t> completion_head;  // client
    // A side sets its flag before it sleeps, then looks at the ring once more. The other side, after publishing,
    // exchanges the flag for 0 and, if it was 1, wakes the sleeper: the daemon by a write to the request eventfd, the
    // client by a futex wake on `client_sleeping` itself. So a busy pair makes no system call. Each side puts a seq_cst
    // fence between its two steps (set the flag | look at the ring; publish the tail | look at the flag): then at least
    // one side sees the other's write, and no wake-up is lost. A sleeping client looks at its socket now and then,
    // because the daemon may end without a wake.
    alignas(64) std::atomic<std::uint32_t> daemon_sleeping;
    alignas(64) std::atomic<std::uint32_t> client_sleeping;
    // Reported by the client, as running totals. `training_loops` is 1 if this session reports the stall of its
    // training loop, and 0 if another session reports the stall (DataLoader workers) or nobody knows it. A wait in
    // progress is not in `stall_ns`; it began at `waiting_since_ns` (CLOCK_MONOTONIC; 0: the loop does not wait). A
    // wait that ends is put in `takes` and `stall_ns` first, so a reader of `waiting_since_ns` misses no wait.
    alignas(64) std::atomic<std::uint64_t> stall_ns;
    std::atomic<std::uint64_t> samples_delivered;
    std::atomic<std::uint64_t> bytes_delivered;
    std::atomic<std::uint32_t> training_loops;
    std::atomic<std::int64_t> waiting_since_ns;
    // The time that the loop did not wait, updated together with `bytes_delivered`; neither changes in between.
    std::atomic<std::uint64_t> busy_ns;
    // The time of the report, up to which `busy_ns` and `bytes_delivered` count.
    std::atomic<std::int64_t> reported_ns;
    std::atomic<std::uint32_t> world_size;  // ranks that work in step with this loop, itself included; 0: unknown
    // 1: the loop runs in another process, so `takes` and `waiting_since_ns` hold at `reported_ns` only. 0: they hold
    // at any time.
    std::atomic<std::uint32_t> loop_is_elsewhere;
    TakeLog takes;  // the batches that the loop took
};
static_assert(sizeof(RingControl) <= kPageBytes);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

constexpr std::size_t whole_pages(std::size_t bytes) {
    return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}
constexpr std::size_t share_words(std::uint32_t block_count) {
    return (std::size_t{block_count} + 63) / 64;
}
// `share_blocks`: the blocks of the manifest if the session reads in shared order, else 0.
constexpr std::size_t ring_bytes(std::uint32_t ring_entries, std::uint32_t share_blocks = 0) {
    const std::size_t entries = std::size_t{ring_entries} * (sizeof(Request) + sizeof(Completion));
    return kPageBytes + whole_pages(entries) + whole_pages(share_words(share_blocks) * sizeof(std::uint64_t));
}
constexpr std::size_t requests_offset() {
    return kPageBytes;
}
constexpr std::size_t completions_offset(std::uint32_t ring_entries) {
    return kPageBytes + std::size_t{ring_entries} * sizeof(Request);
}
constexpr std::size_t share_offset(std::uint32_t ring_entries) {
    return ring_bytes(ring_entries);
}

}  // namespace larder::protocol
