// The part of BlockServer that reads blocks from other nodes and offers blocks to them.

#include <cerrno>
#include <cstring>
#include <string>

#include "base/hash.h"
#include "cache/protocol/record.h"
#include "cache/shard/block_server.h"

namespace larder::cache {

using protocol::BlockSource;
using protocol::BlockStatus;
using protocol::kRecordHeaderBytes;

void BlockServer::set_peers(std::shared_ptr<const PeerBlocks> peers) {
    const bool lost_some = peers_.set(std::move(peers));
    if (!lost_some) return;
    for (const auto& job : jobs_) job->note_lost_at_peers(*peers_.blocks());
}

// Takes no tokens, because tokens limit only the remote. Returns false if no peer can be asked.
bool BlockServer::start_at_peer(Miss& miss, Fetch& fetch) {
    const std::size_t link = peers_.link_to(fetch.consumer->manifest(), fetch.block, now_ns_);
    if (link == 0) return false;
    miss.started = true;
    miss.leader = &fetch;
    miss.block = fetch.block;
    miss.peer = link;
    miss.peer_path = std::to_string(fetch.block);
    miss.read.done = [](RemoteRead& read, BlockStatus status, int) noexcept {
        auto& read_miss = reinterpret_cast<Miss&>(read);
        read_miss.server->peer_read_done(read_miss, status);
    };
    miss.read.path = miss.peer_path;
    miss.read.offset = 0;
    miss.read.object_bytes = kRecordHeaderBytes + std::uint64_t{miss.payload_bytes};
    miss.read.object_mtime_ns = 0;
    miss.read.into = {fetch.consumer->slot(fetch), kRecordHeaderBytes + std::size_t{miss.payload_bytes}};
    peers_.read(link, miss.read);
    return true;
}

// Requeues the miss for the remote if the peer's read failed or its bytes are wrong.
void BlockServer::peer_read_done(Miss& miss, BlockStatus status) {
    const std::span<std::byte> record = miss.read.into;
    miss.read.into = record.subspan(kRecordHeaderBytes);
    bool is_good = status == BlockStatus::ok;
    if (is_good) {
        const auto header = protocol::read_record_header(record.first(kRecordHeaderBytes));
        const std::uint32_t payload_crc = crc32c(miss.read.into);
        is_good = header && header->raw_bytes == 0 && header->payload_bytes == miss.payload_bytes &&
                  header->payload_crc == payload_crc && has_right_checksum(miss, payload_crc);
    }
    // Only the remote's bytes can settle a damage report that arrived meanwhile.
    bool is_refetch = false;
    for (const Fetch* waiter = miss.first_waiter; waiter != nullptr; waiter = waiter->next_waiter)
        is_refetch |= waiter->is_refetch;
    if (is_good && !is_refetch) {
        missing_.erase(miss.block_id);
        copy_to_waiters(miss);
        finish(miss, Delivery{.source = BlockSource::peer});
        return;
    }
    if (!is_good) {
        for (BlockCounters* counters : {&counters_, &miss.leader->consumer->job().counters}) ++counters->peer_failures;
    }
    // A peer that no longer holds the block (object_missing) is still asked for other blocks.
    if (!is_good && status != BlockStatus::object_missing) peers_.failed(miss.peer, now_ns_);
    miss.peer = 0;
    if (requeue(miss)) return;
    missing_.erase(miss.block_id);
    finish(miss, Delivery{.status = BlockStatus::remote_failed, .system_errno = ECANCELED});
}

// Offers a block that has no room here to a peer. The block is sent from the slot, which stays pinned meanwhile. False
// if the block is not offered.
bool BlockServer::offer_to_peer(const Miss& miss, std::uint32_t payload_crc) {
    constexpr std::uint64_t kOfferedBytesMax = std::uint64_t{64} << 20;
    const Fetch& leader = *miss.leader;
    const bool is_over_limit =
        offered_bytes_in_flight_ > 0 && offered_bytes_in_flight_ + miss.payload_bytes > kOfferedBytesMax;
    if (is_over_limit || leader.consumer->closed() || leader.consumer->sequential()) return false;
    const std::size_t peer = peers_.link_with_room(leader.consumer->manifest(), miss.block, now_ns_);
    if (peer == 0) return false;
    Offer& offer = *offers_.take();
    offer.server = this;
    offer.consumer = leader.consumer;
    offer.path = std::to_string(miss.block);
    offer.peer = peer;
    offer.slot_page = leader.slot_page;
    offer.slot_pages = leader.slot_pages;
    offer.consumer->refer();
    offer.consumer->pin(leader);
    std::byte* slot = leader.consumer->slot(leader);
    const protocol::RecordHeader header =
        protocol::make_record_header(dataset_id_, miss.block_id, miss.payload_bytes, payload_crc, 0);
    std::memcpy(slot, &header, sizeof header);
    offer.send.path = offer.path;
    offer.send.into = {slot, kRecordHeaderBytes + std::size_t{miss.payload_bytes}};
    offer.send.done = [](RemoteRead& sent, BlockStatus status, int) noexcept {
        auto& sent_offer = reinterpret_cast<Offer&>(sent);
        BlockServer& self = *sent_offer.server;
        self.offered_bytes_in_flight_ -= sent_offer.send.into.size();
        if (status == BlockStatus::ok) {
            ++self.counters_.offered_blocks;
        } else if (status == BlockStatus::object_missing) {
            self.peers_.refused(sent_offer.peer);
        } else {
            self.peers_.failed(sent_offer.peer, self.now_ns_);
        }
        sent_offer.consumer->unpin(sent_offer.slot_page, sent_offer.slot_pages);
        sent_offer.consumer->unrefer();
        self.offers_.release(&sent_offer);
    };
    static_assert(offsetof(Offer, send) == 0);
    offered_bytes_in_flight_ += offer.send.into.size();
    peers_.offer(peer, offer.send);
    return true;
}

bool BlockServer::admit_offered(const Fetch& fetch, std::uint32_t payload_crc) {
    if (store_->find(fetch.block_id) || missing_.contains(fetch.block_id)) return false;
    if (!store_->has_room(fetch.payload_bytes) || quarantine_.contains(fetch.block_id)) return false;
    if (!admission_.compresses(fetch.payload_bytes, manifest_->total_bytes())) {
        if (const auto reserved = store_->reserve(Tier::memory, fetch.block_id, fetch.payload_bytes)) {
            const std::byte* payload = fetch.consumer->slot(fetch) + kRecordHeaderBytes;
            std::memcpy(store_->payload(*reserved).data(), payload, fetch.payload_bytes);
            if (store_->commit(*reserved, payload_crc)) note_admitted(fetch.block_id, fetch.payload_bytes);
            return true;
        }
    }
    admission_.admit(fetch, payload_crc, manifest_->total_bytes());
    return true;
}

}  // namespace larder::cache
