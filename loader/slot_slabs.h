#pragma once

// Allocates slot memory in runs of pages. The memory is divided into slabs of equal size, and runs that are released
// together (the blocks of one batch) form a bundle. A bundle lies in one slab, so N live bundles occupy at most N
// slabs. As long as there are more slabs than live bundles, the next bundle has room, in whatever order the others were
// released. Small bundles share a slab. The slabs used last are reused first, so memory that was never needed is never
// touched.
//
// No I/O. Allocating and releasing take constant time; the gaps between runs are searched only if every slab is
// occupied. Allocates nothing once warm. One thread at a time.

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

    // Makes room for a bundle whose runs have `pages` in all, at most a slab's. False, with nothing changed, if no slab
    // has that many free pages in a row.
    bool begin_bundle(std::uint32_t pages);
    // Returns the bundle's next run; nullopt if the room made by `begin_bundle` is used up.
    std::optional<Run> allocate(std::uint32_t pages);
    // Returns a run in the slab of `page`, for a block that a bundle lost and requests again; nullopt if that slab has
    // no gap of this size.
    std::optional<Run> allocate_in_slab_of(std::uint32_t page, std::uint32_t pages);
    void release(std::uint32_t id);

    std::uint32_t slab_count() const { return slab_count_; }
    std::uint32_t slab_pages() const { return slab_pages_; }
    std::uint32_t slab_of(std::uint32_t page) const { return page / slab_pages_; }
    // Pages of the slabs that hold a run.
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
    Gap whole_slab(std::uint32_t slab) const { return {.begin = slab * slab_pages_, .end = (slab + 1) * slab_pages_}; }
    std::optional<Gap> find_gap(std::uint32_t first_slab, std::uint32_t last_slab, std::uint32_t pages, Gap excluded);

    std::uint32_t slab_count_;
    std::uint32_t slab_pages_;
    std::uint32_t occupied_slabs_ = 0;
    Gap room_{.begin = 0, .end = 0};          // for the current bundle; its slab is in no list
    std::vector<std::uint32_t> slab_runs_;    // runs in each slab that was ever used
    std::vector<std::uint32_t> empty_slabs_;  // used before, the last one reused first
    std::vector<Allocated> runs_;             // by id
    std::vector<std::uint32_t> free_ids_;
    std::vector<Allocated> sorted_;                    // scratch space of `find_gap`
    std::uint32_t refused_pages_ = ~std::uint32_t{0};  // the least size without a gap since the last release
};

}  // namespace larder::detail
