#include "cache/control/serving.h"

#include <boost/asio/io_context.hpp>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/server/logging.h"
#include "cache/control/versions.h"

namespace larder::cache {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kRetryAfterNs = 10'000'000'000;

// The paths in a directory, as far as they can be read.
std::vector<fs::path> list_directory(const fs::path& directory) {
    std::vector<fs::path> paths;
    std::error_code error;
    for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
        paths.push_back(entry->path());
    }
    return paths;
}

bool is_dataset_id(const std::string& name) {
    return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Scales the quotas of one kind down by one factor if they exceed the capacity. Returns what they leave of it.
double scale_quotas(std::vector<DatasetRecord>& records, std::uint64_t Quota::* tier, double capacity, bool held) {
    double sum = 0;
    for (const DatasetRecord& record : records) {
        if (record.quota_held == held) sum += static_cast<double>(record.quota.*tier);
    }
    if (sum <= capacity) return capacity - sum;
    for (DatasetRecord& record : records) {
        if (record.quota_held != held) continue;
        record.quota.*tier = static_cast<std::uint64_t>(static_cast<double>(record.quota.*tier) * (capacity / sum));
    }
    return 0;
}

// Lowers the saved quotas if they exceed the capacity: first those that the allocator set, then those set by hand. The
// capacity may have shrunk, and only a running daemon accepts new quotas.
void fit_tier(std::vector<DatasetRecord>& records, std::uint64_t Quota::* tier, std::uint64_t capacity_bytes,
              const char* name) {
    double sum = 0;
    for (const DatasetRecord& record : records) sum += static_cast<double>(record.quota.*tier);
    const auto capacity = static_cast<double>(capacity_bytes);
    if (sum <= capacity) return;
    log_warn("the datasets' quotas no longer fit this node and are lowered",
             {{"tier", name}, {"sum_bytes", static_cast<std::uint64_t>(sum)}, {"capacity_bytes", capacity_bytes}});
    const double rest = scale_quotas(records, tier, capacity, true);
    scale_quotas(records, tier, rest, false);
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
      memory_(place.memory),
      control_(place.control),
      calls_(place.control, "larder-open") {}

// --- recovery

Result<void> Serving::load() {
    auto loaded = datasets_.catalog().load();
    if (!loaded) return std::unexpected(loaded.error());
    for (const std::string& path : loaded->removed)
        log_info("removed the remains of an unfinished dataset add", {{"path", path}});
    for (const std::string& name : loaded->stopped) {
        log_info("adding a dataset was interrupted: add the dataset again to resume", {{"dataset", name}});
    }
    for (const Error& problem : loaded->problems)
        log_warn("cannot remove the remains of unfinished work", {{"error", problem.message}});
    for (auto& [name, reason] : loaded->damaged) {
        log_error("a dataset's record cannot be used; the dataset is left out, and its files are kept",
                  {{"dataset", name}, {"reason", reason.message}});
        datasets_.add_damaged(name, {.dataset_id = 0, .reason = std::move(reason)});
    }
    fit_quotas(loaded->records, config_);
    for (DatasetRecord& record : loaded->records) {
        const std::string name = record.definition.name;
        if (auto dataset_loaded = load_dataset(std::move(record)); !dataset_loaded) {
            return std::unexpected(dataset_loaded.error().within("dataset \"" + name + "\""));
        }
    }
    remove_orphan_segments();
    calls_.wait(kOpenAtStart_ns);
    control_.poll();  // takes what was found
    if (control_.stopped()) control_.restart();
    for (auto& [name, dataset] : datasets_.all()) {
        if (!dataset.is_opening) continue;
        set_offline(dataset, {ErrorCode::unavailable, "its remote has not answered for " +
                                                          std::to_string(kOpenAtStart_ns / 1'000'000'000) +
                                                          " s: does its mount hang?"});
    }
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
    Recovered recovered = recover_segments(id, datasets_.segment_directory(id), &index_);
    const RecoveryReport& report = recovered.report;
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
    if (!report.problems.empty()) {
        dataset.cache_problem = report.problems.front().message;
        if (report.problems.size() > 1) {
            dataset.cache_problem += " (and " + std::to_string(report.problems.size() - 1) + " more)";
        }
        log_error("a part of the cache cannot be used; all else is served",
                  {{"dataset", dataset.record.definition.name},
                   {"problems", report.problems.size()},
                   {"first", report.problems.front().message}});
    }
    dataset.segments = std::move(recovered.segments);
    dataset.offline = Error{ErrorCode::unavailable, "its remote is being looked for"};
    const std::string name = dataset.record.definition.name;
    datasets_.add(std::move(dataset));
    open(datasets_.at(name));
    return {};
}

// Removes segments of datasets whose removal was interrupted. Deletes only files that are named like segments.
void Serving::remove_orphan_segments() {
    for (const fs::path& path : list_directory(datasets_.segments_directory())) {
        const std::string id = path.filename().string();
        const bool known = !datasets_.damaged().empty() || std::ranges::any_of(datasets_.all(), [&](const auto& item) {
            return format_dataset_id(item.second.record.dataset_id) == id;
        });
        if (known || !is_dataset_id(id)) continue;
        index_.remove_dataset(std::stoull(id, nullptr, 16));
        std::error_code error;
        for (const fs::path& file : list_directory(path)) {
            if (file.extension() == ".segment") fs::remove(file, error);
        }
        fs::remove(path, error);
        if (error) {
            log_warn("cannot remove the segments of a dataset that is gone",
                     {{"dataset_id", id}, {"error", error.message()}});
        } else {
            log_info("removed the segments of a dataset that is gone", {{"dataset_id", id}});
        }
    }
}

// --- service

ShardThread& Serving::least_loaded() const {
    std::map<const ShardThread*, std::uint64_t> bytes;
    for (const auto& [name, dataset] : datasets_.all()) bytes[dataset.shard] += dataset.bytes();
    return **std::ranges::min_element(shards_.all(), {}, [&](const auto& shard) { return bytes[shard.get()]; });
}

void Serving::hand_over(NodeDataset& dataset, const Result<RemotePlace::Reached>& reached) {
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
    if (!reached) return set_offline(dataset, reached.error());
    const auto handed_over = dataset.shard->call([&](Shard& shard) -> Result<void> {
        auto remote = dataset.place->remote(shard.device(), *reached);
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
    if (!handed_over) return set_offline(dataset, handed_over.error());
    if (dataset.offline_is_logged) {
        log_info("dataset is served again", {{"dataset", dataset.record.definition.name}});
    }
    dataset.offline.reset();
    dataset.offline_is_logged = false;
}

void Serving::set_offline(NodeDataset& dataset, Error why) {
    if (!std::exchange(dataset.offline_is_logged, true)) {
        log_warn("dataset is not served until its remote can be reached",
                 {{"dataset", dataset.record.definition.name}, {"reason", why.message}});
    }
    dataset.offline = std::move(why);
}

void Serving::open(NodeDataset& dataset) {
    dataset.is_opening = true;
    calls_.run([this, name = dataset.record.definition.name, dataset_id = dataset.record.dataset_id,
                place = dataset.place, url = std::string(dataset.newest().manifest->url()),
                options = dataset.record.definition.remote, transfers = &transfers_]() -> BlockingCalls::Then {
        // May hang, and then end when this Serving is gone: nothing here uses it.
        Found found{.place = place, .reached = {}};
        if (found.place == nullptr) {
            auto opened = RemotePlace::open(url, options, transfers);
            if (opened) {
                found.place = std::move(*opened);
            } else {
                found.reached = std::unexpected(opened.error());
            }
        }
        if (found.place != nullptr) found.reached = found.place->reach();
        return [this, name, dataset_id, found = std::move(found)] { take_found(name, dataset_id, found); };
    });
}

void Serving::take_found(const std::string& name, std::uint64_t dataset_id, const Found& found) {
    const auto at = datasets_.all().find(name);
    if (at == datasets_.all().end() || at->second.record.dataset_id != dataset_id) return;
    NodeDataset& dataset = at->second;
    dataset.is_opening = false;
    if (!dataset.offline) return;
    dataset.place = found.place;
    hand_over(dataset, found.reached);
}

void Serving::retry_offline() {
    if (clock_.now_ns() < offline_retry_ns_) return;
    offline_retry_ns_ = clock_.now_ns() + kRetryAfterNs;
    for (auto& [name, dataset] : datasets_.all()) {
        if (dataset.offline && !dataset.is_opening) open(dataset);
    }
}

}  // namespace larder::cache
