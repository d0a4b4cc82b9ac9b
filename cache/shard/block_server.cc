#include "cache/shard/block_server.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/hash.h"
#include "cache/protocol/record.h"

namespace larder::cache {

using protocol::BlockSource;
using protocol::BlockStatus;
using protocol::kRecordHeaderBytes;

BlockServer::BlockServer(DatasetSetup setup, Device& device, DiskReads& disk_reads, Compressor& compressor,
                         const std::int64_t& now_ns)
    : name_(std::move(setup.name)),
      dataset_id_(setup.manifest->header().dataset_id),
      device_(device),
      disk_reads_(disk_reads),
      now_ns_(now_ns),
      store_(std::move(setup.store)),
      remote_(std::move(setup.remote)),
      peers_(device),
      manifest_(std::move(setup.manifest)),
      admission_(*store_, compressor, setup.compression,
                 [this](std::uint32_t block_id, std::uint64_t bytes) { note_admitted(block_id, bytes); }) {
    missing_.reserve(4096);
    held_ = std::make_shared<HeldBlocks>(static_cast<std::uint32_t>(manifest_->header().block_id_end));
    for (std::uint32_t block = 0; block < manifest_->block_count(); ++block) {
        const std::uint32_t block_id = manifest_->block_id(block);
        if (store_->find(block_id)) held_->set(block_id, true);
    }
    set_quota(setup.quota, {});
}

BlockServer::~BlockServer() = default;

void BlockServer::serve(const FetchRequest& request) {
    Fetch& fetch = *fetches_.take();
    fetch.server = this;
    fetch.consumer = request.consumer;
    fetch.tag = request.tag;
    fetch.block = request.block;
    fetch.block_id = request.manifest->block_id(request.block);
    fetch.payload_bytes = request.manifest->block_bytes(request.block);
    fetch.slot_page = request.slot_page;
    fetch.slot_pages = request.slot_pages;
    fetch.epoch = request.epoch;
    fetch.started_ns = now_ns_;
    fetch.consumer->refer();

    Job& job = fetch.consumer->job();
    if (request.epoch > job.epoch) {
        job.begin_epoch(request.epoch, request.manifest->total_bytes(), store_->usage().payload_bytes,
                        static_cast<std::uint32_t>(manifest_->header().block_id_end), peers_.blocks());
    }

    const auto location = store_->find(fetch.block_id);
    if (!location) {
        read_from_remote(fetch);
    } else if (location->segment->tier() == Tier::memory) {
        deliver_from_memory(fetch, *location);
    } else {
        read_from_disk(fetch, *location);
    }
}

void BlockServer::deliver_from_memory(Fetch& fetch, const BlockLocation& location) {
    deliver(fetch, Delivery{.source = BlockSource::memory,
                            .segment = location.segment,
                            .payload_offset = location.offset + kRecordHeaderBytes,
                            .stored_bytes = location.compressed() ? location.payload_bytes : 0});
}

void BlockServer::deliver(Fetch& fetch, const Delivery& delivery) {
    Job& job = fetch.consumer->job();
    if (delivery.status == BlockStatus::ok && fetch.consumer->cached_only()) {
        ++counters_.lent_blocks;
        counters_.lent_bytes += fetch.payload_bytes;
    } else if (delivery.status == BlockStatus::ok) {
        const std::uint64_t bytes = fetch.payload_bytes;
        for (BlockCounters* counters : {&counters_, &job.counters}) {
            switch (delivery.source) {
                case BlockSource::memory: ++counters->memory_hits, counters->memory_bytes += bytes; break;
                case BlockSource::disk: ++counters->disk_hits, counters->disk_bytes += bytes; break;
                case BlockSource::remote: ++counters->misses, counters->remote_bytes += bytes; break;
                case BlockSource::peer: ++counters->peer_hits, counters->peer_bytes += bytes; break;
                case BlockSource::none: break;
            }
        }
        if (fetch.epoch == job.epoch) {
            const bool at_peers = job.at_peers != nullptr && job.at_peers->holds(fetch.block) &&
                                  job.at_peers->manifest.get() == &fetch.consumer->manifest();
            job.note_read(fetch.block_id, bytes, at_peers || store_->find(fetch.block_id).has_value());
        }
        latency_[static_cast<std::size_t>(delivery.source)].add(now_ns_ - fetch.started_ns);
    }
    Consumer& consumer = *fetch.consumer;
    if (!consumer.closed()) {
        if (delivery.status != BlockStatus::ok && !consumer.cached_only()) {
            ++counters_.remote_errors;
            ++job.counters.remote_errors;
        }
        consumer.deliver(fetch, delivery);
    }
    consumer.unrefer();
    if (fetch.queued) {
        fetch.delivered = true;
        fetch.miss = nullptr;
    } else {
        fetches_.give_back(&fetch);
    }
}

// --- disk hits

void BlockServer::read_from_disk(Fetch& fetch, const BlockLocation& location) {
    fetch.segment = location.segment;
    fetch.record_offset = location.offset;
    fetch.payload_crc = location.payload_crc;
    fetch.stored_bytes = location.payload_bytes;
    fetch.record_bytes =
        static_cast<std::uint32_t>(protocol::record_bytes(fetch.stored_bytes, location.segment->alignment()));
    fetch.read_bytes = 0;
    if (location.raw_bytes != fetch.payload_bytes) {
        forget(fetch.block_id);
        read_from_remote(fetch);
        return;
    }
    store_->add_reference(*fetch.segment);
    fetch.operation.done = [](Operation& operation, std::int32_t result) noexcept {
        auto& of = reinterpret_cast<Fetch&>(operation);
        of.server->disk_read_done(of, result);
    };
    static_assert(offsetof(Fetch, operation) == 0);
    if (disk_reads_.start(fetch)) continue_disk_read(fetch);
}

void BlockServer::continue_disk_read(Fetch& fetch) {
    std::span<std::byte> into{fetch.consumer->slot(fetch), fetch.record_bytes};
    device_.read(fetch.segment->fd(), into.subspan(fetch.read_bytes), fetch.record_offset + fetch.read_bytes,
                 fetch.operation);
}

void BlockServer::disk_read_done(Fetch& fetch, std::int32_t result) {
    if (result > 0) {
        fetch.read_bytes += static_cast<std::uint32_t>(result);
        // A short direct read can only go on from an aligned place.
        if (fetch.read_bytes < fetch.record_bytes) {
            fetch.read_bytes -= fetch.read_bytes % fetch.segment->alignment();
            if (static_cast<std::uint32_t>(result) >= fetch.segment->alignment()) {
                continue_disk_read(fetch);
                return;
            }
        }
    }
    if (Fetch* next = disk_reads_.finish(); next != nullptr) next->server->continue_disk_read(*next);
    const bool good = result > 0 && fetch.read_bytes >= fetch.record_bytes && record_is_good(fetch);
    store_->drop_reference(*fetch.segment);
    fetch.segment = nullptr;
    if (good) {
        const bool compressed = fetch.stored_bytes != fetch.payload_bytes;
        deliver(fetch, Delivery{.source = BlockSource::disk, .stored_bytes = compressed ? fetch.stored_bytes : 0});
        return;
    }
    if (result != -ECANCELED) {
        ++counters_.crc_failures;
        ++fetch.consumer->job().counters.crc_failures;
        forget(fetch.block_id);
    }
    read_from_remote(fetch);
}

bool BlockServer::record_is_good(const Fetch& fetch) const {
    const std::byte* slot = fetch.consumer->slot(fetch);
    const auto header = protocol::read_record_header({slot, kRecordHeaderBytes});
    return header && header->dataset_id == dataset_id_ && header->block_id == fetch.block_id &&
           header->payload_bytes == fetch.stored_bytes && header->payload_crc == fetch.payload_crc &&
           crc32c({slot + kRecordHeaderBytes, fetch.stored_bytes}) == fetch.payload_crc;
}

void BlockServer::forget(std::uint32_t block_id) {
    const auto location = store_->find(block_id);
    if (!location) return;
    for (const auto& job : jobs_) job->note_dropped(block_id, location->raw_bytes);
    store_->forget(block_id);
    held_->set(block_id, false);
}

// --- misses

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
    if (is_new && start_at_peer(miss, fetch)) return;
    // Whichever waiting job has tokens first pays for the block and starts it.
    if (!miss.started) fetch.consumer->job().enqueue(fetch);
}

std::int64_t BlockServer::pump() {
    std::int64_t next_ns = kNever_ns;
    for (const auto& job : jobs_) {
        while (Fetch* fetch = job->queue_first) {
            if (fetch->delivered) {
                job->dequeue();
                fetches_.give_back(fetch);
                continue;
            }
            Miss& miss = *fetch->miss;
            if (miss.started) {
                job->dequeue();
                continue;
            }
            if (fetch->consumer->closed()) {
                job->dequeue();
                // Its waiters are dropped when the last of them is seen to be closed.
                bool wanted = false;
                for (const Fetch* waiter = miss.first_waiter; waiter != nullptr; waiter = waiter->next_waiter) {
                    wanted |= !waiter->consumer->closed();
                }
                if (!wanted) remote_read_done(miss, BlockStatus::remote_failed, ECANCELED);
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

void BlockServer::start(Miss& miss, Job& payer) {
    miss.started = true;
    Fetch* leader = miss.first_waiter;
    bool admit = false;
    for (Fetch* waiter = miss.first_waiter; waiter != nullptr; waiter = waiter->next_waiter) {
        if (waiter->consumer->closed()) continue;
        if (leader->consumer->closed()) leader = waiter;
        admit |= may_admit(*waiter->consumer, miss.block_id);
    }
    LARDER_ASSERT(!leader->consumer->closed());
    // What is to be compressed first goes through the slot.
    if (admit && !admission_.compresses(miss.payload_bytes, manifest_->total_bytes())) {
        if (const auto reserved = store_->reserve(Tier::memory, miss.block_id, miss.payload_bytes)) {
            miss.reservation = *reserved;
        }
    }
    miss.leader = leader;
    miss.block = leader->block;
    miss.read.done = [](RemoteRead& read, BlockStatus status, int system_errno) noexcept {
        auto& of = reinterpret_cast<Miss&>(read);
        of.server->remote_read_done(of, status, system_errno);
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
    const std::uint32_t payload_crc = status == BlockStatus::ok ? crc32c(miss.read.into) : 0;
    if (status == BlockStatus::ok && !has_right_checksum(miss, payload_crc)) {
        for (BlockCounters* counters : {&counters_, &miss.leader->consumer->job().counters}) ++counters->remote_corrupt;
        if (try_again(miss)) return;
        status = BlockStatus::object_corrupt;
    }
    if (status != BlockStatus::ok) {
        if (miss.reservation) store_->abandon(*miss.reservation);
        miss.reservation.reset();
        const Delivery failure{.status = status, .system_errno = system_errno};
        if (status == BlockStatus::remote_failed && try_for_joined(miss, failure)) return;
        missing_.erase(miss.block_id);
        finish(miss, failure);
        return;
    }
    missing_.erase(miss.block_id);
    Delivery delivery{.source = BlockSource::remote};
    if (!miss.reservation) {
        copy_to_waiters(miss);
        bool admit = false;
        for (Fetch* waiter = miss.first_waiter; waiter != nullptr; waiter = waiter->next_waiter) {
            admit |= !waiter->consumer->closed() && may_admit(*waiter->consumer, miss.block_id);
        }
        const bool offered = admit && !store_->has_room(miss.payload_bytes) && offer_to_peer(miss, payload_crc);
        if (admit && !offered) admission_.admit(*miss.leader, payload_crc, manifest_->total_bytes());
        finish(miss, delivery);
        return;
    }
    // The segment may have been dropped while the bytes came; then they go on in the waiters' slots.
    const Segment& segment = *miss.reservation->segment;
    store_->add_reference(segment);
    if (store_->commit(*miss.reservation, payload_crc)) {
        note_admitted(miss.block_id, miss.payload_bytes);
        delivery.segment = &segment;
        delivery.payload_offset = miss.reservation->offset + kRecordHeaderBytes;
    } else {
        copy_to_waiters(miss);
    }
    finish(miss, delivery);
    store_->drop_reference(segment);
}

bool BlockServer::has_right_checksum(const Miss& miss, std::uint32_t payload_crc) const {
    const protocol::Manifest& manifest = miss.leader->consumer->manifest();
    return !manifest.has_checksums() || manifest.block_checksum(miss.block) == payload_crc;
}

// Asks once more, paid for as the first time; after the second failure the block is quarantined.
bool BlockServer::try_again(Miss& miss) {
    if (miss.failed_once) {
        quarantine(miss.leader->consumer->manifest(), miss.block);
        return false;
    }
    if (!enqueue_again(miss)) return false;
    miss.failed_once = true;
    if (miss.reservation) store_->abandon(*miss.reservation);
    miss.reservation.reset();
    return true;
}

// A remote is given up after it failed for some time. Who asked when part of that time was over gets all of it: else a
// job that begins when the remote is well again would fail for the tries of one that has ended.
bool BlockServer::try_for_joined(Miss& miss, const Delivery& failure) {
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
    return enqueue_again(miss);
}

// Each who waits may pay for it, as at first. False: nobody waits for it any more.
bool BlockServer::enqueue_again(Miss& miss) {
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

void BlockServer::finish(Miss& miss, const Delivery& delivery) {
    for (Fetch* waiter = miss.first_waiter; waiter != nullptr;) {
        Fetch* next = waiter->next_waiter;
        deliver(*waiter, delivery);
        waiter = next;
    }
    misses_.give_back(&miss);
}

// --- admission

bool BlockServer::may_admit(const Consumer& consumer, std::uint32_t block_id) const {
    return !consumer.sequential() || chosen_by_hash(block_id);
}

bool BlockServer::chosen_by_hash(std::uint32_t block_id) const {
    return mix64(dataset_id_ ^ mix64(block_id)) <= hash_threshold_;
}

void BlockServer::update_hash_threshold() {
    const Quota quota = store_->quota();
    const double dataset_bytes = static_cast<double>(manifest_->total_bytes()) * admission_.choice().stored_ratio();
    const double share = static_cast<double>(quota.memory_bytes + quota.disk_bytes) / std::max(1.0, dataset_bytes);
    hash_threshold_ = share >= 1 ? ~std::uint64_t{0} : static_cast<std::uint64_t>(std::ldexp(share, 64));
}

void BlockServer::note_admitted(std::uint32_t block_id, std::uint64_t bytes) {
    for (const auto& job : jobs_) job->note_admitted(block_id, bytes);
    held_->set(block_id, true);
    // What the blocks shrink to is known better now.
    if (admission_.choice().wished().kind != CompressionKind::none) update_hash_threshold();
}

DatasetStore::DropObserver BlockServer::drop_observer(const std::function<void(const Segment&)>& on_drop) {
    return {.unread_blocks =
                [this](const Segment& segment) {
                    std::uint64_t unread = 0;
                    for (const auto& job : jobs_) {
                        if (job->sessions == 0) continue;
                        for (const std::uint32_t block_id : segment.block_ids()) unread += !job->has_read(block_id);
                    }
                    return unread;
                },
            .dropping =
                [this, on_drop](const Segment& segment) {
                    for (const std::uint32_t block_id : segment.block_ids()) {
                        const auto location = store_->find(block_id);
                        if (!location || location->segment != &segment) continue;
                        for (const auto& job : jobs_) job->note_dropped(block_id, location->raw_bytes);
                        held_->set(block_id, false);
                    }
                    if (on_drop && segment.tier() == Tier::memory) on_drop(segment);
                }};
}

void BlockServer::set_quota(Quota quota, const std::function<void(const Segment&)>& on_drop) {
    store_->set_quota(quota, drop_observer(on_drop));
    update_hash_threshold();
}

void BlockServer::clear(const std::function<void(const Segment&)>& on_drop) {
    store_->clear(drop_observer(on_drop));
}

void BlockServer::add_version(std::shared_ptr<const protocol::Manifest> manifest) {
    LARDER_ASSERT(manifest->header().dataset_id == dataset_id_);
    store_->grow_block_ids(static_cast<std::uint32_t>(manifest->header().block_id_end),
                           manifest->header().block_bytes_max);
    manifest_ = std::move(manifest);
    held_ = std::make_shared<HeldBlocks>(static_cast<std::uint32_t>(manifest_->header().block_id_end), held_.get());
    update_hash_threshold();
}

Job& BlockServer::job(const std::string& name, std::shared_ptr<TokenBucket> bucket) {
    for (const auto& job : jobs_) {
        if (job->name == name) {
            job->bucket = std::move(bucket);
            return *job;
        }
    }
    jobs_.push_back(std::make_unique<Job>());
    Job& job = *jobs_.back();
    job.name = name;
    job.bucket = std::move(bucket);
    job.begin_epoch(0, manifest_->total_bytes(), store_->usage().payload_bytes,
                    static_cast<std::uint32_t>(manifest_->header().block_id_end), peers_.blocks());
    return job;
}

DatasetStatistics BlockServer::statistics() const {
    DatasetStatistics statistics;
    statistics.dataset_id = dataset_id_;
    statistics.name = name_;
    statistics.counters = counters_;
    statistics.usage = store_->usage();
    statistics.quota = store_->quota();
    statistics.disk_full = store_->disk_full();
    statistics.compression = admission_.choice().wished();
    statistics.stored_ratio = admission_.choice().stored_ratio();
    for (const Refusal refusal : {Refusal::quota_reached, Refusal::disk_full, Refusal::disk_failed, Refusal::busy}) {
        statistics.admissions_refused += store_->admissions_refused(refusal);
    }
    statistics.quarantined_blocks = quarantine_.size();
    statistics.quarantined = quarantine_.listed();
    if (const auto& problem = store_->disk_problem()) statistics.disk_problem = problem->message;
    statistics.latency = latency_;
    return statistics;
}

}  // namespace larder::cache
