#pragma once

// The statistics of a shard, as plain values that can be copied to another thread: per dataset, per job, and the
// latency of blocks by source. Counters only grow while the daemon runs.

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/protocol/wire.h"
#include "cache/shard/quarantine.h"
#include "cache/shard/step_time.h"
#include "cache/store/compression.h"
#include "cache/store/store.h"

namespace larder::cache {

// Counts latencies by power of two of microseconds: bucket i holds latencies below 2^i us (and at or above 2^(i-1)).
struct LatencyHistogram {
    std::array<std::uint64_t, 32> buckets{};
    std::uint64_t count = 0;
    std::int64_t sum_ns = 0;

    void add(std::int64_t latency_ns, std::uint64_t times = 1) {
        const auto us = static_cast<std::uint64_t>(latency_ns < 0 ? 0 : latency_ns) / 1000;
        const auto bucket = static_cast<std::size_t>(std::bit_width(us));
        buckets[bucket < buckets.size() ? bucket : buckets.size() - 1] += times;
        count += times;
        sum_ns += latency_ns * static_cast<std::int64_t>(times);
    }
};

struct BlockCounters {
    std::uint64_t memory_hits = 0;
    std::uint64_t disk_hits = 0;
    std::uint64_t misses = 0;        // blocks delivered from the remote, counted once per waiter
    std::uint64_t memory_bytes = 0;  // delivered
    std::uint64_t disk_bytes = 0;
    std::uint64_t remote_bytes = 0;  // delivered; remote_read_bytes counts what was read
    std::uint64_t remote_read_bytes = 0;
    std::uint64_t remote_reads = 0;
    std::uint64_t remote_errors = 0;
    std::uint64_t crc_failures = 0;
    std::uint64_t peer_hits = 0;       // blocks delivered from other nodes' caches
    std::uint64_t peer_bytes = 0;      // delivered
    std::uint64_t peer_failures = 0;   // blocks that a peer should have held and did not deliver
    std::uint64_t offered_blocks = 0;  // accepted by other nodes because there was no room here
    std::uint64_t lent_blocks = 0;     // delivered to other nodes that asked
    std::uint64_t lent_bytes = 0;
    std::uint64_t remote_corrupt = 0;  // remote reads with a wrong checksum, and confirmed damage reports
};

struct DatasetStatistics {
    std::uint64_t dataset_id = 0;
    std::string name;
    BlockCounters counters;
    StoreUsage usage;
    Quota quota;
    std::uint64_t admissions_refused = 0;
    std::uint64_t quarantined_blocks = 0;
    std::vector<QuarantinedBlock> quarantined;  // at most Quarantine::kListedMax
    Compression compression;
    double stored_ratio = 1;  // of the blocks tried: see CompressionChoice
    bool disk_full = false;
    std::string disk_problem;  // why nothing is admitted to disk at the moment; empty when all is well
    std::uint32_t sessions = 0;
    std::vector<std::uint64_t> versions_in_use;  // read by sessions, each once
    // Latency from taking a request to publishing its completion, by BlockSource. Requests answered in the turn that
    // took them form one batch and share its latency.
    std::array<LatencyHistogram, protocol::kBlockSources> latency;
};

struct JobStatistics {
    std::string job;
    std::uint64_t dataset_id = 0;
    std::string dataset;
    BlockCounters counters;
    std::uint32_t sessions = 0;
    std::uint32_t epoch = 0;
    std::uint64_t unread_bytes = 0;           // of the current epoch
    std::uint64_t effective_cache_bytes = 0;  // unread and cached
    std::int64_t stall_ns = 0;                // as the clients report
    std::int64_t busy_ns = 0;                 // the time that the same training loops did not wait
    std::uint32_t training_loops = 0;         // the number of training loops in `stall_ns`
    std::optional<RecentWaits> waits;         // of loops that work in step with others on other nodes
    std::uint64_t waiting_bytes = 0;          // of fetches that wait for remote bandwidth
    std::uint64_t samples_delivered = 0;
    std::uint64_t bytes_delivered = 0;
    double rate_limit_bytes_per_second = 0;
    std::uint64_t burst_bytes = 0;
};

struct ShardStatistics {
    std::vector<DatasetStatistics> datasets;
    std::vector<JobStatistics> jobs;
    std::uint64_t protocol_violations = 0;
    std::uint32_t scans = 0;  // running
    std::string device;
};

// A block that a verify found bad or could not read, or that a warm-up could not fetch.
struct BlockFound {
    enum class What : std::uint8_t { bad_in_cache, corrupt_at_remote, unreadable };
    What what = What::bad_in_cache;
    std::string object;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::string why;  // set if unreadable
};

// The plan of a warm-up of a dataset.
struct WarmPlan {
    std::uint64_t blocks = 0;  // of the dataset
    std::uint64_t bytes = 0;
    std::uint64_t cached_blocks = 0;  // cached before the warm-up
    std::uint64_t cached_bytes = 0;
    std::uint64_t peer_blocks = 0;      // held by other nodes, so not fetched
    std::uint64_t promised_blocks = 0;  // to be fetched, and expected to fit in the quota
    std::uint64_t promised_bytes = 0;
    std::uint64_t quota_memory_bytes = 0;
    std::uint64_t quota_disk_bytes = 0;
};

// The blocks cached after a warm-up, and why the others are not.
struct WarmOutcome {
    std::uint64_t cached_blocks = 0;
    std::uint64_t cached_bytes = 0;
    std::uint64_t peer_blocks = 0;
    std::uint64_t quota_blocks = 0;        // the quota has no room
    std::uint64_t old_version_blocks = 0;  // cached blocks that only older versions have; they take room
    std::uint64_t disk_full_blocks = 0;
    std::uint64_t disk_failed_blocks = 0;
    std::uint64_t failed_blocks = 0;     // the remote did not deliver them
    std::uint64_t not_asked_blocks = 0;  // the remote failed too often in a row, or the scan was stopped
    std::uint64_t busy_blocks = 0;       // fetched while too many bytes were being written
    std::string disk_problem;
    std::uint64_t quota_memory_bytes = 0;  // at the end: an allocator may have changed the quota
    std::uint64_t quota_disk_bytes = 0;
    bool counted = false;  // false: the scan ended before counting
};

// The progress of a scan, written by the shard and read by the caller that started the scan.
struct ScanProgress {
    std::atomic<std::uint64_t> blocks_done{0};   // warm: blocks cached of those promised
    std::atomic<std::uint64_t> blocks_total{0};  // warm: promised blocks; 0 until `planned`
    std::atomic<std::uint64_t> bytes_done{0};
    std::atomic<std::uint64_t> blocks_bad{0};     // verify: dropped for a wrong CRC or for differing from the remote
    std::atomic<std::uint64_t> blocks_failed{0};  // the remote could not be read
    // verify_remote: the remote's bytes did not match the manifest's checksum, twice
    std::atomic<std::uint64_t> blocks_corrupt{0};
    std::atomic<std::uint64_t> blocks_unchecked{0};  // verify: not cached, and not verifiable at the remote
    // The first kFoundMax bad blocks. Written before `finished` is set; read only after.
    static constexpr std::size_t kFoundMax = 100;
    std::vector<BlockFound> found;
    // For warm. `plan` is written before `planned` is set, `outcome` before `finished` is set; read each only after.
    WarmPlan plan;
    WarmOutcome outcome;
    std::atomic<bool> planned{false};
    std::atomic<bool> cancel{false};
    std::atomic<bool> finished{false};
};

}  // namespace larder::cache
