#include "cache/control/serving.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/server/logging.h"
#include "cache/control/versions.h"

namespace larder::cache {
namespace asio = boost::asio;
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kRetryAfterNs = 10'000'000'000;

bool is_dataset_id(const std::string& name) {
    return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

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

Serving::Serving(const Place& place)
    : config_(place.config),
      clock_(place.clock),
      datasets_(place.datasets),
      shards_(place.shards),
      transfers_(place.transfers),
      index_(place.index),
      files_(place.files),
      memory_(place.memory),
      control_(place.control) {}

// --- recovery

Result<void> Serving::load() {
    auto loaded = datasets_.catalog().load();
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
    remove_orphan_segments();
    return {};
}

Result<void> Serving::load_dataset(DatasetRecord record) {
    NodeDataset dataset;
    dataset.record = std::move(record);
    if (const auto damage = open_versions(dataset, datasets_.catalog())) {
        datasets_.add_damaged(dataset.record.definition.name, {dataset.record.dataset_id, *damage});
    }
    if (dataset.versions.empty()) return {};
    dataset.shard = &least_loaded();
    // The saved quota applies until an allocator sets another.
    *dataset.quota_assigned = true;
    const std::uint64_t id = dataset.record.dataset_id;
    auto recovered = recover_segments(id, datasets_.segment_directory(id), &index_);
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
    datasets_.add(std::move(dataset));
    return {};
}

// Removes segments of datasets whose removal was interrupted. Deletes only files that are named like segments.
void Serving::remove_orphan_segments() {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(datasets_.segments_directory(), error)) {
        const std::string id = entry.path().filename().string();
        const bool known = !datasets_.damaged().empty() || std::ranges::any_of(datasets_.all(), [&](const auto& item) {
            return format_dataset_id(item.second.record.dataset_id) == id;
        });
        if (known || !is_dataset_id(id)) continue;
        index_.remove_dataset(std::stoull(id, nullptr, 16));
        std::error_code ignored;
        for (const fs::directory_entry& file : fs::directory_iterator(entry.path(), ignored)) {
            if (file.path().extension() == ".segment") fs::remove(file.path(), ignored);
        }
        fs::remove(entry.path(), ignored);
        log_info("removed the segments of a dataset that is gone", {{"dataset_id", id}});
    }
}

// --- service

ShardThread& Serving::least_loaded() const {
    std::map<const ShardThread*, std::uint64_t> bytes;
    for (const auto& [name, dataset] : datasets_.all()) bytes[dataset.shard] += dataset.bytes();
    return **std::ranges::min_element(shards_.all(), {}, [&](const auto& shard) { return bytes[shard.get()]; });
}

void Serving::hand_over(NodeDataset& dataset) {
    StoreOptions options{.dataset_id = dataset.record.dataset_id,
                         .segment_directory = datasets_.segment_directory(dataset.record.dataset_id),
                         .unmap_on_another_thread = [this](std::shared_ptr<const Mapping> memory) {
                             memory_.post([memory = std::move(memory)] {});
                         }};
    for (const auto& [number, version] : dataset.versions) {
        const protocol::ManifestHeader& header = version->manifest->header();
        options.block_id_end = std::max(options.block_id_end, static_cast<std::uint32_t>(header.block_id_end));
        options.block_bytes_max = std::max(options.block_bytes_max, header.block_bytes_max);
    }
    const auto& manifest = dataset.newest().manifest;
    Result<void> handed_over;
    if (dataset.place == nullptr) {
        auto place = RemotePlace::open(manifest->url(), dataset.record.definition.remote, &transfers_);
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
            auto store = std::make_unique<DatasetStore>(options, shard.device(), clock_, &index_);
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

void Serving::retry_offline() {
    if (clock_.now_ns() < offline_retry_ns_) return;
    offline_retry_ns_ = clock_.now_ns() + kRetryAfterNs;
    for (const auto& [name, dataset] : datasets_.all()) {
        if (!dataset.offline) continue;
        // Probe the remote first, on a thread that may block on a dead mount or on credentials.
        files_.post([this, name, url = std::string(dataset.newest().manifest->url()),
                     options = dataset.record.definition.remote] {
            const auto place = RemotePlace::open(url, options, &transfers_);
            if (!place) return;
            const RemoteUrl& remote_url = (*place)->url();
            if (remote_url.scheme == RemoteScheme::file && ::access(remote_url.root.c_str(), R_OK | X_OK) != 0) return;
            asio::post(control_, [this, name, place = *place] {
                const auto found = datasets_.all().find(name);
                if (found == datasets_.all().end() || !found->second.offline) return;
                found->second.place = place;
                hand_over(found->second);
            });
        });
    }
}

}  // namespace larder::cache
