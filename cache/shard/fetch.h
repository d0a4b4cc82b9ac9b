#pragma once

// The work items of the data plane. A Fetch is one block that one consumer asked for, from request to result. A
// Miss is the read of one block from the remote, with every Fetch that waits for it: the remote is read once for all of
// them. A Consumer asks for blocks: a session of a training job, or the daemon itself (a scan, or blocks for other
// nodes).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "cache/device.h"
#include "cache/protocol/manifest.h"
#include "cache/protocol/wire.h"
#include "cache/remote.h"
#include "cache/shard/background.h"
#include "cache/shard/read_digests.h"
#include "cache/shard/tracer.h"
#include "cache/store/store.h"

namespace larder::cache {

struct ShardJob;
struct Miss;
class BlockServer;
class Consumer;
class GroupReader;
class ReadingGroup;

struct Fetch {
    Operation operation;  // the disk read
    BlockServer* server = nullptr;
    Consumer* consumer = nullptr;
    Miss* miss = nullptr;
    // The links of FetchLists.
    Fetch* next_waiter = nullptr;     // next fetch that waits for the same miss
    Fetch* next_queued = nullptr;     // next fetch in the job's queue for tokens
    Fetch* next_disk_read = nullptr;  // next fetch whose disk read waits for its turn

    // The request.
    std::uint32_t tag = 0;
    std::uint32_t block = 0;  // index in the consumer's version
    std::uint32_t block_id = 0;
    std::uint32_t payload_bytes = 0;  // of the block
    std::uint32_t slot_page = 0;
    std::uint32_t slot_pages = 0;
    std::uint32_t epoch = 0;
    std::uint32_t damaged_crc = 0;
    bool is_refetch = false;  // the consumer found its copy, whose CRC is `damaged_crc`, damaged

    bool queued = false;     // referenced by the job's queue
    bool delivered = false;  // only the queue still refers to it
    bool joined = false;     // joined its miss when the read was already in flight
    std::uint8_t disk_tries = 0;
    std::int64_t started_ns = 0;
    std::uint32_t record_bytes = 0;
    std::uint32_t read_bytes = 0;
    TraceId trace;

    // The result, complete when the consumer takes it.
    protocol::BlockStatus status = protocol::BlockStatus::ok;
    protocol::BlockSource source = protocol::BlockSource::none;
    int system_errno = 0;
    const Segment* segment = nullptr;  // the memory segment that has the block; null: the slot has it
    std::uint64_t record_offset = 0;   // in the segment
    std::uint32_t stored_bytes = 0;    // of the delivered payload: fewer than payload_bytes if compressed
    std::uint32_t payload_crc = 0;     // of the stored bytes, if the store has them

    bool is_compressed() const { return stored_bytes != payload_bytes; }
};

// A list of fetches in the order of `push`, linked through one member of Fetch. A fetch is in one list per link.
template <Fetch* Fetch::* Next>
class FetchList {
public:
    class Iterator {
    public:
        explicit Iterator(Fetch* fetch) : fetch_(fetch) {}
        Fetch* operator*() const { return fetch_; }
        Iterator& operator++() {
            fetch_ = fetch_->*Next;
            return *this;
        }
        bool operator==(const Iterator&) const = default;

    private:
        Fetch* fetch_;
    };
    Iterator begin() const { return Iterator(first_); }
    Iterator end() const { return Iterator(nullptr); }

    Fetch* first() const { return first_; }  // null if the list is empty
    void push(Fetch& fetch) {
        fetch.*Next = nullptr;
        (first_ == nullptr ? first_ : last_->*Next) = &fetch;
        last_ = &fetch;
    }
    // Removes and returns the first fetch; null if the list is empty.
    Fetch* pop() {
        Fetch* const fetch = first_;
        if (fetch != nullptr) first_ = fetch->*Next;
        return fetch;
    }

private:
    Fetch* first_ = nullptr;
    Fetch* last_ = nullptr;  // if there is a first
};

// Takes the digest of the bytes that a miss has read.
struct DigestWork : BackgroundWork {
    Miss* miss = nullptr;
    ReadDigests* note_in = nullptr;  // where the digest is noted; null: nowhere
    BlockDigest digest;              // the result
};

struct Miss : RemoteRead {
    BlockServer* server = nullptr;
    FetchList<&Fetch::next_waiter> waiters;
    ShardJob* paying_job = nullptr;  // paid for the remote read in flight
    Fetch* leader = nullptr;         // set at the start; its slot receives the bytes unless there is a reservation
    std::optional<Reservation> reservation;
    std::uint32_t block_id = 0;
    std::uint32_t payload_bytes = 0;
    std::uint32_t block = 0;  // index in the leader's manifest, set at the start
    std::string peer_path;    // the path of the block at the peer
    std::size_t peer = 0;     // 1 + index of the peer link in use; 0: the remote
    std::uint32_t payload_crc = 0;
    BlockDigest expected;  // of the bytes that the peer should send; not known: the peer is trusted
    DigestWork digest_work;
    RemoteTimes remote_times;  // of the last read, if it was traced
    bool started = false;
    bool is_traced = false;    // a waiter has a trace
    bool failed_once = false;  // the bytes did not match the manifest's checksum
};

// A block on its way from a slot to another node's cache. PeerRemote::offer() takes it as a RemoteRead whose
// `into` is the memory to send.
struct Offer : RemoteRead {
    BlockServer* server = nullptr;
    Consumer* consumer = nullptr;
    std::string peer_path;  // the path of the block at the peer
    std::uint32_t block = 0;
    std::size_t peer = 0;
    std::uint32_t slot_page = 0;
    std::uint32_t slot_pages = 0;
};

class Consumer {
public:
    virtual ~Consumer() = default;

    // The address of the fetch's slot in the daemon's memory.
    virtual std::byte* slot(const Fetch& fetch) = 0;
    // Takes the result of a finished fetch. The consumer must not keep a reference to `fetch`.
    virtual void deliver(const Fetch& fetch) = 0;
    // The fetch's slot is being read by admission or sent to a peer. It must not be reused until clear_busy().
    virtual void mark_busy(const Fetch& fetch) = 0;
    virtual void clear_busy(std::uint32_t slot_page, std::uint32_t slot_pages) = 0;

    bool closed() const { return closed_; }
    // The dataset version that the consumer reads.
    virtual const protocol::Manifest& manifest() const = 0;
    ShardJob& job() const { return *job_; }
    // True if blocks are not requested in random order, so that admission takes only blocks with low hashes.
    bool sequential() const { return sequential_; }
    // The consumer's place in the group that it reads with; null if it names the blocks itself.
    GroupReader* reader() const { return reader_; }
    ReadingGroup* group() const { return group_; }
    // True if only blocks that this node holds may be delivered.
    virtual bool cached_only() const { return false; }
    // True for warming and verifying: the dataset's hits and misses count only what jobs read.
    virtual bool is_scan() const { return false; }

    // Counts the fetches, busy slots and watches that refer to this consumer. A closed consumer without references may
    // be deleted.
    void refer() { ++references_; }
    void unrefer() { --references_; }
    bool unreferenced() const { return references_ == 0; }
    // Drops all references after the device has stopped: operations in flight never end then.
    void abandon_references() { references_ = 0; }

protected:
    Consumer(ShardJob& job, bool sequential) : job_(&job), sequential_(sequential) {}
    bool closed_ = false;
    GroupReader* reader_ = nullptr;
    ReadingGroup* group_ = nullptr;  // of reader_

private:
    ShardJob* job_;
    bool sequential_;
    std::uint32_t references_ = 0;
};

}  // namespace larder::cache
