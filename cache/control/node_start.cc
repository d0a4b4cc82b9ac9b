// Node: start-up (recovery of the previous run's state) and shutdown.

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/server/logging.h"
#include "base/units.h"
#include "cache/control/node.h"
#include "cache/control/node_indexing.h"

namespace larder::cache {
namespace fs = std::filesystem;
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

bool is_dataset_id(const std::string& name) {
    return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

Node::Node(const DaemonConfig& config, std::function<void(std::function<void()>)> post_control)
    : config_(config),
      post_control_(std::move(post_control)),
      catalog_(config.state_directory + "/datasets"),
      files_(std::make_unique<WorkThread>("larder-files")),
      memory_(std::make_unique<WorkThread>("larder-memory")),
      tasks_(clock_, post_control_) {}

Result<std::unique_ptr<Node>> Node::start(const DaemonConfig& config,
                                          std::function<void(std::function<void()>)> post_control) {
    std::unique_ptr<Node> node(new Node(config, std::move(post_control)));
    // Open the index first: it checks itself in a forked child, and forking is safest before threads run.
    if (auto opened = node->open_index(); !opened) return std::unexpected(opened.error());
    const RemoteConfig& remote = config.remote;
    auto transfers = HttpTransfers::start({.settings = {.stall_timeout_s = remote.stall_timeout_ns / 1'000'000'000,
                                                        .request_timeout_s = remote.request_timeout_ns / 1'000'000'000,
                                                        .ca_file = remote.ca_file},
                                           .retry_for_ns = remote.retry_for_ns,
                                           .connections_max = remote.connections_max,
                                           .hedge = remote.hedge,
                                           .on_outage = log_outage});
    if (!transfers) return std::unexpected(transfers.error());
    node->transfers_ = std::move(*transfers);
    if (auto started = node->start_shards(); !started) return std::unexpected(started.error());
    if (auto loaded = node->load_job_limits(); !loaded) return std::unexpected(loaded.error());
    if (auto loaded = node->load_datasets(); !loaded) return std::unexpected(loaded.error());
    node->remove_orphan_segments();
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
    shards_.clear();
    files_.reset();
    memory_.reset();
    index_.reset();
}

Result<void> Node::open_index() {
    auto opened = Index::open({.directory = config_.state_directory + "/index"});
    if (!opened) return std::unexpected(opened.error().within("index"));
    index_ = std::move(opened->index);
    const Index::OpenReport& report = opened->report;
    if (report.rebuilt) {
        log_warn("the index was damaged and is rebuilt from the segments",
                 {{"reason", report.reason}, {"damaged", report.damaged_directory}});
    }
    return {};
}

Result<void> Node::start_shards() {
    const unsigned count = std::max(1u, config_.data_plane_threads);
    for (unsigned i = 0; i < count; ++i) {
        auto shard =
            ShardThread::start(device_kind_of(config_.io), {.disk_reads_in_flight_max = config_.disk_reads_max},
                               "larder-data-" + std::to_string(i));
        if (!shard) return std::unexpected(shard.error());
        (*shard)->post([](Shard&) { log_without_waiting(); });
        shards_.push_back(std::move(*shard));
    }
    return {};
}

Result<void> Node::start_peers() {
    const PeersConfig& peers = config_.peers;
    if (peers.listen.empty() && peers.others.empty()) return {};
    auto transfers = HttpTransfers::start(peer_transfers_options(peers.ca_file));
    if (!transfers) return std::unexpected(transfers.error());
    peer_transfers_ = std::move(*transfers);
    auto started = Peers::start({.listen = peers.listen,
                                 .endpoint = peers.endpoint,
                                 .others = peers.others,
                                 .token_file = peers.token_file,
                                 .certificate_file = peers.certificate_file,
                                 .key_file = peers.key_file},
                                *peer_transfers_);
    if (!started) return std::unexpected(started.error());
    peers_ = std::move(*started);
    send_datasets_to_peers();
    return {};
}

Result<void> Node::load_job_limits() {
    const std::string path = config_.state_directory + "/limits.json";
    std::error_code error;
    if (!fs::exists(path, error)) return {};
    const auto text = read_file(path);
    if (!text) return std::unexpected(text.error());
    return job_limits_.load(*text, path);
}

namespace {

// Scales all saved quotas down by one factor if they exceed the capacity. The capacity may have shrunk, and only a
// running daemon accepts new quotas.
void fit_tier(std::vector<DatasetRecord>& records, std::uint64_t Quota::* tier, std::uint64_t capacity_bytes,
              const char* name) {
    double sum = 0;
    for (const DatasetRecord& record : records) sum += static_cast<double>(record.quota.*tier);
    const auto capacity = static_cast<double>(capacity_bytes);
    if (sum <= capacity) return;
    log_warn("the datasets' quotas no longer fit this node and are lowered",
             {{"tier", name}, {"sum_bytes", static_cast<std::uint64_t>(sum)}, {"capacity_bytes", capacity_bytes}});
    for (DatasetRecord& record : records) {
        record.quota.*tier = static_cast<std::uint64_t>(static_cast<double>(record.quota.*tier) * (capacity / sum));
    }
}

void fit_quotas(std::vector<DatasetRecord>& records, const DaemonConfig& config) {
    fit_tier(records, &Quota::memory_bytes, config.memory_bytes, "memory");
    fit_tier(records, &Quota::disk_bytes, config.disk_bytes, "disk");
}

}  // namespace

Result<void> Node::load_datasets() {
    auto loaded = catalog_.load();
    if (!loaded) return std::unexpected(loaded.error());
    for (const std::string& path : loaded->removed)
        log_info("removed the remains of an unfinished dataset add", {{"path", path}});
    for (const std::string& name : loaded->stopped) {
        log_info("adding a dataset was interrupted: add the dataset again to resume", {{"dataset", name}});
    }
    fit_quotas(loaded->records, config_);
    for (DatasetRecord& record : loaded->records) {
        const std::string name = record.definition.name;
        if (auto dataset_loaded = load_dataset(std::move(record)); !dataset_loaded) {
            return std::unexpected(dataset_loaded.error().within("dataset \"" + name + "\""));
        }
    }
    return {};
}

Result<void> Node::load_dataset(DatasetRecord record) {
    NodeDataset dataset;
    dataset.record = std::move(record);
    open_versions(dataset);
    if (dataset.versions.empty()) return {};
    dataset.shard = &least_loaded();
    // The saved quota applies until an allocator sets another.
    *dataset.quota_assigned = true;
    const std::uint64_t id = dataset.record.dataset_id;
    auto recovered = recover_segments(id, segment_directory(id), index_.get());
    if (!recovered) return std::unexpected(recovered.error());
    const RecoveryReport& report = recovered->report;
    log_info("dataset recovered", {{"dataset", dataset.record.definition.name},
                                   {"blocks", report.blocks},
                                   {"segments", report.segments},
                                   {"blocks_scanned", report.blocks_scanned},
                                   {"entries_dropped", report.entries_dropped},
                                   {"segments_missing", report.segments_missing}});
    if (!report.index_problem.empty()) {
        log_warn("the index could not be read",
                 {{"dataset", dataset.record.definition.name}, {"reason", report.index_problem}});
    }
    for (const std::string& removed : report.removed) log_warn("removed a bad segment file", {{"file", removed}});
    dataset.segments = std::move(recovered->segments);
    hand_over(dataset);
    datasets_.emplace(dataset.record.definition.name, std::move(dataset));
    return {};
}

// Removes segments of datasets whose removal was interrupted. Deletes only files that are named like segments.
void Node::remove_orphan_segments() {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(config_.state_directory + "/segments", error)) {
        const std::string id = entry.path().filename().string();
        const bool known = !damaged_.empty() || std::ranges::any_of(datasets_, [&](const auto& item) {
            return format_dataset_id(item.second.record.dataset_id) == id;
        });
        if (known || !is_dataset_id(id)) continue;
        index_->remove_dataset(std::stoull(id, nullptr, 16));
        std::error_code ignored;
        for (const fs::directory_entry& file : fs::directory_iterator(entry.path(), ignored)) {
            if (file.path().extension() == ".segment") fs::remove(file.path(), ignored);
        }
        fs::remove(entry.path(), ignored);
        log_info("removed the segments of a dataset that is gone", {{"dataset_id", id}});
    }
}

std::string Node::segment_directory(std::uint64_t dataset_id) const {
    return config_.state_directory + "/segments/" + format_dataset_id(dataset_id);
}

ShardThread& Node::least_loaded() const {
    std::map<const ShardThread*, std::uint64_t> bytes;
    for (const auto& [name, dataset] : datasets_) bytes[dataset.shard] += dataset.bytes();
    return **std::ranges::min_element(shards_, {}, [&](const auto& shard) { return bytes[shard.get()]; });
}

void Node::hand_over(NodeDataset& dataset) {
    StoreOptions options{.dataset_id = dataset.record.dataset_id,
                         .segment_directory = segment_directory(dataset.record.dataset_id),
                         .unmap_on_another_thread = [this](std::shared_ptr<const Mapping> memory) {
                             memory_->post([memory = std::move(memory)] {});
                         }};
    for (const auto& [number, version] : dataset.versions) {
        const protocol::ManifestHeader& header = version->manifest->header();
        options.block_id_end = std::max(options.block_id_end, static_cast<std::uint32_t>(header.block_id_end));
        options.block_bytes_max = std::max(options.block_bytes_max, header.block_bytes_max);
    }
    const auto& manifest = dataset.newest().manifest;
    Result<void> handed_over;
    if (dataset.place == nullptr) {
        auto place = RemotePlace::open(manifest->url(), dataset.record.definition.remote, transfers_.get());
        if (place) {
            dataset.place = std::move(*place);
        } else {
            handed_over = std::unexpected(place.error());
        }
    }
    if (handed_over)
        handed_over = dataset.shard->call([&](Shard& shard) -> Result<void> {
            auto remote = dataset.place->remote(shard.device());
            if (!remote) return std::unexpected(remote.error());
            auto store = std::make_unique<DatasetStore>(options, shard.device(), clock_, index_.get());
            store->recover(std::exchange(dataset.segments, {}));
            shard.add_dataset({.definition = dataset.record.definition,
                               .store = std::move(store),
                               .remote = std::move(*remote),
                               .quota = dataset.record.quota,
                               .manifest = manifest});
            return {};
        });
    if (handed_over) {
        if (dataset.offline) log_info("dataset is served again", {{"dataset", dataset.record.definition.name}});
        dataset.offline.reset();
        return;
    }
    if (!dataset.offline) {
        log_warn("dataset is not served until its remote can be reached",
                 {{"dataset", dataset.record.definition.name}, {"reason", handed_over.error().message}});
    }
    dataset.offline = handed_over.error();
}

}  // namespace larder::cache
