#pragma once

// Manages the room of one tier: where in the tier's segments the next record goes, and how much of the quota is used. A
// record goes into a hole left by an abandoned reservation, else to the tail of an open segment with room. Otherwise a
// new segment is needed, whose size follows the quota. A few segments stay open at once, so that records of mixed sizes
// waste little of the tails. Pure bookkeeping; no I/O.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cache/store/segment.h"

namespace larder::cache {

class SegmentSpace {
public:
    static constexpr std::uint64_t kSegmentBytesMin = std::uint64_t{16} << 20;
    static constexpr std::uint64_t kSegmentBytesMax = std::uint64_t{1} << 30;
    static constexpr std::uint64_t kSegmentsPerQuota = 64;
    static constexpr std::size_t kOpenSegmentsMax = 8;
    static constexpr std::size_t kHolesMax = 256;

    struct Place {
        Segment* segment = nullptr;
        std::uint64_t offset = 0;
    };

    // The sizes of new segments.
    struct Sizes {
        std::uint64_t header_bytes = 0;
        std::uint64_t per_quota = kSegmentsPerQuota;
        std::uint64_t bytes_min = kSegmentBytesMin;
    };
    explicit SegmentSpace(Sizes sizes) : sizes_(sizes) {}

    std::uint64_t quota_bytes() const { return quota_bytes_; }
    std::uint64_t used_bytes() const { return used_bytes_; }
    std::uint64_t allocated_bytes() const { return allocated_bytes_; }
    std::uint32_t segment_count() const { return segment_count_; }
    void set_quota(std::uint64_t quota_bytes) { quota_bytes_ = quota_bytes; }
    bool fits_quota(std::uint64_t record_bytes) const {
        return used_bytes_ <= quota_bytes_ && record_bytes <= quota_bytes_ - used_bytes_;
    }

    // The size of a new segment that must fit a record of `record_bytes`; the largest record has `record_bytes_max`.
    // Nothing if all segments would exceed the quota by more than one segment. Requires fits_quota(record_bytes).
    std::optional<std::uint64_t> segment_bytes(std::uint64_t record_bytes, std::uint64_t record_bytes_max) const;

    // Takes room in an existing segment and counts it as used. Nothing if a new segment is needed. Requires
    // fits_quota(record_bytes).
    std::optional<Place> take(std::uint64_t record_bytes);
    // Returns room that will not be used. The room becomes a hole, or the tail moves back.
    void release_space(Place place, std::uint64_t record_bytes);

    // Counts a new or recovered segment and its used bytes.
    void add(Segment& segment);
    // Adds the gap between two records of a recovered segment as a hole. Call before `add`.
    void add_gap(Segment& segment, std::uint64_t offset, std::uint64_t bytes);
    // Opens the segment's tail for records. Returns the segment that is closed in exchange, or null.
    Segment* open(Segment& segment);
    // Takes no more records into the segment. Room that was given back in it stays unused, and does not count against
    // the quota: other segments may have that part of the quota by now.
    void close(Segment& segment);
    // Removes a dropped segment, with its used bytes, holes and tail.
    void remove(Segment& segment);

    // The total bytes that were given back in `segment` before its tail; for check_invariants.
    std::uint64_t hole_bytes(const Segment& segment) const;

private:
    struct Hole {
        Segment* segment;
        std::uint64_t offset;
        std::uint64_t bytes;
    };

    Sizes sizes_;
    std::uint64_t quota_bytes_ = 0;
    std::uint64_t used_bytes_ = 0;
    std::uint64_t allocated_bytes_ = 0;
    std::uint32_t segment_count_ = 0;
    std::vector<Segment*> open_;
    std::vector<Hole> holes_;
};

}  // namespace larder::cache
