#include "cache/control/node.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/server/logging.h"
#include "base/units.h"
#include "cache/control/promised_floor.h"

namespace larder::cache {
namespace asio = boost::asio;
namespace {

DeviceKind device_kind_of(IoMode mode) {
    switch (mode) {
        case IoMode::automatic: return DeviceKind::automatic;
        case IoMode::ring: return DeviceKind::ring;
        case IoMode::threads: return DeviceKind::threads;
    }
    return DeviceKind::automatic;
}

void log_outage(const HttpOutage& outage) {
    // libcurl's and servers' messages begin with ": ", because they follow a URL.
    const std::string why = outage.why.starts_with(": ") ? outage.why.substr(2) : outage.why;
    if (outage.ended_ns == 0) {
        log_warn("a remote does not answer; requests are retried until it does",
                 {{"endpoint", outage.endpoint}, {"error", why}});
        return;
    }
    const std::string lasted = format_duration_ns(outage.ended_ns - outage.began_ns);
    if (outage.ended_by_answer) {
        log_info("the remote answers again",
                 {{"endpoint", outage.endpoint}, {"outage", lasted}, {"failed_tries", outage.failures}});
    } else {
        log_info("the remote that did not answer is no longer used", {{"endpoint", outage.endpoint}});
    }
}

bool is_read_only(const std::string& directory) {
    return ::access(directory.c_str(), W_OK) != 0 && errno == EROFS;
}

Result<DatasetRecord> record_of(const std::string& name, DatasetRequest declared) {
    declared.definition.name = name;
    auto record = check_dataset_request(declared, {.owner = ::geteuid(), .group = ::getegid()});
    if (!record) return std::unexpected(record.error().within("dataset \"" + name + "\" of the config"));
    return record;
}

}  // namespace

Result<void> check_config_datasets(const DaemonConfig& config) {
    for (const auto& [name, declared] : config.datasets) {
        if (auto record = record_of(name, declared); !record) return std::unexpected(record.error());
    }
    return {};
}

// --- start and stop

Node::Node(const DaemonConfig& config, asio::io_context& control)
    : config_(config),
      control_(control),
      files_(std::make_unique<WorkThread>("larder-files")),
      memory_(std::make_unique<WorkThread>("larder-memory")),
      tasks_(clock_, [&control](std::function<void()> work) { asio::post(control, std::move(work)); }),
      users_(control, clock_),
      job_limits_([this] { shards_->wake(); }, &slept_ns, [this](uid_t user) { return users_.user_name(user); }) {}

Result<std::unique_ptr<Node>> Node::start(const DaemonConfig& config, asio::io_context& control) {
    std::unique_ptr<Node> node(new Node(config, control));
    // Open the index first: it checks itself in a forked child, and forking is safest before threads run.
    if (auto opened = node->open_index(); !opened) return std::unexpected(opened.error());
    if (auto started = node->start_transfers(); !started) return std::unexpected(started.error());
    if (auto started = node->start_shards(); !started) return std::unexpected(started.error());
    node->make_parts();
    if (auto loaded = node->limit_settings_->load(); !loaded) return std::unexpected(loaded.error());
    if (auto loaded = node->serving_->load(); !loaded) return std::unexpected(loaded.error());
    if (auto started = node->start_peers(); !started) return std::unexpected(started.error());
    if (auto applied = node->apply(config); !applied) return std::unexpected(applied.error());
    return node;
}

Node::~Node() {
    stop();
}

void Node::stop() {
    tasks_.stop();
    peers_.reset();
    // Destroy in this order: each may still post work to the next. The index is last and saves everything posted to it.
    shards_.reset();
    files_.reset();
    memory_.reset();
    index_.reset();
}

// Without an index all segments are scanned, so a disk that cannot be written or read does not stop the node.
Result<void> Node::open_index() {
    const std::string directory = config_.state_directory + "/index";
    auto opened = Index::open({.directory = directory});
    if (!opened && (opened.error().system_errno == EIO || is_read_only(directory))) {
        index_problem_ = "the index is not used: " + opened.error().message;
        log_error("the index cannot be used; the segments are scanned at each start",
                  {{"error", opened.error().message}});
        opened = Index::open({});
    }
    if (!opened) return std::unexpected(opened.error().within("index"));
    index_ = std::move(opened->index);
    const Index::OpenReport& report = opened->report;
    if (report.rebuilt) {
        log_warn("the index was damaged and is rebuilt from the segments",
                 {{"reason", report.reason}, {"damaged", report.damaged_directory}});
    }
    return {};
}

Result<void> Node::start_transfers() {
    const RemoteConfig& remote = config_.remote;
    auto transfers = HttpTransfers::start({.settings = {.stall_timeout_s = remote.stall_timeout_ns / 1'000'000'000,
                                                        .request_timeout_s = remote.request_timeout_ns / 1'000'000'000,
                                                        .ca_file = remote.ca_file},
                                           .retry_for_ns = remote.retry_for_ns,
                                           .connections_max = remote.connections_max,
                                           .hedge = remote.hedge,
                                           .on_outage = log_outage});
    if (!transfers) return std::unexpected(transfers.error());
    transfers_ = std::move(*transfers);
    return {};
}

Result<void> Node::start_shards() {
    constexpr std::uint64_t kWindowsPerMemory = 20;
    auto started = ShardThreads::start(
        {.device = device_kind_of(config_.io),
         .count = std::max(1u, config_.data_plane_threads),
         .shard = {.disk_reads_in_flight_max = config_.disk_reads_max,
                   .window_bytes = config_.shared_window_bytes.value_or(config_.memory_bytes / kWindowsPerMemory),
                   .takes_digests = uses_peers() && config_.peers.witnesses > 0}},
        control_);
    if (!started) return std::unexpected(started.error());
    shards_ = std::move(*started);
    traces_ = std::make_unique<BlockTraces>(*shards_, control_);
    return {};
}

void Node::make_parts() {
    limit_settings_ = std::make_unique<LimitSettings>(config_.state_directory, clock_, job_limits_, *files_, control_);
    datasets_ = std::make_unique<Datasets>(config_.state_directory, tasks_, *index_, *files_, control_);
    serving_ = std::make_unique<Serving>(Serving::Place{.config = config_,
                                                        .clock = clock_,
                                                        .datasets = *datasets_,
                                                        .shards = *shards_,
                                                        .transfers = *transfers_,
                                                        .index = *index_,
                                                        .memory = *memory_,
                                                        .control = control_});
    old_versions_ = std::make_unique<OldVersions>(config_.version_grace_ns, clock_, *datasets_, *files_, control_);
    quotas_ = std::make_unique<Quotas>(config_, clock_, *datasets_);
    indexing_ = std::make_unique<Indexing>(Indexing::Place{.config = config_,
                                                           .datasets = *datasets_,
                                                           .quotas = *quotas_,
                                                           .serving = *serving_,
                                                           .tasks = tasks_,
                                                           .transfers = *transfers_,
                                                           .files = *files_,
                                                           .control = control_});
    scans_ = std::make_unique<Scans>(clock_, *datasets_, job_limits_, tasks_);
    warming_ = std::make_unique<Warming>(*datasets_, *scans_, tasks_);
    sessions_ = std::make_unique<NodeSessions>(clock_, *datasets_, job_limits_, users_, control_);
}

bool Node::uses_peers() const {
    return !config_.peers.listen.empty() || !config_.peers.others.empty();
}

Result<void> Node::start_peers() {
    const PeersConfig& peers = config_.peers;
    if (!uses_peers()) return {};
    auto transfers = HttpTransfers::start(peer_transfers_options(peers.ca_file));
    if (!transfers) return std::unexpected(transfers.error());
    peer_transfers_ = std::move(*transfers);
    auto started = Peers::start({.listen = peers.listen,
                                 .endpoint = peers.endpoint,
                                 .others = peers.others,
                                 .token_file = peers.token_file,
                                 .witnesses = peers.witnesses,
                                 .others_are_witnesses = config_.allocator.endpoint.empty(),
                                 .certificate_file = peers.certificate_file,
                                 .key_file = peers.key_file},
                                *peer_transfers_);
    if (!started) return std::unexpected(started.error());
    peers_ = std::move(*started);
    send_datasets_to_peers();
    return {};
}

// --- all parts together

Result<void> Node::apply(const DaemonConfig& config) {
    std::vector<DatasetRecord> wanted;
    for (const auto& [name, declared] : config.datasets) {
        if (datasets_->is_known(name)) continue;
        auto record = record_of(name, declared);
        if (!record) return std::unexpected(record.error());
        wanted.push_back(std::move(*record));
    }
    if (auto applied = quotas_->apply(config); !applied) return applied;
    job_limits_.apply(config, clock_.now_ns());
    for (DatasetRecord& record : wanted) {
        if (auto task = indexing_->add(std::move(record)); !task) return std::unexpected(task.error());
    }
    return {};
}

void Node::save_promised_floor(double bytes_per_second, std::function<void(Result<void>)> done) {
    files_->post([this, bytes_per_second, done = std::move(done)] {
        auto saved = cache::save_promised_floor(config_.state_directory, bytes_per_second);
        if (!saved) log_error("cannot save what the allocator promised", {{"error", saved.error().message}});
        asio::post(control_, [saved, done] { done(saved); });
    });
}

void Node::run_periodic_work() {
    shards_->fail_overdue();
    traces_->fail_overdue();
    serving_->retry_offline();
    send_datasets_to_peers();
    shards_->collect([this](const Result<ShardStatistics>& statistics) {
        if (!statistics) return;
        const std::int64_t now_ns = clock_.now_ns();
        rates_.sample(*statistics, now_ns);
        job_limits_.update_idle_jobs(*statistics, now_ns);
        old_versions_->drop(*statistics);
        disk_reports_.update(statistics->datasets, now_ns);
        quotas_->note_use(*statistics);
    });
}

std::vector<std::string> Node::problems() const {
    std::vector<std::string> problems = disk_reports_.problems();
    if (!index_problem_.empty()) problems.push_back(index_problem_);
    for (const auto& [name, dataset] : datasets_->damaged())
        problems.push_back("dataset \"" + name + "\" is damaged and is not served: " + dataset.reason.message);
    for (const auto& [name, dataset] : datasets_->all()) {
        if (!dataset.cache_problem.empty()) problems.push_back("dataset \"" + name + "\": " + dataset.cache_problem);
        if (dataset.offline) problems.push_back("dataset \"" + name + "\" is not served: " + dataset.offline->message);
    }
    return problems;
}

void Node::send_datasets_to_peers() {
    if (peers_ == nullptr) return;
    std::vector<PeerDataset> served;
    for (const auto& [name, dataset] : datasets_->all()) {
        if (dataset.offline) continue;
        const auto& manifest = dataset.newest().manifest;
        served.push_back({.name = name,
                          .dataset_id = dataset.record.dataset_id,
                          .shard = dataset.shard,
                          .manifest = manifest,
                          .fingerprint = fingerprint_of(*manifest)});
    }
    peers_->set_datasets(std::move(served));
}

}  // namespace larder::cache
