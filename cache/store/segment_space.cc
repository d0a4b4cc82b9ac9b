#include "cache/store/segment_space.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace larder::cache {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

}  // namespace

std::optional<std::uint64_t> SegmentSpace::segment_bytes(std::uint64_t record_bytes,
                                                         std::uint64_t record_bytes_max) const {
    LARDER_ASSERT(fits_quota(record_bytes) && record_bytes <= record_bytes_max);
    const std::uint64_t target = std::clamp(quota_bytes_ / sizes_.per_quota, sizes_.bytes_min, kSegmentBytesMax);
    // A whole number of the largest records, so that blocks of one size leave no unused tail.
    const std::uint64_t records = std::max<std::uint64_t>(1, (target - sizes_.header_bytes) / record_bytes_max);
    const std::uint64_t whole_bytes = records * record_bytes_max;
    // At least an eighth of the quota, so that a quota that grows in small steps makes few segments.
    const std::uint64_t available_bytes =
        std::max(quota_bytes_ - std::min(quota_bytes_, allocated_bytes_), quota_bytes_ / 8);
    const std::uint64_t bytes =
        sizes_.header_bytes + round_up(std::max(record_bytes, std::min(whole_bytes, available_bytes)), kPageBytes);
    // Allocated bytes include the tails that no record fits.
    if (allocated_bytes_ + bytes > quota_bytes_ + sizes_.header_bytes + round_up(whole_bytes, kPageBytes))
        return std::nullopt;
    return bytes;
}

std::optional<SegmentSpace::Place> SegmentSpace::take(std::uint64_t record_bytes) {
    LARDER_ASSERT(fits_quota(record_bytes));
    Place place;
    const auto hole =
        std::ranges::find_if(holes_, [&](const Hole& candidate) { return candidate.bytes >= record_bytes; });
    if (hole != holes_.end()) {
        place = {hole->segment, hole->offset};
        hole->offset += record_bytes;
        hole->bytes -= record_bytes;
        if (hole->bytes == 0) holes_.erase(hole);
    } else {
        const auto open = std::ranges::find_if(
            open_, [&](const Segment* segment) { return segment->size_bytes_ - segment->tail_bytes_ >= record_bytes; });
        if (open == open_.end()) return std::nullopt;
        place = {*open, (*open)->tail_bytes_};
        (*open)->tail_bytes_ += record_bytes;
    }
    place.segment->used_bytes_ += record_bytes;
    used_bytes_ += record_bytes;
    return place;
}

void SegmentSpace::release_space(Place place, std::uint64_t record_bytes) {
    Segment& segment = *place.segment;
    if (segment.closed_) {
        segment.unusable_bytes_ += record_bytes;
        segment.used_bytes_ -= record_bytes;
        used_bytes_ -= record_bytes;
        return;
    }
    Hole freed{&segment, place.offset, record_bytes};
    // Merges adjacent holes: a failing remote gives much room back, in any order.
    std::erase_if(holes_, [&](const Hole& hole) {
        if (hole.segment != &segment) return false;
        if (hole.offset + hole.bytes == freed.offset) {
            freed.offset = hole.offset;
        } else if (freed.offset + freed.bytes != hole.offset) {
            return false;
        }
        freed.bytes += hole.bytes;
        return true;
    });
    if (freed.offset + freed.bytes == segment.tail_bytes_) {
        segment.tail_bytes_ = freed.offset;
    } else if (holes_.size() < kHolesMax) {
        holes_.push_back(freed);
    } else {
        // There are too many holes to track. The room stays unused until the segment is dropped.
        return;
    }
    segment.used_bytes_ -= record_bytes;
    used_bytes_ -= record_bytes;
}

Segment* SegmentSpace::open(Segment& segment) {
    Segment* sealed = nullptr;
    if (open_.size() == kOpenSegmentsMax) {
        const auto fullest = std::ranges::min_element(
            open_, {}, [](const Segment* other) { return other->size_bytes_ - other->tail_bytes_; });
        sealed = *fullest;
        open_.erase(fullest);
    }
    open_.push_back(&segment);
    return sealed;
}

void SegmentSpace::add(Segment& segment) {
    segment_count_++;
    allocated_bytes_ += segment.size_bytes_;
    used_bytes_ += segment.used_bytes_;
}

void SegmentSpace::add_gap(Segment& segment, std::uint64_t offset, std::uint64_t bytes) {
    if (holes_.size() < kHolesMax) {
        holes_.push_back({&segment, offset, bytes});
    } else {
        segment.used_bytes_ += bytes;
    }
}

void SegmentSpace::close(Segment& segment) {
    std::erase(open_, &segment);
    segment.unusable_bytes_ = hole_bytes(segment);
    segment.closed_ = true;
    std::erase_if(holes_, [&](const Hole& hole) { return hole.segment == &segment; });
}

void SegmentSpace::remove(Segment& segment) {
    segment_count_--;
    allocated_bytes_ -= segment.size_bytes_;
    used_bytes_ -= segment.used_bytes_;
    std::erase(open_, &segment);
    std::erase_if(holes_, [&](const Hole& hole) { return hole.segment == &segment; });
}

std::uint64_t SegmentSpace::hole_bytes(const Segment& segment) const {
    std::uint64_t bytes = segment.unusable_bytes_;
    for (const Hole& hole : holes_) bytes += hole.segment == &segment ? hole.bytes : 0;
    return bytes;
}

}  // namespace larder::cache
