#include "cache/shard/block_server.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <utility>

#include "base/assert.h"
#include "base/hash.h"
#include "cache/protocol/record.h"

namespace larder::cache {

using protocol::BlockSource;
using protocol::BlockStatus;
using protocol::kRecordHeaderBytes;

namespace {

constexpr std::uint8_t kDiskTriesMax = 4;

bool is_transient(std::int32_t result) {
    return result == -EINTR || result == -EAGAIN || result == -ENOMEM;
}

}  // namespace

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

bool BlockServer::serve(const FetchRequest& request) {
    const std::uint32_t block_id = request.manifest->block_id(request.block);
    auto location = request.is_refetch ? std::nullopt : store_->find(block_id);
    const auto in_memory = [&] { return location && location->segment->tier() == Tier::memory; };
    if (!request.slot_ready && !in_memory()) return false;

    Fetch& fetch = *fetches_.take();
    fetch.server = this;
    fetch.consumer = request.consumer;
    fetch.tag = request.tag;
    fetch.block = request.block;
    fetch.block_id = block_id;
    fetch.payload_bytes = request.manifest->block_bytes(request.block);
    fetch.slot_page = request.slot_page;
    fetch.slot_pages = request.slot_pages;
    fetch.epoch = request.epoch;
    fetch.is_refetch = request.is_refetch;
    fetch.damaged_crc = request.damaged_crc;
    fetch.started_ns = now_ns_;
    fetch.consumer->refer();

    ShardJob& job = fetch.consumer->job();
    if (request.epoch > job.epoch) begin_epoch(job, request.epoch, *request.manifest);

    if (fetch.is_refetch && is_reported_bad(fetch)) {
        deliver(fetch, Delivery{.status = BlockStatus::object_corrupt});
        return true;
    }
    if (fetch.is_refetch) {
        check_damage_report(fetch);
        // The report is settled if the cache holds newer bytes than the reader's.
        if (!fetch.is_refetch) location = store_->find(block_id);
    }
    if (!location) {
        read_from_remote(fetch);
    } else if (in_memory()) {
        deliver_from_memory(fetch, *location);
    } else {
        read_from_disk(fetch, *location);
    }
    return true;
}

void BlockServer::deliver_from_memory(Fetch& fetch, const BlockLocation& location) {
    deliver(fetch, Delivery{.source = BlockSource::memory,
                            .segment = location.segment,
                            .payload_offset = location.offset + kRecordHeaderBytes,
                            .stored_bytes = location.compressed() ? location.payload_bytes : 0});
}

void BlockServer::deliver(Fetch& fetch, const Delivery& delivery) {
    ShardJob& job = fetch.consumer->job();
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
            const bool is_at_peers = job.at_peers != nullptr && job.at_peers->holds(fetch.block) &&
                                     job.at_peers->manifest.get() == &fetch.consumer->manifest();
            job.note_read(fetch.block_id, bytes, is_at_peers || store_->find(fetch.block_id).has_value());
        }
        const auto source = static_cast<std::size_t>(delivery.source);
        if (fetch.started_ns == now_ns_) {
            ++answered_at_once_[source];
            any_answered_at_once_ = true;
        } else {
            latency_[source].add(now_ns_ - fetch.started_ns);
        }
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
        fetches_.release(&fetch);
    }
}

void BlockServer::note_posted(std::int64_t took_ns) {
    if (!any_answered_at_once_) return;
    for (std::size_t source = 0; source < answered_at_once_.size(); ++source) {
        if (answered_at_once_[source] > 0) latency_[source].add(took_ns, answered_at_once_[source]);
    }
    answered_at_once_.fill(0);
    any_answered_at_once_ = false;
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
    fetch.disk_tries = 0;
    if (location.raw_bytes != fetch.payload_bytes) {
        forget(fetch.block_id);
        read_from_remote(fetch);
        return;
    }
    store_->add_reference(*fetch.segment);
    fetch.operation.done = [](Operation& operation, std::int32_t result) noexcept {
        auto& read_fetch = reinterpret_cast<Fetch&>(operation);
        read_fetch.server->disk_read_done(read_fetch, result);
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
    if (is_transient(result) && ++fetch.disk_tries < kDiskTriesMax) return continue_disk_read(fetch);
    if (result > 0) {
        fetch.read_bytes += static_cast<std::uint32_t>(result);
        // A short direct read must resume at an aligned offset.
        if (fetch.read_bytes < fetch.record_bytes) {
            fetch.read_bytes -= fetch.read_bytes % fetch.segment->alignment();
            if (static_cast<std::uint32_t>(result) >= fetch.segment->alignment()) {
                continue_disk_read(fetch);
                return;
            }
        }
    }
    if (Fetch* next = disk_reads_.finish(); next != nullptr) next->server->continue_disk_read(*next);
    const bool is_good = result > 0 && fetch.read_bytes >= fetch.record_bytes && record_is_good(fetch);
    store_->drop_reference(*fetch.segment);
    fetch.segment = nullptr;
    if (is_good) {
        const bool is_compressed = fetch.stored_bytes != fetch.payload_bytes;
        deliver(fetch, Delivery{.source = BlockSource::disk, .stored_bytes = is_compressed ? fetch.stored_bytes : 0});
        return;
    }
    // A cancelled read or a transient error does not show that the block is bad.
    if (result != -ECANCELED && !is_transient(result)) {
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
    // The measured compression ratio may have changed.
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
                },
            .forgetting =
                [this](std::uint32_t block_id, std::uint32_t raw_bytes) {
                    for (const auto& job : jobs_) job->note_dropped(block_id, raw_bytes);
                    held_->set(block_id, false);
                }};
}

void BlockServer::set_quota(Quota quota, const std::function<void(const Segment&)>& on_drop) {
    store_->set_quota(quota, drop_observer(on_drop));
    update_hash_threshold();
}

void BlockServer::drop_dead_blocks(std::span<const std::uint64_t> live,
                                   const std::function<void(const Segment&)>& on_drop) {
    store_->drop_dead_blocks(live, drop_observer(on_drop));
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

ShardJob& BlockServer::job(const std::string& name, std::shared_ptr<TokenBucket> bucket) {
    for (const auto& job : jobs_) {
        if (job->name == name) {
            job->bucket = std::move(bucket);
            return *job;
        }
    }
    forget_ended_jobs();
    jobs_.push_back(std::make_unique<ShardJob>());
    ShardJob& job = *jobs_.back();
    job.name = name;
    job.bucket = std::move(bucket);
    return job;
}

// Bounds the list, because a client may open sessions under ever new job names.
void BlockServer::forget_ended_jobs() {
    const auto has_ended = [](const auto& job) { return job->has_ended(); };
    if (std::ranges::count_if(jobs_, has_ended) < static_cast<std::ptrdiff_t>(kEndedJobsMax)) return;
    const auto ended_at = [](const auto& job) { return job->has_ended() ? job->idle_since_ns : kNever_ns; };
    jobs_.erase(std::ranges::min_element(jobs_, {}, ended_at));
}

ShardJob& BlockServer::join(const std::string& name, std::shared_ptr<TokenBucket> bucket,
                            const protocol::Manifest& manifest) {
    ShardJob& joined = job(name, std::move(bucket));
    if (joined.sessions++ == 0) begin_epoch(joined, 0, manifest);
    joined.idle_since_ns = 0;
    return joined;
}

void BlockServer::begin_epoch(ShardJob& job, std::uint32_t epoch, const protocol::Manifest& manifest) {
    // The store may also hold blocks of another version.
    const std::uint64_t cached_bytes = std::min(store_->usage().payload_bytes, manifest.total_bytes());
    job.begin_epoch(epoch, manifest.total_bytes(), cached_bytes,
                    static_cast<std::uint32_t>(manifest_->header().block_id_end), peers_.blocks());
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
