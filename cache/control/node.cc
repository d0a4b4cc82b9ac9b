#include "cache/control/node.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/server/logging.h"
#include "cache/control/node_indexing.h"

namespace larder::cache {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kAnswerWithinNs = 2'000'000'000;
constexpr std::int64_t kRetryAfterNs = 10'000'000'000;

DeviceKind device_kind_of(IoMode mode) {
    switch (mode) {
        case IoMode::automatic: return DeviceKind::automatic;
        case IoMode::ring: return DeviceKind::ring;
        case IoMode::threads: return DeviceKind::threads;
    }
    return DeviceKind::automatic;
}

bool is_dataset_id(const std::string& name) {
    return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

Result<std::shared_ptr<const DatasetVersion>> open_version(const std::string& manifest_path) {
    auto fd = open_file(manifest_path, O_RDONLY);
    if (!fd) return std::unexpected(fd.error());
    auto manifest = protocol::Manifest::open(fd->get());
    if (!manifest) return std::unexpected(manifest.error().within(manifest_path));
    auto version = std::make_shared<DatasetVersion>();
    version->dataset_id = manifest->header().dataset_id;
    version->version = manifest->header().version;
    version->manifest = std::make_shared<const protocol::Manifest>(std::move(*manifest));
    version->manifest_fd = std::move(*fd);
    return version;
}

// --- start and end

Node::Node(const Config& config, std::function<void(std::function<void()>)> post_control)
    : config_(config),
      post_control_(std::move(post_control)),
      catalog_(config.state_directory + "/datasets"),
      files_(std::make_unique<WorkThread>("larder-files")),
      memory_(std::make_unique<WorkThread>("larder-memory")),
      tasks_(clock_, post_control_) {}

Result<std::unique_ptr<Node>> Node::start(const Config& config,
                                          std::function<void(std::function<void()>)> post_control) {
    std::unique_ptr<Node> node(new Node(config, std::move(post_control)));
    // The index first: it checks itself in a forked child, and forking is best done before threads do much.
    if (auto opened = node->open_index(); !opened) return std::unexpected(opened.error());
    if (auto started = node->start_shards(); !started) return std::unexpected(started.error());
    if (auto loaded = node->load_job_limits(); !loaded) return std::unexpected(loaded.error());
    if (auto loaded = node->load_datasets(); !loaded) return std::unexpected(loaded.error());
    node->remove_orphan_segments();
    if (auto applied = node->apply(config); !applied) return std::unexpected(applied.error());
    return node;
}

Node::~Node() {
    stop();
}

void Node::stop() {
    tasks_.stop();
    // Each may still give work to the next; the index goes last and writes down all that was posted to it.
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
        auto shard = ShardThread::start(device_kind_of(config_.io), {}, "larder-data-" + std::to_string(i));
        if (!shard) return std::unexpected(shard.error());
        (*shard)->post([](Shard&) { log_without_waiting(); });
        shards_.push_back(std::move(*shard));
    }
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

Result<void> Node::load_datasets() {
    auto loaded = catalog_.load();
    if (!loaded) return std::unexpected(loaded.error());
    for (const std::string& path : loaded->removed) log_info("removed what was left half made", {{"path", path}});
    for (DatasetRecord& record : loaded->records) {
        const std::string name = record.name;
        auto dataset = load_dataset(std::move(record));
        if (!dataset) return std::unexpected(dataset.error().within("dataset \"" + name + "\""));
        datasets_.emplace(name, std::move(*dataset));
    }
    return {};
}

Result<NodeDataset> Node::load_dataset(DatasetRecord record) {
    NodeDataset dataset;
    for (const std::uint64_t version : record.versions) {
        const std::string path = catalog_.manifest_path(record.name, version);
        auto opened = open_version(path);
        if (!opened) return std::unexpected(opened.error());
        if ((*opened)->dataset_id != record.dataset_id || (*opened)->version != version) {
            return fail(ErrorCode::corrupt, path + " is not the manifest its dataset.json names");
        }
        dataset.versions.emplace(version, std::move(*opened));
    }
    dataset.record = std::move(record);
    dataset.shard = &least_loaded();
    const std::uint64_t id = dataset.record.dataset_id;
    auto recovered = recover_segments(id, segment_directory(id), index_.get());
    if (!recovered) return std::unexpected(recovered.error());
    const RecoveryReport& report = recovered->report;
    log_info("dataset recovered", {{"dataset", dataset.record.name},
                                   {"blocks", report.blocks},
                                   {"segments", report.segments},
                                   {"blocks_scanned", report.blocks_scanned},
                                   {"entries_dropped", report.entries_dropped},
                                   {"segments_missing", report.segments_missing}});
    if (!report.index_problem.empty()) {
        log_warn("the index could not be read", {{"dataset", dataset.record.name}, {"reason", report.index_problem}});
    }
    for (const std::string& removed : report.removed) log_warn("removed a bad segment file", {{"file", removed}});
    dataset.segments = std::move(recovered->segments);
    hand_over(dataset);
    return dataset;
}

// Segments of datasets that were being removed when the daemon ended. Only files that carry a segment's name go.
void Node::remove_orphan_segments() {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(config_.state_directory + "/segments", error)) {
        const std::string id = entry.path().filename().string();
        const bool known = std::ranges::any_of(
            datasets_, [&](const auto& item) { return format_dataset_id(item.second.record.dataset_id) == id; });
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
                         .unmap_elsewhere = [this](std::shared_ptr<const Mapping> memory) {
                             memory_->post([memory = std::move(memory)] {});
                         }};
    for (const auto& [number, version] : dataset.versions) {
        const protocol::ManifestHeader& header = version->manifest->header();
        options.block_id_end = std::max(options.block_id_end, static_cast<std::uint32_t>(header.block_id_end));
        options.block_bytes_max = std::max(options.block_bytes_max, header.block_bytes_max);
    }
    const Result<void> handed_over = dataset.shard->call([&](Shard& shard) -> Result<void> {
        const auto& manifest = dataset.newest().manifest;
        auto remote = make_remote(manifest->url(), shard.device());
        if (!remote) return std::unexpected(remote.error());
        auto store = std::make_unique<DatasetStore>(options, shard.device(), clock_, index_.get());
        store->recover(std::exchange(dataset.segments, {}));
        shard.add_dataset({.name = dataset.record.name,
                           .store = std::move(store),
                           .remote = std::move(*remote),
                           .quota = dataset.record.quota,
                           .manifest = manifest});
        return {};
    });
    if (handed_over) {
        if (dataset.offline) log_info("dataset is served again", {{"dataset", dataset.record.name}});
        dataset.offline.reset();
        return;
    }
    if (!dataset.offline) {
        log_warn("dataset is not served until its remote can be reached",
                 {{"dataset", dataset.record.name}, {"reason", handed_over.error().message}});
    }
    dataset.offline = handed_over.error();
}

void Node::retry_offline() {
    if (clock_.now_ns() < offline_retry_ns_) return;
    offline_retry_ns_ = clock_.now_ns() + kRetryAfterNs;
    for (const auto& [name, dataset] : datasets_) {
        if (!dataset.offline) continue;
        // A look first, on a thread that may hang on a dead mount.
        files_->post([this, name, root = path_of_url(dataset.newest().manifest->url())] {
            if (::access(root.c_str(), R_OK | X_OK) != 0) return;
            post_control_([this, name] {
                const auto found = datasets_.find(name);
                if (found != datasets_.end() && found->second.offline) hand_over(found->second);
            });
        });
    }
}

// --- sessions

Result<const NodeDataset*> Node::find(const std::string& name) const {
    const auto found = datasets_.find(name);
    if (found != datasets_.end()) return &found->second;
    if (changing_.contains(name)) {
        return fail(ErrorCode::unavailable,
                    "dataset \"" + name + "\" is being added or removed: try again when that is done");
    }
    return fail(ErrorCode::not_found,
                "dataset \"" + name +
                    "\" is unknown: `larder dataset ls` shows those there are, `larder dataset add` adds one");
}

const NodeDataset* Node::find(std::uint64_t dataset_id) const {
    const auto found =
        std::ranges::find_if(datasets_, [&](const auto& item) { return item.second.record.dataset_id == dataset_id; });
    return found == datasets_.end() ? nullptr : &found->second;
}

Result<std::shared_ptr<const DatasetVersion>> Node::open(const std::string& name, std::uint64_t version,
                                                         const PeerCredentials& peer) {
    const auto dataset = find(name);
    if (!dataset) return std::unexpected(dataset.error());
    if (auto online = check_online(**dataset); !online) return std::unexpected(online.error());
    const Access& access = (*dataset)->record.access;
    if (!may_read(access, peer.uid, peer.gid)) {
        return fail(ErrorCode::permission_denied, "user " + user_name(peer.uid) + " may not read dataset \"" + name +
                                                      "\" (owner " + user_name(access.owner) + ", group " +
                                                      group_name(access.group) + ", mode " + format_mode(access.mode) +
                                                      ")");
    }
    const auto& versions = (*dataset)->versions;
    if (version == 0) return versions.rbegin()->second;
    const auto found = versions.find(version);
    if (found == versions.end()) {
        return fail(ErrorCode::not_found, "version " + std::to_string(version) + " of dataset \"" + name +
                                              "\" is no longer kept; the newest is " +
                                              std::to_string(versions.rbegin()->first));
    }
    return found->second;
}

Result<void> Node::check_online(const NodeDataset& dataset) const {
    if (!dataset.offline) return {};
    return fail(ErrorCode::unavailable,
                "dataset \"" + dataset.record.name + "\" is not served: " + dataset.offline->message);
}

void Node::attach(SessionSetup setup) {
    const NodeDataset* dataset = find(setup.dataset_id);
    if (dataset == nullptr) return;  // removed since it was opened: the socket closes
    setup.bucket = job_limits_.bucket(setup.job, clock_.now_ns());
    auto shared_setup = std::make_shared<SessionSetup>(std::move(setup));
    dataset->shard->post([shared_setup](Shard& shard) { shard.attach(std::move(*shared_setup)); });
}

void Node::slots_populated(std::uint64_t dataset_id, std::uint64_t session_id) {
    post_control_([this, dataset_id, session_id] {
        const NodeDataset* dataset = find(dataset_id);
        if (dataset == nullptr) return;
        dataset->shard->post([session_id](Shard& shard) { shard.slots_populated(session_id); });
    });
}

// --- what the data plane counts

struct Node::Gathering {
    ShardStatistics all;
    std::size_t missing = 0;
    std::int64_t deadline_ns = 0;
    std::function<void(Result<ShardStatistics>)> done;
};

void Node::collect(std::function<void(Result<ShardStatistics>)> done) {
    auto gathering = std::make_shared<Gathering>();
    gathering->missing = shards_.size();
    gathering->deadline_ns = clock_.now_ns() + kAnswerWithinNs;
    gathering->done = std::move(done);
    gatherings_.push_back(gathering);
    for (const auto& shard : shards_) {
        shard->post([this, gathering](Shard& on) {
            auto part = std::make_shared<ShardStatistics>(on.statistics());
            post_control_([this, gathering, part] {
                ShardStatistics& all = gathering->all;
                std::ranges::move(part->datasets, std::back_inserter(all.datasets));
                std::ranges::move(part->jobs, std::back_inserter(all.jobs));
                all.protocol_violations += part->protocol_violations;
                all.device = part->device;
                if (--gathering->missing > 0 || !gathering->done) return;
                std::erase(gatherings_, gathering);
                std::exchange(gathering->done, nullptr)(std::move(all));
            });
        });
    }
}

void Node::keep_house() {
    const std::int64_t now_ns = clock_.now_ns();
    const auto overdue =
        std::ranges::partition(gatherings_, [&](const auto& gathering) { return gathering->deadline_ns > now_ns; });
    const std::vector<std::shared_ptr<Gathering>> late(overdue.begin(), overdue.end());
    gatherings_.erase(overdue.begin(), gatherings_.end());
    for (const auto& gathering : late) {
        std::exchange(gathering->done, nullptr)(fail(ErrorCode::timeout, "the data plane has not answered for 2 s"));
    }
    retry_offline();
    collect([this](Result<ShardStatistics> statistics) {
        if (!statistics) return;
        rates_.sample(*statistics, clock_.now_ns());
        drop_old_versions(*statistics);
    });
}

}  // namespace larder::cache
