#include "cache/control/agent.h"

#include <boost/asio/post.hpp>
#include <boost/json.hpp>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "allocator/protocol/codec.h"
#include "base/server/json_reader.h"
#include "base/server/json_text.h"
#include "base/server/logging.h"
#include "cache/control/state_lock.h"
#include "cache/protocol/record.h"

namespace larder::cache {
namespace asio = boost::asio;
namespace json = boost::json;
namespace {

constexpr std::chrono::milliseconds kTickInterval{100};
constexpr std::int64_t kReportInterval_ns = 1'000'000'000;
// The shortest interval between reports, used while something waits for one, such as a new job at the floor.
constexpr std::int64_t kReportIntervalMin_ns = 200'000'000;
constexpr std::int64_t kAnswerTimeout_ms = 2'000;
constexpr std::int64_t kAllocatorStartGrace_ns = 10'000'000'000;

// Longer than the moment without sessions between two epochs of a job.
constexpr std::int64_t kGoneAfter_ns = 5'000'000'000;

// The ratio (bytes of records / payload bytes) is above 1 for plain records, which have headers and padding, and may be
// below 1 for compressed ones. It is measured, on blocks that can be found, once this many payload bytes are cached.
// Records that are being written have room in the cache already, but no payload yet: a ratio with them would depend on
// the moment. Before that, the largest possible ratio is reported, so that the first pass of a dataset that fits is
// kept whole. The size of a compressed dataset is its size in the cache, so that cached bytes / size is the hit ratio
// that jobs can reach.
constexpr std::uint64_t kPayloadSampleBytesMin = 1 << 20;
constexpr std::uint64_t kRecordOverheadMax = protocol::kRecordHeaderBytes + 4096;
// A measured ratio is kept until it is too low, or too high by kRatioTolerance: a size that changed with every block
// would change all quotas. kRatioMargin leaves room for blocks larger than those cached so far.
constexpr double kRatioMargin = 0.01;
constexpr double kRatioTolerance = 0.05;

double payload_ratio(std::uint64_t record_bytes, std::uint64_t payload_bytes) {
    return static_cast<double>(record_bytes) / static_cast<double>(payload_bytes);
}

// The end of a memory quota may be too small for a block, if the dataset is on the disk, too.
std::uint64_t unusable_bytes(const ReportedDataset& dataset, Quota room) {
    if (room.memory_bytes == 0 || room.disk_bytes == 0) return 0;
    return dataset.block_bytes_max + kRecordOverheadMax;
}

// The ratio of the blocks that are not cached yet. Memory is filled first and pads records less than the disk does, so
// on a node with a disk, these blocks take more than blocks in memory.
double uncached_ratio(const ReportedDataset& dataset, const StoreUsage& usage, Quota room) {
    if (room.disk_bytes > 0 && usage.disk_payload_bytes >= kPayloadSampleBytesMin) {
        return payload_ratio(usage.disk_record_bytes, usage.disk_payload_bytes);
    }
    const double padding = room.disk_bytes > 0 ? static_cast<double>(dataset.blocks * protocol::kPageBytes) : 0;
    return payload_ratio(usage.record_bytes, usage.payload_bytes) +
           padding / static_cast<double>(dataset.payload_bytes);
}

// Bytes of records / payload bytes once the whole dataset is cached. Some of it, but not all, is cached now.
double expected_ratio(const ReportedDataset& dataset, const StoreUsage& usage, Quota room) {
    const auto uncached_bytes = static_cast<double>(dataset.payload_bytes - usage.payload_bytes);
    const double uncached = uncached_bytes * uncached_ratio(dataset, usage, room);
    const auto cached = static_cast<double>(usage.record_bytes + unusable_bytes(dataset, room));
    return (cached + uncached) / static_cast<double>(dataset.payload_bytes);
}

std::uint64_t to_us(std::int64_t ns) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 0)) / 1000;
}

allocator::WaitsReport waits_report(const RecentWaits& waits) {
    allocator::WaitsReport report{.since_us = to_us(waits.since_ns),
                                  .until_us = to_us(waits.until_ns),
                                  .counted_us = to_us(waits.counted_ns),
                                  .batches = waits.batches,
                                  .shortest_us = to_us(waits.shortest_ns),
                                  .lengths_us = {}};
    std::uint64_t at_us = report.since_us;
    const std::size_t first =
        waits.waits.size() - std::min(waits.waits.size(), allocator::WaitsReport::kLengthsMax / 2);
    if (first > 0) at_us = report.since_us = to_us(waits.waits[first - 1].end_ns);
    for (const Wait& wait : std::span(waits.waits).subspan(first)) {
        const std::uint64_t begin_us = std::max(to_us(wait.begin_ns), at_us);
        const std::uint64_t end_us = std::max(to_us(wait.end_ns), begin_us);
        report.lengths_us.insert(report.lengths_us.end(), {begin_us - at_us, end_us - begin_us});
        at_us = end_us;
    }
    return report;
}

}  // namespace

// --- the report

NodeReporter::NodeReporter(std::uint64_t state_directory)
    : instance_(draw_number()), state_directory_(state_directory) {}

std::uint64_t NodeReporter::estimate_stored_bytes(const ReportedDataset& dataset, const StoreUsage& usage, Quota room) {
    auto& [ratio, is_measured] = stored_ratios_[dataset.name()];
    const std::uint64_t used_bytes = usage.memory_bytes + usage.disk_bytes;
    if (usage.payload_bytes >= dataset.payload_bytes) {
        ratio = payload_ratio(usage.record_bytes, usage.payload_bytes);
        is_measured = true;
        // Includes blocks of an earlier version, which stay for a while. A size without them would get a quota that
        // drops whole segments, with blocks that the newest version has.
        return used_bytes;
    }
    if (usage.payload_bytes < std::min(kPayloadSampleBytesMin, dataset.payload_bytes)) {
        const std::uint64_t overhead = dataset.blocks * kRecordOverheadMax + unusable_bytes(dataset, room);
        ratio = payload_ratio(dataset.payload_bytes + overhead, dataset.payload_bytes);
        is_measured = false;
    } else {
        const double seen = expected_ratio(dataset, usage, room);
        if (!std::exchange(is_measured, true)) ratio = seen;
        if (seen > ratio || seen < ratio * (1 - kRatioTolerance)) ratio = seen * (1 + kRatioMargin);
    }
    const auto size = static_cast<std::uint64_t>(std::llround(static_cast<double>(dataset.payload_bytes) * ratio));
    return std::max(size, used_bytes);
}

allocator::DatasetReport NodeReporter::report_of(const ReportedDataset& dataset, const ShardStatistics& statistics,
                                                 Quota room) {
    const auto found = std::ranges::find(statistics.datasets, dataset.name(), &DatasetStatistics::name);
    const StoreUsage usage = found == statistics.datasets.end() ? StoreUsage{} : found->usage;
    allocator::DatasetReport report = dataset.report;
    report.size_bytes = estimate_stored_bytes(dataset, usage, room);
    report.cached_memory_bytes = usage.memory_bytes;
    report.cached_disk_bytes = usage.disk_bytes;
    return report;
}

std::map<std::string, NodeReporter::Job> NodeReporter::jobs_of(const ShardStatistics& statistics) {
    std::map<std::string, Job> jobs;
    for (const JobStatistics& part : statistics.jobs) {
        Job& job = jobs[part.job];
        job.sessions += part.sessions;
        job.loops += part.training_loops;
        job.bytes += part.bytes_delivered;
        job.busy_ns += part.busy_ns;
        if (part.waits) {
            // Loops that read several datasets at once are not united.
            job.waits = job.has_waits ? std::nullopt : std::optional(waits_report(*part.waits));
            job.has_waits = true;
        }
        job.remote_bytes += part.counters.remote_read_bytes;
        job.waiting_bytes += part.waiting_bytes;
        // Among the datasets with sessions, the one that the job has read most is reported.
        if (part.sessions == 0 && !job.dataset.empty()) continue;
        if (!job.dataset.empty() && part.bytes_delivered <= job.dataset_bytes_delivered) continue;
        job.dataset = part.dataset;
        job.dataset_bytes_delivered = part.bytes_delivered;
        job.unread_bytes = part.unread_bytes;
        job.effective_bytes = std::min(part.effective_cache_bytes, part.unread_bytes);
        job.epoch = part.bytes_delivered > 0 ? std::optional(part.epoch) : std::nullopt;
    }
    return jobs;
}

bool NodeReporter::observe(const Job& job, Seen& seen, std::int64_t now_ns) const {
    if (job.sessions > 0) seen.session_at_ns = now_ns;
    if (seen.session_at_ns == 0 || now_ns - seen.session_at_ns > kGoneAfter_ns) return false;
    if (job.sessions > 0) seen.loops = job.loops;
    if (seen.at_ns != 0) {
        const double seconds = static_cast<double>(now_ns - seen.at_ns) * 1e-9;
        if (seconds > 0) {
            // Demand: bytes read plus bytes that wait for bandwidth.
            const auto taken = static_cast<double>(job.remote_bytes - std::min(seen.remote_bytes, job.remote_bytes));
            seen.demand_bytes_per_second = (taken + static_cast<double>(job.waiting_bytes)) / seconds;
        }
    }
    seen.at_ns = now_ns;
    seen.remote_bytes = job.remote_bytes;
    return true;
}

allocator::NodeReport NodeReporter::make(const AllocatorClientConfig& allocator, Quota room,
                                         const std::vector<ReportedDataset>& datasets,
                                         const ShardStatistics& statistics, std::uint64_t lease_applied,
                                         std::int64_t now_ns, const ReportedPeers& peers) {
    std::erase_if(stored_ratios_, [&](const auto& known) {
        return std::ranges::find(datasets, known.first, &ReportedDataset::name) == datasets.end();
    });
    allocator::NodeReport report{.node = allocator.node,
                                 .instance = instance_,
                                 .state_directory = state_directory_,
                                 .lease_applied = lease_applied,
                                 .rates = allocator.rates,
                                 .scans = statistics.scans,
                                 .gpus = allocator.gpus,
                                 .memory_bytes = room.memory_bytes,
                                 .disk_bytes = room.disk_bytes,
                                 .clock_us = to_us(now_ns)};
    if (!peers.endpoint.empty()) {
        report.peer_group = peers.group;
        report.peer_endpoint = peers.endpoint;
    }
    if (allocator.disk_read_bytes_per_second > 0) {
        report.disk_read_bytes_per_second = allocator.disk_read_bytes_per_second;
    }
    if (allocator.nic_bytes_per_second > 0) report.nic_bytes_per_second = allocator.nic_bytes_per_second;
    for (const ReportedDataset& dataset : datasets) {
        if (dataset.payload_bytes > 0) report.datasets.push_back(report_of(dataset, statistics, room));
    }
    for (const auto& [name, job] : jobs_of(statistics)) {
        Seen& seen = seen_[name];
        const bool known = std::ranges::find(datasets, job.dataset, &ReportedDataset::name) != datasets.end();
        if (!observe(job, seen, now_ns) || !known) {
            if (job.sessions == 0) seen_.erase(name);
            continue;
        }
        report.jobs.push_back({.name = name,
                               .dataset = job.dataset,
                               .ranks = seen.loops,
                               .bytes = job.bytes,
                               .busy_s = static_cast<double>(job.busy_ns) * 1e-9,
                               .demand_bytes_per_second = seen.demand_bytes_per_second,
                               .remote_bytes = job.remote_bytes,
                               .unread_bytes = job.unread_bytes,
                               .unread_cached_bytes = job.effective_bytes,
                               .epoch = job.epoch,
                               .waits = job.waits});
    }
    return report;
}

// --- the answer

Result<AllocatorAnswer> read_allocator_answer(std::string_view text, unsigned version, std::int64_t from_ns) {
    const auto object = parse_json_object(text, "the allocator's answer");
    if (!object) return std::unexpected(object.error());
    auto plan = allocator::read_node_plan(*object, "", from_ns, version);
    if (!plan) return std::unexpected(plan.error());
    AllocatorAnswer answer{.plan = plan->plan,
                           .quotas = {},
                           .lease = plan->lease.number,
                           .rates = {},
                           .peers = {},
                           .peers_etag = plan->peers_etag,
                           .cut = plan->lease.cut,
                           .warm = std::move(plan->warm)};
    for (const allocator::DatasetQuota& quota : plan->quotas) {
        answer.quotas[quota.name] = {.memory_bytes = quota.memory_bytes, .disk_bytes = quota.disk_bytes};
    }
    for (const allocator::LeasedRate& rate : plan->lease.rates) answer.rates.rates[rate.job] = rate.bytes_per_second;
    answer.rates.floor_bytes_per_second = plan->lease.floor_bytes_per_second;
    answer.rates.expires_ns = plan->lease.expires_ns;
    if (!plan->peers) return answer;
    answer.peers.emplace().reserve(plan->peers->size());
    for (allocator::PeerNode& peer : *plan->peers) {
        answer.peers->push_back({.node = std::move(peer.node), .endpoint = std::move(peer.endpoint)});
    }
    return answer;
}

// --- the exchange of the two

AllocatorAgent::AllocatorAgent(asio::io_context& context, Node& node, std::uint64_t state_directory,
                               const PromisedFloor& floor)
    : context_(context),
      node_(node),
      timer_(context),
      reporter_(state_directory),
      protocol_(allocator::kProtocolOldest),
      floor_(floor),
      client_(node.config().allocator.endpoint),
      requests_(1) {
    asio::post(requests_, [] { pthread_setname_np(pthread_self(), "larder-agent"); });
    if (node.config().allocator.rates)
        node_.job_limits().lease({.floor_bytes_per_second = floor_.before_first_lease()}, clock_.now_ns());
}

AllocatorAgent::~AllocatorAgent() {
    requests_.join();
}

void AllocatorAgent::start() {
    log_info("an allocator manages this node",
             {{"endpoint", node_.config().allocator.endpoint}, {"node", node_.config().allocator.node}});
    started_ns_ = clock_.now_ns();
    wait();
}

void AllocatorAgent::stop() {
    timer_.cancel();
}

void AllocatorAgent::wait() {
    timer_.expires_after(kTickInterval);
    timer_.async_wait([this](const boost::system::error_code& error) {
        if (error) return;
        tick();
        wait();
    });
}

void AllocatorAgent::tick() {
    const bool rates = node_.config().allocator.rates;
    const std::int64_t now_ns = clock_.now_ns();
    if (rates) node_.job_limits().expire(now_ns);
    if (rates) node_.job_limits().share_unused(now_ns);
    // An allocator that starts at the same time as this daemon is found as soon as it answers.
    const bool is_starting = status_.reports == 0 && now_ns - started_ns_ < kAllocatorStartGrace_ns;
    const bool report_soon =
        report_early_ || is_starting || node_.quotas().any_unassigned() || (rates && node_.job_limits().any_unleased());
    const std::int64_t period_ns = report_soon ? kReportIntervalMin_ns : kReportInterval_ns;
    if (report_in_flight_ || now_ns - reported_ns_ < period_ns) return;
    report_in_flight_ = true;
    reported_ns_ = now_ns;
    report();
}

void AllocatorAgent::report() {
    node_.shards().collect([this](const Result<ShardStatistics>& statistics) {
        if (!statistics) {
            report_in_flight_ = false;
            return;
        }
        std::vector<ReportedDataset> datasets;
        const Quota changing = node_.quotas().changing();
        const auto remaining = [](std::uint64_t total, std::uint64_t used) { return total - std::min(total, used); };
        const Quota room{.memory_bytes = remaining(node_.config().memory_bytes, changing.memory_bytes),
                         .disk_bytes = remaining(node_.config().disk_bytes, changing.disk_bytes)};
        for (const auto& [name, dataset] : node_.datasets().all()) {
            datasets.push_back({.report = {.name = name,
                                           .quota_memory_bytes = dataset.record.quota.memory_bytes,
                                           .quota_disk_bytes = dataset.record.quota.disk_bytes,
                                           .quota_held = dataset.record.quota_held},
                                .payload_bytes = dataset.bytes(),
                                .blocks = dataset.newest().manifest->block_count(),
                                .block_bytes_max = dataset.newest().manifest->header().block_bytes_max});
        }
        // Read first: if the machine sleeps in between, the lease ends early, not late.
        const std::int64_t slept_before_ns = slept_ns();
        const std::int64_t now_ns = clock_.now_ns();
        const ReportedPeers peers{.group = node_.config().peers.group,
                                  .endpoint = node_.peers() == nullptr ? "" : node_.peers()->endpoint()};
        allocator::NodeReport report =
            reporter_.make(node_.config().allocator, room, datasets, *statistics, floor_.reportable(), now_ns, peers);
        if (protocol_ >= allocator::kProtocolWithUsers) {
            for (allocator::JobReport& job : report.jobs) job.user = node_.job_limits().user_of(job.name);
        }
        report.warmed = node_.warming().warmed();
        report.peers_etag = peers_etag_;
        send(json_text(allocator::to_json(report, protocol_)), now_ns, slept_before_ns);
    });
}

void AllocatorAgent::send(std::string body, std::int64_t now_ns, std::int64_t slept_before_ns) {
    std::string target = "/v1/reports";
    if (protocol_ > allocator::kProtocolOldest) {
        target += std::string("?") + allocator::kProtocolQuery + "=" + std::to_string(protocol_);
    }
    asio::post(requests_, [this, target = std::move(target), body = std::move(body), now_ns, slept_before_ns] {
        auto options = http_client_options(node_.config().allocator.credentials);
        if (options) options->timeout_ms = kAnswerTimeout_ms;
        auto response = options ? client_.request("POST", target, body, *options)
                                : Result<HttpResponse>(std::unexpected(options.error()));
        asio::post(context_, [this, response = std::move(response), now_ns, slept_before_ns] {
            handle_answer(response, now_ns, slept_before_ns);
        });
    });
}

void AllocatorAgent::handle_answer(const Result<HttpResponse>& response, std::int64_t sent_ns,
                                   std::int64_t slept_before_ns) {
    report_in_flight_ = false;
    const Result<void> applied =
        response ? apply(*response, sent_ns, slept_before_ns) : std::unexpected(response.error());
    ++(applied ? status_.reports : status_.failures);
    if (applied && !status_.connected) {
        log_info("the allocator answers", {{"plan", status_.plan}});
    }
    if (applied) {
        last_warning_.clear();
    } else {
        log_problem(applied.error());
    }
    status_.connected = applied.has_value();
    status_.problem = applied ? "" : applied.error().message;
}

// Warns only after a grace period if the allocator never answered: daemons and allocator may start in any order.
void AllocatorAgent::log_problem(const Error& error) {
    const bool waits = status_.reports == 0 && error.code == ErrorCode::unavailable &&
                       clock_.now_ns() - started_ns_ < kAllocatorStartGrace_ns;
    if (waits) {
        if (!std::exchange(logged_waiting_, true)) log_info("waiting for the allocator", {{"reason", error.message}});
    } else if (last_warning_ != error.message) {
        log_warn("no valid answer from the allocator: quotas stay, rates fall to the floor when the lease ends",
                 {{"error", error.message}});
        last_warning_ = error.message;
    }
}

Result<void> AllocatorAgent::apply(const HttpResponse& response, std::int64_t sent_ns, std::int64_t slept_before_ns) {
    // The allocator may have been replaced by one of another version: after a refusal, start again with the oldest
    // protocol.
    const unsigned protocol = std::exchange(protocol_, allocator::kProtocolOldest);
    if (response.status != 200) return std::unexpected(error_of_response(response));
    protocol_ = allocator::common_protocol(response);
    // The lease began at most as long ago as the report was sent, also if the machine has slept since.
    auto answer = read_allocator_answer(response.body, protocol, sent_ns + slept_before_ns);
    if (!answer) return std::unexpected(answer.error());
    status_.plan = answer->plan;
    if (answer->peers) {
        if (node_.peers() != nullptr) node_.peers()->set_others(std::move(*answer->peers));
        peers_etag_ = protocol >= allocator::kProtocolWithPeersEtag ? std::optional(answer->peers_etag) : std::nullopt;
    }
    if (!node_.config().allocator.rates) return apply_quotas(*answer, sent_ns);
    // Other nodes rely on these rates, so apply them even if the quotas do not fit.
    if (const auto floor = floor_.apply(answer->lease, answer->rates.expired_bytes_per_second())) {
        node_.save_promised_floor(*floor, [this](const Result<void>& saved) { floor_.saved(saved); });
    }
    // Report again soon: other nodes can use the bandwidth this node gives up only once it has reported, and the part
    // of its plan that was held back may soon be free.
    report_early_ = answer->cut || node_.job_limits().exceeds_lease(answer->rates);
    status_.lease_expires_ns = answer->rates.expires_ns;
    node_.job_limits().lease(std::move(answer->rates), clock_.now_ns());
    return apply_quotas(*answer, sent_ns);
}

Result<void> AllocatorAgent::apply_quotas(const AllocatorAnswer& answer, std::int64_t sent_ns) {
    auto applied = node_.quotas().apply_plan(answer.quotas, sent_ns);
    if (applied) node_.warming().follow(answer.warm);
    return applied;
}

}  // namespace larder::cache
