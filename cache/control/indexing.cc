#include "cache/control/indexing.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/json.hpp>

#include <algorithm>
#include <utility>

#include "base/server/json_text.h"
#include "base/server/logging.h"
#include "cache/control/versions.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_journal.h"
#include "cache/dataset/survey.h"

namespace larder::cache {
namespace asio = boost::asio;
namespace json = boost::json;
namespace {

std::string indexing_result(std::uint64_t version, const IndexReport& report) {
    json::array notes;
    for (const std::string& note : report.notes) notes.emplace_back(note);
    const ManifestSummary& manifest = report.manifest;
    return json_text(json::object{{"version", version},
                                  {"format", protocol::name(*report.definition.format)},
                                  {"objects", manifest.object_count},
                                  {"blocks", manifest.block_count},
                                  {"samples", manifest.sample_count},
                                  {"classes", manifest.class_count},
                                  {"total_bytes", manifest.total_bytes},
                                  {"objects_carried_over", manifest.objects_carried_over},
                                  {"bytes_carried_over", manifest.bytes_carried_over},
                                  {"objects_resumed", report.objects_resumed},
                                  {"notes", std::move(notes)}});
}

std::string survey_result(const DatasetSurvey& survey) {
    json::array suffixes;
    for (const DatasetSurvey::Suffix& suffix : survey.suffixes) {
        suffixes.push_back({{"suffix", suffix.suffix}, {"objects", suffix.objects}, {"bytes", suffix.bytes}});
    }
    json::array odd;
    for (const std::string& path : survey.odd_paths) odd.emplace_back(path);
    json::array notes;
    for (const std::string& note : survey.notes) notes.emplace_back(note);
    return json_text(json::object{{"url", survey.url},
                                  {"format", protocol::name(survey.format)},
                                  {"objects", survey.objects},
                                  {"bytes", survey.bytes},
                                  {"top_directories", survey.top_directories},
                                  {"empty_objects", survey.empty_objects},
                                  {"suffixes", std::move(suffixes)},
                                  {"odd_objects", survey.odd_objects},
                                  {"odd", std::move(odd)},
                                  {"notes", std::move(notes)}});
}

// True if every object is the one that the previous version has, and none is gone.
bool is_unchanged(const ManifestSummary& indexed, const DatasetVersion& previous) {
    return indexed.objects_carried_over == indexed.object_count &&
           indexed.object_count == previous.manifest->object_count();
}

void show_progress(TaskProgress& progress, const IndexProgress& step) {
    progress.done = step.objects_done;
    progress.total = step.objects_total;
    progress.bytes_done = step.bytes_done;
    progress.resumed = step.objects_resumed;
}

}  // namespace

// The data of one indexing, which its task and the control thread exchange.
struct Indexing::Run {
    DatasetRecord record;
    std::shared_ptr<const DatasetVersion> previous;
    std::uint64_t version = 1;
    // Set by the task:
    IndexReport report;
    Result<RemotePlace::Reached> reached;
    std::shared_ptr<const DatasetVersion> opened;
};

Indexing::Indexing(const Place& place)
    : config_(place.config),
      datasets_(place.datasets),
      quotas_(place.quotas),
      serving_(place.serving),
      tasks_(place.tasks),
      transfers_(place.transfers),
      files_(place.files),
      control_(place.control) {}

Result<std::uint64_t> Indexing::survey(DatasetRecord record) {
    const std::string& name = record.definition.name;
    if (auto is_new = datasets_.check_is_new(name); !is_new) return std::unexpected(is_new.error());
    if (auto fits = quotas_.check_room(name, record.quota); !fits) return std::unexpected(fits.error());
    Tasks::Work work{.kind = "survey", .dataset = name, .unit = "objects"};
    work.run = [definition = std::move(record.definition), transfers = &transfers_](
                   TaskProgress& progress, std::stop_token stop) -> Tasks::Outcome {
        const IndexRequest request{.definition = definition, .transfers = transfers};
        const auto found = survey_dataset(
            request, [&progress](const IndexProgress& step) { show_progress(progress, step); }, std::move(stop));
        if (!found) return std::unexpected(found.error());
        return survey_result(*found);
    };
    return tasks_.start(std::move(work));
}

Result<std::uint64_t> Indexing::add(DatasetRecord record) {
    const std::string& name = record.definition.name;
    if (auto is_new = datasets_.check_is_new(name); !is_new) return std::unexpected(is_new.error());
    if (auto made = quotas_.make_room(name, record.quota); !made) return std::unexpected(made.error());
    record.dataset_id = random_dataset_id();
    record.versions = {1};
    auto indexing = std::make_shared<Run>();
    indexing->record = record;
    auto task = start(indexing, "add");
    if (task) datasets_.reserve(record);
    return task;
}

Result<std::uint64_t> Indexing::reindex(const std::string& name) {
    const auto found = datasets_.find(name);
    if (!found) return std::unexpected(found.error());
    if (auto idle = datasets_.check_idle(**found); !idle) return std::unexpected(idle.error());
    auto indexing = std::make_shared<Run>();
    indexing->record = (*found)->record;
    indexing->previous = (*found)->versions.rbegin()->second;
    indexing->version = indexing->previous->version() + 1;
    auto task = start(indexing, "index");
    if (task) datasets_.at(name).task = *task;
    return task;
}

Result<std::uint64_t> Indexing::start(std::shared_ptr<Run> indexing, std::string kind) {
    const bool adding = indexing->previous == nullptr;
    Tasks::Work work{.kind = std::move(kind), .dataset = indexing->record.definition.name, .unit = "objects"};
    // `transfers` is not used for files, and requests over HTTP end when they are asked to.
    work.run = [indexing, catalog = datasets_.catalog(), transfers = &transfers_](
                   TaskProgress& progress, std::stop_token stop) mutable -> Tasks::Outcome {
        const DatasetRecord& record = indexing->record;
        if (auto created = catalog.create(record.definition.name); !created) return std::unexpected(created.error());
        const std::string manifest_path = catalog.manifest_path(record.definition.name, indexing->version);
        const bool first = indexing->previous == nullptr;
        const IndexRequest request{
            .definition = record.definition,
            .transfers = transfers,
            .manifest = {.path = manifest_path,
                         .dataset_id = record.dataset_id,
                         .version = indexing->version,
                         .created_unix_ns = unix_time_ns(),
                         .previous = first ? nullptr : indexing->previous->manifest.get()},
            .journal_path = journal_path(manifest_path),
            .placed = [&progress](const RemotePlace& place) { progress.set_remote(place.endpoint()); }};
        auto report = index_dataset(
            request, [&progress](const IndexProgress& step) { show_progress(progress, step); }, std::move(stop));
        if (!report) return std::unexpected(report.error());
        indexing->reached = report->place->reach();
        if (indexing->previous != nullptr && is_unchanged(report->manifest, *indexing->previous)) {
            if (auto removed = catalog.remove_manifest(record.definition.name, indexing->version); !removed) {
                return std::unexpected(removed.error());
            }
            report->notes.emplace_back("nothing has changed since version " +
                                       std::to_string(indexing->previous->version()) + ": no version was made");
            indexing->version = indexing->previous->version();
            indexing->opened = indexing->previous;
            indexing->report = std::move(*report);
            return indexing_result(indexing->version, indexing->report);
        }
        auto opened = open_version(manifest_path);
        if (!opened) return std::unexpected(opened.error());
        indexing->opened = std::move(*opened);
        indexing->report = std::move(*report);
        return indexing_result(indexing->version, indexing->report);
    };
    work.finish = [this, indexing, adding](Tasks::Outcome outcome, const std::function<void(Tasks::Outcome)>& settle) {
        if (adding) {
            finish_adding(indexing, std::move(outcome), settle);
        } else {
            finish_reindexing(*indexing, std::move(outcome), settle);
        }
    };
    return tasks_.start(std::move(work));
}

// A dataset becomes visible only once its record is on disk, so a visible dataset survives a crash.
void Indexing::finish_adding(const std::shared_ptr<Run>& indexing, Tasks::Outcome outcome,
                             const std::function<void(Tasks::Outcome)>& settle) {
    if (!outcome) return give_up_adding(indexing->record.definition.name, std::move(outcome), settle);
    indexing->record.definition.format = indexing->report.definition.format;
    indexing->record.definition.block = indexing->report.definition.block;
    datasets_.save(indexing->record, [this, indexing, outcome = std::move(outcome), settle](const Result<void>& saved) {
        const DatasetRecord& record = indexing->record;
        if (!saved) return give_up_adding(record.definition.name, std::unexpected(saved.error()), settle);
        datasets_.release(record.definition.name);
        NodeDataset dataset{.record = record, .shard = &serving_.least_loaded()};
        dataset.place = indexing->report.place;
        dataset.versions.emplace(indexing->version, indexing->opened);
        // Empty datasets are not reported, so the allocator never sets their quota.
        *dataset.quota_assigned = config_.allocator.endpoint.empty() || record.quota_held || dataset.bytes() == 0;
        serving_.hand_over(dataset, indexing->reached);
        log_info("dataset added", {{"dataset", record.definition.name},
                                   {"url", record.definition.url},
                                   {"samples", indexing->report.manifest.sample_count},
                                   {"bytes", indexing->report.manifest.total_bytes}});
        datasets_.add(std::move(dataset));
        settle(outcome);
    });
}

void Indexing::give_up_adding(const std::string& name, Tasks::Outcome failed,
                              const std::function<void(Tasks::Outcome)>& settle) {
    log_warn("dataset could not be added", {{"dataset", name}, {"error", failed.error().message}});
    files_.post([this, name, failed = std::move(failed), settle] {
        if (auto removed = datasets_.catalog().abandon(name); !removed) {
            log_warn("cannot remove the remains of an unfinished dataset add", {{"error", removed.error().message}});
        }
        asio::post(control_, [this, name, failed, settle] {
            datasets_.release(name);
            settle(failed);
        });
    });
}

void Indexing::finish_reindexing(Run& indexing, Tasks::Outcome outcome,
                                 const std::function<void(Tasks::Outcome)>& settle) {
    NodeDataset& dataset = datasets_.at(indexing.record.definition.name);
    if (!outcome) {
        settle(std::move(outcome));
        return;
    }
    const bool is_new = dataset.versions.emplace(indexing.version, indexing.opened).second;
    if (!is_new && !dataset.offline) return settle(std::move(outcome));
    if (is_new) dataset.record.versions.push_back(indexing.version);
    // A dataset that is already served keeps its place.
    if (dataset.offline) {
        dataset.place = indexing.report.place;
        serving_.hand_over(dataset, indexing.reached);
    } else {
        dataset.shard->add_version(dataset.record.dataset_id, indexing.opened->manifest);
    }
    log_info("dataset indexed again", {{"dataset", dataset.record.definition.name},
                                       {"version", indexing.version},
                                       {"objects_carried_over", indexing.report.manifest.objects_carried_over},
                                       {"objects", indexing.report.manifest.object_count}});
    datasets_.save(dataset.record, [outcome = std::move(outcome), settle](const Result<void>& saved) {
        settle(saved ? outcome : Tasks::Outcome(std::unexpected(saved.error())));
    });
}

}  // namespace larder::cache
