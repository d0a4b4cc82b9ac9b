#pragma once

// A BlockServer serves the blocks of one dataset. It delivers a memory hit at once, reads a disk hit through the
// device, and reads a miss from a peer or from the remote under the asking job's rate limit. It keeps one read in
// flight per missed block, decides what the DatasetStore admits, checks the CRC of every disk read, and refetches from
// the remote if a cached block is bad. Lives on its shard's thread.

#include <boost/unordered/unordered_flat_map.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cache/device.h"
#include "cache/protocol/manifest.h"
#include "cache/remote.h"
#include "cache/shard/admission.h"
#include "cache/shard/disk_reads.h"
#include "cache/shard/fetch.h"
#include "cache/shard/held_blocks.h"
#include "cache/shard/peer_links.h"
#include "cache/shard/pool.h"
#include "cache/shard/quarantine.h"
#include "cache/shard/read_digests.h"
#include "cache/shard/reading_group.h"
#include "cache/shard/shard.h"
#include "cache/shard/shard_job.h"
#include "cache/shard/statistics.h"
#include "cache/shard/tracer.h"
#include "cache/store/store.h"

namespace larder::cache {

class BlockServer {
public:
    // The parts of the shard that its BlockServers share; they must outlive these.
    struct Shared {
        Device& device;
        DiskReads& disk_reads;
        Compressor& compressor;
        Background& digester;
        Tracer& tracer;
        const std::int64_t& now_ns;      // the time of the current turn
        bool takes_digests = false;      // of blocks that come from the remote, to check peers by
        std::uint64_t window_bytes = 0;  // of the shared window of each dataset; more if its jobs need more
    };
    // Calls `on_window_drop` with each segment of the shared window before it is dropped.
    BlockServer(DatasetSetup setup, const Shared& shared, std::function<void(const Segment&)> on_window_drop = {});
    ~BlockServer();

    const std::string& name() const { return name_; }
    std::uint64_t dataset_id() const { return dataset_id_; }
    DatasetStore& store() { return *store_; }
    Remote& remote() { return *remote_; }
    const protocol::Manifest& manifest() const { return *manifest_; }
    std::shared_ptr<const protocol::Manifest> shared_manifest() const { return manifest_; }

    // Returns a new fetch of a block of `manifest`, the consumer's version. The caller fills in the rest of the request
    // and gives the fetch to `serve` at once.
    Fetch& new_fetch(Consumer& consumer, const protocol::Manifest& manifest, std::uint32_t block);
    // Serves the fetch. `slot_ready`: the slot may be written. If the block needs a slot that is not ready, drops the
    // fetch and returns false. `waiting_since_ns`: what wait_begins_ns() was when that happened to the same request.
    bool serve(Fetch& fetch, bool slot_ready = true, std::int64_t waiting_since_ns = 0);
    // The time from which a fetch of this job waits for its slot; 0 if the job's blocks are not traced.
    std::int64_t wait_begins_ns(const ShardJob& job) const { return job.recording == 0 ? 0 : tracer_.now_ns(); }
    // Traces the blocks of the jobs of this name in the recording of this number. False if there are none.
    bool trace(std::string_view job, std::uint32_t recording);

    // True if this turn has answered requests whose latency is not recorded yet.
    bool any_answered_at_once() const { return any_answered_at_once_; }
    // Records the latency of these requests. `took_ns` is the time from taking the requests to posting the answers.
    void note_posted(std::int64_t took_ns);

    // Starts the remote reads that the token buckets allow. Returns the time at which the next read could start.
    std::int64_t pump();

    void add_version(std::shared_ptr<const protocol::Manifest> manifest);
    // Drops blocks that no live version uses. See DatasetStore::drop_dead_blocks.
    void drop_dead_blocks(std::span<const std::uint64_t> live, const std::function<void(const Segment&)>& on_drop);
    // Calls `on_drop` with each memory segment before it is dropped.
    void set_quota(Quota quota, const std::function<void(const Segment&)>& on_drop);
    void clear(const std::function<void(const Segment&)>& on_drop);
    // Drops a cached block that is bad. Does nothing if the block is not cached.
    void forget(std::uint32_t block_id);
    // Drops a cached block whose place on the disk cannot be read.
    void retire(std::uint32_t block_id);
    // True if uniform sampling by hash keeps this block under the current quota.
    bool chosen_by_hash(std::uint32_t block_id) const;

    // Stored bytes per byte of the dataset, measured on the blocks tried so far; 1 if none is compressed.
    double stored_ratio() const { return admission_.choice().stored_ratio(); }

    // Quarantines a block whose bytes from the remote failed the checksum twice. `manifest` is a version that has the
    // block. `end_quarantine` undoes this when the remote's bytes are right again.
    void quarantine(const protocol::Manifest& manifest, std::uint32_t block);
    void end_quarantine(std::uint32_t block_id) { quarantine_.remove(block_id); }
    // Notes the CRC of a block's bytes at the remote. If a reader's report was about other bytes, ends the quarantine
    // that the report began.
    void note_remote_bytes(std::uint32_t block_id, std::uint32_t crc);

    // Returns the job of this name, created if missing. For the daemon's own reads, which belong to no epoch.
    ShardJob& job(const std::string& name, std::shared_ptr<TokenBucket> bucket);
    // Adds a session to the job. The first session begins an epoch, even if an earlier run had the same job name.
    ShardJob& join(const std::string& name, std::shared_ptr<TokenBucket> bucket, const protocol::Manifest& manifest);
    // The group of the sessions that read this version in shared order. Lives until its last reader leaves.
    ReadingGroup& group_of(const std::shared_ptr<const protocol::Manifest>& manifest);
    GroupReader& join_group(ReadingGroup& group, ShardJob& job, std::uint64_t seed);
    void leave_group(ReadingGroup& group, const GroupReader& reader);
    // Chooses the reader's next block; see ReadingGroup::choose.
    Choice choose(ReadingGroup& group, GroupReader& reader);

    // Includes the last kEndedJobsMax jobs that have ended.
    const std::vector<std::unique_ptr<ShardJob>>& jobs() const { return jobs_; }
    static constexpr std::size_t kEndedJobsMax = 64;

    // For the control plane, which may keep the pointer. Each new version of the dataset replaces the object.
    std::shared_ptr<const HeldBlocks> held() const { return held_; }
    // The digests of the blocks that this node read from the remote; null if none are taken.
    std::shared_ptr<const ReadDigests> digests() const { return digests_; }
    // Admits a block that a peer offered and that lies in the slot of `fetch`. True if the block is cached now, was
    // handed to Admission, or is being read by this node itself. Refuses a block whose digest is not trusted here.
    bool admit_offered(const Fetch& fetch, std::uint32_t payload_crc, const BlockDigest& digest);
    bool held_at_peers(std::uint32_t block) const { return peers_.link_to(*manifest_, block, now_ns_) != 0; }
    // Replaces what is known of the blocks that other nodes hold.
    void set_peers(std::shared_ptr<const PeerBlocks> peers);

    // Fetches, misses, offers and writes in flight.
    std::size_t in_flight() const {
        return fetches_.taken() + misses_.taken() + offers_.taken() + admission_.in_flight() +
               store_->operations_in_flight();
    }

    BlockCounters& counters() { return counters_; }
    DatasetStatistics statistics() const;

private:
    void read_from_disk(Fetch& fetch, const BlockLocation& location);
    void continue_disk_read(Fetch& fetch);
    void disk_read_done(Fetch& fetch, std::int32_t result);
    bool record_is_good(const Fetch& fetch) const;
    void read_from_remote(Fetch& fetch);
    void queue_for_tokens(Fetch& fetch);
    ShardJob* payer_of(const Fetch& fetch, std::int64_t& next_ns);
    void start(Miss& miss, ShardJob& payer);
    bool start_at_peer(Miss& miss, Fetch& fetch);
    void peer_read_done(Miss& miss, protocol::BlockStatus status);
    void finish_peer_read(Miss& miss, protocol::BlockStatus status, bool is_good);
    void take_digest(Miss& miss, ReadDigests* note_in, void (*done)(BackgroundWork& work) noexcept);
    BlockDigest trusted_digest(const Fetch& fetch) const;
    bool requeue(Miss& miss);
    bool offer_to_peer(const Miss& miss, std::uint32_t payload_crc);
    void remote_read_done(Miss& miss, protocol::BlockStatus status, int system_errno);
    void finish_remote_read(Miss& miss);
    bool has_right_checksum(const Miss& miss, std::uint32_t payload_crc) const;
    bool try_again(Miss& miss);
    bool is_reported_bad(const Fetch& fetch) const;
    void check_damage_report(Fetch& fetch);
    void settle_damage_reports(const Miss& miss, std::uint32_t payload_crc);
    std::optional<std::uint32_t> cached_crc(const BlockLocation& location) const;
    void give_up_reservation(Miss& miss);
    bool requeue_joined_waiters(Miss& miss, int system_errno);
    void copy_to_waiters(const Miss& miss);
    void finish(Miss& miss, protocol::BlockSource source, std::uint32_t payload_crc = 0);
    void fail(Miss& miss, protocol::BlockStatus status, int system_errno);
    void fail(Fetch& fetch, protocol::BlockStatus status, int system_errno = 0);
    void deliver(Fetch& fetch);
    void deliver_from_memory(Fetch& fetch, const BlockLocation& location);
    void begin_trace(Fetch& fetch, std::int64_t waiting_since_ns);
    void end_trace(const Fetch& fetch);
    // Open and close a step of all traced waiters.
    void open_step(const Miss& miss, TraceStep step);
    void close_step(const Miss& miss, TraceStep step);
    void close_read(const Miss& miss, TraceStep step);
    void note_admitted_to_memory(const Miss& miss);
    void note_admitted(std::uint32_t block_id, std::uint64_t bytes);
    void forget_ended_jobs();
    void begin_epoch(ShardJob& job, std::uint32_t epoch, const protocol::Manifest& manifest);
    DatasetStore::DropObserver drop_observer(const std::function<void(const Segment&)>& on_drop);
    void update_hash_threshold();
    void update_window();
    bool is_for_window(const Miss& miss);
    void withdraw(std::uint32_t block_id);
    void note_begun(std::uint32_t block_id);
    bool may_admit(const Consumer& consumer, std::uint32_t block_id) const;

    std::string name_;
    std::uint64_t dataset_id_;
    Device& device_;
    DiskReads& disk_reads_;
    Background& digester_;
    Tracer& tracer_;
    const std::int64_t& now_ns_;
    std::unique_ptr<DatasetStore> store_;
    std::unique_ptr<Remote> remote_;
    PeerLinks peers_;
    std::shared_ptr<const protocol::Manifest> manifest_;
    Admission admission_;
    std::vector<std::unique_ptr<ShardJob>> jobs_;
    boost::unordered_flat_map<std::uint32_t, Miss*> missing_;
    Pool<Fetch> fetches_;
    Pool<Miss> misses_;
    Pool<Offer> offers_;
    std::uint64_t offered_bytes_in_flight_ = 0;
    std::uint64_t hash_threshold_ = 0;
    std::vector<std::unique_ptr<ReadingGroup>> groups_;  // one for each version that is read in shared order
    std::uint64_t window_bytes_;                         // as configured
    std::function<void(const Segment&)> on_window_drop_;
    std::shared_ptr<HeldBlocks> held_;
    std::shared_ptr<ReadDigests> digests_;  // null: none are taken
    Quarantine quarantine_;
    // Blocks refetched because a reader reported damage, by block id. Not kept across restarts.
    struct DamageReport {
        std::uint32_t crc = 0;        // of the remote's last bytes
        std::uint32_t refetches = 0;  // that brought other bytes than the reported ones
        std::int64_t checked_ns = 0;  // when the copy in memory was last checked
    };
    boost::unordered_flat_map<std::uint32_t, DamageReport> refetched_;
    BlockCounters counters_;
    std::array<LatencyHistogram, protocol::kBlockSources> latency_;
    std::array<std::uint64_t, protocol::kBlockSources> answered_at_once_{};
    bool any_answered_at_once_ = false;
};

inline constexpr std::int64_t kNever_ns = std::numeric_limits<std::int64_t>::max();

}  // namespace larder::cache
