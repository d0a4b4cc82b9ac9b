#pragma once

// The work items of the data plane. A Fetch is one block that one consumer asked for, from request to completion. A
// Miss is one block being read from the remote, with every Fetch that waits for it: however many ask, the remote is
// read once. A Consumer is who asked: a session of a training job, or the daemon's own scan.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "cache/device.h"
#include "cache/protocol/manifest.h"
#include "cache/protocol/wire.h"
#include "cache/remote.h"
#include "cache/store.h"

namespace larder::cache {

struct Job;
struct Miss;
class BlockServer;
class Consumer;

struct Fetch {
    Operation operation;  // the disk read
    BlockServer* server = nullptr;
    Consumer* consumer = nullptr;
    Miss* miss = nullptr;
    Fetch* next_waiter = nullptr;  // of the miss
    Fetch* next_queued = nullptr;  // in the job's queue for tokens
    Fetch* next_disk_read = nullptr;
    const Segment* segment = nullptr;
    std::uint64_t record_offset = 0;
    std::uint32_t record_bytes = 0;
    std::uint32_t read_bytes = 0;
    std::uint32_t tag = 0;
    std::uint32_t block = 0;
    std::uint32_t block_id = 0;
    std::uint32_t payload_bytes = 0;  // of the block
    std::uint32_t stored_bytes = 0;   // of its record on disk: fewer where it is compressed
    std::uint32_t payload_crc = 0;    // of those
    std::uint32_t epoch = 0;
    std::uint32_t slot_page = 0;
    std::uint32_t slot_pages = 0;
    std::int64_t started_ns = 0;
    bool queued = false;     // referenced by the job's queue
    bool delivered = false;  // only the queue still refers to it
    bool joined = false;     // a read of its miss that was under way
    std::uint8_t disk_tries = 0;
    bool anew = false;  // the bytes of `damaged_crc` that it had are damaged
    std::uint32_t damaged_crc = 0;
};

struct Miss {
    RemoteRead read;
    BlockServer* server = nullptr;
    Fetch* first_waiter = nullptr;
    Fetch* last_waiter = nullptr;
    Job* payer = nullptr;     // of the read from the remote that is under way, for which it waits itself
    Fetch* leader = nullptr;  // whose slot receives the bytes; null when they go straight into a memory segment
    std::optional<Reservation> reservation;
    std::uint32_t block_id = 0;
    std::uint32_t payload_bytes = 0;
    std::uint32_t block = 0;  // in the manifest of the leader, since it started
    std::string peer_path;    // where a peer has it
    std::size_t peer = 0;     // 1 + index of the link it is read through; 0: from the remote
    bool started = false;
    bool failed_once = false;  // its bytes did not have the manifest's checksum
};

// A block on its way from a slot to another node's cache.
struct Offer {
    RemoteRead send;
    BlockServer* server = nullptr;
    Consumer* consumer = nullptr;
    std::string path;
    std::size_t peer = 0;
    std::uint32_t slot_page = 0;
    std::uint32_t slot_pages = 0;
};

// What became of a fetch.
struct Delivery {
    protocol::BlockStatus status = protocol::BlockStatus::ok;
    protocol::BlockSource source = protocol::BlockSource::none;
    int system_errno = 0;
    const Segment* segment = nullptr;  // for source memory
    std::uint64_t payload_offset = 0;  // for source memory: in the segment
    std::uint32_t stored_bytes = 0;    // 0: as the block is; else compressed to so many
};

class Consumer {
public:
    virtual ~Consumer() = default;

    // Where the fetch's slot lies in the daemon's mapping.
    virtual std::byte* slot(const Fetch& fetch) = 0;
    // The fetch is over. The consumer must not keep the pointer.
    virtual void deliver(const Fetch& fetch, const Delivery& delivery) = 0;
    // The fetch's slot is being written to disk, and must not be reused, until the matching unpin.
    virtual void pin(const Fetch& fetch) = 0;
    virtual void unpin(std::uint32_t slot_page, std::uint32_t slot_pages) = 0;

    bool closed() const { return closed_; }
    // The dataset version it reads.
    virtual const protocol::Manifest& manifest() const = 0;
    Job& job() const { return *job_; }
    // Blocks are asked for in no random order: admit by hash.
    bool sequential() const { return sequential_; }
    // Wants what this node holds, and nothing from elsewhere.
    virtual bool cached_only() const { return false; }

    // Fetches, pins and watches that refer to this consumer; it may go when closed and none is left.
    void refer() { ++references_; }
    void unrefer() { --references_; }
    bool unreferenced() const { return references_ == 0; }
    // The device has stopped: what was under way will never end.
    void abandon_references() { references_ = 0; }

protected:
    Consumer(Job& job, bool sequential) : job_(&job), sequential_(sequential) {}
    bool closed_ = false;

private:
    Job* job_;
    bool sequential_;
    std::uint32_t references_ = 0;
};

}  // namespace larder::cache
