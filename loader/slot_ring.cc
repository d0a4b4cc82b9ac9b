#include "loader/slot_ring.h"

#include "base/assert.h"

namespace larder::detail {

std::optional<SlotRing::Run> SlotRing::allocate(std::uint32_t pages) {
    LARDER_ASSERT(pages > 0);
    if (oldest_ == next_) head_ = 0;
    if (pages > pages_ - used_) return std::nullopt;
    const std::uint32_t tail = oldest_ == next_ ? 0 : entry(oldest_).page;
    if (head_ >= tail) {
        const std::uint32_t to_end = pages_ - head_;
        if (pages > to_end) {
            if (pages > tail) return std::nullopt;
            push({.page = head_, .pages = to_end, .released = true});
            head_ = 0;
        }
    } else if (pages > tail - head_) {
        return std::nullopt;
    }
    const Run run{.page = head_, .id = next_};
    push({.page = head_, .pages = pages, .released = false});
    head_ = head_ + pages == pages_ ? 0 : head_ + pages;
    return run;
}

void SlotRing::release(std::uint32_t id) {
    LARDER_ASSERT(id - oldest_ < next_ - oldest_ && !entry(id).released);
    entry(id).released = true;
    reclaim();
}

void SlotRing::push(Entry added) {
    if (next_ - oldest_ == runs_.size()) {
        std::vector<Entry> larger(runs_.size() * 2);
        for (std::uint32_t id = oldest_; id != next_; ++id) larger[id & (larger.size() - 1)] = entry(id);
        runs_ = std::move(larger);
    }
    used_ += added.pages;
    ++next_;
    entry(next_ - 1) = added;
}

void SlotRing::reclaim() {
    for (; oldest_ != next_ && entry(oldest_).released; ++oldest_) used_ -= entry(oldest_).pages;
    for (; oldest_ != next_ && entry(next_ - 1).released; --next_) {
        used_ -= entry(next_ - 1).pages;
        head_ = entry(next_ - 1).page;
    }
}

}  // namespace larder::detail
