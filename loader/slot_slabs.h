#pragma once

// Slot memory, given out in runs of pages. The memory is divided into slabs of equal size, and runs that are let go
// together (the blocks of one batch) form a bundle. A bundle lies in one slab, so N bundles that are kept occupy at
// most N slabs: as long as there is one slab more than bundles are kept, the next bundle has room, in whatever order
// the others were released. Small bundles share a slab. Slabs that were in use last are used again first, so memory
// that was never needed is never touched.
//
// No I/O. Allocating and releasing take constant time; only when every slab is occupied are the gaps between runs
// searched. Allocates nothing once warm. One thread at a time.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace larder::detail {

class SlotSlabs {
public:
    struct Run {
        std::uint32_t page;
        std::uint32_t id;  // for `release`
    };

    // `pages` / `slab_pages` slabs; pages beyond the last whole slab stay unused.
    SlotSlabs(std::uint32_t pages, std::uint32_t slab_pages);

    // Makes room for a bundle whose runs have `pages` in all, at most a slab's. False if no slab has that many pages in
    // a row; nothing has changed then.
    bool begin_bundle(std::uint32_t pages);
    // The bundle's next run. Nothing if the room that `begin_bundle` made is used up.
    std::optional<Run> allocate(std::uint32_t pages);
    // A run in the same slab as `page`, which a bundle lost and asks for again. Nothing if that slab has no such gap.
    std::optional<Run> allocate_beside(std::uint32_t page, std::uint32_t pages);
    void release(std::uint32_t id);

    std::uint32_t slab_count() const { return slab_count_; }
    std::uint32_t slab_pages() const { return slab_pages_; }
    std::uint32_t slab_of(std::uint32_t page) const { return page / slab_pages_; }
    // Pages of the slabs in which there is a run.
    std::uint32_t occupied_pages() const { return occupied_slabs_ * slab_pages_; }

private:
    struct Allocated {
        std::uint32_t page;
        std::uint32_t pages;  // 0: the id is free
    };
    struct Gap {
        std::uint32_t begin;
        std::uint32_t end;
    };

    Run add(std::uint32_t page, std::uint32_t pages);
    Gap whole(std::uint32_t slab) const { return {.begin = slab * slab_pages_, .end = (slab + 1) * slab_pages_}; }
    std::optional<Gap> find_gap(std::uint32_t first_slab, std::uint32_t last_slab, std::uint32_t pages, Gap without);

    std::uint32_t slab_count_;
    std::uint32_t slab_pages_;
    std::uint32_t occupied_slabs_ = 0;
    Gap room_{.begin = 0, .end = 0};          // for the present bundle; its slab is in no list
    std::vector<std::uint32_t> slab_runs_;    // runs in each slab that was ever used
    std::vector<std::uint32_t> empty_slabs_;  // used before, the last one first
    std::vector<Allocated> runs_;             // by id
    std::vector<std::uint32_t> free_ids_;
    std::vector<Allocated> sorted_;                    // what `find_gap` works on
    std::uint32_t refused_pages_ = ~std::uint32_t{0};  // no gap had so many, and nothing was released since
};

}  // namespace larder::detail
