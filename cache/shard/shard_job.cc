#include "cache/shard/shard_job.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace larder::cache {
namespace {

constexpr std::int64_t kEpochMin_ns = 1'000'000'000;

}  // namespace

bool ShardJob::begins_epoch(std::uint32_t wanted, std::int64_t now_ns) {
    if (wanted < epoch && ++earlier_requests_ <= read_.size() * 64) return false;
    return may_begin_ || delivered_blocks() - delivered_before_ >= read_.size() || now_ns - began_ns_ >= kEpochMin_ns;
}

void ShardJob::begin_epoch(std::uint32_t new_epoch, std::uint64_t dataset_bytes, std::uint64_t cached_bytes,
                           std::uint32_t block_id_end, std::shared_ptr<const PeerBlocks> peers, std::int64_t now_ns) {
    epoch = new_epoch;
    may_begin_ = false;
    began_ns_ = now_ns;
    delivered_before_ = delivered_blocks();
    earlier_requests_ = 0;
    at_peers = std::move(peers);
    unread_bytes = dataset_bytes;
    effective_bytes = cached_bytes + (at_peers != nullptr ? at_peers->bytes : 0);
    read_.assign((std::size_t{block_id_end} + 63) / 64, 0);
}

void ShardJob::leave(std::int64_t now_ns) {
    LARDER_ASSERT(sessions > 0);
    if (--sessions > 0) return;
    idle_since_ns = now_ns;
    unread_bytes = 0;
    effective_bytes = 0;
    at_peers = nullptr;
    read_ = {};
}

void ShardJob::note_read(std::uint32_t block_id, std::uint64_t bytes, bool cached) {
    earlier_requests_ = 0;
    const std::size_t word = block_id / 64;
    if (word >= read_.size()) return;  // of a version newer than this job's epoch
    const std::uint64_t bit = std::uint64_t{1} << (block_id % 64);
    if ((read_[word] & bit) != 0) return;
    read_[word] |= bit;
    unread_bytes -= std::min(bytes, unread_bytes);
    if (cached) effective_bytes -= std::min(bytes, effective_bytes);
}

void ShardJob::note_lost_at_peers(const PeerBlocks& now) {
    if (at_peers == nullptr) return;
    auto still_held = std::make_shared<PeerBlocks>(*at_peers);
    const bool is_same_version = now.manifest == at_peers->manifest;
    for (std::uint32_t block = 0; block < still_held->holder.size(); ++block) {
        if (!still_held->holds(block) || (is_same_version && now.holds(block))) continue;
        still_held->holder[block] = 0;
        const std::uint64_t bytes = at_peers->manifest->block_bytes(block);
        still_held->bytes -= bytes;
        note_dropped(at_peers->manifest->block_id(block), bytes);
    }
    at_peers = std::move(still_held);
}

std::uint64_t ShardJob::waiting_bytes() const {
    std::uint64_t bytes = 0;
    for (const Fetch* fetch : queue) {
        if (!fetch->delivered) bytes += fetch->payload_bytes;
    }
    return bytes;
}

}  // namespace larder::cache
