#include "tests/campaign/seeds/simulated_node.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>

#include "allocator/protocol/codec.h"
#include "base/assert.h"
#include "base/server/json_text.h"
#include "cache/peers/peer_datasets.h"
#include "cache/protocol/record.h"
#include "tests/campaign/seeds/peer_reads.h"

namespace larder::campaign {
namespace fs = std::filesystem;

using cache::Quota;
using protocol::kRecordHeaderBytes;

namespace {

// As in cache/control/agent.cc.
constexpr std::int64_t kNodeTick_ns = 100 * kMillisecond_ns;
constexpr std::int64_t kReportInterval_ns = kSecond_ns;
constexpr std::int64_t kReportIntervalMin_ns = 200 * kMillisecond_ns;
constexpr std::int64_t kAnswerTimeout_ns = 2 * kSecond_ns;
// The index commits after this time.
constexpr std::int64_t kIndexCommit_ns = 200 * kMillisecond_ns;
constexpr std::int64_t kVersionGrace_ns = 20 * kSecond_ns;
// A dropped block may come back if the daemon ends within this time: before the drop is committed, or while its segment
// is still referenced.
constexpr std::int64_t kDropped_ns = 12 * kSecond_ns;

std::string endpoint_of(int node) {
    return "http://node-" + std::to_string(node) + ":7474";
}

}  // namespace

SimulatedNode::SimulatedNode(const NodeOptions& options, const Surroundings& around)
    : options_(options), name_("node-" + std::to_string(options.number)), around_(around), clock_(around.events) {
    clock_.set_offset_ns(around_.random.between(kSecond_ns, 1'000'000 * kSecond_ns));
    fs::create_directories(options_.directory);
    for (const auto& data : around_.datasets) {
        Dataset dataset{.data = data.get()};
        dataset.id = around_.random.next() | 1;
        datasets_.push_back(std::move(dataset));
    }
    for (std::size_t d = 0; d < datasets_.size(); ++d) reindex(d);
}

SimulatedNode::~SimulatedNode() {
    if (up()) end_instance(false);
}

// --- the life of the daemon

void SimulatedNode::start() {
    if (up()) return;
    ++instances_;
    events().trace(1, [&] { return name_ + " starts"; });
    const std::string index_directory = options_.directory + "/index";
    auto opened = cache::Index::open(
        {.directory = index_directory, .map_bytes = std::uint64_t{64} << 20, .commit_after_ms = 3'600'000});
    LARDER_ASSERT(opened.has_value());
    if (opened->report.rebuilt) return events().fail("the index was damaged: " + opened->report.reason);
    index_ = std::move(opened->index);
    device_ = std::make_unique<SimulatedDevice>(clock_, around_.random, disk_faults_);
    shard_ = std::make_unique<cache::Shard>(*device_, clock_, cache::ShardOptions{.background_threads = false});
    for (Dataset& dataset : datasets_) {
        const auto& manifest = dataset.versions.rbegin()->second;
        const std::string directory = options_.directory + "/segments-" + dataset.data->name();
        auto recovered = cache::recover_segments(dataset.id, directory, index_.get());
        LARDER_ASSERT(recovered.report.problems.empty());
        events().note(recovered.report.blocks << 16 ^ recovered.report.blocks_scanned);
        blocks_recovered_ += recovered.report.blocks;
        events().trace(9, [&] {
            const cache::RecoveryReport& report = recovered.report;
            std::string text = name_ + " recovers " + std::to_string(report.blocks) + " blocks of " +
                               dataset.data->name() + ", " + std::to_string(report.blocks_scanned) + " by a scan:";
            for (const cache::RecoveredSegment& segment : recovered.segments)
                text += " " + std::to_string(segment.id) + (segment.sealed ? " sealed" : "");
            return text;
        });
        check_recovered(dataset, recovered.segments);
        cache::StoreOptions store{.dataset_id = dataset.id,
                                  .block_id_end = static_cast<std::uint32_t>(manifest->header().block_id_end),
                                  .segment_directory = directory};
        for (const auto& [edition, known] : dataset.versions)
            store.block_bytes_max = std::max(store.block_bytes_max, known->header().block_bytes_max);
        auto made = std::make_unique<cache::DatasetStore>(store, *device_, clock_, index_.get());
        made->recover(std::move(recovered.segments));
        made->check_invariants();
        shard_->add_dataset(
            {.definition = {.name = dataset.data->name()},
             .store = std::move(made),
             .remote = std::make_unique<SimulatedRemote>(*device_, *dataset.data, around_.remote_faults,
                                                         options_.number, around_.bandwidth, clock_, around_.random),
             .quota = dataset.quota,
             .manifest = manifest});
        dataset.assigned = dataset.held;
        dataset.kept.clear();
    }
    cache::DaemonConfig config;
    config.default_job.remote_burst_bytes = options_.burst_bytes;
    limits_ = std::make_unique<cache::JobLimits>();
    limits_->apply(config, now_ns());
    floor_.emplace(options_.floor_bytes_per_second, floor_on_disk_);
    limits_->lease({.floor_bytes_per_second = floor_->before_first_lease()}, now_ns());
    reporter_ = std::make_unique<cache::NodeReporter>(static_cast<std::uint64_t>(options_.number) + 1);
    status_ = {};
    protocol_ = allocator::kProtocolOldest;
    peers_etag_.reset();
    lease_applied_ = 0;
    reported_ns_ = 0;
    report_early_ = report_in_flight_ = was_frozen_ = false;
    quota_by_hand_ns_ = 0;
    peers_.clear();
    last_answers_.clear();
    last_handovers_.clear();
    next_wake_ns_ = kNever_ns;
    wake();
    after(around_.random.between(0, kNodeTick_ns), [this] { tick(); });
}

void SimulatedNode::kill() {
    if (!up()) return;
    events().trace(2, [&] { return name_ + " is killed"; });
    end_instance(false);
}

void SimulatedNode::cut_power() {
    events().trace(3, [&] { return name_ + " loses power"; });
    if (up()) end_instance(true);
    clock_.set_offset_ns(around_.random.between(kSecond_ns, 1'000'000 * kSecond_ns) - events().now_ns());
}

void SimulatedNode::end_instance(bool power_is_cut) {
    const std::string index_directory = options_.directory + "/index";
    const std::string copy = options_.directory + "/index-copy";
    // Destroying the index would commit its last changes, which a killed process cannot.
    fs::copy(index_directory, copy);
    note_held();
    device_->kill();
    if (power_is_cut) {
        device_->cut_power(5 * kSecond_ns);
        disk_was_faulty_ = true;
    }
    shard_->stop(now_ns());
    shard_.reset();
    device_.reset();
    index_.reset();
    fs::remove_all(index_directory);
    fs::rename(copy, index_directory);
    limits_.reset();
    reporter_.reset();
    around_.bandwidth.buckets_ended(live_buckets_);
    live_buckets_ = 0;
    buckets_.clear();
    progress_.clear();
    session_jobs_.clear();
    // Some of the waiting writes reach the disk, in order.
    for (std::size_t written = around_.random.below(floors_to_save_.size() + 1); written > 0; --written) {
        floor_on_disk_ = floors_to_save_.front();
        floors_to_save_.pop_front();
    }
    floors_to_save_.clear();
    lease_applied_ = 0;
    ended_ns_ = events().now_ns();
    // A frozen process that is killed does not run again.
    frozen_until_ns_ = 0;
    deferred_.clear();
}

void SimulatedNode::freeze(std::int64_t for_ns) {
    if (!answers()) return;
    events().trace(4, [&] { return name_ + " stands still for " + std::to_string(for_ns / kMillisecond_ns) + " ms"; });
    frozen_until_ns_ = events().now_ns() + for_ns;
    was_frozen_ = true;
    events().at(frozen_until_ns_, [this, instance = instances_] {
        if (instance != instances_ || !answers()) return;
        const auto deferred = std::exchange(deferred_, {});
        next_wake_ns_ = kNever_ns;
        wake();
        for (const auto& run : deferred) when_awake(run);
    });
}

void SimulatedNode::jump_clock(std::int64_t by_ns) {
    clock_.jump_ns(by_ns);
    // The buckets are full again.
    for (std::uint64_t i = 0; i < live_buckets_; ++i) around_.bandwidth.bucket_made();
    around_.bandwidth.buckets_ended(live_buckets_);
    wake();
}

void SimulatedNode::when_awake(std::function<void()> run) {
    if (!up()) return;
    if (!frozen()) return run();
    deferred_.push_back(std::move(run));
}

void SimulatedNode::after(std::int64_t delay_ns, std::function<void()> run) {
    events().after(delay_ns, [this, instance = instances_, run = std::move(run)] {
        if (instance == instances_) when_awake(run);
    });
}

void SimulatedNode::wake_at(std::int64_t time_ns) {
    if (!up() || time_ns >= next_wake_ns_) return;
    next_wake_ns_ = time_ns;
    events().at(time_ns, [this, instance = instances_] {
        if (instance != instances_ || !answers() || running_ || events().now_ns() < next_wake_ns_) return;
        run_shard();
    });
}

void SimulatedNode::run_shard() {
    constexpr int kTurnsMax = 10'000;
    running_ = true;
    next_wake_ns_ = kNever_ns;
    std::vector<std::uint64_t> sessions;
    int turns = 0;
    do {
        shard_->turn(now_ns() + kSecond_ns);
        sessions.clear();
        for (const auto& [id, progress] : progress_) sessions.push_back(id);
        for (const std::uint64_t id : sessions) {
            if (const auto found = progress_.find(id); found != progress_.end()) found->second();
        }
    } while (device_->wake_at_ns() <= now_ns() && ++turns < kTurnsMax);
    running_ = false;
    if (turns == kTurnsMax) return events().fail(name_ + "'s shard turns without end");
    next_wake_ns_ = kNever_ns;
    wake_at(clock_.to_simulated_ns(device_->wake_at_ns()));
}

// --- sessions

std::unique_ptr<Client> SimulatedNode::attach(const std::string& job, std::uint32_t uid, std::size_t dataset,
                                              std::size_t edition, std::uint32_t slot_pages,
                                              std::function<void()> on_progress) {
    if (!answers() || !has_edition(dataset, edition)) return nullptr;
    const auto bucket = limits_->bucket(job, {.uid = uid}, now_ns());
    if (!bucket) {
        events().trace(5, [&] { return name_ + " refuses job " + job + ": " + bucket.error().message; });
        return nullptr;
    }
    if (std::weak_ptr<cache::TokenBucket>& known = buckets_[job]; known.lock() != *bucket) {
        known = *bucket;
        ++live_buckets_;
        around_.bandwidth.bucket_made();
    }
    const std::uint64_t id = around_.random.next();
    auto client = std::make_unique<Client>(datasets_[dataset].versions.at(edition), job, uid, *bucket, id, slot_pages,
                                           [this, instance = instances_](int descriptor) {
                                               if (instance != instances_ || !up()) return;
                                               device_->signal(descriptor);
                                               wake();
                                           });
    shard_->attach(client->take_setup());
    progress_[id] = std::move(on_progress);
    session_jobs_[id] = job;
    wake();
    return client;
}

double SimulatedNode::rates_in_force() const {
    std::set<std::string_view> jobs;
    for (const auto& [id, job] : session_jobs_) {
        if (progress_.contains(id)) jobs.insert(job);
    }
    double sum = 0;
    for (const std::string_view job : jobs) {
        const auto bucket = buckets_.at(std::string(job)).lock();
        if (bucket != nullptr) sum += bucket->rate_bytes_per_second(now_ns());
    }
    return sum;
}

std::uint64_t SimulatedNode::jobs_with_sessions() const {
    std::set<std::string_view> jobs;
    for (const auto& [id, job] : session_jobs_) {
        if (progress_.contains(id)) jobs.insert(job);
    }
    return jobs.size();
}

// --- the control thread

void SimulatedNode::tick() {
    after(kNodeTick_ns, [this] { tick(); });
    limits_->expire(now_ns());
    if (events().now_ns() - index_flush_ns_ >= kIndexCommit_ns) {
        index_flush_ns_ = events().now_ns();
        note_held();
        index_->flush();
    }
    if (events().now_ns() - second_ns_ >= kSecond_ns) {
        second_ns_ = events().now_ns();
        every_second();
    }
    const bool unassigned = std::ranges::any_of(datasets_, [](const Dataset& dataset) { return !dataset.assigned; });
    const bool soon = report_early_ || unassigned || limits_->any_unleased();
    const std::int64_t period_ns = soon ? kReportIntervalMin_ns : kReportInterval_ns;
    if (report_in_flight_ || now_ns() - reported_ns_ < period_ns) return;
    report_in_flight_ = true;
    reported_ns_ = now_ns();
    report();
}

void SimulatedNode::every_second() {
    const cache::ShardStatistics statistics = shard_->statistics();
    limits_->update_idle_jobs(statistics, now_ns());
    note_buckets();
    if (statistics.protocol_violations > 0 && !was_frozen_) return events().fail(name_ + " closed a correct session");
    drop_old_versions(statistics);
    for (std::size_t d = 0; d < datasets_.size(); ++d) {
        const bool is_new = newest_edition(d) + 1 < datasets_[d].data->editions().size();
        if (is_new && around_.random.below(5) == 0) reindex(d);
    }
    for (const cache::DatasetStatistics& dataset : statistics.datasets) {
        if (dataset.usage.memory_bytes > dataset.quota.memory_bytes ||
            dataset.usage.disk_bytes > dataset.quota.disk_bytes)
            return events().fail(name_ + " uses more than the quota of " + dataset.name);
        // A write that was in flight when the daemon was killed may be torn.
        if (dataset.counters.crc_failures > 0 && !disk_was_faulty_ && instances_ == 1)
            return events().fail(name_ + " has bad blocks of " + dataset.name + ", but its disk is good");
        events().note(dataset.usage.blocks << 32 ^ dataset.counters.remote_read_bytes);
    }
    if (options_.lends) ask_peers();
    wake();
}

void SimulatedNode::note_buckets() {
    std::erase_if(buckets_, [this](const auto& bucket) {
        if (!bucket.second.expired()) return false;
        --live_buckets_;
        around_.bandwidth.buckets_ended(1);
        return true;
    });
    std::erase_if(session_jobs_, [this](const auto& session) { return !progress_.contains(session.first); });
}

void SimulatedNode::reindex(std::size_t number) {
    Dataset& dataset = datasets_[number];
    const std::size_t edition = dataset.data->editions().size() - 1;
    if (dataset.versions.contains(edition)) return;
    const protocol::Manifest* previous = dataset.versions.empty() ? nullptr : dataset.versions.rbegin()->second.get();
    const std::uint64_t version = ++dataset.version_count;
    const std::string path = options_.directory + "/manifest-" + dataset.data->name() + "-" + std::to_string(version);
    dataset.versions[edition] = dataset.data->index(edition, dataset.id, version, previous, path);
    events().trace(6, [&] { return name_ + " indexes " + dataset.data->name() + " again"; });
    if (up()) shard_->add_version(dataset.id, dataset.versions[edition]);
}

void SimulatedNode::note_held() {
    for (Dataset& dataset : datasets_) {
        const auto held = shard_->held(dataset.id).blocks;
        const auto end = static_cast<std::uint32_t>(dataset.versions.rbegin()->second->header().block_id_end);
        for (std::uint32_t id = 0; id < end; ++id) {
            if (held->holds(id)) dataset.seen_ns[id] = events().now_ns();
        }
        // Blocks that are read now may be written when the daemon ends.
        for (const auto& [edition, manifest] : dataset.versions) {
            for (const std::uint32_t object : dataset.data->read_lately(options_.number))
                dataset.seen_ns[manifest->block_id(object)] = events().now_ns();
        }
        dataset.data->forget_reads(options_.number);
    }
}

// A block that was dropped does not come back, unless that was just before the end.
void SimulatedNode::check_recovered(const Dataset& dataset, const std::vector<cache::RecoveredSegment>& segments) {
    if (disk_was_faulty_) return;
    // After a start, Shard::held() names blocks of the newest version only.
    const protocol::Manifest& newest = *dataset.versions.rbegin()->second;
    std::set<std::uint32_t> ids;
    for (std::uint32_t block = 0; block < newest.block_count(); ++block) ids.insert(newest.block_id(block));
    for (const cache::RecoveredSegment& segment : segments) {
        for (const cache::StoredBlock& block : segment.blocks) {
            if (!ids.contains(block.block_id)) continue;
            const auto seen = dataset.seen_ns.find(block.block_id);
            if (seen != dataset.seen_ns.end() && seen->second >= ended_ns_ - kDropped_ns) continue;
            events().trace(10, [&] {
                return "segment " + std::to_string(segment.id) + ", offset " + std::to_string(block.offset()) +
                       ", last seen at " +
                       std::to_string(seen == dataset.seen_ns.end() ? -1 : seen->second / kMillisecond_ns) + " ms";
            });
            return events().fail(name_ + " has block " + std::to_string(block.block_id) + " of " +
                                 dataset.data->name() + " again, which it had dropped");
        }
    }
}

// As OldVersions in cache/control/versions.cc.
void SimulatedNode::drop_old_versions(const cache::ShardStatistics& statistics) {
    for (Dataset& dataset : datasets_) {
        const auto counted = std::ranges::find(statistics.datasets, dataset.id, &cache::DatasetStatistics::dataset_id);
        if (counted == statistics.datasets.end()) continue;
        std::set<std::size_t> kept;
        for (const auto& [edition, manifest] : dataset.versions) {
            const bool used = std::ranges::find(counted->versions_in_use, manifest->header().version) !=
                              counted->versions_in_use.end();
            std::int64_t& needed_ns = dataset.needed_ns.try_emplace(edition, events().now_ns()).first->second;
            if (used || edition == dataset.versions.rbegin()->first) needed_ns = events().now_ns();
            if (events().now_ns() - needed_ns <= kVersionGrace_ns) kept.insert(edition);
        }
        if (kept == dataset.kept) continue;
        dataset.kept = kept;
        if (dataset.versions.size() == 1) continue;
        std::uint64_t end = 0;
        for (const std::size_t edition : kept) end = std::max(end, dataset.versions.at(edition)->header().block_id_end);
        std::vector<std::uint64_t> live((end + 63) / 64);
        for (const std::size_t edition : kept) {
            const protocol::Manifest& manifest = *dataset.versions.at(edition);
            for (std::uint32_t block = 0; block < manifest.block_count(); ++block) {
                const std::uint32_t id = manifest.block_id(block);
                live[id / 64] |= std::uint64_t{1} << (id % 64);
            }
        }
        if (end % 64 != 0) live.back() |= ~std::uint64_t{0} << (end % 64);
        shard_->drop_dead_blocks(dataset.id, live);
    }
}

// --- the allocator

// As AllocatorAgent in cache/control/agent.cc.
void SimulatedNode::report() {
    const cache::ShardStatistics statistics = shard_->statistics();
    std::vector<cache::ReportedDataset> datasets;
    for (const Dataset& dataset : datasets_) {
        const protocol::Manifest& newest = *dataset.versions.rbegin()->second;
        datasets.push_back({.report = {.name = dataset.data->name(),
                                       .quota_memory_bytes = dataset.quota.memory_bytes,
                                       .quota_disk_bytes = dataset.quota.disk_bytes,
                                       .quota_held = dataset.held},
                            .payload_bytes = newest.total_bytes(),
                            .blocks = newest.block_count(),
                            .block_bytes_max = newest.header().block_bytes_max});
    }
    const cache::AllocatorClientConfig config{
        .node = name_, .gpus = options_.gpus, .floor_bytes_per_second = options_.floor_bytes_per_second};
    cache::ReportedPeers peers;
    if (options_.lends) peers = {.group = "default", .endpoint = endpoint_of(options_.number)};
    const std::int64_t sent_ns = now_ns();
    auto report = reporter_->make(config, {options_.memory_bytes, options_.disk_bytes}, datasets, statistics,
                                  floor_->reportable(), sent_ns, peers);
    // The reporter draws its number at random.
    report.instance = mix64(instances_ << 8 ^ static_cast<std::uint64_t>(options_.number));
    HttpRequest request{.method = "POST", .path = {"v1", "reports"}};
    if (protocol_ > allocator::kProtocolOldest) request.query[allocator::kProtocolQuery] = std::to_string(protocol_);
    report.peers_etag = peers_etag_;
    request.body = json_text(allocator::to_json(report, protocol_));
    const std::uint64_t number = ++report_number_;
    const auto take = [this, number, sent_ns](const HttpResponse* response) {
        if (number != report_number_ || !report_in_flight_) return;
        handle_answer(response, sent_ns);
    };
    around_.network.send(options_.number, kAllocatorMachine, [this, request, instance = instances_, take] {
        around_.ask(request, [this, instance, take](const HttpResponse& response) {
            around_.network.send(kAllocatorMachine, options_.number, [this, instance, take, response] {
                if (instance != instances_) return;
                when_awake([take, response] { take(&response); });
            });
        });
    });
    after(kAnswerTimeout_ns, [take] { take(nullptr); });
}

void SimulatedNode::handle_answer(const HttpResponse* response, std::int64_t sent_ns) {
    report_in_flight_ = false;
    const Result<void> applied =
        response != nullptr ? apply(*response, sent_ns) : fail(ErrorCode::unavailable, "no answer");
    ++(applied ? status_.reports : status_.failures);
    status_.connected = applied.has_value();
    status_.problem = applied ? "" : applied.error().message;
    if (!applied)
        events().trace(7, [&] { return name_ + " has no valid answer from the allocator: " + status_.problem; });
    wake();
}

Result<void> SimulatedNode::apply(const HttpResponse& response, std::int64_t sent_ns) {
    const unsigned protocol = std::exchange(protocol_, allocator::kProtocolOldest);
    if (response.status != 200) return std::unexpected(error_of_response(response));
    protocol_ = allocator::common_protocol(response);
    auto answer = cache::read_allocator_answer(response.body, protocol, sent_ns);
    if (!answer) return std::unexpected(answer.error());
    status_.plan = answer->plan;
    if (answer->peers) peers_etag_ = answer->peers_etag;
    if (answer->peers && options_.lends) {
        peers_.clear();
        for (const auto& node : around_.nodes) {
            if (node->number() == options_.number) continue;
            const std::string endpoint = endpoint_of(node->number());
            if (std::ranges::find(*answer->peers, endpoint, &cache::PeerAddress::endpoint) != answer->peers->end())
                peers_.push_back(node->number());
        }
    }
    lease_applied_ = answer->lease;
    if (const auto floor = floor_->apply(answer->lease, answer->rates.expired_bytes_per_second())) {
        floors_to_save_.push_back(*floor);
        saved_ns_ = std::max(saved_ns_, events().now_ns()) + around_.random.between(100'000, 30 * kMillisecond_ns);
        after(saved_ns_ - events().now_ns(), [this] {
            floor_on_disk_ = floors_to_save_.front();
            floors_to_save_.pop_front();
            floor_->saved({});
        });
    }
    report_early_ = answer->cut || limits_->exceeds_lease(answer->rates);
    status_.lease_expires_ns = answer->rates.expires_ns;
    events().note(answer->lease ^ answer->plan << 32);
    events().trace(8, [&] {
        std::string text = name_ + " has lease " + std::to_string(answer->lease) + ", floor " +
                           std::to_string(answer->rates.floor_bytes_per_second) + ":";
        for (const auto& [job, rate] : answer->rates.rates) text += " " + job + " " + std::to_string(rate);
        return text + ", until " + std::to_string(clock_.to_simulated_ns(answer->rates.expires_ns) / kMillisecond_ns);
    });
    limits_->lease(std::move(answer->rates), now_ns());
    if (sent_ns < quota_by_hand_ns_) return {};
    return apply_quotas(answer->quotas);
}

// As Quotas::apply_plan.
Result<void> SimulatedNode::apply_quotas(const std::map<std::string, Quota>& quotas) {
    Quota sum;
    for (const Dataset& dataset : datasets_) {
        const auto planned = quotas.find(dataset.data->name());
        const Quota& quota = planned == quotas.end() || dataset.held ? dataset.quota : planned->second;
        sum.memory_bytes += quota.memory_bytes;
        sum.disk_bytes += quota.disk_bytes;
    }
    if (sum.memory_bytes > options_.memory_bytes || sum.disk_bytes > options_.disk_bytes)
        return fail(ErrorCode::no_space, "the quotas do not fit");
    for (Dataset& dataset : datasets_) {
        const auto planned = quotas.find(dataset.data->name());
        if (planned == quotas.end()) continue;
        dataset.assigned = true;
        if (dataset.held || dataset.quota == planned->second) continue;
        dataset.quota = planned->second;
        shard_->set_quota(dataset.id, dataset.quota);
    }
    return {};
}

void SimulatedNode::lower_dealt_quotas(std::uint64_t Quota::* tier, std::uint64_t capacity) {
    std::uint64_t sum = 0;
    for (const Dataset& dataset : datasets_) sum += dataset.quota.*tier;
    for (Dataset& dataset : datasets_) {
        if (sum <= capacity || dataset.held) continue;
        const std::uint64_t taken = std::min(dataset.quota.*tier, sum - capacity);
        dataset.quota.*tier -= taken;
        sum -= taken;
        shard_->set_quota(dataset.id, dataset.quota);
    }
}

void SimulatedNode::hold_quota(std::size_t number, std::optional<Quota> quota) {
    if (!answers()) return;
    Dataset& dataset = datasets_[number];
    if (!quota) {
        dataset.held = dataset.assigned = false;
        return;
    }
    Quota others;
    for (const Dataset& other : datasets_) {
        if (!other.held || &other == &dataset) continue;
        others.memory_bytes += other.quota.memory_bytes;
        others.disk_bytes += other.quota.disk_bytes;
    }
    if (others.memory_bytes + quota->memory_bytes > options_.memory_bytes ||
        others.disk_bytes + quota->disk_bytes > options_.disk_bytes)
        return;
    dataset.held = dataset.assigned = true;
    dataset.quota = *quota;
    quota_by_hand_ns_ = now_ns();
    lower_dealt_quotas(&Quota::memory_bytes, options_.memory_bytes);
    lower_dealt_quotas(&Quota::disk_bytes, options_.disk_bytes);
    shard_->set_quota(dataset.id, dataset.quota);
    wake();
}

// --- peers

const SimulatedNode::Dataset* SimulatedNode::find_lent(const std::string& name, const std::string& fingerprint) const {
    for (const Dataset& dataset : datasets_) {
        if (dataset.data->name() == name && cache::fingerprint_of(*dataset.versions.rbegin()->second) == fingerprint)
            return &dataset;
    }
    return nullptr;
}

// As PeerServer in cache/peers/peer_server.cc.
std::optional<std::string> SimulatedNode::held_answer(const std::string& name, const std::string& fingerprint,
                                                      const std::string& since) const {
    const Dataset* dataset = find_lent(name, fingerprint);
    if (dataset == nullptr) return std::nullopt;
    const cache::Shard::Held held = shard_->held(dataset->id);
    const protocol::Manifest& manifest = *dataset->versions.rbegin()->second;
    const cache::HeldState state{.instance = mix64(instances_ ^ dataset->id), .changes = held.blocks->changes()};
    if (state.text() == since) return cache::encode_held(state, held.room_bytes, manifest.block_count(), {});
    std::vector<std::uint8_t> bits((std::size_t{manifest.block_count()} + 7) / 8);
    for (std::uint32_t block = 0; block < manifest.block_count(); ++block) {
        if (held.blocks->holds(manifest.block_id(block)))
            bits[block / 8] |= static_cast<std::uint8_t>(1u << (block % 8));
    }
    return cache::encode_held(state, held.room_bytes, manifest.block_count(), bits);
}

void SimulatedNode::lend(const std::string& name, const std::string& fingerprint, std::uint32_t block,
                         std::function<void(std::string record)> answer) {
    when_awake([this, name, fingerprint, block, answer = std::move(answer)] {
        const Dataset* dataset = find_lent(name, fingerprint);
        if (dataset == nullptr) return answer("");
        const auto manifest = dataset->versions.rbegin()->second;
        shard_->lend(
            dataset->id, manifest, block,
            [this, id = dataset->id, manifest, block, answer](const cache::LentBlock& lent) {
                if (!up()) return;
                if (lent.token == 0) return answer("");
                // The block is sent a little later, from where it lies.
                after(around_.random.between(0, 5 * kMillisecond_ns), [this, id, manifest, block, answer, lent] {
                    const auto header = protocol::make_record_header(id, manifest->block_id(block),
                                                                     static_cast<std::uint32_t>(lent.payload.size()),
                                                                     lent.payload_crc, 0);
                    std::string record(reinterpret_cast<const char*>(&header), sizeof header);
                    record.append(reinterpret_cast<const char*>(lent.payload.data()), lent.payload.size());
                    shard_->return_block(id, lent.token);
                    wake();
                    answer(std::move(record));
                });
            });
        wake();
    });
}

bool SimulatedNode::take_offered(const std::string& name, const std::string& fingerprint, std::uint32_t block,
                                 const std::string& record) {
    const Dataset* dataset = find_lent(name, fingerprint);
    if (dataset == nullptr) return false;
    const auto& manifest = dataset->versions.rbegin()->second;
    const auto bytes = std::as_bytes(std::span(record));
    const std::uint32_t payload_bytes = manifest->block_bytes(block);
    if (bytes.size() != kRecordHeaderBytes + std::size_t{payload_bytes}) return false;
    const auto header = protocol::read_record_header(bytes.first(kRecordHeaderBytes));
    const auto payload = bytes.subspan(kRecordHeaderBytes);
    const bool is_valid = header && header->raw_bytes == 0 && header->payload_crc == crc32c(payload) &&
                          (!manifest->has_checksums() || manifest->block_checksum(block) == header->payload_crc);
    if (!is_valid) return false;
    const std::size_t room = protocol::record_bytes(payload_bytes, protocol::kPageBytes);
    cache::OfferedBlock offered;
    offered.manifest = manifest;
    offered.block = block;
    offered.payload_crc = header->payload_crc;
    offered.pages = static_cast<std::uint32_t>(room / protocol::kPageBytes);
    offered.record = {static_cast<std::byte*>(std::aligned_alloc(protocol::kPageBytes, room)), std::free};
    std::memcpy(offered.record.get(), bytes.data(), bytes.size());
    dataset->data->note_read(options_.number, block);
    const bool taken = shard_->take_offered(dataset->id, std::move(offered));
    wake();
    return taken;
}

// As PeerDirectory in cache/peers/peer_directory.cc.
void SimulatedNode::ask_peers() {
    if (peers_.empty() && last_handovers_.empty()) return;
    for (auto& [key, last] : last_answers_) last.answered = false;
    for (const Dataset& dataset : datasets_) {
        const protocol::Manifest& manifest = *dataset.versions.rbegin()->second;
        const std::string name = dataset.data->name();
        const std::string fingerprint = cache::fingerprint_of(manifest);
        const std::string key = name + "/" + fingerprint;
        for (const int peer : peers_) {
            const auto last = last_answers_.find({peer, key});
            const std::string since = last == last_answers_.end() ? "" : last->second.state.text();
            const auto take = [this, instance = instances_, peer, key,
                               blocks = manifest.block_count()](const std::optional<std::string>& body) {
                if (instance != instances_) return;
                when_awake([this, peer, key, blocks, body] { take_held_answer(peer, key, blocks, body); });
            };
            around_.network.send(options_.number, peer, [this, peer, name, fingerprint, since, take] {
                SimulatedNode& asked = *around_.nodes[static_cast<std::size_t>(peer)];
                asked.when_awake([this, &asked, peer, name, fingerprint, since, take] {
                    around_.network.send(peer, options_.number,
                                         [take, body = asked.held_answer(name, fingerprint, since)] { take(body); });
                });
            });
        }
    }
    after(500 * kMillisecond_ns, [this] { hand_over_peers(); });
}

void SimulatedNode::take_held_answer(int peer, const std::string& key, std::uint32_t blocks,
                                     const std::optional<std::string>& body) {
    if (std::ranges::find(peers_, peer) == peers_.end()) return;
    if (!body) {
        last_answers_.erase({peer, key});
        return;
    }
    auto answer = cache::decode_held(std::as_bytes(std::span(*body)), blocks);
    if (!answer) return events().fail("an answer about held blocks cannot be read");
    LastAnswer& last = last_answers_[{peer, key}];
    last.answered = true;
    last.room_bytes = answer->room_bytes;
    if (!answer->bits) return;
    last.state = answer->state;
    last.bits = std::move(*answer->bits);
}

cache::PeerBlocks SimulatedNode::peer_blocks(const Dataset& dataset, const cache::HeldBlocks& own) {
    const auto& manifest = dataset.versions.rbegin()->second;
    const std::string fingerprint = cache::fingerprint_of(*manifest);
    const std::string key = dataset.data->name() + "/" + fingerprint;
    cache::PeerBlocks blocks{.manifest = manifest, .peers = {}, .holder = {}};
    std::vector<const LastAnswer*> held;
    for (const int peer : peers_) {
        const auto last = last_answers_.find({peer, key});
        const bool known = last != last_answers_.end();
        blocks.peers.push_back(
            {.key = endpoint_of(peer) + "/" + key,
             .open = [this, peer, name = dataset.data->name(), fingerprint, checksums = dataset.data->checksums()](
                         cache::Device&) -> Result<std::unique_ptr<cache::PeerRemote>> {
                 return std::make_unique<PeerReads>(*device_, around_, options_.number, peer, name, fingerprint,
                                                    checksums);
             },
             .room_bytes = known ? last->second.room_bytes : 0});
        held.push_back(known && !last->second.bits.empty() ? &last->second : nullptr);
    }
    blocks.holder.assign(manifest->block_count(), 0);
    for (std::uint32_t block = 0; block < manifest->block_count(); ++block) {
        if (own.holds(manifest->block_id(block)) || held.empty()) continue;
        const std::size_t first = mix64(block) % held.size();
        for (std::size_t i = 0; i < held.size(); ++i) {
            const std::size_t peer = (first + i) % held.size();
            if (held[peer] == nullptr || ((held[peer]->bits[block / 8] >> (block % 8)) & 1) == 0) continue;
            blocks.holder[block] = static_cast<std::uint8_t>(peer + 1);
            blocks.bytes += manifest->block_bytes(block);
            break;
        }
    }
    return blocks;
}

void SimulatedNode::hand_over_peers() {
    std::erase_if(last_answers_, [](const auto& last) { return !last.second.answered; });
    for (const Dataset& dataset : datasets_) {
        const auto own = shard_->held(dataset.id).blocks;
        auto& last = last_handovers_[dataset.data->name()];
        cache::PeerBlocks current = peer_blocks(dataset, *own);
        if (last != nullptr && last->manifest == current.manifest) {
            for (std::uint32_t block = 0; block < current.holder.size() && !current.lost_some; ++block) {
                current.lost_some =
                    last->holds(block) && !current.holds(block) && !own->holds(current.manifest->block_id(block));
            }
        }
        last = std::make_shared<const cache::PeerBlocks>(std::move(current));
        shard_->set_peers(dataset.id, last);
    }
    wake();
}

}  // namespace larder::campaign
