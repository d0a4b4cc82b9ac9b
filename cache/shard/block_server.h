#pragma once

// Serves the blocks of one dataset to whoever asks: from memory at once, from disk through the device, from the remote
// under the asking job's rate limit. It keeps one read in flight per missed block, decides what is admitted (through
// the DatasetStore), checks the CRC of every disk read, and falls back to the remote when a cached block is bad. Lives
// on its shard's thread.

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
#include "cache/shard/job.h"
#include "cache/shard/peer_links.h"
#include "cache/shard/pool.h"
#include "cache/shard/quarantine.h"
#include "cache/shard/shard.h"
#include "cache/shard/statistics.h"
#include "cache/store.h"

namespace larder::cache {

// What to bring, for whom, and where to.
struct FetchRequest {
    Consumer* consumer = nullptr;
    const protocol::Manifest* manifest = nullptr;  // the consumer's version
    std::uint32_t tag = 0;
    std::uint32_t block = 0;  // index in that manifest
    std::uint32_t slot_page = 0;
    std::uint32_t slot_pages = 0;
    std::uint32_t epoch = 0;
    bool slot_ready = true;  // the slot may be written
    bool anew = false;       // the consumer has it, and found the bytes of `damaged_crc` damaged by what stands in them
    std::uint32_t damaged_crc = 0;
};

class BlockServer {
public:
    // `disk_reads`, `compressor` and `now_ns`, the time of the current turn, are the shard's.
    BlockServer(DatasetSetup setup, Device& device, DiskReads& disk_reads, Compressor& compressor,
                const std::int64_t& now_ns);
    ~BlockServer();

    const std::string& name() const { return name_; }
    std::uint64_t dataset_id() const { return dataset_id_; }
    DatasetStore& store() { return *store_; }
    Remote& remote() { return *remote_; }
    const protocol::Manifest& manifest() const { return *manifest_; }
    std::shared_ptr<const protocol::Manifest> shared_manifest() const { return manifest_; }

    // False, and nothing is done, when the block would have to be written to a slot that is not ready.
    bool serve(const FetchRequest& request);

    // Whether the turn has answered some of what it took, and has not said yet how long that took.
    bool any_answered_at_once() const { return any_answered_at_once_; }
    // Those answers are posted: from taking the requests it took so long.
    void note_posted(std::int64_t took_ns);

    // Starts the remote reads that tokens allow; returns when the next could start.
    std::int64_t pump();

    void add_version(std::shared_ptr<const protocol::Manifest> manifest);
    // What no version that is still needed has goes, as DatasetStore::keep_only has it.
    void keep_only(std::span<const std::uint64_t> live, const std::function<void(const Segment&)>& on_drop);
    // `on_drop` hears of each memory segment before it goes.
    void set_quota(Quota quota, const std::function<void(const Segment&)>& on_drop);
    void clear(const std::function<void(const Segment&)>& on_drop);
    // A cached block that turned out bad.
    void forget(std::uint32_t block_id);
    // Whether uniform sampling by hash would keep this block under the present quota.
    bool chosen_by_hash(std::uint32_t block_id) const;

    // Bytes of cache that a byte of the dataset takes, by the blocks tried so far: 1 where none is compressed.
    double stored_ratio() const { return admission_.choice().stored_ratio(); }

    // The block's bytes came wrong from the remote twice; `manifest` is a version that has it. Or they came right
    // again.
    void quarantine(const protocol::Manifest& manifest, std::uint32_t block);
    void end_quarantine(std::uint32_t block_id) { quarantine_.remove(block_id); }
    // The remote's bytes of a block, without a checksum to hold them against.
    void note_remote_bytes(std::uint32_t block_id, std::uint32_t crc);

    // Of the daemon's own reads, which are of no epoch.
    Job& job(const std::string& name, std::shared_ptr<TokenBucket> bucket);
    // A session of the job has come. The first one begins an epoch, also where an earlier run had the same name.
    Job& join(const std::string& name, std::shared_ptr<TokenBucket> bucket, const protocol::Manifest& manifest);
    // Those that have ended are among them, as many as kEndedJobsMax: the last.
    const std::vector<std::unique_ptr<Job>>& jobs() const { return jobs_; }
    static constexpr std::size_t kEndedJobsMax = 64;

    // For the control plane, which may keep it; another one when a version has come.
    std::shared_ptr<const HeldBlocks> held() const { return held_; }
    // A block that lies in the slot of a consumer of our own; whether it is cached now, or on its way there.
    bool admit_offered(const Fetch& fetch, std::uint32_t payload_crc);
    bool held_at_peers(std::uint32_t block) const { return peers_.link_to(*manifest_, block, now_ns_) != 0; }
    // What other nodes hold, from now on.
    void set_peers(std::shared_ptr<const PeerBlocks> peers);

    // Fetches, misses and writes under way.
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
    void start(Miss& miss, Job& payer);
    bool start_at_peer(Miss& miss, Fetch& fetch);
    void peer_read_done(Miss& miss, protocol::BlockStatus status);
    bool enqueue_again(Miss& miss);
    bool offer_to_peer(const Miss& miss, std::uint32_t payload_crc);
    void remote_read_done(Miss& miss, protocol::BlockStatus status, int system_errno);
    bool has_right_checksum(const Miss& miss, std::uint32_t payload_crc) const;
    bool try_again(Miss& miss);
    bool reported_bad(const Fetch& fetch) const;
    void judge_report(Fetch& fetch);
    void settle_read_anew(const Miss& miss, std::uint32_t payload_crc);
    std::optional<std::uint32_t> cached_crc(const BlockLocation& location) const;
    void give_up_reservation(Miss& miss);
    bool try_for_joined(Miss& miss, const Delivery& failure);
    void copy_to_waiters(const Miss& miss);
    void finish(Miss& miss, const Delivery& delivery, std::uint32_t payload_crc = 0);
    void deliver(Fetch& fetch, const Delivery& delivery);
    void deliver_from_memory(Fetch& fetch, const BlockLocation& location);
    void note_admitted(std::uint32_t block_id, std::uint64_t bytes);
    void forget_ended_jobs();
    void begin_epoch(Job& job, std::uint32_t epoch, const protocol::Manifest& manifest);
    DatasetStore::DropObserver drop_observer(const std::function<void(const Segment&)>& on_drop);
    void update_hash_threshold();
    bool may_admit(const Consumer& consumer, std::uint32_t block_id) const;

    std::string name_;
    std::uint64_t dataset_id_;
    Device& device_;
    DiskReads& disk_reads_;
    const std::int64_t& now_ns_;
    std::unique_ptr<DatasetStore> store_;
    std::unique_ptr<Remote> remote_;
    PeerLinks peers_;
    std::shared_ptr<const protocol::Manifest> manifest_;
    Admission admission_;
    std::vector<std::unique_ptr<Job>> jobs_;
    boost::unordered_flat_map<std::uint32_t, Miss*> missing_;
    Pool<Fetch> fetches_;
    Pool<Miss> misses_;
    Pool<Offer> offers_;
    std::uint64_t offered_bytes_in_flight_ = 0;
    std::uint64_t hash_threshold_ = 0;
    std::shared_ptr<HeldBlocks> held_;
    Quarantine quarantine_;
    // Blocks that were read anew for a reader, for as long as the daemon runs.
    struct ReadAnew {
        std::uint32_t crc = 0;  // of what came last
        std::uint32_t times = 0;
        std::int64_t checked_ns = 0;  // when its place in memory was last checked
    };
    boost::unordered_flat_map<std::uint32_t, ReadAnew> read_anew_;
    BlockCounters counters_;
    std::array<LatencyHistogram, protocol::kBlockSources> latency_;
    std::array<std::uint64_t, protocol::kBlockSources> answered_at_once_{};
    bool any_answered_at_once_ = false;
};

inline constexpr std::int64_t kNever_ns = std::numeric_limits<std::int64_t>::max();

}  // namespace larder::cache
