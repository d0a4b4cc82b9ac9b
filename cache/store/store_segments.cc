// The part of DatasetStore that makes, recovers and drops whole segments, and checks the invariants.

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "cache/protocol/record.h"
#include "cache/store/index.h"
#include "cache/store/recovery.h"
#include "cache/store/segment_header.h"
#include "cache/store/store.h"

namespace larder::cache {

using protocol::record_bytes;

std::uint32_t DatasetStore::next_segment_id() {
    return index_ != nullptr ? index_->allocate_segment_id() : next_id_without_index_++;
}

bool DatasetStore::add_memory_segment(std::uint64_t size_bytes, bool in_window) {
    if (memory_problem_ && clock_.now_ns() < memory_retry_at_ns_) return false;
    auto segment = make_memory_segment(next_segment_id(), size_bytes);
    if (!segment) {
        memory_problem_ = std::move(segment.error());
        memory_retry_at_ns_ = clock_.now_ns() + DiskSegments::kRetryAfterNs;
        return false;
    }
    memory_problem_.reset();
    (*segment)->in_window_ = in_window;
    add_segment(std::move(*segment), true);
    return true;
}

void DatasetStore::add_disk_segment(std::uint64_t size_bytes, std::uint32_t alignment) {
    auto segment = std::make_unique<Segment>();
    segment->id_ = next_segment_id();
    segment->tier_ = Tier::disk;
    segment->alignment_ = alignment;
    segment->size_bytes_ = size_bytes;
    segment->tail_bytes_ = kSegmentHeaderBytes;
    Segment& created = *segment;
    add_segment(std::move(segment), true);
    disk_.create(created);
}

void DatasetStore::add_segment(std::unique_ptr<Segment> segment, bool accepts_records) {
    if (free_slots_.empty()) {
        free_slots_.push_back(static_cast<std::uint32_t>(segments_.size()));
        segments_.emplace_back();
    }
    segment->slot_ = free_slots_.back();
    free_slots_.pop_back();
    SegmentSpace& owner = space(room_of(*segment));
    owner.add(*segment);
    if (accepts_records) {
        Segment* sealed = owner.open(*segment);
        if (sealed != nullptr) {
            sealed->sealed_ = true;
            // A segment that is still being created is put into the index when it is ready.
            if (sealed->tier() == Tier::disk && sealed->state_ == Segment::State::ready && sealed->unwritten_ == 0) {
                put_segment_into_index(*sealed);
            }
        }
    } else {
        segment->sealed_ = true;
    }
    segments_[segment->slot_] = std::move(segment);
}

void DatasetStore::remove_segment_from_index(const Segment& segment) {
    if (index_ != nullptr) index_->remove_segment(options_.dataset_id, segment.id());
}

void DatasetStore::put_segment_into_index(Segment& segment) {
    if (index_ == nullptr) return;
    index_->put_segment(options_.dataset_id, segment.id(), segment.size_bytes(), segment.alignment(),
                        segment.sealed_ && segment.unwritten_ == 0);
}

void DatasetStore::drop_failed_segment(Segment& segment) {
    drop(segment);
}

void DatasetStore::drop(Segment& segment) {
    for (const std::uint32_t block_id : segment.block_ids_) {
        LARDER_ASSERT(table_[block_id].slot == segment.slot_);
        remove_entry(segment, block_id);
    }
    segment.block_ids_ = {};
    space(room_of(segment)).remove(segment);
    segment.dropped_ = true;
    free_slots_.push_back(segment.slot_);
    draining_.push_back(std::move(segments_[segment.slot_]));
    // Keeps the segment alive until `release` below. A segment that is being created is freed when its current step
    // ends.
    segment.references_++;
    if (segment.tier() == Tier::disk && segment.state_ == Segment::State::ready) {
        disk_.unlink(segment);
    }
    release(segment);
}

void DatasetStore::set_quota(Quota quota, const DropObserver& observer) {
    space(Room::memory).set_quota(quota.memory_bytes);
    space(Room::disk).set_quota(quota.disk_bytes);
    quota_set_ = true;
    shrink(Room::memory, observer);
    shrink(Room::disk, observer);
}

void DatasetStore::set_window(std::uint64_t bytes, const DropObserver& observer) {
    SegmentSpace& window = space(Room::window);
    window.set_quota(bytes);
    const auto is_over = [&] { return window.used_bytes() > bytes || (bytes == 0 && window.segment_count() > 0); };
    while (is_over() && drop_from_window(observer)) {
    }
    while (is_over() && drop_from_window(observer, true)) {
    }
}

// False if the window has no segment, or, unless `also_filling`, each has a record that is being read.
bool DatasetStore::drop_from_window(const DropObserver& observer, bool also_filling) {
    Segment* first = nullptr;
    for (const auto& segment : segments_) {
        if (segment == nullptr || !segment->in_window_) continue;
        if (!also_filling && segment->unwritten_ > 0) continue;
        if (observer.unread_blocks && observer.unread_blocks(*segment) == 0) {
            first = segment.get();
            break;
        }
        if (first == nullptr || segment->id() < first->id()) first = segment.get();
    }
    if (first == nullptr) return false;
    if (observer.dropping) observer.dropping(*first);
    drop(*first);
    return true;
}

void DatasetStore::shrink(Room room, const DropObserver& observer) {
    const SegmentSpace& shrinking = space(room);
    if (shrinking.used_bytes() <= shrinking.quota_bytes()) return;
    struct Candidate {
        std::uint64_t unread_blocks;
        Segment* segment;
    };
    std::vector<Candidate> candidates;
    for (const auto& segment : segments_) {
        if (segment == nullptr || room_of(*segment) != room) continue;
        candidates.push_back({observer.unread_blocks ? observer.unread_blocks(*segment) : 0, segment.get()});
    }
    std::ranges::sort(candidates, [](const Candidate& left, const Candidate& right) {
        if (left.unread_blocks != right.unread_blocks) return left.unread_blocks < right.unread_blocks;
        return left.segment->id() > right.segment->id();
    });
    for (const Candidate& candidate : candidates) {
        if (shrinking.used_bytes() <= shrinking.quota_bytes()) return;
        if (observer.dropping) observer.dropping(*candidate.segment);
        drop(*candidate.segment);
    }
}

void DatasetStore::drop_dead_blocks(std::span<const std::uint64_t> live, const DropObserver& observer) {
    struct Candidate {
        Segment* segment;
        double live_fraction;
    };
    std::vector<Candidate> candidates;
    for (const auto& segment : segments_) {
        if (segment == nullptr) continue;
        const std::size_t forgotten = std::erase_if(segment->block_ids_, [&](std::uint32_t block_id) {
            const std::size_t word = block_id / 64;
            if (word >= live.size() || ((live[word] >> (block_id % 64)) & 1) != 0) return false;
            if (observer.forgetting) observer.forgetting(block_id, table_.raw_bytes(block_id));
            clear_entry(*segment, block_id);
            return true;
        });
        if (forgotten == 0) continue;
        std::uint64_t live_bytes = 0;
        for (const std::uint32_t block_id : segment->block_ids_) {
            live_bytes += record_bytes(table_[block_id].payload_bytes, segment->alignment());
        }
        candidates.push_back(
            {segment.get(), static_cast<double>(live_bytes) / static_cast<double>(segment->used_bytes_)});
    }
    std::ranges::sort(candidates, {}, &Candidate::live_fraction);
    constexpr double kLiveFractionMax = 0.75;
    for (const auto& [segment, live_fraction] : candidates) {
        if (live_fraction > 0 && (live_fraction > kLiveFractionMax || has_room(options_.block_bytes_max))) break;
        if (observer.dropping) observer.dropping(*segment);
        drop(*segment);
    }
}

void DatasetStore::clear(const DropObserver& observer) {
    for (std::size_t slot = 0; slot < segments_.size(); slot++) {
        if (segments_[slot] == nullptr) continue;
        if (observer.dropping) observer.dropping(*segments_[slot]);
        drop(*segments_[slot]);
    }
    if (index_ != nullptr) index_->remove_dataset(options_.dataset_id);
}

void DatasetStore::recover(std::vector<RecoveredSegment> segments) {
    // Later segments have the newer record of a block that was forgotten and admitted again, so they come last.
    std::ranges::sort(segments, {}, &RecoveredSegment::id);
    for (RecoveredSegment& segment : segments) adopt(std::move(segment));
}

void DatasetStore::adopt(RecoveredSegment recovered) {
    next_id_without_index_ = std::max(next_id_without_index_, recovered.id + 1);
    auto owned = std::make_unique<Segment>();
    Segment& segment = *owned;
    segment.id_ = recovered.id;
    segment.tier_ = Tier::disk;
    segment.alignment_ = recovered.alignment;
    segment.fd_ = std::move(recovered.fd);
    segment.path_ = std::move(recovered.path);
    segment.size_bytes_ = recovered.size_bytes;
    segment.tail_bytes_ = kSegmentHeaderBytes;
    const bool accepts_records = !recovered.sealed && disk_.alignment() == recovered.alignment;
    for (const StoredBlock& block : recovered.blocks) {
        const std::uint64_t bytes = record_bytes(block.payload_bytes, segment.alignment());
        LARDER_ASSERT(block.offset() >= segment.tail_bytes_ && bytes <= segment.size_bytes_ - block.offset());
        const std::uint64_t gap = block.offset() - segment.tail_bytes_;
        if (gap > 0 && accepts_records) {
            space(Room::disk).add_gap(segment, segment.tail_bytes_, gap);
        } else {
            segment.used_bytes_ += gap;
        }
        segment.tail_bytes_ = block.offset() + bytes;
        segment.used_bytes_ += bytes;
    }
    add_segment(std::move(owned), accepts_records);

    segment.block_ids_.reserve(recovered.blocks.size());
    // Blocks come in random order, so entries are prefetched: for a million blocks the look-ups dominate the start-up
    // time.
    constexpr std::size_t kPrefetchDistance = 16;
    for (std::size_t i = 0; i < recovered.blocks.size(); i++) {
        if (i + kPrefetchDistance < recovered.blocks.size())
            table_.prefetch(recovered.blocks[i + kPrefetchDistance].block_id);
        const StoredBlock& block = recovered.blocks[i];
        if (block.block_id >= table_.block_id_end()) continue;
        forget(block.block_id);
        add_entry(segment, block);
    }
}

void DatasetStore::check_invariants() const {
    std::array<std::uint64_t, kRooms> used{};
    std::array<std::uint64_t, kRooms> allocated{};
    std::array<std::uint32_t, kRooms> count{};
    std::array<Found, kRooms> in_room{};
    std::uint64_t blocks = 0;
    for (std::size_t slot = 0; slot < segments_.size(); slot++) {
        if (segments_[slot] == nullptr) continue;
        const Segment& segment = *segments_[slot];
        const auto room = static_cast<std::size_t>(room_of(segment));
        LARDER_ASSERT(segment.slot_ == slot && !segment.dropped());
        used[room] += segment.used_bytes_;
        allocated[room] += segment.size_bytes();
        count[room]++;
        const std::uint64_t header = segment.tier() == Tier::disk ? kSegmentHeaderBytes : 0;
        LARDER_ASSERT(segment.tail_bytes() <= segment.size_bytes());
        LARDER_ASSERT(header + segment.used_bytes_ + space(room_of(segment)).hole_bytes(segment) ==
                      segment.tail_bytes());

        std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;
        for (const std::uint32_t block_id : segment.block_ids()) {
            const BlockTable::Entry& entry = table_[block_id];
            LARDER_ASSERT(entry.slot == slot && entry.offset() % segment.alignment() == 0);
            extents.emplace_back(entry.offset(), record_bytes(entry.payload_bytes, segment.alignment()));
            in_room[room].payload_bytes += table_.raw_bytes(block_id);
            in_room[room].record_bytes += extents.back().second;
            in_room[room].blocks++;
            blocks++;
        }
        std::ranges::sort(extents);
        std::uint64_t end = header;
        for (const auto& [offset, bytes] : extents) {
            LARDER_ASSERT(offset >= end);
            end = offset + bytes;
        }
        LARDER_ASSERT(end <= segment.tail_bytes());
    }
    for (std::size_t room = 0; room < kRooms; room++) {
        LARDER_ASSERT(used[room] == spaces_[room].used_bytes());
        LARDER_ASSERT(allocated[room] == spaces_[room].allocated_bytes());
        LARDER_ASSERT(count[room] == spaces_[room].segment_count());
        LARDER_ASSERT(!quota_set_ || used[room] <= spaces_[room].quota_bytes());
    }
    std::uint64_t found = 0;
    for (std::uint32_t block_id = 0; block_id < table_.block_id_end(); block_id++) found += table_[block_id].found();
    LARDER_ASSERT(blocks == table_.found_count() && found == blocks && in_room == found_);
    for (const auto& segment : draining_) LARDER_ASSERT(segment->dropped() && segment->references_ > 0);
}

}  // namespace larder::cache
