#pragma once

// Which pages of slot memory are in use: a ring of page runs, allocated in order at the head. Runs may be released in
// any order, but room comes back in the order of allocation, when the oldest runs are all free; a run never wraps, so
// the end of the ring may stay unused for one round. Blocks are asked for in the order they are consumed, so this loses
// little, needs no search, and lets a memory budget be checked by plain arithmetic. No I/O; allocates nothing once
// warm.

#include <cstdint>
#include <optional>
#include <vector>

namespace larder::detail {

class SlotRing {
public:
    struct Run {
        std::uint32_t page;
        std::uint32_t id;  // for `release`
    };

    explicit SlotRing(std::uint32_t pages) : pages_(pages) {}

    // Nothing when the head has no `pages` in a row.
    std::optional<Run> allocate(std::uint32_t pages);
    void release(std::uint32_t id);

    std::uint32_t pages() const { return pages_; }
    // Pages that cannot be allocated now: in use, between runs in use, or passed over at the end.
    std::uint32_t used_pages() const { return used_; }

private:
    struct Entry {
        std::uint32_t page;
        std::uint32_t pages;
        bool released;
    };

    void push(Entry entry);
    void reclaim();
    Entry& entry(std::uint32_t id) { return runs_[id & (runs_.size() - 1)]; }

    std::uint32_t pages_;
    std::uint32_t head_ = 0;  // next page to give
    std::uint32_t used_ = 0;
    std::uint32_t oldest_ = 0;  // run ids run freely
    std::uint32_t next_ = 0;
    std::vector<Entry> runs_ = std::vector<Entry>(64);  // a power of two
};

}  // namespace larder::detail
