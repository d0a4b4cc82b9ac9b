#pragma once

// A ShardJob is what the shard knows of one training job on one dataset: the blocks it has read this epoch, the two
// counts for the performance model (unread bytes, and unread bytes that are cached: the effective cache), its counters,
// and its queue for remote bandwidth. Does no I/O and reads no clock.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/shard/fetch.h"
#include "cache/shard/peer_blocks.h"
#include "cache/shard/statistics.h"
#include "cache/shard/step_time.h"
#include "cache/shard/token_bucket.h"

namespace larder::cache {

struct ShardJob {
    std::string name;
    std::shared_ptr<TokenBucket> bucket;
    BlockCounters counters;
    std::uint32_t sessions = 0;
    std::uint32_t recording = 0;  // the number of its recording (tracer.h); 0: its blocks are not traced
    std::uint32_t epoch = 0;
    std::uint64_t unread_bytes = 0;
    std::uint64_t effective_bytes = 0;

    // Totals of ended sessions. The totals of live sessions are in their rings.
    std::int64_t ended_stall_ns = 0;
    std::int64_t ended_busy_ns = 0;
    std::uint64_t ended_samples = 0;
    std::uint64_t ended_bytes = 0;

    StepTime step_time;  // of its live sessions that work in step

    // Fetches that wait for tokens, in order.
    FetchList<&Fetch::next_queued> queue;

    // The time at which the last session ended; 0 while there is a session.
    std::int64_t idle_since_ns = 0;
    std::uint32_t consumers = 0;  // sessions that refer to the job, including ended ones not yet deleted

    // True if the last session has ended and nothing refers to the job any more.
    bool has_ended() const { return idle_since_ns != 0 && consumers == 0 && queue.first() == nullptr; }

    // The blocks that peers held when the epoch began and still hold. Blocks that peers admit during the epoch are left
    // out: ranks of this job read most of these blocks on those nodes, and do not read them again in this epoch.
    std::shared_ptr<const PeerBlocks> at_peers;

    // Begins an epoch in which no block is read yet.
    void begin_epoch(std::uint32_t new_epoch, std::uint64_t dataset_bytes, std::uint64_t cached_bytes,
                     std::uint32_t block_id_end, std::shared_ptr<const PeerBlocks> peers = nullptr,
                     std::int64_t now_ns = 0);
    // True if a request of another epoch than the job's begins that epoch. The epoch is the client's word, so what was
    // read decides: beginning an epoch writes a word for each 64 blocks, so the reads since the last beginning must be
    // as many, or a second must have passed. A later epoch begins with its first such request. An earlier one begins
    // only after a dataset's worth of requests without one of the job's epoch, since ranks that are behind ask for
    // blocks of the epoch before. So an epoch that nobody reads holds up the counts for no more than a pass.
    bool begins_epoch(std::uint32_t wanted, std::int64_t now_ns);
    // The next epoch may begin at once: a session has joined, which may resume at any epoch.
    void allow_epoch() { may_begin_ = true; }
    // Removes an ended session. The last one clears what the job has read, so that the next session starts afresh.
    void leave(std::int64_t now_ns);
    // Notes that peers have dropped blocks. `now` is what they still hold.
    void note_lost_at_peers(const PeerBlocks& now);
    bool has_read(std::uint32_t block_id) const {
        const std::size_t word = block_id / 64;
        return word < read_.size() && ((read_[word] >> (block_id % 64)) & 1) != 0;
    }
    void note_read(std::uint32_t block_id, std::uint64_t bytes, bool cached);
    void note_admitted(std::uint32_t block_id, std::uint64_t bytes) {
        if (sessions > 0 && !has_read(block_id)) effective_bytes += bytes;
    }
    void note_dropped(std::uint32_t block_id, std::uint64_t bytes) {
        if (sessions == 0 || has_read(block_id)) return;
        effective_bytes -= bytes < effective_bytes ? bytes : effective_bytes;
    }

    // The bytes of all undelivered fetches in the queue.
    std::uint64_t waiting_bytes() const;

private:
    std::uint64_t delivered_blocks() const {
        return counters.memory_hits + counters.disk_hits + counters.misses + counters.peer_hits;
    }

    std::vector<std::uint64_t> read_;
    bool may_begin_ = false;              // see allow_epoch
    std::int64_t began_ns_ = 0;           // when the epoch began
    std::uint64_t delivered_before_ = 0;  // blocks delivered before the epoch began
    std::uint64_t earlier_requests_ = 0;  // of earlier epochs, since the last read of this one
};

}  // namespace larder::cache
