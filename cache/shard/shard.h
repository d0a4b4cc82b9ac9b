#pragma once

// A Shard is the data plane of some of a node's datasets, on one thread. It owns those datasets' stores, their misses
// in flight, the jobs that read them and their sessions. It shares none of these with another thread, so its hot path
// takes no lock. `turn` does one round: takes requests from the sessions' rings, answers memory hits at once, starts
// disk and remote reads on the Device, publishes completions (at most one system call per session and round), and waits
// on the Device if there is nothing to do.
//
// Tests drive a Shard by hand with a fake device and clock. ShardThread (shard_thread.h) runs one in production and
// passes the control plane's calls to it as messages. Make all calls on the shard's thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "cache/dataset_definition.h"
#include "cache/device.h"
#include "cache/device/client_socket.h"
#include "cache/protocol/manifest.h"
#include "cache/protocol/wire.h"
#include "cache/remote.h"
#include "cache/shard/block_trace.h"
#include "cache/shard/held_blocks.h"
#include "cache/shard/lender.h"
#include "cache/shard/offered_blocks.h"
#include "cache/shard/peer_blocks.h"
#include "cache/shard/statistics.h"
#include "cache/shard/token_bucket.h"
#include "cache/store/store.h"

namespace larder::cache {

// The job of the daemon's own scans. Clients cannot take a name with parentheses.
inline constexpr const char* kScanJob = "(scan)";
// The job of reads for other nodes.
inline constexpr const char* kPeersJob = "(peers)";

// A dataset as the control plane hands it over at start-up or when it is added.
struct DatasetSetup {
    DatasetDefinition definition;
    std::unique_ptr<DatasetStore> store;  // recovered, on the shard's device
    std::unique_ptr<Remote> remote;       // on the shard's device
    Quota quota;
    std::shared_ptr<const protocol::Manifest> manifest;  // the newest version
};

// An attached session: the daemon's ends of the objects that wire.h describes.
struct SessionSetup {
    std::uint64_t session_id = 0;
    std::uint64_t dataset_id = 0;
    std::string job;
    std::int32_t pid = 0;  // of the client, for the log; 0: its pid namespace is not visible to the daemon
    std::uint32_t uid = 0;
    std::shared_ptr<TokenBucket> bucket;                 // the job's, shared by all its sessions on the node
    std::shared_ptr<const protocol::Manifest> manifest;  // the version this session reads
    ClientSocket socket;
    FileDescriptor request_event;  // an eventfd; the client has the same open file description
    Mapping ring;
    std::shared_ptr<const Mapping> slots;  // shared with the control plane, whose SlotKeeper populates and unmaps it
    // Asks to populate the first `bytes` of the slots. `Shard::slots_populated` reports when they are. Empty if all
    // slots are populated.
    std::function<void(std::uint64_t bytes)> populate_slots;
    std::uint32_t ring_entries = 0;
    protocol::ReadOrder order = protocol::ReadOrder::random;
};

enum class ScanKind : std::uint8_t {
    warm,           // fetch what the quota allows: a uniform sample, chosen by hash
    verify,         // reread every cached block, check its CRC, and drop it if bad
    verify_remote,  // the same, and compare with the remote's bytes
};

struct ShardOptions {
    std::int64_t segment_unmap_limit_ns = 10'000'000'000;  // a session that keeps a dropped segment longer is closed
    std::uint32_t requests_per_session_turn = 512;
    std::uint32_t scan_blocks_in_flight = 16;
    std::uint32_t disk_reads_in_flight_max = 128;
    std::uint32_t lending_slots = 16;  // per dataset: blocks read from disk for other nodes at one time
    bool background_threads = true;    // false: their work is done in a turn of the shard, for deterministic tests
    std::uint64_t window_bytes = 0;    // of each dataset's shared window; more if its jobs need more
    bool takes_digests = false;        // of blocks that come from the remote, to check blocks of other nodes by
};

class Shard {
public:
    // `device` and `clock` must outlive the Shard.
    Shard(Device& device, const Clock& clock, ShardOptions options = {});
    ~Shard();

    Device& device();

    void add_dataset(DatasetSetup setup);
    // Adds a newer version of a dataset, for later sessions. The version may have block ids that are new to the store.
    void add_version(std::uint64_t dataset_id, std::shared_ptr<const protocol::Manifest> manifest);
    // Closes the dataset's sessions and deletes its cached blocks.
    void remove_dataset(std::uint64_t dataset_id);
    // Drops blocks that no live version uses. See DatasetStore::drop_dead_blocks. Does nothing if the dataset is
    // unknown.
    void drop_dead_blocks(std::uint64_t dataset_id, std::span<const std::uint64_t> live);
    void set_quota(std::uint64_t dataset_id, Quota quota);

    void attach(SessionSetup setup);
    // The first `bytes` of the session's slot memory are populated. Resumes the fetches that wait for them. If
    // `settled`, no request for more bytes is outstanding, and the bytes are registered with the device.
    void slots_populated(std::uint64_t session_id, std::uint64_t bytes, bool settled);

    // Starts a scan. Fails with already_exists if a scan of the dataset is running. `progress` is shared with the
    // caller, who may set its `cancel`.
    Result<void> start_scan(std::uint64_t dataset_id, ScanKind kind, std::shared_ptr<TokenBucket> bucket,
                            std::shared_ptr<ScanProgress> progress);

    // Records what happens to the blocks that the job asks for, for `limit_ns` at most. Fails with not_found if no
    // dataset of this shard knows the job, with already_exists if the job is recorded. Calls nothing if it fails.
    Result<void> start_trace(std::shared_ptr<TraceRecording> recording, std::int64_t limit_ns);
    // Ends the recording early. Does nothing if it has ended.
    void stop_trace(const TraceRecording& recording);

    // Lends a block to other nodes. Calls `lend` once, on this thread, with the block as it is cached here, or with
    // nothing if the block is not cached or the dataset is unknown. `return_block` takes the token back.
    void lend(std::uint64_t dataset_id, std::shared_ptr<const protocol::Manifest> manifest, std::uint32_t block,
              Lend lend);
    void return_block(std::uint64_t dataset_id, std::uint64_t token);
    // Admits a block that another node offers. False if there is no room or the block is not wanted.
    bool take_offered(std::uint64_t dataset_id, OfferedBlock offered);
    // The blocks cached here, their digests, and the free bytes of the quota. `blocks` is null if the dataset is
    // unknown.
    struct Held {
        std::shared_ptr<const HeldBlocks> blocks;
        std::shared_ptr<const ReadDigests> digests;  // null: none are taken
        std::uint64_t room_bytes = 0;
    };
    Held held(std::uint64_t dataset_id) const;
    // Sets what other nodes hold of the dataset. Does nothing if the dataset is unknown.
    void set_peers(std::uint64_t dataset_id, std::shared_ptr<const PeerBlocks> peers);

    // Runs one round. If there is nothing to do, blocks in the device until `deadline_ns` at most.
    void turn(std::int64_t deadline_ns);

    // Closes every session and waits, until `deadline_ns` at most, for reads and writes in flight. The stores are
    // destroyed with the shard.
    void drain(std::int64_t deadline_ns);
    // Drains, then stops the device, so that nothing writes to memory that is freed with the shard. Only destruction
    // may follow.
    void stop(std::int64_t deadline_ns);

    ShardStatistics statistics() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace larder::cache
