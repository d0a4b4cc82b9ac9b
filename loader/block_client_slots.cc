// BlockClient: where blocks lie in slot memory, and how room is made for the next one.

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <utility>
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

// Returns a run of slot pages for `entry`, the first wanted block that has references.
std::optional<SlotSlabs::Run> BlockClient::allocate_slot(const BlockEntry& entry) {
    const std::uint32_t pages = slot_pages(entry.length);
    if (entry.had_slot) {
        if (const auto run = slots_.allocate_in_slab_of(entry.slot_page, pages)) return run;
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
    // A bundle may be larger than a slab if the memory budget is small.
    const auto pages_to_reserve =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(bundle_pages, slots_.slab_pages()));
    if (!slots_.begin_bundle(pages_to_reserve) && !(spreads_bundles_ && slots_.begin_bundle(pages)))
        return std::nullopt;
    open_bundle_ = entry.bundle;
    return slots_.allocate(pages);
}

std::uint64_t BlockClient::slot_bytes_occupied() const {
    return std::uint64_t{slots_.occupied_pages()} * protocol::kPageBytes;
}

bool BlockClient::make_room() {
    if (!std::exchange(spreads_bundles_, true)) {
        send_wanted();
        if (!no_room_ || session_->fetches_in_flight() > 0) return true;
    }
    if (batches_out_ > 1 && copied_bytes_ >= slot_bytes()) return false;
    std::vector<std::uint32_t> movable;
    for (std::uint32_t tag = 0; tag < table_.tag_end(); ++tag) {
        const BlockEntry& entry = table_[tag];
        if (entry.state == BlockState::ready && entry.has_slot && entry.handed_out == 0) movable.push_back(tag);
    }
    std::ranges::sort(movable, std::ranges::greater{}, [this](std::uint32_t tag) { return table_[tag].order; });
    for (const std::uint32_t tag : movable) {
        copy_out_of_slot(table_[tag]);
        send_wanted();
        if (!no_room_) break;
    }
    return !movable.empty();
}

void BlockClient::copy_out_of_slot(BlockEntry& entry) {
    const std::span<const std::byte> bytes = entry.bytes();
    auto copy = std::make_unique_for_overwrite<std::byte[]>(bytes.size());
    std::ranges::copy(bytes, copy.get());
    entry.raw_bytes = static_cast<std::uint32_t>(bytes.size());
    release_memory(entry);
    entry.raw = std::move(copy);
    entry.data = entry.raw.get();
    entry.copied = true;
    copied_bytes_ += entry.raw_bytes;
}

void BlockClient::free_one_slab(std::span<const std::uint32_t> tags) {
    if (tags.size() < slots_.slab_count()) return;
    slab_use_.assign(slots_.slab_count(), {});
    for (const std::uint32_t tag : tags) {
        const BlockEntry& entry = table_[tag];
        if (!entry.has_slot) continue;
        SlabUse& use = slab_use_[slots_.slab_of(entry.slot_page)];
        use.bytes += entry.length;
        use.held = use.held || entry.handed_out > 0;
    }
    const auto least_used =
        std::ranges::min_element(slab_use_, {}, [](const SlabUse& use) { return std::pair(use.held, use.bytes); });
    if (least_used->held || least_used->bytes == 0) return;
    const auto slab = static_cast<std::uint32_t>(least_used - slab_use_.begin());
    for (const std::uint32_t tag : tags) {
        BlockEntry& entry = table_[tag];
        if (entry.has_slot && slots_.slab_of(entry.slot_page) == slab) copy_out_of_slot(entry);
    }
}

}  // namespace larder::detail
