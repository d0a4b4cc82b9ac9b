// BlockClient: where blocks lie in slot memory, and how room is made for the next.

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cache/protocol/record.h"
#include "cache/protocol/wire.h"
#include "loader/block_client.h"

namespace larder::detail {
namespace {

std::uint32_t slot_pages(std::uint32_t block_bytes) {
    return static_cast<std::uint32_t>(protocol::record_bytes(block_bytes, protocol::kPageBytes) / protocol::kPageBytes);
}

}  // namespace

void BlockClient::reset_slots() {
    const auto pages = [](std::uint64_t bytes) { return static_cast<std::uint32_t>(bytes / protocol::kPageBytes); };
    slots_ = SlotSlabs(pages(attach_options_.slot_bytes), pages(attach_options_.slab_bytes));
    open_bundle_ = kNoBundle;
}

// A run for the first wanted block that somebody refers to.
std::optional<SlotSlabs::Run> BlockClient::allocate_slot(const BlockEntry& entry) {
    const std::uint32_t pages = slot_pages(entry.length);
    if (entry.had_slot) {
        if (const auto run = slots_.allocate_beside(entry.slot_page, pages)) return run;
    }
    if (entry.bundle != kNoBundle && entry.bundle == open_bundle_) {
        if (const auto run = slots_.allocate(pages)) return run;
    }
    std::uint64_t bundle_pages = pages;
    for (std::size_t i = wanted_begin_ + 1; i < wanted_.size() && entry.bundle != kNoBundle; ++i) {
        const BlockEntry& other = table_[wanted_[i]];
        if (other.bundle != entry.bundle) break;
        if (other.references > 0) bundle_pages += slot_pages(other.length);
    }
    // A bundle may be larger than a slab where the memory budget is small.
    const auto fitting = static_cast<std::uint32_t>(std::min<std::uint64_t>(bundle_pages, slots_.slab_pages()));
    if (!slots_.begin_bundle(fitting)) return std::nullopt;
    open_bundle_ = entry.bundle;
    return slots_.allocate(pages);
}

std::uint64_t BlockClient::slot_bytes_occupied() const {
    return std::uint64_t{slots_.occupied_pages()} * protocol::kPageBytes;
}

bool BlockClient::make_room() {
    std::vector<std::uint32_t> movable;
    for (std::uint32_t tag = 0; tag < table_.tag_end(); ++tag) {
        const BlockEntry& entry = table_[tag];
        if (entry.state == BlockState::ready && entry.has_slot && entry.handed_out == 0) movable.push_back(tag);
    }
    std::ranges::sort(movable, std::ranges::greater{}, [this](std::uint32_t tag) { return table_[tag].order; });
    for (const std::uint32_t tag : movable) {
        BlockEntry& entry = table_[tag];
        const std::span<const std::byte> bytes = entry.bytes();
        auto copy = std::make_unique_for_overwrite<std::byte[]>(bytes.size());
        std::ranges::copy(bytes, copy.get());
        entry.raw_bytes = static_cast<std::uint32_t>(bytes.size());
        let_go(entry);
        entry.raw = std::move(copy);
        entry.data = entry.raw.get();
        send_wanted();
        if (!no_room_) break;
    }
    return !movable.empty();
}

}  // namespace larder::detail
