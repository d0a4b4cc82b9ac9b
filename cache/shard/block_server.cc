#include "cache/shard/block_server.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/hash.h"
#include "base/server/logging.h"
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

BlockServer::BlockServer(DatasetSetup setup, const Shared& shared, std::function<void(const Segment&)> on_window_drop)
    : name_(std::move(setup.definition.name)),
      dataset_id_(setup.manifest->header().dataset_id),
      device_(shared.device),
      disk_reads_(shared.disk_reads),
      digester_(shared.digester),
      tracer_(shared.tracer),
      now_ns_(shared.now_ns),
      store_(std::move(setup.store)),
      remote_(std::move(setup.remote)),
      peers_(shared.device),
      manifest_(std::move(setup.manifest)),
      admission_(*store_, shared.compressor, shared.tracer, setup.definition.compression,
                 [this](std::uint32_t block_id, std::uint64_t bytes) { note_admitted(block_id, bytes); }),
      window_bytes_(shared.window_bytes),
      on_window_drop_(std::move(on_window_drop)),
      digests_(shared.takes_digests ? std::make_shared<ReadDigests>() : nullptr) {
    missing_.reserve(4096);
    held_ = std::make_shared<HeldBlocks>(static_cast<std::uint32_t>(manifest_->header().block_id_end));
    for (std::uint32_t block = 0; block < manifest_->block_count(); ++block) {
        const std::uint32_t block_id = manifest_->block_id(block);
        if (store_->find(block_id)) held_->set(block_id, true);
    }
    set_quota(setup.quota, {});
}

BlockServer::~BlockServer() = default;

Fetch& BlockServer::new_fetch(Consumer& consumer, const protocol::Manifest& manifest, std::uint32_t block) {
    Fetch& fetch = *fetches_.take();
    fetch.server = this;
    fetch.consumer = &consumer;
    fetch.block = block;
    fetch.block_id = manifest.block_id(block);
    fetch.payload_bytes = manifest.block_bytes(block);
    fetch.stored_bytes = fetch.payload_bytes;
    fetch.started_ns = now_ns_;
    return fetch;
}

bool BlockServer::serve(Fetch& fetch, bool slot_ready, std::int64_t waiting_since_ns) {
    auto location = fetch.is_refetch ? std::nullopt : store_->find(fetch.block_id);
    const auto in_memory = [&] { return location && location->segment->tier() == Tier::memory; };
    if (!slot_ready && !in_memory()) {
        fetches_.release(&fetch);
        return false;
    }
    fetch.consumer->refer();

    ShardJob& job = fetch.consumer->job();
    if (job.recording != 0) [[unlikely]]
        begin_trace(fetch, waiting_since_ns);
    if (fetch.epoch != job.epoch && job.begins_epoch(fetch.epoch, now_ns_)) {
        begin_epoch(job, fetch.epoch, fetch.consumer->manifest());
    }

    if (fetch.is_refetch && is_reported_bad(fetch)) {
        fail(fetch, BlockStatus::object_corrupt);
        return true;
    }
    if (fetch.is_refetch) {
        check_damage_report(fetch);
        // The report is settled if the cache holds newer bytes than the reader's.
        if (!fetch.is_refetch) location = store_->find(fetch.block_id);
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
    fetch.source = BlockSource::memory;
    fetch.segment = location.segment;
    fetch.record_offset = location.offset;
    fetch.stored_bytes = location.payload_bytes;
    deliver(fetch);
}

void BlockServer::fail(Fetch& fetch, BlockStatus status, int system_errno) {
    fetch.status = status;
    fetch.system_errno = system_errno;
    deliver(fetch);
}

// Gives the consumer the result that is in `fetch`.
void BlockServer::deliver(Fetch& fetch) {
    if (fetch.trace) [[unlikely]]
        end_trace(fetch);
    ShardJob& job = fetch.consumer->job();
    if (fetch.status == BlockStatus::ok && fetch.consumer->cached_only()) {
        ++counters_.lent_blocks;
        counters_.lent_bytes += fetch.payload_bytes;
    } else if (fetch.status == BlockStatus::ok) {
        const std::uint64_t bytes = fetch.payload_bytes;
        for (BlockCounters* counters : {&counters_, &job.counters}) {
            if (counters == &counters_ && fetch.consumer->is_scan()) continue;
            switch (fetch.source) {
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
            job.note_read(fetch.block_id, bytes, is_at_peers || store_->is_cached(fetch.block_id));
        }
        const auto source = static_cast<std::size_t>(fetch.source);
        if (fetch.started_ns == now_ns_) {
            ++answered_at_once_[source];
            any_answered_at_once_ = true;
        } else {
            latency_[source].add(now_ns_ - fetch.started_ns);
        }
    }
    Consumer& consumer = *fetch.consumer;
    if (consumer.group() != nullptr) consumer.group()->note_served(*consumer.reader(), fetch.block_id);
    if (!consumer.closed()) {
        if (fetch.status != BlockStatus::ok && !consumer.cached_only()) {
            ++counters_.remote_errors;
            ++job.counters.remote_errors;
        }
        consumer.deliver(fetch);
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
    const bool may_read = disk_reads_.start(fetch);
    if (fetch.trace) [[unlikely]]
        tracer_.open(fetch.trace, may_read ? TraceStep::disk_read : TraceStep::disk_wait);
    if (may_read) continue_disk_read(fetch);
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
    if (Fetch* next = disk_reads_.finish(); next != nullptr) {
        if (next->trace) [[unlikely]] {
            const std::int64_t now_ns = tracer_.now_ns();
            tracer_.close(next->trace, TraceStep::disk_wait, now_ns);
            tracer_.open(next->trace, TraceStep::disk_read, now_ns);
        }
        next->server->continue_disk_read(*next);
    }
    if (fetch.trace) [[unlikely]] {
        const std::int64_t now_ns = tracer_.now_ns();
        tracer_.close(fetch.trace, TraceStep::disk_read, now_ns);
        tracer_.open(fetch.trace, TraceStep::check, now_ns);
    }
    const bool is_good = result > 0 && fetch.read_bytes >= fetch.record_bytes && record_is_good(fetch);
    if (fetch.trace) [[unlikely]]
        tracer_.close(fetch.trace, TraceStep::check);
    store_->drop_reference(*fetch.segment);
    fetch.segment = nullptr;
    if (is_good) {
        fetch.source = BlockSource::disk;
        deliver(fetch);
        return;
    }
    // A cancelled read or a transient error does not show that the block is bad.
    if (result != -ECANCELED && !is_transient(result)) {
        ++counters_.crc_failures;
        ++fetch.consumer->job().counters.crc_failures;
        is_bad_place(result) ? retire(fetch.block_id) : forget(fetch.block_id);
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
    if (location->is_cached()) {
        for (const auto& job : jobs_) job->note_dropped(block_id, location->raw_bytes);
        held_->set(block_id, false);
    } else {
        withdraw(block_id);
    }
    store_->forget(block_id);
}

void BlockServer::retire(std::uint32_t block_id) {
    const auto location = store_->find(block_id);
    if (!location) return;
    for (const auto& job : jobs_) job->note_dropped(block_id, location->raw_bytes);
    store_->retire(block_id);
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
    if (admission_.choice().requested().kind != CompressionKind::none) update_hash_threshold();
}

DatasetStore::DropObserver BlockServer::drop_observer(const std::function<void(const Segment&)>& on_drop) {
    return {.unread_blocks =
                [this](const Segment& segment) {
                    std::uint64_t unread = 0;
                    if (segment.in_window()) {
                        for (const auto& group : groups_) {
                            for (const std::uint32_t block_id : segment.block_ids()) {
                                unread += group->waiting_readers(block_id);
                            }
                        }
                        return unread;
                    }
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
                        if (segment.in_window()) {
                            withdraw(block_id);
                            continue;
                        }
                        for (const auto& job : jobs_) job->note_dropped(block_id, location->raw_bytes);
                        held_->set(block_id, false);
                    }
                    if (on_drop && segment.tier() == Tier::memory) on_drop(segment);
                },
            .forgetting =
                [this](std::uint32_t block_id, std::uint32_t raw_bytes) {
                    withdraw(block_id);
                    if (!store_->is_cached(block_id)) return;
                    for (const auto& job : jobs_) job->note_dropped(block_id, raw_bytes);
                    held_->set(block_id, false);
                }};
}

void BlockServer::set_quota(Quota quota, const std::function<void(const Segment&)>& on_drop) {
    const Quota before = store_->quota();
    store_->set_quota(quota, drop_observer(on_drop));
    update_hash_threshold();
    // Blocks of the window could not be admitted while they are there.
    const bool is_larger = quota.memory_bytes > before.memory_bytes || quota.disk_bytes > before.disk_bytes;
    if (is_larger && store_->usage().window_blocks > 0) store_->set_window(0, drop_observer(on_window_drop_));
    update_window();
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
    job.recording = tracer_.number_of(name);
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
    if (joined.sessions++ == 0) {
        begin_epoch(joined, 0, manifest);
        joined.allow_epoch();
    }
    joined.idle_since_ns = 0;
    return joined;
}

void BlockServer::begin_epoch(ShardJob& job, std::uint32_t epoch, const protocol::Manifest& manifest) {
    // The store may also hold blocks of another version.
    const std::uint64_t cached_bytes = std::min(store_->usage().payload_bytes, manifest.total_bytes());
    job.begin_epoch(epoch, manifest.total_bytes(), cached_bytes,
                    static_cast<std::uint32_t>(manifest_->header().block_id_end), peers_.blocks(), now_ns_);
}

// --- shared order

ReadingGroup& BlockServer::group_of(const std::shared_ptr<const protocol::Manifest>& manifest) {
    for (const auto& group : groups_) {
        if (&group->manifest() == manifest.get()) return *group;
    }
    return *groups_.emplace_back(std::make_unique<ReadingGroup>(manifest));
}

GroupReader& BlockServer::join_group(ReadingGroup& group, ShardJob& job, std::uint64_t seed) {
    GroupReader& reader = group.join(job, seed);
    update_window();
    return reader;
}

void BlockServer::leave_group(ReadingGroup& group, const GroupReader& reader) {
    group.leave(reader);
    if (group.empty()) std::erase_if(groups_, [&](const auto& other) { return other.get() == &group; });
    update_window();
}

Choice BlockServer::choose(ReadingGroup& group, GroupReader& reader) {
    return group.choose(reader, [&](std::uint32_t block_id) { return store_->is_cached(block_id); });
}

// The window has no bytes while no two jobs share a fetch.
void BlockServer::update_window() {
    constexpr std::uint64_t kBlocksPerJob = 16;
    std::size_t jobs = 0;
    for (const auto& group : groups_) jobs = std::max(jobs, group->jobs().size());
    const std::uint64_t block_bytes = protocol::record_bytes(manifest_->header().block_bytes_max, kMemoryAlignment);
    const std::uint64_t wanted = jobs < 2 ? 0 : std::max(window_bytes_, kBlocksPerJob * jobs * block_bytes);
    if (wanted != store_->window_bytes()) store_->set_window(wanted, drop_observer(on_window_drop_));
}

// A block without room in the cache comes to the window if sessions of several jobs read in shared order. A block that
// another node can take is read into a slot, from where it is sent.
bool BlockServer::is_for_window(const Miss& miss) {
    if (store_->window_bytes() == 0 || store_->has_room(miss.payload_bytes)) return false;
    bool is_shared = false;
    for (const Fetch* waiter : miss.waiters) is_shared |= waiter->consumer->reader() != nullptr;
    const Fetch& first = *miss.waiters.first();
    return is_shared && peers_.link_with_room(first.consumer->manifest(), first.block, now_ns_) == 0;
}

void BlockServer::note_begun(std::uint32_t block_id) {
    for (const auto& group : groups_) group->note_begun(block_id);
}

void BlockServer::withdraw(std::uint32_t block_id) {
    for (const auto& group : groups_) group->withdraw(block_id);
}

DatasetStatistics BlockServer::statistics() const {
    DatasetStatistics statistics;
    statistics.dataset_id = dataset_id_;
    statistics.name = name_;
    statistics.counters = counters_;
    statistics.usage = store_->usage();
    statistics.quota = store_->quota();
    statistics.disk_full = store_->disk_full();
    statistics.compression = admission_.choice().requested();
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

void BlockServer::read_from_remote(Fetch& fetch) {
    // Clears what a record on disk, which turned out to be bad, has set.
    fetch.segment = nullptr;
    fetch.stored_bytes = fetch.payload_bytes;
    if (quarantine_.contains(fetch.block_id) || fetch.consumer->cached_only()) {
        fail(fetch, BlockStatus::object_corrupt);
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
    fetch.joined = miss.started;
    miss.waiters.push(fetch);
    if (fetch.trace) [[unlikely]] {
        miss.is_traced = true;
        if (BlockTrace* trace = tracer_.find(fetch.trace)) trace->joined = miss.started;
        if (miss.started) tracer_.open(fetch.trace, miss.peer != 0 ? TraceStep::peer_read : TraceStep::remote_read);
    }
    if (is_new && !fetch.is_refetch && start_at_peer(miss, fetch)) return;
    if (!miss.started) queue_for_tokens(fetch);
}

// The first waiting job with enough tokens pays for the read, and `pump` starts the read.
void BlockServer::queue_for_tokens(Fetch& fetch) {
    LARDER_ASSERT(!fetch.queued);
    fetch.queued = true;
    fetch.consumer->job().queue.push(fetch);
    if (GroupReader* const reader = fetch.consumer->reader()) {
        fetch.consumer->group()->note_waiting(*reader, fetch.block_id);
    }
    if (fetch.trace) [[unlikely]]
        tracer_.open(fetch.trace, TraceStep::token_wait);
}

std::int64_t BlockServer::pump() {
    std::int64_t next_ns = kNever_ns;
    for (const auto& job : jobs_) {
        const auto dequeue = [&job] { job->queue.pop()->queued = false; };
        while (Fetch* fetch = job->queue.first()) {
            if (fetch->delivered) {
                dequeue();
                fetches_.release(fetch);
                continue;
            }
            Miss& miss = *fetch->miss;
            if (miss.started) {
                dequeue();
                continue;
            }
            if (fetch->consumer->closed()) {
                dequeue();
                // The miss ends once all its waiters are closed.
                bool is_wanted = false;
                for (const Fetch* waiter : miss.waiters) is_wanted |= !waiter->consumer->closed();
                if (!is_wanted) remote_read_done(miss, BlockStatus::remote_failed, ECANCELED);
                continue;
            }
            ShardJob* const payer = payer_of(*fetch, next_ns);
            if (payer == nullptr) break;
            dequeue();
            start(miss, *payer);
        }
    }
    return next_ns;
}

// Takes the tokens for the fetch's block: of its job, or, in shared order, of a job of its group that has none waiting.
// Null, with the time of the next try in `next_ns`, if there are not enough.
ShardJob* BlockServer::payer_of(const Fetch& fetch, std::int64_t& next_ns) {
    const std::uint64_t bytes = fetch.payload_bytes;
    ShardJob* const own = &fetch.consumer->job();
    const auto pays = [&](ShardJob* job) {
        if (job->bucket->try_take(bytes, now_ns_)) return true;
        next_ns = std::min(next_ns, std::max(now_ns_ + 1, job->bucket->ready_at_ns(bytes)));
        return false;
    };
    if (pays(own)) return own;
    if (fetch.consumer->group() == nullptr) return nullptr;
    for (ShardJob* const job : fetch.consumer->group()->jobs()) {
        if (job != own && job->queue.first() == nullptr && pays(job)) return job;
    }
    return nullptr;
}

void BlockServer::start(Miss& miss, ShardJob& payer) {
    miss.started = true;
    note_begun(miss.block_id);
    Fetch* leader = miss.waiters.first();
    bool should_admit = false;
    for (Fetch* waiter : miss.waiters) {
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
    if (!miss.reservation && is_for_window(miss)) {
        miss.reservation = store_->reserve_in_window(miss.block_id, miss.payload_bytes, drop_observer(on_window_drop_));
    }
    miss.leader = leader;
    miss.block = leader->block;
    miss.paying_job = &payer;
    ++payer.consumers;  // it may have no session any more when the read ends
    miss.payer = payer.bucket;
    miss.extra_bytes = 0;
    miss.done = [](RemoteRead& read, BlockStatus status, int system_errno) noexcept {
        auto& read_miss = static_cast<Miss&>(read);
        read_miss.server->remote_read_done(read_miss, status, system_errno);
    };
    const protocol::Manifest& manifest = leader->consumer->manifest();
    const protocol::Block block = manifest.block(leader->block);
    const protocol::Object object = manifest.object(block.object);
    miss.path = object.path;
    miss.object_bytes = object.size_bytes;
    miss.object_mtime_ns = object.mtime_ns;
    miss.offset = block.offset;
    miss.into = miss.reservation
                    ? store_->payload(*miss.reservation)
                    : std::span{leader->consumer->slot(*leader) + kRecordHeaderBytes, std::size_t{miss.payload_bytes}};
    for (BlockCounters* counters : {&counters_, &payer.counters}) {
        ++counters->remote_reads;
        counters->remote_read_bytes += miss.payload_bytes;
    }
    if (miss.is_traced) [[unlikely]] {
        close_step(miss, TraceStep::token_wait);
        open_step(miss, TraceStep::remote_read);
        miss.remote_times = {};
        miss.times = &miss.remote_times;
    }
    remote_->read(miss);
}

void BlockServer::remote_read_done(Miss& miss, BlockStatus status, int system_errno) {
    // A miss without waiters may end before its read starts, so nobody has paid.
    if (ShardJob* payer = std::exchange(miss.paying_job, nullptr)) {
        --payer->consumers;
        const std::uint64_t extra_bytes = settle_payment(miss, status);
        for (BlockCounters* counters : {&counters_, &payer->counters}) counters->remote_read_bytes += extra_bytes;
    }
    if (miss.is_traced) [[unlikely]] {
        close_read(miss, TraceStep::remote_read);
        open_step(miss, TraceStep::check);
    }
    const std::uint32_t payload_crc = status == BlockStatus::ok ? crc32c(miss.into) : 0;
    if (miss.is_traced) [[unlikely]]
        close_step(miss, TraceStep::check);
    if (status == BlockStatus::ok && !has_right_checksum(miss, payload_crc)) {
        for (BlockCounters* counters : {&counters_, &miss.leader->consumer->job().counters}) ++counters->remote_corrupt;
        if (try_again(miss)) return;
        status = BlockStatus::object_corrupt;
    }
    if (status != BlockStatus::ok) {
        give_up_reservation(miss);
        if (status == BlockStatus::remote_failed && requeue_joined_waiters(miss, system_errno)) return;
        missing_.erase(miss.block_id);
        fail(miss, status, system_errno);
        return;
    }
    miss.payload_crc = payload_crc;
    if (digests_ == nullptr) return finish_remote_read(miss);
    take_digest(miss, digests_.get(), [](BackgroundWork& work) noexcept {
        Miss& digested = *static_cast<DigestWork&>(work).miss;
        digested.server->finish_remote_read(digested);
    });
}

// Takes the digest of the miss's bytes in the background. Calls `done` on the shard's thread.
void BlockServer::take_digest(Miss& miss, ReadDigests* note_in, void (*done)(BackgroundWork& work) noexcept) {
    miss.digest_work.miss = &miss;
    miss.digest_work.note_in = note_in;
    miss.digest_work.run = [](BackgroundWork& work) noexcept {
        auto& digesting = static_cast<DigestWork&>(work);
        digesting.digest = digest_of(digesting.miss->into);
        if (digesting.note_in != nullptr) digesting.note_in->note(digesting.miss->block_id, digesting.digest);
    };
    miss.digest_work.done = done;
    if (miss.is_traced) [[unlikely]]
        open_step(miss, TraceStep::digest);
    digester_.start(miss.digest_work);
}

void BlockServer::finish_remote_read(Miss& miss) {
    const std::uint32_t payload_crc = miss.payload_crc;
    if (miss.is_traced) [[unlikely]]
        close_step(miss, TraceStep::digest);
    missing_.erase(miss.block_id);
    settle_damage_reports(miss, payload_crc);
    if (!miss.reservation) {
        withdraw(miss.block_id);
        copy_to_waiters(miss);
        bool should_admit = false;
        for (Fetch* waiter : miss.waiters) {
            should_admit |= !waiter->consumer->closed() && may_admit(*waiter->consumer, miss.block_id);
        }
        should_admit = should_admit && !store_->find(miss.block_id);
        const bool is_offered =
            should_admit && !store_->has_room(miss.payload_bytes) && offer_to_peer(miss, payload_crc);
        if (should_admit && !is_offered) admission_.admit(*miss.leader, payload_crc, manifest_->total_bytes());
        finish(miss, BlockSource::remote, payload_crc);
        return;
    }
    const Segment& segment = *miss.reservation->segment;
    store_->add_reference(segment);
    const bool is_found = store_->commit(*miss.reservation, payload_crc);
    if (!segment.in_window() || !is_found) withdraw(miss.block_id);
    if (is_found && !segment.in_window()) {
        note_admitted(miss.block_id, miss.payload_bytes);
        if (miss.is_traced) [[unlikely]]
            note_admitted_to_memory(miss);
    }
    if (!is_found) {
        // The segment was dropped during the read, so the bytes are delivered in the waiters' slots.
        miss.reservation.reset();
        copy_to_waiters(miss);
    }
    finish(miss, BlockSource::remote, payload_crc);
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
bool BlockServer::requeue_joined_waiters(Miss& miss, int system_errno) {
    auto waiters = std::exchange(miss.waiters, {});
    while (Fetch* waiter = waiters.pop()) {
        if (std::exchange(waiter->joined, false) && !waiter->consumer->closed()) {
            miss.waiters.push(*waiter);
        } else {
            fail(*waiter, BlockStatus::remote_failed, system_errno);
        }
    }
    return requeue(miss);
}

// Requeues the miss for all open waiters, any of which may pay. False if there are none.
bool BlockServer::requeue(Miss& miss) {
    bool any = false;
    for (Fetch* waiter : miss.waiters) {
        if (waiter->consumer->closed()) continue;
        any = true;
        if (!waiter->queued) {
            queue_for_tokens(*waiter);
        } else if (waiter->trace) {
            tracer_.open(waiter->trace, TraceStep::token_wait);
        }
    }
    if (any) miss.started = false;
    return any;
}

void BlockServer::quarantine(const protocol::Manifest& manifest, std::uint32_t block) {
    quarantine_.add(manifest, block);
}

void BlockServer::copy_to_waiters(const Miss& miss) {
    for (Fetch* waiter : miss.waiters) {
        std::byte* into = waiter->consumer->slot(*waiter) + kRecordHeaderBytes;
        if (waiter->consumer->closed() || into == miss.into.data()) continue;
        std::memcpy(into, miss.into.data(), miss.payload_bytes);
    }
}

// Delivers the block to all waiters: in its segment if it was admitted to memory, else in their slots. `payload_crc` is
// the CRC of the remote's bytes: a waiter that reported these same bytes as damaged gets object_corrupt.
void BlockServer::finish(Miss& miss, BlockSource source, std::uint32_t payload_crc) {
    while (Fetch* waiter = miss.waiters.pop()) {
        if (waiter->is_refetch && waiter->damaged_crc == payload_crc) {
            fail(*waiter, BlockStatus::object_corrupt);
        } else {
            waiter->source = source;
            if (miss.reservation) {
                waiter->segment = miss.reservation->segment;
                waiter->record_offset = miss.reservation->offset;
            }
            deliver(*waiter);
        }
    }
    misses_.release(&miss);
}

void BlockServer::fail(Miss& miss, BlockStatus status, int system_errno) {
    withdraw(miss.block_id);
    while (Fetch* waiter = miss.waiters.pop()) fail(*waiter, status, system_errno);
    misses_.release(&miss);
}

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
    note_begun(miss.block_id);
    miss.leader = &fetch;
    miss.block = fetch.block;
    miss.peer = link;
    miss.expected = peers_.blocks()->digest(fetch.block);
    // A peer has just taken the block from this node, which read it from the remote.
    if (!miss.expected.is_known() && digests_ != nullptr) miss.expected = digests_->find(fetch.block_id);
    miss.peer_path = std::to_string(fetch.block);
    miss.done = [](RemoteRead& read, BlockStatus status, int) noexcept {
        auto& read_miss = static_cast<Miss&>(read);
        read_miss.server->peer_read_done(read_miss, status);
    };
    miss.path = miss.peer_path;
    miss.offset = 0;
    miss.object_bytes = kRecordHeaderBytes + std::uint64_t{miss.payload_bytes};
    miss.object_mtime_ns = 0;
    miss.into = {fetch.consumer->slot(fetch), kRecordHeaderBytes + std::size_t{miss.payload_bytes}};
    if (miss.is_traced) [[unlikely]] {
        open_step(miss, TraceStep::peer_read);
        miss.times = &miss.remote_times;
    }
    peers_.read(link, miss);
    return true;
}

// Requeues the miss for the remote if the peer's read failed or its bytes are wrong.
void BlockServer::peer_read_done(Miss& miss, BlockStatus status) {
    if (miss.is_traced) [[unlikely]]
        close_read(miss, TraceStep::peer_read);
    const std::span<std::byte> record = miss.into;
    miss.into = record.subspan(kRecordHeaderBytes);
    bool is_good = status == BlockStatus::ok;
    if (is_good) {
        const auto header = protocol::read_record_header(record.first(kRecordHeaderBytes));
        const std::uint32_t payload_crc = crc32c(miss.into);
        is_good = header && header->raw_bytes == 0 && header->payload_bytes == miss.payload_bytes &&
                  header->payload_crc == payload_crc && has_right_checksum(miss, payload_crc);
    }
    if (!is_good || !miss.expected.is_known()) return finish_peer_read(miss, status, is_good);
    take_digest(miss, nullptr, [](BackgroundWork& work) noexcept {
        const auto& digested = static_cast<DigestWork&>(work);
        Miss& checked = *digested.miss;
        checked.server->finish_peer_read(checked, BlockStatus::ok, digested.digest == checked.expected);
    });
}

void BlockServer::finish_peer_read(Miss& miss, BlockStatus status, bool is_good) {
    if (miss.is_traced) [[unlikely]]
        close_step(miss, TraceStep::digest);
    // Only the remote's bytes can settle a damage report that arrived meanwhile.
    bool is_refetch = false;
    for (const Fetch* waiter : miss.waiters) is_refetch |= waiter->is_refetch;
    if (is_good && !is_refetch) {
        missing_.erase(miss.block_id);
        withdraw(miss.block_id);
        copy_to_waiters(miss);
        finish(miss, BlockSource::peer);
        return;
    }
    if (!is_good) {
        for (BlockCounters* counters : {&counters_, &miss.leader->consumer->job().counters}) ++counters->peer_failures;
    }
    // A peer that no longer holds the block (object_missing) is still asked for other blocks.
    if (!is_good && status == BlockStatus::ok) {
        peers_.sent_wrong_bytes(miss.peer, now_ns_);
    } else if (!is_good && status != BlockStatus::object_missing) {
        peers_.failed(miss.peer, now_ns_);
    }
    miss.peer = 0;
    if (requeue(miss)) return;
    missing_.erase(miss.block_id);
    fail(miss, BlockStatus::remote_failed, ECANCELED);
}

// Offers a peer a block that has no room here. The block is sent from the slot, which stays busy meanwhile. False
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
    offer.block = miss.block;
    offer.peer_path = std::to_string(miss.block);
    offer.peer = peer;
    offer.slot_page = leader.slot_page;
    offer.slot_pages = leader.slot_pages;
    offer.consumer->refer();
    offer.consumer->mark_busy(leader);
    std::byte* slot = leader.consumer->slot(leader);
    const protocol::RecordHeader header =
        protocol::make_record_header(dataset_id_, miss.block_id, miss.payload_bytes, payload_crc, 0);
    std::memcpy(slot, &header, sizeof header);
    offer.path = offer.peer_path;
    offer.into = {slot, kRecordHeaderBytes + std::size_t{miss.payload_bytes}};
    offer.done = [](RemoteRead& sent, BlockStatus status, int) noexcept {
        auto& sent_offer = static_cast<Offer&>(sent);
        BlockServer& self = *sent_offer.server;
        self.offered_bytes_in_flight_ -= sent_offer.into.size();
        if (status == BlockStatus::ok) {
            ++self.counters_.offered_blocks;
            self.peers_.taken(sent_offer.peer, sent_offer.consumer->manifest(), sent_offer.block);
        } else if (status == BlockStatus::object_missing) {
            self.peers_.refused(sent_offer.peer);
        } else {
            self.peers_.failed(sent_offer.peer, self.now_ns_);
        }
        sent_offer.consumer->clear_busy(sent_offer.slot_page, sent_offer.slot_pages);
        sent_offer.consumer->unrefer();
        self.offers_.release(&sent_offer);
    };
    offered_bytes_in_flight_ += offer.into.size();
    peers_.offer(peer, offer);
    return true;
}

// --- traces

bool BlockServer::trace(std::string_view name, std::uint32_t recording) {
    for (const auto& job : jobs_) {
        if (job->name != name) continue;
        job->recording = recording;
        return true;
    }
    return false;
}

void BlockServer::begin_trace(Fetch& fetch, std::int64_t waiting_since_ns) {
    const std::int64_t now_ns = tracer_.now_ns();
    const bool has_waited = waiting_since_ns != 0;
    fetch.trace = tracer_.begin(fetch.consumer->job().recording, {.dataset_id = dataset_id_,
                                                                  .block = fetch.block,
                                                                  .payload_bytes = fetch.payload_bytes,
                                                                  .epoch = fetch.epoch,
                                                                  .taken_ns = has_waited ? waiting_since_ns : now_ns});
    if (fetch.trace && has_waited) {
        tracer_.add(fetch.trace, {.step = TraceStep::slot_wait, .began_ns = waiting_since_ns, .ended_ns = now_ns});
    }
}

void BlockServer::end_trace(const Fetch& fetch) {
    BlockTrace* const trace = tracer_.find(fetch.trace);
    if (trace == nullptr) return;
    trace->delivered_ns = tracer_.now_ns();
    trace->status = fetch.status;
    trace->source = fetch.status == BlockStatus::ok ? fetch.source : BlockSource::none;
    trace->system_errno = fetch.system_errno;
    // Steps that the end of the miss has cut off.
    for (std::size_t i = 0; i < trace->span_count; ++i) {
        TraceSpan& span = trace->spans[i];
        if (span.ended_ns == 0 && !is_after_delivery(span.step)) span.ended_ns = trace->delivered_ns;
    }
    tracer_.leave(fetch.trace);
}

void BlockServer::open_step(const Miss& miss, TraceStep step) {
    const std::int64_t now_ns = tracer_.now_ns();
    for (const Fetch* waiter : miss.waiters) {
        if (waiter->trace) tracer_.open(waiter->trace, step, now_ns);
    }
}

void BlockServer::close_step(const Miss& miss, TraceStep step) {
    const std::int64_t now_ns = tracer_.now_ns();
    for (const Fetch* waiter : miss.waiters) {
        if (waiter->trace) tracer_.close(waiter->trace, step, now_ns);
    }
}

// Closes a read from the remote or a peer, and adds its parts.
void BlockServer::close_read(const Miss& miss, TraceStep step) {
    const std::int64_t now_ns = tracer_.now_ns();
    for (const Fetch* waiter : miss.waiters) {
        if (!waiter->trace) continue;
        const std::int64_t began_ns = tracer_.close(waiter->trace, step, now_ns);
        if (began_ns != 0) tracer_.add_parts(waiter->trace, began_ns, miss.remote_times);
    }
}

void BlockServer::note_admitted_to_memory(const Miss& miss) {
    for (const Fetch* waiter : miss.waiters) {
        if (BlockTrace* trace = tracer_.find(waiter->trace)) trace->admitted = Admitted::memory;
    }
}

BlockDigest BlockServer::trusted_digest(const Fetch& fetch) const {
    if (const BlockDigest own = digests_->find(fetch.block_id); own.is_known()) return own;
    const auto& at_peers = peers_.blocks();
    const bool is_same_block = at_peers != nullptr && fetch.block < at_peers->manifest->block_count() &&
                               at_peers->manifest->block_id(fetch.block) == fetch.block_id;
    return is_same_block ? at_peers->digest(fetch.block) : BlockDigest{};
}

bool BlockServer::admit_offered(const Fetch& fetch, std::uint32_t payload_crc, const BlockDigest& digest) {
    if (digests_ != nullptr && (!digest.is_known() || trusted_digest(fetch) != digest)) return false;
    // Several nodes, or several jobs of one node, may offer the same block. It is no sign that room is lacking.
    if (store_->is_cached(fetch.block_id) || missing_.contains(fetch.block_id)) return true;
    if (store_->find(fetch.block_id)) return false;
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

namespace {

// A block counts as bad after this many refetches that each brought other bytes.
constexpr std::uint32_t kRefetchesMax = 2;
// The least time between two checks of a block in memory. Bounds the cost of repeated false reports.
constexpr std::int64_t kCheckedFor_ns = 1'000'000'000;

}  // namespace

// True if the remote has already returned these damaged bytes and the block is quarantined as reported.
bool BlockServer::is_reported_bad(const Fetch& fetch) const {
    const auto known = refetched_.find(fetch.block_id);
    return known != refetched_.end() && known->second.crc == fetch.damaged_crc && quarantine_.reported(fetch.block_id);
}

// Judges a reader's report of a damaged block. Drops the block if its copy in memory is corrupt; disk reads need no
// check here, because they are always checked. Clears `fetch.is_refetch` if the cache holds newer bytes, refetched for
// another reader: the reader then gets the newer bytes.
void BlockServer::check_damage_report(Fetch& fetch) {
    if (missing_.contains(fetch.block_id)) return;
    const auto location = store_->find(fetch.block_id);
    if (!location) return;
    const auto known = refetched_.find(fetch.block_id);
    const bool is_checked = known != refetched_.end() && now_ns_ < known->second.checked_ns + kCheckedFor_ns;
    if (location->segment->tier() == Tier::memory && !is_checked) {
        if (known != refetched_.end()) known->second.checked_ns = now_ns_;
        const std::byte* payload = location->segment->memory() + location->offset + kRecordHeaderBytes;
        if (crc32c({payload, location->payload_bytes}) != location->payload_crc) {
            for (BlockCounters* counters : {&counters_, &fetch.consumer->job().counters}) ++counters->crc_failures;
            forget(fetch.block_id);
            return;
        }
    }
    if (known == refetched_.end() || known->second.crc == fetch.damaged_crc) return;
    fetch.is_refetch = cached_crc(*location).value_or(known->second.crc) != known->second.crc;
}

// Returns the CRC of the cached block's decompressed bytes; nullopt if only the record on disk has that CRC.
std::optional<std::uint32_t> BlockServer::cached_crc(const BlockLocation& location) const {
    if (!location.compressed()) return location.payload_crc;
    if (location.segment->tier() != Tier::memory) return std::nullopt;
    const auto header =
        protocol::read_record_header({location.segment->memory() + location.offset, kRecordHeaderBytes});
    return header ? std::optional(header->raw_crc) : std::nullopt;
}

// Settles the damage reports of the waiters of `miss` after the remote was read. Does nothing if there are none.
void BlockServer::settle_damage_reports(const Miss& miss, std::uint32_t payload_crc) {
    const Fetch* reader = nullptr;
    bool same_again = false;
    for (const Fetch* waiter : miss.waiters) {
        if (!waiter->is_refetch) continue;
        reader = waiter;
        same_again |= waiter->damaged_crc == payload_crc;
    }
    if (reader == nullptr) return;
    const auto location = store_->find(miss.block_id);
    const auto [entry, is_first] = refetched_.try_emplace(miss.block_id);
    // If the CRC of the cached copy is unknown, only the first report drops the copy.
    const std::uint32_t assumed_crc = is_first ? ~payload_crc : payload_crc;
    if (location && cached_crc(*location).value_or(assumed_crc) != payload_crc) forget(miss.block_id);
    DamageReport& known = entry->second;
    known.crc = payload_crc;
    if (!same_again && ++known.refetches < kRefetchesMax) return;
    ShardJob& job = reader->consumer->job();
    for (BlockCounters* counters : {&counters_, &job.counters}) ++counters->remote_corrupt;
    const protocol::Manifest& manifest = miss.leader->consumer->manifest();
    quarantine_.add_reported(manifest, miss.block);
    const protocol::Block block = manifest.block(miss.block);
    log_warn("a loader reported a block that is damaged at the remote",
             {{"dataset", name_},
              {"job", job.name},
              {"object", std::string(manifest.object(block.object).path)},
              {"offset", block.offset},
              {"bytes", block.length}});
}

void BlockServer::note_remote_bytes(std::uint32_t block_id, std::uint32_t crc) {
    const auto known = refetched_.find(block_id);
    if (known == refetched_.end() || known->second.crc == crc) return;
    refetched_.erase(known);
    quarantine_.end_reported(block_id);
}

}  // namespace larder::cache
