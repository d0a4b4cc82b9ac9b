#pragma once

// The room of one tier: where in the tier's segments the next record goes, and how much of the quota is used. A record
// goes into a hole an abandoned reservation left, else to the tail of an open segment with room, else a new segment is
// needed, whose size follows the quota. A few segments stay open at once, so that records of mixed sizes waste little
// of the tails. Pure bookkeeping; no I/O.

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

    explicit SegmentSpace(std::uint64_t header_bytes) : header_bytes_(header_bytes) {}

    std::uint64_t quota_bytes() const { return quota_bytes_; }
    std::uint64_t used_bytes() const { return used_bytes_; }
    std::uint64_t allocated_bytes() const { return allocated_bytes_; }
    std::uint32_t segment_count() const { return segment_count_; }
    void set_quota(std::uint64_t quota_bytes) { quota_bytes_ = quota_bytes; }
    bool fits_quota(std::uint64_t record_bytes) const {
        return used_bytes_ <= quota_bytes_ && record_bytes <= quota_bytes_ - used_bytes_;
    }

    // Size for a new segment of records of which one of `record_bytes` must fit and the largest has `record_bytes_max`.
    // Nothing when all segments would be more than the quota and one segment. Only when that record fits the quota.
    std::optional<std::uint64_t> segment_bytes(std::uint64_t record_bytes, std::uint64_t record_bytes_max) const;

    // Takes room in what is there and counts it; nothing when a new segment is needed. Only within the quota.
    std::optional<Place> take(std::uint64_t record_bytes);
    // Room that was taken and will not be used: a hole, or the tail moves back.
    void give_back(Place place, std::uint64_t record_bytes);

    // Counts a new or recovered segment, with what is used of it.
    void add(Segment& segment);
    // Room between a recovered segment's records; before `add`.
    void add_gap(Segment& segment, std::uint64_t offset, std::uint64_t bytes);
    // Lets records go to its tail. Gives back the segment that is closed for it, if any.
    Segment* open(Segment& segment);
    // The segment is dropped: its use, holes and tail go.
    void remove(Segment& segment);

    // Sum of holes in `segment`; for check_invariants.
    std::uint64_t hole_bytes(const Segment& segment) const;

private:
    struct Hole {
        Segment* segment;
        std::uint64_t offset;
        std::uint64_t bytes;
    };

    std::uint64_t header_bytes_;
    std::uint64_t quota_bytes_ = 0;
    std::uint64_t used_bytes_ = 0;
    std::uint64_t allocated_bytes_ = 0;
    std::uint32_t segment_count_ = 0;
    std::vector<Segment*> open_;
    std::vector<Hole> holes_;
};

}  // namespace larder::cache
