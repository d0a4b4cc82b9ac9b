// The part of BlockServer that handles misses: one remote read serves all waiters of a block.

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/hash.h"
#include "cache/protocol/record.h"
#include "cache/shard/block_server.h"

namespace larder::cache {

using protocol::BlockSource;
using protocol::BlockStatus;
using protocol::kRecordHeaderBytes;

void BlockServer::read_from_remote(Fetch& fetch) {
    if (quarantine_.contains(fetch.block_id) || fetch.consumer->cached_only()) {
        deliver(fetch, Delivery{.status = BlockStatus::object_corrupt});
        return;
    }
    const auto [entry, is_new] = missing_.try_emplace(fetch.block_id, nullptr);
    if (is_new) {
        Miss& miss = *misses_.take();
        miss.server = this;
        miss.block_id = fetch.block_id;
        miss.payload_bytes = fetch.payload_bytes;
        entry->second = &miss;
    }
    Miss& miss = *entry->second;
    fetch.miss = &miss;
    fetch.next_waiter = nullptr;
    fetch.joined = miss.started;
    if (miss.last_waiter != nullptr) {
        miss.last_waiter->next_waiter = &fetch;
    } else {
        miss.first_waiter = &fetch;
    }
    miss.last_waiter = &fetch;
    if (is_new && !fetch.is_refetch && start_at_peer(miss, fetch)) return;
    // The first waiting job with enough tokens pays for the read and starts it.
    if (!miss.started) fetch.consumer->job().enqueue(fetch);
}

std::int64_t BlockServer::pump() {
    std::int64_t next_ns = kNever_ns;
    for (const auto& job : jobs_) {
        while (Fetch* fetch = job->queue_first) {
            if (fetch->delivered) {
                job->dequeue();
                fetches_.release(fetch);
                continue;
            }
            Miss& miss = *fetch->miss;
            if (miss.started) {
                job->dequeue();
                continue;
            }
            if (fetch->consumer->closed()) {
                job->dequeue();
                // The miss ends once all its waiters are closed.
                bool is_wanted = false;
                for (const Fetch* waiter = miss.first_waiter; waiter != nullptr; waiter = waiter->next_waiter) {
                    is_wanted |= !waiter->consumer->closed();
                }
                if (!is_wanted) remote_read_done(miss, BlockStatus::remote_failed, ECANCELED);
                continue;
            }
            if (!job->bucket->try_take(miss.payload_bytes, now_ns_)) {
                next_ns = std::min(next_ns, std::max(now_ns_ + 1, job->bucket->ready_at_ns(miss.payload_bytes)));
                break;
            }
            job->dequeue();
            start(miss, *job);
        }
    }
    return next_ns;
}

void BlockServer::start(Miss& miss, ShardJob& payer) {
    miss.started = true;
    Fetch* leader = miss.first_waiter;
    bool should_admit = false;
    for (Fetch* waiter = miss.first_waiter; waiter != nullptr; waiter = waiter->next_waiter) {
        if (waiter->consumer->closed()) continue;
        if (leader->consumer->closed()) leader = waiter;
        should_admit |= may_admit(*waiter->consumer, miss.block_id);
    }
    LARDER_ASSERT(!leader->consumer->closed());
    // A block to be compressed is read into a slot first.
    if (should_admit && !admission_.compresses(miss.payload_bytes, manifest_->total_bytes())) {
        if (const auto reserved = store_->reserve(Tier::memory, miss.block_id, miss.payload_bytes)) {
            miss.reservation = *reserved;
        }
    }
    miss.leader = leader;
    miss.block = leader->block;
    miss.payer = &payer;
    miss.read.payer = payer.bucket;
    miss.read.extra_bytes = 0;
    miss.read.done = [](RemoteRead& read, BlockStatus status, int system_errno) noexcept {
        auto& read_miss = reinterpret_cast<Miss&>(read);
        read_miss.server->remote_read_done(read_miss, status, system_errno);
    };
    static_assert(offsetof(Miss, read) == 0);
    const protocol::Manifest& manifest = leader->consumer->manifest();
    const protocol::Block block = manifest.block(leader->block);
    const protocol::Object object = manifest.object(block.object);
    miss.read.path = object.path;
    miss.read.object_bytes = object.size_bytes;
    miss.read.object_mtime_ns = object.mtime_ns;
    miss.read.offset = block.offset;
    miss.read.into = miss.reservation ? store_->payload(*miss.reservation)
                                      : std::span{leader->consumer->slot(*leader) + kRecordHeaderBytes,
                                                  std::size_t{miss.payload_bytes}};
    for (BlockCounters* counters : {&counters_, &payer.counters}) {
        ++counters->remote_reads;
        counters->remote_read_bytes += miss.payload_bytes;
    }
    remote_->read(miss.read);
}

void BlockServer::remote_read_done(Miss& miss, BlockStatus status, int system_errno) {
    // A miss without waiters may end before its read starts, so nobody has paid.
    if (ShardJob* payer = std::exchange(miss.payer, nullptr)) {
        const std::uint64_t extra_bytes = settle(miss.read, status);
        for (BlockCounters* counters : {&counters_, &payer->counters}) counters->remote_read_bytes += extra_bytes;
    }
    const std::uint32_t payload_crc = status == BlockStatus::ok ? crc32c(miss.read.into) : 0;
    if (status == BlockStatus::ok && !has_right_checksum(miss, payload_crc)) {
        for (BlockCounters* counters : {&counters_, &miss.leader->consumer->job().counters}) ++counters->remote_corrupt;
        if (try_again(miss)) return;
        status = BlockStatus::object_corrupt;
    }
    if (status != BlockStatus::ok) {
        give_up_reservation(miss);
        const Delivery failure{.status = status, .system_errno = system_errno};
        if (status == BlockStatus::remote_failed && requeue_joined_waiters(miss, failure)) return;
        missing_.erase(miss.block_id);
        finish(miss, failure);
        return;
    }
    missing_.erase(miss.block_id);
    settle_damage_reports(miss, payload_crc);
    Delivery delivery{.source = BlockSource::remote};
    if (!miss.reservation) {
        copy_to_waiters(miss);
        bool should_admit = false;
        for (Fetch* waiter = miss.first_waiter; waiter != nullptr; waiter = waiter->next_waiter) {
            should_admit |= !waiter->consumer->closed() && may_admit(*waiter->consumer, miss.block_id);
        }
        should_admit = should_admit && !store_->find(miss.block_id);
        const bool is_offered =
            should_admit && !store_->has_room(miss.payload_bytes) && offer_to_peer(miss, payload_crc);
        if (should_admit && !is_offered) admission_.admit(*miss.leader, payload_crc, manifest_->total_bytes());
        finish(miss, delivery, payload_crc);
        return;
    }
    // If the segment was dropped during the read, the bytes are delivered in the waiters' slots.
    const Segment& segment = *miss.reservation->segment;
    store_->add_reference(segment);
    if (store_->commit(*miss.reservation, payload_crc)) {
        note_admitted(miss.block_id, miss.payload_bytes);
        delivery.segment = &segment;
        delivery.payload_offset = miss.reservation->offset + kRecordHeaderBytes;
    } else {
        copy_to_waiters(miss);
    }
    finish(miss, delivery, payload_crc);
    store_->drop_reference(segment);
}

bool BlockServer::has_right_checksum(const Miss& miss, std::uint32_t payload_crc) const {
    const protocol::Manifest& manifest = miss.leader->consumer->manifest();
    return !manifest.has_checksums() || manifest.block_checksum(miss.block) == payload_crc;
}

// Requeues the read once, to be paid for like the first. Quarantines the block after the second failure.
bool BlockServer::try_again(Miss& miss) {
    if (miss.failed_once) {
        quarantine(miss.leader->consumer->manifest(), miss.block);
        return false;
    }
    if (!requeue(miss)) return false;
    miss.failed_once = true;
    give_up_reservation(miss);
    return true;
}

void BlockServer::give_up_reservation(Miss& miss) {
    if (miss.reservation) store_->abandon(*miss.reservation);
    miss.reservation.reset();
}

// Requeues the read for the waiters that joined while the failed read was in flight, and fails the others. A read fails
// only after retries for some time, and each waiter gets all of that time. Otherwise a job that begins when the remote
// is well again would fail because of the retries of an ended job.
bool BlockServer::requeue_joined_waiters(Miss& miss, const Delivery& failure) {
    Fetch* waiter = std::exchange(miss.first_waiter, nullptr);
    miss.last_waiter = nullptr;
    while (waiter != nullptr) {
        Fetch* next = std::exchange(waiter->next_waiter, nullptr);
        if (std::exchange(waiter->joined, false) && !waiter->consumer->closed()) {
            (miss.last_waiter != nullptr ? miss.last_waiter->next_waiter : miss.first_waiter) = waiter;
            miss.last_waiter = waiter;
        } else {
            deliver(*waiter, failure);
        }
        waiter = next;
    }
    return requeue(miss);
}

// Requeues the miss for all open waiters, any of which may pay. False if there are none.
bool BlockServer::requeue(Miss& miss) {
    bool any = false;
    for (Fetch* waiter = miss.first_waiter; waiter != nullptr; waiter = waiter->next_waiter) {
        if (waiter->consumer->closed()) continue;
        any = true;
        if (!waiter->queued) waiter->consumer->job().enqueue(*waiter);
    }
    if (any) miss.started = false;
    return any;
}

void BlockServer::quarantine(const protocol::Manifest& manifest, std::uint32_t block) {
    quarantine_.add(manifest, block);
}

void BlockServer::copy_to_waiters(const Miss& miss) {
    for (Fetch* waiter = miss.first_waiter; waiter != nullptr; waiter = waiter->next_waiter) {
        std::byte* into = waiter->consumer->slot(*waiter) + kRecordHeaderBytes;
        if (waiter->consumer->closed() || into == miss.read.into.data()) continue;
        std::memcpy(into, miss.read.into.data(), miss.payload_bytes);
    }
}

// Delivers to all waiters. `payload_crc` is the CRC of the remote's bytes: a waiter that reported these same bytes as
// damaged gets object_corrupt.
void BlockServer::finish(Miss& miss, const Delivery& delivery, std::uint32_t payload_crc) {
    for (Fetch* waiter = miss.first_waiter; waiter != nullptr;) {
        Fetch* next = waiter->next_waiter;
        const bool same_again =
            waiter->is_refetch && delivery.status == BlockStatus::ok && waiter->damaged_crc == payload_crc;
        deliver(*waiter, same_again ? Delivery{.status = BlockStatus::object_corrupt} : delivery);
        waiter = next;
    }
    misses_.release(&miss);
}

}  // namespace larder::cache
