#include "cache/shard/offered_blocks.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "cache/shard/block_server.h"

namespace larder::cache {

OfferedBlocks::OfferedBlocks(BlockServer& server, ShardJob& job)
    : Consumer(job, /*sequential=*/false), server_(server), server_manifest_(server.shared_manifest()) {}

OfferedBlocks::~OfferedBlocks() {
    LARDER_ASSERT(unreferenced());
}

bool OfferedBlocks::take(OfferedBlock offered) {
    if (closed()) return false;
    const auto free = std::ranges::find_if(slots_, [](const Slot& slot) { return slot.offered.record == nullptr; });
    const auto index = static_cast<std::uint32_t>(free - slots_.begin());
    if (free == slots_.end()) slots_.emplace_back();
    Slot& slot = slots_[index];
    slot.offered = std::move(offered);
    const protocol::Manifest& manifest = *slot.offered.manifest;
    Fetch fetch;
    fetch.server = &server_;
    fetch.consumer = this;
    fetch.block = slot.offered.block;
    fetch.block_id = manifest.block_id(fetch.block);
    fetch.payload_bytes = manifest.block_bytes(fetch.block);
    fetch.slot_page = index;
    fetch.slot_pages = slot.offered.pages;
    const bool taken = server_.admit_offered(fetch, slot.offered.payload_crc, slot.offered.digest);
    if (!slots_[index].busy) slots_[index] = {};
    return taken;
}

}  // namespace larder::cache
