#include "loader/slot_slabs.h"

#include <algorithm>

#include "base/assert.h"

namespace larder::detail {
namespace {

constexpr std::uint32_t kNeverRefused = ~std::uint32_t{0};

}  // namespace

SlotSlabs::SlotSlabs(std::uint32_t pages, std::uint32_t slab_pages)
    : slab_count_(slab_pages == 0 ? 0 : pages / slab_pages), slab_pages_(slab_pages) {}

bool SlotSlabs::begin_bundle(std::uint32_t pages) {
    LARDER_ASSERT(pages > 0 && pages <= slab_pages_);
    if (room_.end - room_.begin >= pages) return true;
    if (!empty_slabs_.empty()) {
        room_ = whole_slab(empty_slabs_.back());
        empty_slabs_.pop_back();
        return true;
    }
    if (slab_runs_.size() < slab_count_) {
        room_ = whole_slab(static_cast<std::uint32_t>(slab_runs_.size()));
        slab_runs_.push_back(0);
        return true;
    }
    if (pages >= refused_pages_) return false;
    const auto gap = find_gap(0, slab_count_, pages, {});
    if (!gap) {
        refused_pages_ = pages;
        return false;
    }
    room_ = *gap;
    return true;
}

std::optional<SlotSlabs::Run> SlotSlabs::allocate(std::uint32_t pages) {
    LARDER_ASSERT(pages > 0);
    if (room_.end - room_.begin < pages) return std::nullopt;
    const std::uint32_t page = room_.begin;
    room_.begin += pages;
    return add(page, pages);
}

std::optional<SlotSlabs::Run> SlotSlabs::allocate_in_slab_of(std::uint32_t page, std::uint32_t pages) {
    const std::uint32_t slab = slab_of(page);
    // An empty slab has lost all its runs, so there is nothing to lie beside.
    if (slab >= slab_runs_.size() || slab_runs_[slab] == 0) return std::nullopt;
    const auto gap = find_gap(slab, slab + 1, pages, room_);
    if (!gap) return std::nullopt;
    return add(gap->begin, pages);
}

SlotSlabs::Run SlotSlabs::add(std::uint32_t page, std::uint32_t pages) {
    std::uint32_t id = 0;
    if (free_ids_.empty()) {
        id = static_cast<std::uint32_t>(runs_.size());
        runs_.emplace_back();
    } else {
        id = free_ids_.back();
        free_ids_.pop_back();
    }
    runs_[id] = {.page = page, .pages = pages};
    if (slab_runs_[slab_of(page)]++ == 0) ++occupied_slabs_;
    return {.page = page, .id = id};
}

void SlotSlabs::release(std::uint32_t id) {
    LARDER_ASSERT(id < runs_.size() && runs_[id].pages > 0);
    const std::uint32_t slab = slab_of(runs_[id].page);
    runs_[id].pages = 0;
    free_ids_.push_back(id);
    refused_pages_ = kNeverRefused;
    if (--slab_runs_[slab] > 0) return;
    --occupied_slabs_;
    const bool is_slab_of_room = room_.begin < room_.end && slab_of(room_.begin) == slab;
    if (is_slab_of_room) {
        room_ = whole_slab(slab);
    } else {
        empty_slabs_.push_back(slab);
    }
}

// Returns the first stretch of at least `pages` that has no run and lies outside `excluded`, in slabs [first_slab,
// last_slab).
std::optional<SlotSlabs::Gap> SlotSlabs::find_gap(std::uint32_t first_slab, std::uint32_t last_slab,
                                                  std::uint32_t pages, Gap excluded) {
    sorted_.clear();
    for (const Allocated& run : runs_) {
        if (run.pages > 0 && slab_of(run.page) >= first_slab && slab_of(run.page) < last_slab) sorted_.push_back(run);
    }
    if (excluded.begin < excluded.end) {
        sorted_.push_back({.page = excluded.begin, .pages = excluded.end - excluded.begin});
    }
    std::ranges::sort(sorted_, {}, &Allocated::page);
    auto run = sorted_.begin();
    for (std::uint32_t slab = first_slab; slab < last_slab; ++slab) {
        Gap gap = whole_slab(slab);
        const std::uint32_t end = gap.end;
        while (run != sorted_.end() && run->page < gap.begin) ++run;
        for (; run != sorted_.end() && run->page < end; ++run) {
            if (run->page - gap.begin >= pages) return Gap{.begin = gap.begin, .end = run->page};
            gap.begin = run->page + run->pages;
        }
        if (end - gap.begin >= pages) return gap;
    }
    return std::nullopt;
}

}  // namespace larder::detail
