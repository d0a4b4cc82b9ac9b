#include "allocator/service/json_lists.h"

#include <boost/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "allocator/protocol/codec.h"
#include "base/server/json_reader.h"

namespace larder::allocator {
namespace json = boost::json;
namespace {

void put_rate(json::object& object, std::string_view key, double rate) {
    if (std::isfinite(rate)) object[key] = rate;
}

template <typename Value>
void put(json::object& object, std::string_view key, const std::optional<Value>& value) {
    if (value) object[key] = *value;
}

json::array names_json(const std::vector<std::string>& names) {
    json::array array;
    for (const std::string& name : names) array.push_back(json::value(name));
    return array;
}

json::object tiers(const TierBytes& bytes) {
    return {{"memory_bytes", bytes.memory_bytes}, {"disk_bytes", bytes.disk_bytes}};
}

std::int64_t milliseconds(std::int64_t duration_ns) {
    return std::max<std::int64_t>(0, duration_ns / 1'000'000);
}

json::object job_plan(const JobPlan& plan) {
    return {{"bandwidth_bytes_per_second", plan.bandwidth_bytes_per_second},
            {"equal_share_bytes_per_second", plan.equal_share_bytes_per_second},
            {"hit_ratio", plan.hit_ratio},
            {"predicted_bytes_per_second", plan.predicted_bytes_per_second},
            {"steady_hit_ratio", plan.steady_hit_ratio},
            {"steady_bytes_per_second", plan.steady_bytes_per_second}};
}

json::object to_json(const NodeView& node) {
    json::object object{{"name", node.name},
                        {"alive", node.alive},
                        {"heard_ms_ago", milliseconds(node.heard_ago_ns)},
                        {"gpus", node.gpus},
                        {"capacity", tiers(node.capacity)},
                        {"quota", tiers(node.quota)},
                        {"used", tiers(node.used)},
                        {"jobs", names_json(node.jobs)},
                        {"lease_applied", node.lease_applied}};
    put_rate(object, "disk_read_bytes_per_second", node.disk_read_bytes_per_second);
    put_rate(object, "nic_bytes_per_second", node.nic_bytes_per_second);
    if (!node.peer_group.empty()) object["peer_group"] = node.peer_group;
    if (node.lease) {
        const std::int64_t lasts_ns = node.lease->expires_ns - node.lease->granted_ns;
        object["lease"] = json::object{{"number", node.lease->number},
                                       {"age_ms", milliseconds(node.lease_age_ns)},
                                       {"left_ms", milliseconds(lasts_ns - node.lease_age_ns)},
                                       {"bytes_per_second", node.lease->bytes_per_second},
                                       {"cut", node.lease->cut}};
    }
    return object;
}

json::object to_json(const DatasetView& dataset) {
    json::array nodes;
    for (const DatasetShare& share : dataset.nodes) {
        nodes.push_back(
            json::object{{"name", share.node}, {"quota", tiers(share.quota)}, {"cached", tiers(share.cached)}});
    }
    json::object object{{"name", dataset.name},
                        {"size_bytes", dataset.size_bytes},
                        {"quota_bytes", dataset.quota_bytes},
                        {"applied_bytes", dataset.applied_bytes},
                        {"cached_bytes", dataset.cached_bytes},
                        {"effective_bytes", dataset.effective_bytes},
                        {"granted_bytes_per_second", dataset.granted_bytes_per_second},
                        {"jobs", names_json(dataset.jobs)},
                        {"nodes", std::move(nodes)}};
    put(object, "pinned_bytes", dataset.pinned_bytes);
    return object;
}

json::object to_json(const JobView& job) {
    json::object object{{"name", job.name},
                        {"registered", job.registered},
                        {"running", job.running},
                        {"weight", job.weight},
                        {"bandwidth_floor_bytes_per_second", job.bandwidth_floor_bytes_per_second}};
    put_rate(object, "bandwidth_cap_bytes_per_second", job.bandwidth_cap_bytes_per_second);
    put_rate(object, "remaining_epochs", job.remaining_epochs);
    put(object, "user", job.user);
    put(object, "declared_ideal_bytes_per_second", job.declared_ideal_bytes_per_second);
    put(object, "measured_ideal_bytes_per_second", job.measured_ideal_bytes_per_second);
    if (!job.dataset.empty()) object["dataset"] = job.dataset;
    if (job.cache_bytes > 0) {
        object["cache_bytes"] = job.cache_bytes;
        object["staged"] = job.staged;
    }
    if (!job.running) return object;
    object["nodes"] = names_json(job.nodes);
    object["ranks"] = job.ranks;
    object["ideal_bytes_per_second"] = job.ideal_bytes_per_second;
    object["unread_bytes"] = job.unread_bytes;
    object["unread_cached_bytes"] = job.unread_cached_bytes;
    for (auto& [key, value] : job_plan(job.plan)) object[key] = value;
    if (job.measured) {
        object["measured_bytes_per_second"] = job.measured->bytes_per_second;
        object["stall_ratio"] = job.measured->stall_ratio;
        put(object, "measured_remote_bytes_per_second", job.measured->remote_bytes_per_second);
    }
    put(object, "prediction_error_ratio", job.prediction_error());
    if (job.limit) {
        json::object limit{{"resource", name(job.limit->kind)}, {"since_unix_ms", job.limit->since_unix_ms}};
        if (!job.limit->node.empty()) limit["node"] = job.limit->node;
        object["limited_by"] = std::move(limit);
    }
    return object;
}

template <typename View>
json::object list_of(std::uint64_t plan, const char* key, const std::vector<View>& views) {
    json::array array;
    for (const View& view : views) array.push_back(to_json(view));
    return {{"plan", plan}, {key, std::move(array)}};
}

// --- what if

AddedJob read_added_job(JsonReader& reader) {
    AddedJob job;
    job.spec = read_job_registration(reader);
    if (job.spec.cache_bytes > 0) reader.reject("cache_bytes", "is for registered jobs only");
    job.dataset = reader.string("dataset");
    job.dataset_size_bytes = reader.optional_unsigned_integer("dataset_size_bytes");
    const std::uint64_t gpus = reader.optional_unsigned_integer("gpus").value_or(0);
    if (gpus > std::numeric_limits<std::uint32_t>::max()) reader.reject("gpus", "is too large");
    job.gpus = static_cast<std::uint32_t>(gpus);
    if (!reader.has("nodes")) return job;
    for (const json::value& node : reader.array("nodes")) {
        if (!node.is_string()) reader.reject("nodes", "must be names");
        if (node.is_string()) job.nodes.emplace_back(node.as_string());
    }
    return job;
}

json::object outcome_json(const WhatIfOutcome& outcome) {
    std::uint64_t cache_bytes = 0;
    for (const ClusterNode& node : outcome.state.nodes) cache_bytes += node.memory_bytes + node.disk_bytes;
    return {{"objective", name(outcome.objective.kind)},
            {"remote_bytes_per_second", outcome.state.remote_bytes_per_second},
            {"cache_bytes", cache_bytes},
            {"steady_remote_bytes_per_second", outcome.plan.steady_remote_bytes_per_second},
            {"moved_bytes", outcome.plan.moved_bytes}};
}

json::object outcome_json(const WhatIfOutcome& outcome, const DatasetPlan& plan) {
    json::array nodes;
    for (const NodeCache& quota : plan.quotas) {
        if (quota.bytes() == 0) continue;
        nodes.push_back(json::object{{"name", outcome.state.nodes[quota.node].name},
                                     {"quota", tiers({quota.memory_bytes, quota.disk_bytes})}});
    }
    return {{"quota_bytes", plan.quota_bytes}, {"nodes", std::move(nodes)}};
}

json::object job_outcome_json(const WhatIfOutcome& outcome, std::size_t job) {
    const JobPlan& plan = outcome.plan.jobs[job];
    json::array nodes;
    for (const GpuShare& share : placement_of(outcome.state, outcome.plan, job))
        nodes.push_back(json::value(outcome.state.nodes[share.node].name));
    json::object object = job_plan(plan);
    object["running"] = plan.running;
    object["nodes"] = std::move(nodes);
    return object;
}

using Rows = std::map<std::string, json::object>;

void add_outcome(Rows& datasets, Rows& jobs, const WhatIfOutcome& outcome, const char* outcome_key) {
    for (std::size_t i = 0; i < outcome.state.datasets.size(); ++i) {
        const ClusterDataset& dataset = outcome.state.datasets[i];
        json::object& row = datasets[dataset.name];
        row["name"] = dataset.name;
        row["size_bytes"] = dataset.size_bytes;
        row[outcome_key] = outcome_json(outcome, outcome.plan.datasets[i]);
    }
    for (std::size_t j = 0; j < outcome.state.jobs.size(); ++j) {
        const ClusterJob& job = outcome.state.jobs[j];
        json::object& row = jobs[job.name];
        row["name"] = job.name;
        row["dataset"] = outcome.state.datasets[job.dataset].name;
        row["ideal_bytes_per_second"] = job.ideal_bytes_per_second;
        row[outcome_key] = job_outcome_json(outcome, j);
    }
}

json::array values(Rows rows) {
    json::array array;
    for (auto& [name, row] : rows) array.push_back(std::move(row));
    return array;
}

}  // namespace

json::object nodes_json(const ClusterView& view) {
    return list_of(view.plan, "nodes", view.nodes);
}

json::object datasets_json(const ClusterView& view) {
    return list_of(view.plan, "datasets", view.datasets);
}

json::object jobs_json(const ClusterView& view) {
    return list_of(view.plan, "jobs", view.jobs);
}

json::object status_json(const ClusterView& view) {
    json::object object = nodes_json(view);
    object["datasets"] = std::move(datasets_json(view).at("datasets"));
    object["jobs"] = std::move(jobs_json(view).at("jobs"));
    return object;
}

json::object to_json(const std::deque<RateSample>& samples) {
    json::array array;
    for (const RateSample& sample : samples) {
        json::object row{{"unix_ms", sample.unix_ms},
                         {"ideal_bytes_per_second", sample.ideal},
                         {"predicted_bytes_per_second", sample.predicted},
                         {"granted_bytes_per_second", sample.granted},
                         {"hit_ratio", sample.hit_ratio}};
        if (sample.is_measured) row["measured_bytes_per_second"] = sample.measured;
        array.push_back(std::move(row));
    }
    return {{"rates", std::move(array)}};
}

json::object to_json(const Event& event) {
    return {{"number", event.number},
            {"unix_ms", event.unix_ms},
            {"kind", name(event.kind)},
            {"subject", event.subject},
            {"message", event.message}};
}

// The time of a what-if grows with each entry.
constexpr std::size_t kWhatIfItemsMax = 256;

Result<WhatIfChange> read_change(const json::object& object, std::string_view where) {
    JsonReader reader(object, std::string(where));
    WhatIfChange change;
    if (reader.has("remote_bytes_per_second"))
        change.remote_bytes_per_second = reader.number("remote_bytes_per_second");
    change.cache_bytes = reader.optional_integer("cache_bytes").value_or(0);
    if (const auto objective = reader.optional_string("objective")) {
        const auto kind = parse_objective(*objective);
        if (!kind) reader.reject("objective", "is wrong: " + kind.error().message);
        if (kind) change.objective = *kind;
    }
    if (reader.has("remove_jobs")) {
        for (const json::value& job : reader.array("remove_jobs")) {
            if (!job.is_string()) reader.reject("remove_jobs", "must be names");
            if (job.is_string()) change.remove_jobs.emplace_back(job.as_string());
        }
    }
    const std::string too_many = "has more than " + std::to_string(kWhatIfItemsMax) + " entries";
    const json::array none;
    const json::array& pins = reader.has("pins") ? reader.array("pins") : none;
    const json::array& added = reader.has("add_jobs") ? reader.array("add_jobs") : none;
    if (pins.size() > kWhatIfItemsMax) reader.reject("pins", too_many);
    if (added.size() > kWhatIfItemsMax) reader.reject("add_jobs", too_many);
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    for (std::size_t i = 0; i < pins.size(); ++i) {
        const std::string at = "pins[" + std::to_string(i) + "]";
        if (!pins[i].is_object()) return fail(ErrorCode::invalid_argument, at + " must be an object");
        JsonReader pin(pins[i].as_object(), at);
        change.pins.push_back({.dataset = pin.string("dataset"), .bytes = pin.unsigned_integer("bytes")});
        if (auto finished = pin.finish(); !finished) return std::unexpected(finished.error());
    }
    for (std::size_t i = 0; i < added.size(); ++i) {
        const std::string at = "add_jobs[" + std::to_string(i) + "]";
        if (!added[i].is_object()) return fail(ErrorCode::invalid_argument, at + " must be an object");
        JsonReader job(added[i].as_object(), at);
        change.add_jobs.push_back(read_added_job(job));
        if (auto finished = job.finish(); !finished) return std::unexpected(finished.error());
    }
    return change;
}

json::object to_json(const Comparison& comparison) {
    Rows datasets;
    Rows jobs;
    add_outcome(datasets, jobs, comparison.before, "before");
    add_outcome(datasets, jobs, comparison.after, "after");
    return {{"before", outcome_json(comparison.before)},
            {"after", outcome_json(comparison.after)},
            {"datasets", values(std::move(datasets))},
            {"jobs", values(std::move(jobs))}};
}

}  // namespace larder::allocator
