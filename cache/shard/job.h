#pragma once

// What the shard knows of one job on one dataset: which blocks it has read this epoch, and from that the two counts the
// performance model needs (unread bytes; unread and cached bytes, which is its effective cache), its counters, and its
// queue for remote bandwidth. A pure structure: no I/O, no clock.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/shard/fetch.h"
#include "cache/shard/peer_blocks.h"
#include "cache/shard/statistics.h"
#include "cache/shard/token_bucket.h"

namespace larder::cache {

struct Job {
    std::string name;
    std::shared_ptr<TokenBucket> bucket;
    BlockCounters counters;
    std::uint32_t sessions = 0;
    std::uint32_t epoch = 0;
    std::uint64_t unread_bytes = 0;
    std::uint64_t effective_bytes = 0;

    // Totals of sessions that have ended; those of live ones are in their rings.
    std::int64_t ended_stall_ns = 0;
    std::int64_t ended_busy_ns = 0;
    std::uint64_t ended_samples = 0;
    std::uint64_t ended_bytes = 0;

    // Fetches that wait for tokens, in order.
    Fetch* queue_first = nullptr;
    Fetch* queue_last = nullptr;

    // When its last session ended; 0 while it has one.
    std::int64_t idle_since_ns = 0;
    std::uint32_t consumers = 0;  // sessions that refer to it, those that have ended and are not gone yet among them

    // Nothing refers to it any more.
    bool has_ended() const { return idle_since_ns != 0 && consumers == 0 && queue_first == nullptr; }

    // What peers held when the epoch began, as far as they still do. What they admit during it is mostly what ranks of
    // this very job read there, which will not be read again before its end.
    std::shared_ptr<const PeerBlocks> at_peers;

    // A new epoch: nothing is read yet.
    void begin_epoch(std::uint32_t new_epoch, std::uint64_t dataset_bytes, std::uint64_t cached_bytes,
                     std::uint32_t block_id_end, std::shared_ptr<const PeerBlocks> peers = nullptr);
    // A session has ended. With the last one goes what the job has read: who comes next begins anew.
    void leave(std::int64_t now_ns);
    // Peers have dropped blocks: `now` is what they hold.
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

    void enqueue(Fetch& fetch);
    Fetch* dequeue();
    // Of all fetches in the queue.
    std::uint64_t waiting_bytes() const;

private:
    std::vector<std::uint64_t> read_;
};

}  // namespace larder::cache
