// DaemonApi: /v1/datasets.

#include <boost/json.hpp>
#include <unistd.h>

#include <algorithm>

#include "base/server/json_reader.h"
#include "cache/control/api_json.h"
#include "cache/control/daemon_api.h"
#include "cache/control/dataset_access.h"
#include "cache/control/dataset_request.h"
#include "cache/control/remote_json.h"
#include "cache/store/compression.h"

namespace larder::cache {
namespace json = boost::json;
namespace {

json::object dataset_json(const NodeDataset& dataset, const ShardStatistics& statistics, const UserDirectory& users) {
    const DatasetRecord& record = dataset.record;
    const DatasetDefinition& definition = record.definition;
    const protocol::Manifest& manifest = *dataset.newest().manifest;
    DatasetStatistics counted;
    const auto found = std::ranges::find(statistics.datasets, record.dataset_id, &DatasetStatistics::dataset_id);
    if (found != statistics.datasets.end()) counted = *found;

    json::object counters = counters_json(counted.counters);
    counters["admissions_refused"] = counted.admissions_refused;
    json::array versions;
    for (const auto& [version, opened] : dataset.versions) versions.emplace_back(version);
    json::array quarantined;
    for (const QuarantinedBlock& block : counted.quarantined) {
        quarantined.push_back({{"object", block.object},
                               {"offset", block.offset},
                               {"bytes", block.length},
                               {"by_reader", block.by_reader}});
    }
    const double total = static_cast<double>(std::max<std::uint64_t>(1, manifest.total_bytes()));
    return {{"name", definition.name},
            {"url", definition.url},
            {"remote", remote_json(definition.remote)},
            {"format", protocol::name(*definition.format)},
            {"block", block_goal_text(definition.block)},
            {"tokens_per_sample",
             definition.tokens_per_sample > 0 ? json::value(definition.tokens_per_sample) : json::value()},
            {"columns", definition.columns.empty() ? json::value() : json::value(format_columns(definition.columns))},
            {"dataset_id", format_dataset_id(record.dataset_id)},
            {"version", dataset.newest().version()},
            {"objects", manifest.object_count()},
            {"blocks", manifest.block_count()},
            {"samples", manifest.sample_count()},
            {"total_bytes", manifest.total_bytes()},
            {"classes", manifest.header().class_count},
            {"owner", users.user_name(record.access.owner)},
            {"group", users.group_name(record.access.group)},
            {"mode", format_mode(record.access.mode)},
            {"quota", quota_json(record.quota)},
            {"quota_held", record.quota_held},
            {"used", json::object{{"memory_bytes", counted.usage.memory_bytes},
                                  {"disk_bytes", counted.usage.disk_bytes},
                                  {"memory_allocated_bytes", counted.usage.memory_allocated_bytes},
                                  {"disk_allocated_bytes", counted.usage.disk_allocated_bytes},
                                  {"payload_bytes", counted.usage.payload_bytes},
                                  {"blocks", counted.usage.blocks},
                                  {"segments", counted.usage.memory_segments + counted.usage.disk_segments}}},
            // Blocks of earlier versions may be cached, too.
            {"cached_ratio", std::min(1.0, static_cast<double>(counted.usage.payload_bytes) / total)},
            {"compression", format_compression(definition.compression)},
            {"stored_ratio", counted.stored_ratio},
            {"checksums", manifest.has_checksums()},
            {"quarantined_blocks", counted.quarantined_blocks},
            {"quarantined", std::move(quarantined)},
            {"disk_full", counted.disk_full},
            {"offline", dataset.offline ? json::value(dataset.offline->message) : json::value()},
            {"sessions", counted.sessions},
            {"counters", std::move(counters)},
            {"versions", std::move(versions)}};
}

// Fails if the request's body has a key.
Result<void> check_empty_body(const HttpRequest& request) {
    const auto object = request_object(request);
    if (!object) return std::unexpected(object.error());
    return JsonReader(*object, "request body").finish();
}

}  // namespace

void DaemonApi::learn_names(const std::function<void()>& then) {
    UserDirectory::Wanted wanted;
    for (const auto& [name, dataset] : node_.datasets().all()) {
        wanted.users.push_back(dataset.record.access.owner);
        wanted.groups.push_back(dataset.record.access.group);
    }
    for (auto* ids : {&wanted.users, &wanted.groups}) {
        std::ranges::sort(*ids);
        ids->erase(std::ranges::unique(*ids).begin(), ids->end());
    }
    node_.users().learn(wanted, then);
}

void DaemonApi::get_datasets(const Asked&, const HttpRespond& respond) {
    node_.shards().collect([this, respond](const Result<ShardStatistics>& statistics) {
        if (!statistics) return respond(http_error(statistics.error()));
        learn_names([this, respond, statistics = *statistics] {
            json::array datasets;
            for (const auto& [name, dataset] : node_.datasets().all())
                datasets.push_back(dataset_json(dataset, statistics, node_.users()));
            json::array damaged;
            for (const auto& [name, dataset] : node_.datasets().damaged()) {
                damaged.push_back({{"name", name}, {"reason", dataset.reason.message}});
            }
            respond(json_response({{"datasets", std::move(datasets)}, {"damaged", std::move(damaged)}}));
        });
    });
}

void DaemonApi::get_dataset(const Asked& asked, const HttpRespond& respond) {
    node_.shards().collect([this, name = asked.name, respond](const Result<ShardStatistics>& statistics) {
        if (!statistics) return respond(http_error(statistics.error()));
        learn_names([this, name, respond, statistics = *statistics] {
            const auto found = node_.datasets().find(name);
            if (!found) return respond(http_error(found.error()));
            respond(json_response(dataset_json(**found, statistics, node_.users())));
        });
    });
}

void DaemonApi::delete_dataset(const Asked& asked, const HttpRespond& respond) {
    node_.datasets().remove(asked.name, [respond](const Result<void>& done) { respond(done_response(done)); });
}

void DaemonApi::post_dataset(const Asked& asked, const HttpRespond& respond) {
    const auto object = request_object(asked.http);
    if (!object) return respond(http_error(object.error()));
    const auto dataset_request = read_dataset_request(*object);
    if (!dataset_request) return respond(http_error(dataset_request.error()));
    // With follow_symlinks the daemon reads with its own rights what the writers of a directory point it at.
    const std::uint32_t uid = asked.http.peer->uid;
    if (dataset_request->definition.remote.follow_symlinks && uid != 0 && uid != ::geteuid()) {
        return respond(http_error(
            Error{ErrorCode::permission_denied,
                  "remote: follow_symlinks (--follow-symlinks) is only for root and the daemon's user, " +
                      node_.users().user_name(::geteuid()) + ", and not for " + node_.users().user_name(uid) +
                      ": with it, whoever can write to the directory can read each file that the daemon can read. "
                      "Make links relative, so that they stay beneath the directory, or ask one of these users"}));
    }
    // The user who adds a dataset owns it by default.
    const DatasetAccess defaults{.owner = asked.http.peer->uid, .group = asked.http.peer->gid};
    const auto add = [this, defaults, respond](const DatasetRequest& with_numbers) {
        auto record = check_dataset_request(with_numbers, defaults);
        if (!record) return respond(http_error(record.error()));
        respond(task_response(with_numbers.dry_run ? node_.indexing().survey(std::move(*record))
                                                   : node_.indexing().add(std::move(*record))));
    };
    if (!dataset_request->owner && !dataset_request->group) return add(*dataset_request);
    node_.users().call(
        [named = *dataset_request, respond, add]() -> BlockingCalls::Then {
            DatasetRequest with_numbers = named;
            const auto found = look_up_users(with_numbers);
            return
                [with_numbers, found, respond, add] { found ? add(with_numbers) : respond(http_error(found.error())); };
        },
        [respond] {
            respond(http_error(Error{ErrorCode::timeout,
                                     "owner, group: the name service of this machine does not answer; try again, or "
                                     "give numbers"}));
        });
}

void DaemonApi::post_index(const Asked& asked, const HttpRespond& respond) {
    if (auto empty = check_empty_body(asked.http); !empty) return respond(http_error(empty.error()));
    respond(task_response(node_.indexing().reindex(asked.name)));
}

void DaemonApi::post_verify(const Asked& asked, const HttpRespond& respond) {
    const auto object = request_object(asked.http);
    if (!object) return respond(http_error(object.error()));
    JsonReader reader(*object, "request body");
    // With `remote`, verify also compares cached blocks with the remote's bytes.
    const bool remote = reader.optional_boolean("remote").value_or(false);
    if (auto finished = reader.finish(); !finished) return respond(http_error(finished.error()));
    respond(task_response(node_.scans().start(asked.name, remote ? ScanKind::verify_remote : ScanKind::verify)));
}

void DaemonApi::post_warm(const Asked& asked, const HttpRespond& respond) {
    if (auto empty = check_empty_body(asked.http); !empty) return respond(http_error(empty.error()));
    respond(task_response(node_.scans().start(asked.name, ScanKind::warm)));
}

void DaemonApi::get_quota(const Asked& asked, const HttpRespond& respond) {
    respond_with_quota(asked.name, respond);
}

void DaemonApi::respond_with_quota(const std::string& dataset, const HttpRespond& respond) {
    const auto found = node_.datasets().find(dataset);
    if (!found) return respond(http_error(found.error()));
    respond(json_response(quota_json((*found)->record.quota)));
}

void DaemonApi::put_quota(const Asked& asked, const HttpRespond& respond) {
    const auto object = request_object(asked.http);
    if (!object) return respond(http_error(object.error()));
    std::optional<Quota> wanted;
    if (object->contains("auto")) {
        JsonReader reader(*object, "request body");
        if (!reader.optional_boolean("auto").value_or(false)) reader.reject("auto", "is not true");
        if (auto finished = reader.finish(); !finished) return respond(http_error(finished.error()));
    } else {
        const auto quota = read_quota(*object, "request body");
        if (!quota) return respond(http_error(quota.error()));
        wanted = *quota;
    }
    const std::string name = asked.name;
    node_.quotas().set(name, wanted, [this, name, respond](const Result<void>& done) {
        if (!done) return respond(http_error(done.error()));
        respond_with_quota(name, respond);
    });
}

}  // namespace larder::cache
