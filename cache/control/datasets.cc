#include "cache/control/datasets.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/nearest_name.h"
#include "base/server/logging.h"

namespace larder::cache {
namespace asio = boost::asio;

Datasets::Datasets(const std::string& state_directory, const Tasks& tasks, Index& index, WorkThread& files,
                   boost::asio::io_context& control)
    : state_directory_(state_directory),
      tasks_(tasks),
      index_(index),
      files_(files),
      control_(control),
      catalog_(state_directory + "/datasets") {}

void Datasets::add(NodeDataset dataset) {
    const std::string name = dataset.record.definition.name;
    datasets_.emplace(name, std::move(dataset));
}

bool Datasets::is_known(const std::string& name) const {
    return datasets_.contains(name) || changing_.contains(name) || damaged_.contains(name);
}

Result<const NodeDataset*> Datasets::find(const std::string& name) const {
    const auto found = datasets_.find(name);
    if (found != datasets_.end()) return &found->second;
    if (changing_.contains(name)) {
        return fail(ErrorCode::unavailable,
                    "dataset \"" + name + "\" is being added or removed: try again when that is done");
    }
    if (const auto damaged = damaged_.find(name); damaged != damaged_.end()) {
        return fail(ErrorCode::corrupt, "dataset \"" + name + "\" is damaged: " + damaged->second.reason.message +
                                            "; `larder dataset rm` removes it, then it can be added again");
    }
    std::vector<std::string> known;
    known.reserve(datasets_.size());
    for (const auto& [other, dataset] : datasets_) known.push_back(other);
    const auto nearest = nearest_name(name, known);
    return fail(ErrorCode::not_found,
                "dataset \"" + name + "\" is unknown" +
                    (nearest ? "; did you mean \"" + *nearest + "\"?"
                             : ": `larder dataset ls` lists the datasets, `larder dataset add` adds one"));
}

const NodeDataset* Datasets::find(std::uint64_t dataset_id) const {
    const auto found =
        std::ranges::find_if(datasets_, [&](const auto& item) { return item.second.record.dataset_id == dataset_id; });
    return found == datasets_.end() ? nullptr : &found->second;
}

Result<void> Datasets::check_idle(const NodeDataset& dataset) const {
    if (dataset.task == 0) return {};
    const auto task = tasks_.view(dataset.task);
    if (!task || task->state != TaskState::running) return {};
    return fail(ErrorCode::already_exists, "dataset \"" + dataset.record.definition.name + "\" is busy with task " +
                                               std::to_string(task->id) + " (" + task->kind +
                                               "): wait for its end or cancel it");
}

Result<void> Datasets::check_online(const NodeDataset& dataset) const {
    if (!dataset.offline) return {};
    return fail(ErrorCode::unavailable,
                "dataset \"" + dataset.record.definition.name + "\" is not served: " + dataset.offline->message);
}

Result<void> Datasets::check_is_new(const std::string& name) const {
    if (!is_known(name)) return {};
    return fail(ErrorCode::already_exists, "dataset \"" + name + "\" already exists: `larder dataset index " + name +
                                               "` looks for changes, `larder dataset rm " + name + "` forgets it");
}

void Datasets::save(const DatasetRecord& record, Done done) {
    files_.post([this, record, done = std::move(done)] {
        auto saved = catalog_.save(record);
        if (!saved) log_error("cannot write a dataset's record", {{"error", saved.error().message}});
        if (done) asio::post(control_, [saved, done] { done(saved); });
    });
}

std::string Datasets::segment_directory(std::uint64_t dataset_id) const {
    return segments_directory() + "/" + format_dataset_id(dataset_id);
}

// --- removal

void Datasets::remove(const std::string& name, Done done) {
    if (const auto damaged = damaged_.extract(name)) {
        changing_.emplace(name, DatasetRecord{});
        return remove_files(name, damaged.mapped().dataset_id, std::move(done));
    }
    const auto found = find(name);
    if (!found) return done(std::unexpected(found.error()));
    if (auto idle = check_idle(**found); !idle) return done(idle);
    const std::uint64_t dataset_id = (*found)->record.dataset_id;
    ShardThread* shard = (*found)->shard;
    const bool served = !(*found)->offline;
    datasets_.erase(name);
    changing_.emplace(name, DatasetRecord{});  // reserves the name until all files are deleted
    shard->post([this, name, dataset_id, served, done = std::move(done)](Shard& this_shard) {
        if (served) this_shard.remove_dataset(dataset_id);
        remove_files(name, dataset_id, done);
    });
}

// Any thread.
void Datasets::remove_files(const std::string& name, std::uint64_t dataset_id, Done done) {
    files_.post([this, name, dataset_id, done = std::move(done)] {
        Result<void> removed = catalog_.remove(name);
        index_.remove_dataset(dataset_id);
        std::error_code ignored;
        std::filesystem::remove_all(segment_directory(dataset_id), ignored);
        asio::post(control_, [this, name, removed, done] {
            changing_.erase(name);
            log_info("dataset removed", {{"dataset", name}});
            done(removed);
        });
    });
}

}  // namespace larder::cache
