#include "cache/shard/scan.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <system_error>
#include <utility>

#include "base/assert.h"
#include "base/hash.h"
#include "cache/protocol/record.h"
#include "cache/shard/block_server.h"

namespace larder::cache {

using protocol::BlockSource;
using protocol::BlockStatus;
using protocol::kPageBytes;
using protocol::kRecordHeaderBytes;

namespace {

constexpr std::uint64_t kBytesPerStepMax = std::uint64_t{4} << 20;
constexpr std::uint32_t kBlocksPerStepMax = 4096;
// The most bytes read at one time. With more, blocks would queue for being written to disk, and admission would refuse
// some.
constexpr std::uint64_t kBytesInFlightMax = std::uint64_t{32} << 20;
// A compressed block reaches the cache a little after its slot becomes free.
constexpr std::int64_t kSettle_ns = 100'000'000;
// A scan at its end checks this often that it is still referenced.
constexpr std::int64_t kEndPoll_ns = 1'000'000;

std::string why_unreadable(BlockStatus status, int system_errno) {
    switch (status) {
        case BlockStatus::object_changed: return "it has changed since it was indexed";
        case BlockStatus::object_missing: return "it is gone from the remote";
        case BlockStatus::object_truncated: return "it is shorter than its indexed size";
        case BlockStatus::object_corrupt: return "its bytes do not match the stored checksum";
        case BlockStatus::remote_failed:
            return system_errno == 0 ? "the remote failed" : std::generic_category().message(system_errno);
        default: return "";
    }
}

std::uint32_t slot_count(std::size_t slot_bytes, std::uint32_t count_max) {
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(kBytesInFlightMax / slot_bytes, 1, count_max));
}

}  // namespace

Scan::Scan(ScanKind kind, BlockServer& server, ShardJob& job, std::shared_ptr<ScanProgress> progress,
           std::uint32_t blocks_in_flight, const std::int64_t& now_ns)
    : Consumer(job, /*sequential=*/true),
      kind_(kind),
      server_(server),
      manifest_(server.shared_manifest()),
      progress_(std::move(progress)),
      now_ns_(now_ns),
      slot_bytes_(protocol::record_bytes(manifest_->header().block_bytes_max, kPageBytes)),
      slots_(slot_count(slot_bytes_, blocks_in_flight)) {
    memory_ = allocate_pages(slot_bytes_ * slots_.size());
    for (Slot& slot : slots_) slot.scan = this;
    if (kind_ != ScanKind::warm) {
        progress_->blocks_total = manifest_->block_count();
        return;
    }
    const WarmBlocks::Sources sources{
        .is_chosen = [this](std::uint32_t block) { return server_.chosen_by_hash(manifest_->block_id(block)); },
        .is_at_peers = [this](std::uint32_t block) { return server_.held_at_peers(block); },
        .stored_ratio = [this] { return server_.stored_ratio(); }};
    // The user who starts a warm-up may just have freed disk space.
    server_.store().retry_disk();
    warm_.emplace(*manifest_, server_.store(), sources);
}

Scan::~Scan() {
    LARDER_ASSERT(unreferenced());
}

void Scan::stop() {
    closed_ = true;
}

bool Scan::is_wanted(std::uint32_t block) {
    if (warm_) return warm_->wants(block);
    const bool cached = server_.store().is_cached(manifest_->block_id(block));
    // With checksums in the manifest, the remote can be verified even if the block is not cached.
    return cached || (kind_ == ScanKind::verify_remote && manifest_->has_checksums());
}

std::int64_t Scan::step() {
    if (progress_->cancel.load(std::memory_order_relaxed)) stop();
    if (closed()) {
        finish_when(unreferenced());
        return now_ns_ + kEndPoll_ns;
    }
    if (warm_ && !planned_) {
        planned_ = warm_->plan(*progress_);
        return now_ns_;
    }
    std::int64_t wake_ns = kNever_ns;
    bool idle = true;
    bool is_turn_needed = false;  // a block in memory was checked at once, so no completion will start the next turn
    std::uint64_t step_bytes = 0;
    std::uint32_t step_blocks = 0;
    for (Slot& slot : slots_) {
        if (slot.state == SlotState::to_compare && !compare_with_remote(slot)) {
            wake_ns = std::min(wake_ns, job().bucket->ready_at_ns(manifest_->block_bytes(slot.block)));
        }
        if (slot.busy || slot.state != SlotState::free) {
            idle = false;
            continue;
        }
        if (slot.unsettled) settle_warmed(slot);
        while (slot.state == SlotState::free && next_block_ < manifest_->block_count()) {
            if (step_bytes > kBytesPerStepMax || step_blocks++ > kBlocksPerStepMax) return now_ns_;
            const std::uint32_t block = next_block_++;
            if (!is_wanted(block)) {
                if (warm_) continue;
                ++progress_->blocks_done;
                ++progress_->blocks_unchecked;
                continue;
            }
            idle = false;
            step_bytes += manifest_->block_bytes(block);
            begin(slot, block);
            is_turn_needed |= slot.state != SlotState::fetching;
        }
    }
    idle = idle && unreferenced();
    if (idle && warm_ && next_block_ == manifest_->block_count()) {
        if (warm_->any_busy() && now_ns_ < settled_ns_ + kSettle_ns) return now_ns_ + kEndPoll_ns;
        if (start_next_phase()) return now_ns_;
    }
    finish_when(idle);
    if (idle) return now_ns_ + kEndPoll_ns;
    return is_turn_needed ? now_ns_ : wake_ns;
}

// Called when a warm-up has requested all wanted blocks. Begins another pass over the blocks if that may cache more,
// else counts the outcomes, some blocks a call. False once all are counted.
bool Scan::start_next_phase() {
    if (!is_counting_outcomes_ && warm_->begin_another_pass()) {
        next_block_ = 0;
        return true;
    }
    is_counting_outcomes_ = true;
    return !warm_->count_outcomes(*progress_);
}

// Records whether the slot's block was admitted. Nobody is writing the block to the cache any more.
void Scan::settle_warmed(Slot& slot) {
    slot.unsettled = false;
    settled_ns_ = now_ns_;
    warm_->settle(slot.block);
    if (server_.store().is_cached(manifest_->block_id(slot.block))) ++progress_->blocks_done;
}

void Scan::finish_when(bool done) {
    if (!done) return;
    finished_ = true;
    progress_->finished = true;
}

void Scan::begin(Slot& slot, std::uint32_t block) {
    slot.block = block;
    slot.failed_once = false;
    slot.cached_crc.reset();
    slot.state = SlotState::fetching;
    const auto location = server_.store().find(manifest_->block_id(block));
    if (kind_ != ScanKind::warm && !location) {
        slot.state = SlotState::to_compare;
        return;
    }
    if (kind_ != ScanKind::warm && location->segment->tier() == Tier::memory) {
        if (check_in_memory(slot) && kind_ == ScanKind::verify_remote) {
            slot.state = SlotState::to_compare;
        } else {
            end(slot);
        }
        return;
    }
    Fetch& fetch = server_.new_fetch(*this, *manifest_, block);
    fetch.slot_page = static_cast<std::uint32_t>(&slot - slots_.data());
    fetch.slot_pages = static_cast<std::uint32_t>(slot_bytes_ / kPageBytes);
    server_.serve(fetch);
}

// Returns the CRC of the decompressed block in `record`.
std::uint32_t Scan::block_crc(const std::byte* record, const BlockLocation& location) {
    if (!location.compressed()) return location.payload_crc;
    const auto header = protocol::read_record_header({record, kRecordHeaderBytes});
    return header ? header->raw_crc : ~location.payload_crc;
}

// True if `crc` matches the manifest's checksum of the block, or if the manifest has none.
bool Scan::is_as_indexed(std::uint32_t block, std::uint32_t crc) const {
    return !manifest_->has_checksums() || manifest_->block_checksum(block) == crc;
}

void Scan::note(BlockFound::What what, std::uint32_t block, std::string why) {
    switch (what) {
        case BlockFound::What::bad_in_cache: ++progress_->blocks_bad; break;
        case BlockFound::What::corrupt_at_remote: ++progress_->blocks_corrupt; break;
        case BlockFound::What::unreadable: ++progress_->blocks_failed; break;
    }
    if (progress_->found.size() == ScanProgress::kFoundMax) return;
    const protocol::Block info = manifest_->block(block);
    progress_->found.push_back({.what = what,
                                .object = std::string(manifest_->object(info.object).path),
                                .offset = info.offset,
                                .bytes = info.length,
                                .why = std::move(why)});
}

void Scan::drop_bad(std::uint32_t block) {
    note(BlockFound::What::bad_in_cache, block);
    ++server_.counters().crc_failures;
    server_.forget(manifest_->block_id(block));
}

bool Scan::check_in_memory(Slot& slot) {
    const std::uint32_t block = slot.block;
    const auto location = server_.store().find(manifest_->block_id(block));
    const std::byte* record = location->segment->memory() + location->offset;
    const std::span<const std::byte> payload{record + kRecordHeaderBytes, location->payload_bytes};
    slot.cached_crc = block_crc(record, *location);
    if (crc32c(payload) == location->payload_crc && is_as_indexed(block, *slot.cached_crc)) return true;
    drop_bad(block);
    return false;
}

std::byte* Scan::slot(const Fetch& fetch) {
    return memory_.get() + fetch.slot_page * slot_bytes_;
}

void Scan::deliver(const Fetch& fetch) {
    Slot& slot = slots_[fetch.slot_page];
    if (fetch.status != BlockStatus::ok) {
        slot.failed = true;
        note(BlockFound::What::unreadable, fetch.block, why_unreadable(fetch.status, fetch.system_errno));
        if (warm_) warm_->failed(fetch.block, fetch.status == BlockStatus::remote_failed);
    } else if (warm_) {
        slot.unsettled = true;
    } else if (fetch.source != BlockSource::memory && fetch.source != BlockSource::disk) {
        // The block was cached when requested but came from elsewhere, so the cached copy was bad.
        note(BlockFound::What::bad_in_cache, fetch.block);
    } else if (const auto location = server_.store().find(fetch.block_id);
               location &&
               !is_as_indexed(fetch.block, slot.cached_crc.emplace(block_crc(this->slot(fetch), *location)))) {
        drop_bad(fetch.block);
    } else if (kind_ == ScanKind::verify_remote) {
        slot.state = SlotState::to_compare;
        return;
    }
    end(slot);
}

void Scan::end(Slot& slot) {
    slot.state = SlotState::free;
    if (!std::exchange(slot.failed, false)) progress_->bytes_done += manifest_->block_bytes(slot.block);
    // A warm-up counts only blocks that were cached. See `settle_warmed`.
    if (!warm_) ++progress_->blocks_done;
}

bool Scan::compare_with_remote(Slot& slot) {
    const protocol::Block block = manifest_->block(slot.block);
    if (!job().bucket->try_take(block.length, now_ns_)) return false;
    slot.state = SlotState::comparing;
    refer();
    const protocol::Object object = manifest_->object(block.object);
    slot.read.done = [](RemoteRead& read, BlockStatus status, int system_errno) noexcept {
        auto& read_slot = reinterpret_cast<Slot&>(read);
        read_slot.scan->finish_comparison(read_slot, status, system_errno);
    };
    static_assert(offsetof(Slot, read) == 0);
    slot.read.payer = job().bucket;
    slot.read.extra_bytes = 0;
    for (BlockCounters* counters : {&server_.counters(), &job().counters}) {
        ++counters->remote_reads;
        counters->remote_read_bytes += block.length;
    }
    slot.read.path = object.path;
    slot.read.object_bytes = object.size_bytes;
    slot.read.object_mtime_ns = object.mtime_ns;
    slot.read.offset = block.offset;
    slot.read.into = {memory_.get() + static_cast<std::size_t>(&slot - slots_.data()) * slot_bytes_, block.length};
    server_.remote().read(slot.read);
    return true;
}

void Scan::finish_comparison(Slot& slot, BlockStatus status, int system_errno) {
    unrefer();
    const std::uint64_t extra_bytes = settle_payment(slot.read, status);
    for (BlockCounters* counters : {&server_.counters(), &job().counters}) counters->remote_read_bytes += extra_bytes;
    if (status != BlockStatus::ok) {
        slot.failed = true;
        note(BlockFound::What::unreadable, slot.block, why_unreadable(status, system_errno));
    } else if (!evaluate_comparison(slot)) {
        slot.state = SlotState::to_compare;
        return;
    }
    end(slot);
}

// Returns false if the bytes do not match the manifest for the first time and must be read once more.
bool Scan::evaluate_comparison(Slot& slot) {
    const std::uint32_t block_id = manifest_->block_id(slot.block);
    const std::uint32_t crc = crc32c(slot.read.into);
    if (!is_as_indexed(slot.block, crc)) {
        ++server_.counters().remote_corrupt;
        if (!std::exchange(slot.failed_once, true)) return false;
        note(BlockFound::What::corrupt_at_remote, slot.block);
        server_.quarantine(*manifest_, slot.block);
        return true;
    }
    if (manifest_->has_checksums()) server_.end_quarantine(block_id);
    server_.note_remote_bytes(block_id, crc);
    if (slot.cached_crc && crc != *slot.cached_crc && server_.store().find(block_id)) {
        note(BlockFound::What::bad_in_cache, slot.block);
        server_.forget(block_id);
    }
    return true;
}

void Scan::mark_busy(const Fetch& fetch) {
    slots_[fetch.slot_page].busy = true;
}

void Scan::clear_busy(std::uint32_t slot_page, std::uint32_t) {
    slots_[slot_page].busy = false;
}

}  // namespace larder::cache
