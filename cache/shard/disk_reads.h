#pragma once

// Limits the disk reads that one shard keeps in flight. Reads above the disk's best queue depth only wait longer in the
// disk's own queue, where an urgent block cannot overtake them. Fetches above the limit wait here, in order. On the
// shard's thread.

#include <cstdint>

#include "base/assert.h"
#include "cache/shard/fetch.h"

namespace larder::cache {

class DiskReads {
public:
    explicit DiskReads(std::uint32_t in_flight_max) : in_flight_max_(in_flight_max) {
        LARDER_ASSERT(in_flight_max > 0);
    }

    // True if the fetch may read now. Otherwise a later `finish` returns the fetch.
    bool start(Fetch& fetch) {
        if (in_flight_ < in_flight_max_) {
            ++in_flight_;
            return true;
        }
        waiting_.push(fetch);
        return false;
    }

    // Ends one read. Returns the fetch that may read next, or null.
    Fetch* finish() {
        Fetch* const next = waiting_.pop();
        if (next == nullptr) --in_flight_;
        return next;
    }

private:
    std::uint32_t in_flight_max_;
    std::uint32_t in_flight_ = 0;
    FetchList<&Fetch::next_disk_read> waiting_;
};

}  // namespace larder::cache
