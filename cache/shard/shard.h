#pragma once

// The data plane of some datasets of a node, on one thread. A Shard owns those datasets' stores, their misses in
// flight, the jobs that read them and their sessions; nothing in it is shared with another thread, so its hot path
// takes no lock. `turn` does one round: takes requests from the sessions' rings, answers memory hits at once, starts
// disk and remote reads on the Device, publishes completions (at most one system call a session and round), and waits
// on the Device when there is nothing to do.
//
// Tests drive a Shard by hand with a fake device and clock; ShardThread (shard_thread.h) runs one in production and
// takes the control plane's calls as messages. All calls on the shard's thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "cache/device.h"
#include "cache/device/client_socket.h"
#include "cache/protocol/manifest.h"
#include "cache/remote.h"
#include "cache/shard/held_blocks.h"
#include "cache/shard/lender.h"
#include "cache/shard/offered_blocks.h"
#include "cache/shard/peer_blocks.h"
#include "cache/shard/statistics.h"
#include "cache/shard/token_bucket.h"
#include "cache/store.h"
#include "cache/store/compression.h"

namespace larder::cache {

// The job that the daemon's own scans run under; no client can take a name with parentheses.
inline constexpr const char* kScanJob = "(scan)";
// And the one that what is lent to other nodes is read under.
inline constexpr const char* kPeersJob = "(peers)";

// A dataset as the control plane hands it over at start-up or when it is added.
struct DatasetSetup {
    std::string name;
    std::unique_ptr<DatasetStore> store;  // recovered, on the shard's device
    std::unique_ptr<Remote> remote;       // on the shard's device
    Quota quota;
    std::shared_ptr<const protocol::Manifest> manifest;  // the newest version
    Compression compression;
};

// An attached session: the daemon's ends of all that wire.h describes.
struct SessionSetup {
    std::uint64_t session_id = 0;
    std::uint64_t dataset_id = 0;
    std::string job;
    std::int32_t pid = 0;  // of the client, for the log; 0: in a pid namespace we cannot see
    std::uint32_t uid = 0;
    std::shared_ptr<TokenBucket> bucket;                 // the job's, shared by all its sessions on the node
    std::shared_ptr<const protocol::Manifest> manifest;  // the version this session reads
    ClientSocket socket;
    FileDescriptor request_event;  // an eventfd; the client has the same open file description
    Mapping ring;
    std::shared_ptr<const Mapping> slots;  // shared with the control plane, which populates and unmaps it elsewhere
    // Asks for memory behind the first so many bytes of the slots; `Shard::slots_populated` says when it is there.
    // Empty: all is there.
    std::function<void(std::uint64_t bytes)> populate_slots;
    std::uint32_t ring_entries = 0;
    bool sequential = false;
};

enum class ScanKind : std::uint8_t {
    warm,           // bring in what the quota allows, chosen by hash so that it is a uniform sample
    verify,         // re-read every cached block and check its CRC; a bad one is dropped
    verify_remote,  // the same, and compare with the remote's bytes
};

struct ShardOptions {
    std::int64_t segment_unmap_limit_ns = 10'000'000'000;  // a session that keeps a dropped segment longer is closed
    std::uint32_t requests_per_session_turn = 512;
    std::uint32_t scan_blocks_in_flight = 16;
    std::uint32_t disk_reads_in_flight_max = 128;
    std::uint32_t lending_slots = 16;  // of each dataset: blocks read from disk for other nodes at one time
    bool compress_on_a_thread = true;  // false: in a turn of the shard, for tests that are to be deterministic
};

class Shard {
public:
    // `device` and `clock` must outlive it.
    Shard(Device& device, const Clock& clock, ShardOptions options = {});
    ~Shard();

    Device& device();

    void add_dataset(DatasetSetup setup);
    // A newer version of a dataset, for sessions to come; its block ids may be new to the store.
    void add_version(std::uint64_t dataset_id, std::shared_ptr<const protocol::Manifest> manifest);
    // Closes the dataset's sessions and deletes what is cached of it.
    void remove_dataset(std::uint64_t dataset_id);
    // As BlockServer::keep_only has it; of a dataset that is not here nothing.
    void keep_only(std::uint64_t dataset_id, std::span<const std::uint64_t> live);
    void set_quota(std::uint64_t dataset_id, Quota quota);

    void attach(SessionSetup setup);
    // The first `bytes` of the session's slot memory have been populated: what waits for them goes on. `settled`: no
    // more were asked for, so they are registered with the device.
    void slots_populated(std::uint64_t session_id, std::uint64_t bytes, bool settled);

    // Starts a scan; at most one a dataset runs, another is refused with already_exists. `progress` is shared with the
    // caller, who may also set its `cancel`.
    Result<void> start_scan(std::uint64_t dataset_id, ScanKind kind, std::shared_ptr<TokenBucket> bucket,
                            std::shared_ptr<ScanProgress> progress);

    // For other nodes. `lend` is called once, on this thread, with the block as it is cached here or with nothing; then
    // the token goes back. Of a dataset that is not here there is nothing.
    void lend(std::uint64_t dataset_id, std::shared_ptr<const protocol::Manifest> manifest, std::uint32_t block,
              Lend lend);
    void give_back(std::uint64_t dataset_id, std::uint64_t token);
    // Takes a block that another node offers into the cache, where there is room; whether it does.
    bool take_offered(std::uint64_t dataset_id, OfferedBlock offered);
    // Which blocks are cached here, and what is free of the quota; null: the dataset is not here.
    struct Held {
        std::shared_ptr<const HeldBlocks> blocks;
        std::uint64_t room_bytes = 0;
    };
    Held held(std::uint64_t dataset_id) const;
    // What other nodes hold of the dataset; passed over when it is not here.
    void set_peers(std::uint64_t dataset_id, std::shared_ptr<const PeerBlocks> peers);

    // One round; blocks in the device until `deadline_ns` at most when nothing is to be done.
    void turn(std::int64_t deadline_ns);

    // Closes every session and waits, `deadline_ns` at most, for reads and writes in flight. The stores go with the
    // shard.
    void drain(std::int64_t deadline_ns);
    // Drains, then stops the device, so that nothing lands in memory that goes with the shard. Only destruction may
    // follow.
    void stop(std::int64_t deadline_ns);

    ShardStatistics statistics() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace larder::cache
