#include "cache/shard/lender.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "cache/protocol/record.h"
#include "cache/shard/block_server.h"

namespace larder::cache {

using protocol::kPageBytes;
using protocol::kRecordHeaderBytes;

namespace {

// A token encodes a kind and an index: tokens of segments are odd, tokens of slots even.
constexpr std::uint64_t segment_token(std::size_t index) {
    return 2 * index + 1;
}
constexpr std::uint64_t slot_token(std::size_t index) {
    return 2 * index + 2;
}

}  // namespace

Lender::Lender(BlockServer& server, ShardJob& job, std::uint32_t slots)
    : Consumer(job, /*sequential=*/false), server_(server), server_manifest_(server.shared_manifest()), slots_(slots) {}

Lender::~Lender() {
    LARDER_ASSERT(unreferenced());
}

void Lender::ask(std::shared_ptr<const protocol::Manifest> manifest, std::uint32_t block, Lend lend) {
    LendRequest request{.manifest = std::move(manifest), .block = block, .lend = std::move(lend)};
    if (!serve(request)) waiting_.push_back(std::move(request));
}

// False if every slot is taken.
bool Lender::serve(LendRequest& request) {
    const std::uint32_t block_id = request.manifest->block_id(request.block);
    const auto location = server_.store().find(block_id);
    if (closed() || !location) {
        request.lend({});
        return true;
    }
    if (location->segment->tier() == Tier::memory) {
        const auto free = std::ranges::find(lent_segments_, nullptr);
        const auto index = static_cast<std::size_t>(free - lent_segments_.begin());
        if (free == lent_segments_.end()) lent_segments_.push_back(nullptr);
        lent_segments_[index] = location->segment;
        server_.store().add_reference(*location->segment);
        refer();
        const std::byte* record = location->segment->memory() + location->offset;
        request.lend({.payload = {record + kRecordHeaderBytes, location->payload_bytes},
                      .payload_crc = location->payload_crc,
                      .raw_bytes = location->compressed() ? location->raw_bytes : 0,
                      .token = segment_token(index)});
        return true;
    }
    const auto slot = std::ranges::find(slots_, false, &Slot::taken);
    if (slot == slots_.end()) return false;
    const std::size_t bytes = protocol::record_bytes(location->payload_bytes, kPageBytes);
    if (slot->memory_bytes < bytes) {
        slot->memory = allocate_pages(bytes);
        slot->memory_bytes = bytes;
    }
    slot->taken = true;
    slot->request = std::move(request);
    Fetch& fetch = server_.new_fetch(*this, *slot->request.manifest, slot->request.block);
    fetch.slot_page = static_cast<std::uint32_t>(slot - slots_.begin());
    fetch.slot_pages = static_cast<std::uint32_t>(bytes / kPageBytes);
    server_.serve(fetch);
    return true;
}

void Lender::serve_waiting() {
    while (!waiting_.empty()) {
        LendRequest request = std::move(waiting_.front());
        waiting_.pop_front();
        if (serve(request)) continue;
        waiting_.push_front(std::move(request));
        return;
    }
}

std::byte* Lender::slot(const Fetch& fetch) {
    return slots_[fetch.slot_page].memory.get();
}

void Lender::deliver(const Fetch& fetch) {
    Slot& slot = slots_[fetch.slot_page];
    const LendRequest request = std::exchange(slot.request, {});
    if (fetch.status != protocol::BlockStatus::ok) {
        slot.taken = false;
        request.lend({});
        return;
    }
    refer();
    request.lend({.payload = {slot.memory.get() + kRecordHeaderBytes, fetch.stored_bytes},
                  .payload_crc = fetch.payload_crc,
                  .raw_bytes = fetch.is_compressed() ? fetch.payload_bytes : 0,
                  .token = slot_token(fetch.slot_page)});
}

void Lender::return_block(std::uint64_t token) {
    LARDER_ASSERT(token != 0);
    const std::size_t index = (token - 1) / 2;
    if (token % 2 == 1) {
        server_.store().drop_reference(*std::exchange(lent_segments_[index], nullptr));
    } else {
        slots_[index].taken = false;
    }
    unrefer();
    serve_waiting();
}

void Lender::stop() {
    closed_ = true;
    serve_waiting();
}

}  // namespace larder::cache
