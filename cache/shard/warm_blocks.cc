#include "cache/shard/warm_blocks.h"

#include <algorithm>
#include <utility>

#include "cache/protocol/record.h"
#include "cache/store/segment.h"

namespace larder::cache {
namespace {

// The part of the quota to plan with if the quota cannot hold the whole dataset. The rest may be lost in segment tails
// too short for any block.
constexpr double kUsableFraction = 1 - 1.0 / 16;

// Another pass is worthwhile if the stored ratio falls below this part of the expected one.
constexpr double kBetterRatio = 0.99;

}  // namespace

WarmBlocks::WarmBlocks(const protocol::Manifest& manifest, const DatasetStore& store, Sources sources)
    : manifest_(manifest),
      store_(store),
      sources_(std::move(sources)),
      stored_ratio_(sources_.stored_ratio()),
      quota_low_(store.quota()),
      states_(manifest.block_count(), State::quota) {
    const Quota quota = store.quota();
    const StoreUsage usage = store.usage();
    room_ = {.memory_bytes = quota.memory_bytes - std::min(quota.memory_bytes, usage.memory_bytes),
             .disk_bytes = quota.disk_bytes - std::min(quota.disk_bytes, usage.disk_bytes)};
    plan_.quota_memory_bytes = quota.memory_bytes;
    plan_.quota_disk_bytes = quota.disk_bytes;
    plan_.blocks = manifest.block_count();
    plan_.bytes = manifest.total_bytes();
}

bool WarmBlocks::is_cached(std::uint32_t block) const {
    return store_.is_cached(manifest_.block_id(block));
}

// Subtracts the block from `room_`: from the memory first, as admission does. Returns false if there is no room.
bool WarmBlocks::take_room(std::uint32_t block) {
    const auto stored =
        static_cast<std::uint32_t>(static_cast<double>(manifest_.block_bytes(block)) * std::min(1.0, stored_ratio_));
    if (const auto bytes = protocol::record_bytes(stored, kMemoryAlignment); bytes <= room_.memory_bytes) {
        room_.memory_bytes -= bytes;
        return true;
    }
    const auto bytes = protocol::record_bytes(stored, protocol::kPageBytes);
    if (bytes > room_.disk_bytes) return false;
    room_.disk_bytes -= bytes;
    return true;
}

bool WarmBlocks::plan(ScanProgress& progress) {
    const std::uint32_t end = std::min(manifest_.block_count(), next_ + kBlocksPerCall);
    for (; next_ < end; ++next_) {
        const std::uint64_t bytes = manifest_.block_bytes(next_);
        if (is_cached(next_)) {
            states_[next_] = State::cached;
            ++plan_.cached_blocks;
            plan_.cached_bytes += bytes;
        } else if (sources_.is_at_peers(next_)) {
            states_[next_] = State::at_peers;
            ++plan_.peer_blocks;
        } else if (!sources_.is_chosen(next_)) {
            all_fit_ = false;
        } else {
            states_[next_] = State::wanted;
            if (!take_room(next_)) {
                all_fit_ = false;
                continue;
            }
            ++plan_.promised_blocks;
            plan_.promised_bytes += bytes;
        }
    }
    if (next_ < manifest_.block_count()) return false;
    if (!all_fit_) {
        plan_.promised_blocks =
            static_cast<std::uint64_t>(static_cast<double>(plan_.promised_blocks) * kUsableFraction);
        plan_.promised_bytes = static_cast<std::uint64_t>(static_cast<double>(plan_.promised_bytes) * kUsableFraction);
        if (plan_.promised_blocks == 0) plan_.promised_bytes = 0;
    }
    next_ = 0;
    progress.blocks_total = plan_.promised_blocks;
    progress.plan = plan_;
    progress.planned = true;
    return true;
}

WarmBlocks::State WarmBlocks::why_no_room(std::uint32_t block) const {
    const auto refusal = store_.why_no_room(manifest_.block_bytes(block));
    if (!refusal) return State::wanted;
    switch (*refusal) {
        case Refusal::disk_full: return State::disk_full;
        case Refusal::disk_failed: return State::disk_failed;
        default: return State::quota;
    }
}

bool WarmBlocks::wants(std::uint32_t block) {
    note_quota();
    State& state = states_[block];
    if (state == State::busy) {
        state = State::wanted;
        --busy_;
    }
    // In a later pass, the quota may have more room than before, and blocks may have been dropped.
    if ((state == State::quota || state == State::cached) && passes_ > 1) state = State::wanted;
    if (state != State::wanted) return false;
    if (is_cached(block)) {
        state = State::cached;
    } else if (failures_in_a_row_ >= kFailuresInARowMax) {
        state = State::not_asked;
    } else if (!sources_.is_chosen(block)) {
        state = State::quota;
    } else {
        state = why_no_room(block);
    }
    return state == State::wanted;
}

void WarmBlocks::settle(std::uint32_t block) {
    note_quota();
    failures_in_a_row_ = 0;
    State& state = states_[block];
    state = is_cached(block) ? State::cached : why_no_room(block);
    // There is room, so too many bytes were being written or compressed at that time.
    if (state != State::wanted) return;
    state = State::busy;
    ++busy_;
}

void WarmBlocks::failed(std::uint32_t block, bool remote_failed) {
    states_[block] = State::failed;
    failures_in_a_row_ = remote_failed ? failures_in_a_row_ + 1 : 0;
}

bool WarmBlocks::compresses_better() const {
    return sources_.stored_ratio() < stored_ratio_ * kBetterRatio;
}

// An allocator may change the quota while the warm-up runs. While the quota was low, blocks were refused or dropped.
void WarmBlocks::note_quota() {
    const Quota quota = store_.quota();
    quota_low_ = {.memory_bytes = std::min(quota_low_.memory_bytes, quota.memory_bytes),
                  .disk_bytes = std::min(quota_low_.disk_bytes, quota.disk_bytes)};
}

bool WarmBlocks::quota_has_grown() const {
    const Quota quota = store_.quota();
    return quota.memory_bytes > quota_low_.memory_bytes || quota.disk_bytes > quota_low_.disk_bytes;
}

bool WarmBlocks::begin_another_pass() {
    if (passes_ == kPassesMax || (busy_ == 0 && !compresses_better() && !quota_has_grown())) return false;
    stored_ratio_ = sources_.stored_ratio();
    quota_low_ = store_.quota();
    ++passes_;
    return true;
}

bool WarmBlocks::count_outcomes(ScanProgress& progress) {
    const std::uint32_t end = std::min(manifest_.block_count(), next_ + kBlocksPerCall);
    for (; next_ < end; ++next_) {
        if (is_cached(next_)) {
            ++outcome_.cached_blocks;
            outcome_.cached_bytes += manifest_.block_bytes(next_);
            continue;
        }
        switch (states_[next_]) {
            case State::at_peers: ++outcome_.peer_blocks; break;
            case State::disk_full: ++outcome_.disk_full_blocks; break;
            case State::disk_failed: ++outcome_.disk_failed_blocks; break;
            case State::failed: ++outcome_.failed_blocks; break;
            case State::wanted:
            case State::not_asked: ++outcome_.not_asked_blocks; break;
            case State::busy: ++outcome_.busy_blocks; break;
            // A block that is no longer cached was dropped with its segment.
            case State::cached:
            case State::quota: ++outcome_.quota_blocks; break;
        }
    }
    if (next_ < manifest_.block_count()) return false;
    if (store_.disk_problem()) outcome_.disk_problem = store_.disk_problem()->message;
    outcome_.old_version_blocks = store_.usage().blocks - std::min(store_.usage().blocks, outcome_.cached_blocks);
    outcome_.quota_memory_bytes = store_.quota().memory_bytes;
    outcome_.quota_disk_bytes = store_.quota().disk_bytes;
    outcome_.counted = true;
    progress.outcome = outcome_;
    return true;
}

}  // namespace larder::cache
