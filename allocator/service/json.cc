#include "allocator/service/json.h"

#include <boost/json.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/server/json_reader.h"

namespace larder::allocator {
namespace json = boost::json;
namespace {

constexpr std::array<std::pair<ObjectiveKind, std::string_view>, 6> kObjectiveTexts{{
    {ObjectiveKind::efficiency, "efficiency"},
    {ObjectiveKind::max_min, "max_min"},
    {ObjectiveKind::throughput, "throughput"},
    {ObjectiveKind::utilisation, "utilisation"},
    {ObjectiveKind::equal_shares, "static"},
    {ObjectiveKind::pinned, "pinned"},
}};

void put_rate(json::object& object, std::string_view key, double rate) {
    if (std::isfinite(rate)) object[key] = rate;
}

double optional_number(JsonReader& reader, std::string_view key, double otherwise) {
    return reader.has(key) ? reader.number(key) : otherwise;
}

std::uint32_t small_integer(JsonReader& reader, std::string_view key) {
    const std::uint64_t value = reader.unsigned_integer(key);
    if (value > std::numeric_limits<std::uint32_t>::max()) reader.reject(key, "is too large");
    return static_cast<std::uint32_t>(value);
}

// Reads an array of objects, each with its place in errors: "report.jobs[2]".
template <typename Item, typename Read>
Result<void> read_each(const json::array& array, const std::string& where, std::vector<Item>& into, const Read& read) {
    for (std::size_t i = 0; i < array.size(); ++i) {
        const std::string at = where + "[" + std::to_string(i) + "]";
        if (!array[i].is_object()) return fail(ErrorCode::invalid_argument, at + " must be an object");
        JsonReader reader(array[i].as_object(), at);
        into.push_back(read(reader));
        if (auto finished = reader.finish(); !finished) return finished;
    }
    return {};
}

DatasetReport read_dataset(JsonReader& reader) {
    DatasetReport dataset;
    dataset.name = reader.string("name");
    dataset.size_bytes = reader.unsigned_integer("size_bytes");
    dataset.quota_memory_bytes = reader.unsigned_integer("quota_memory_bytes");
    dataset.quota_disk_bytes = reader.unsigned_integer("quota_disk_bytes");
    dataset.cached_memory_bytes = reader.unsigned_integer("cached_memory_bytes");
    dataset.cached_disk_bytes = reader.unsigned_integer("cached_disk_bytes");
    dataset.quota_held = reader.optional_boolean("quota_held").value_or(false);
    return dataset;
}

JobReport read_job(JsonReader& reader) {
    JobReport job;
    job.name = reader.string("name");
    job.dataset = reader.string("dataset");
    job.ranks = small_integer(reader, "ranks");
    job.bytes = reader.unsigned_integer("bytes");
    job.busy_s = reader.number("busy_s");
    job.demand_bytes_per_second = reader.number("demand_bytes_per_second");
    job.remote_bytes = reader.optional_unsigned_integer("remote_bytes");
    job.unread_bytes = reader.unsigned_integer("unread_bytes");
    job.unread_cached_bytes = reader.unsigned_integer("unread_cached_bytes");
    if (reader.has("epoch")) job.epoch = small_integer(reader, "epoch");
    return job;
}

json::array node_caches(const std::vector<NodeCache>& caches, const ClusterState& state) {
    json::array array;
    for (const NodeCache& cache : caches) {
        if (cache.bytes() == 0) continue;
        array.push_back(json::object{{"node", state.nodes[cache.node].name},
                                     {"memory_bytes", cache.memory_bytes},
                                     {"disk_bytes", cache.disk_bytes}});
    }
    return array;
}

}  // namespace

// --- reports

json::object to_json(const NodeReport& report) {
    json::array datasets;
    for (const DatasetReport& dataset : report.datasets) {
        datasets.push_back(json::object{{"name", dataset.name},
                                        {"size_bytes", dataset.size_bytes},
                                        {"quota_memory_bytes", dataset.quota_memory_bytes},
                                        {"quota_disk_bytes", dataset.quota_disk_bytes},
                                        {"cached_memory_bytes", dataset.cached_memory_bytes},
                                        {"cached_disk_bytes", dataset.cached_disk_bytes},
                                        {"quota_held", dataset.quota_held}});
    }
    json::array jobs;
    for (const JobReport& job : report.jobs) {
        json::object reported{{"name", job.name},
                              {"dataset", job.dataset},
                              {"ranks", job.ranks},
                              {"bytes", job.bytes},
                              {"busy_s", job.busy_s},
                              {"demand_bytes_per_second", job.demand_bytes_per_second},
                              {"unread_bytes", job.unread_bytes},
                              {"unread_cached_bytes", job.unread_cached_bytes}};
        if (job.remote_bytes) reported["remote_bytes"] = *job.remote_bytes;
        if (job.epoch) reported["epoch"] = *job.epoch;
        jobs.push_back(std::move(reported));
    }
    json::object object{{"node", report.node},
                        {"instance", report.instance},
                        {"state_directory", report.state_directory},
                        {"lease_applied", report.lease_applied},
                        {"rates", report.rates},
                        {"scans", report.scans},
                        {"gpus", report.gpus},
                        {"memory_bytes", report.memory_bytes},
                        {"disk_bytes", report.disk_bytes},
                        {"datasets", std::move(datasets)},
                        {"jobs", std::move(jobs)}};
    put_rate(object, "disk_read_bytes_per_second", report.disk_read_bytes_per_second);
    put_rate(object, "nic_bytes_per_second", report.nic_bytes_per_second);
    if (!report.peer_endpoint.empty()) {
        object["peer_group"] = report.peer_group;
        object["peer_endpoint"] = report.peer_endpoint;
    }
    return object;
}

Result<NodeReport> read_node_report(const json::object& object, std::string_view where) {
    JsonReader reader(object, std::string(where));
    NodeReport report;
    report.node = reader.string("node");
    report.instance = reader.unsigned_integer("instance");
    report.state_directory = reader.optional_unsigned_integer("state_directory").value_or(0);
    report.lease_applied = reader.unsigned_integer("lease_applied");
    report.rates = reader.optional_boolean("rates").value_or(true);
    if (reader.has("scans")) report.scans = small_integer(reader, "scans");
    report.gpus = small_integer(reader, "gpus");
    report.memory_bytes = reader.unsigned_integer("memory_bytes");
    report.disk_bytes = reader.unsigned_integer("disk_bytes");
    report.disk_read_bytes_per_second = optional_number(reader, "disk_read_bytes_per_second", kUnlimited);
    report.nic_bytes_per_second = optional_number(reader, "nic_bytes_per_second", kUnlimited);
    report.peer_group = reader.optional_string("peer_group").value_or("");
    report.peer_endpoint = reader.optional_string("peer_endpoint").value_or("");
    const json::array& datasets = reader.array("datasets");
    const json::array& jobs = reader.array("jobs");
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    const std::string prefix = where.empty() ? "" : std::string(where) + ".";
    if (auto read = read_each(datasets, prefix + "datasets", report.datasets, read_dataset); !read) {
        return std::unexpected(read.error());
    }
    if (auto read = read_each(jobs, prefix + "jobs", report.jobs, read_job); !read) {
        return std::unexpected(read.error());
    }
    return report;
}

// --- a node's part of the plan

json::object to_json(const NodePlan& plan, std::int64_t now_ns) {
    json::array quotas;
    for (const DatasetQuota& quota : plan.quotas) {
        quotas.push_back(
            json::object{{"name", quota.name}, {"memory_bytes", quota.memory_bytes}, {"disk_bytes", quota.disk_bytes}});
    }
    json::array rates;
    for (const LeasedRate& rate : plan.lease.rates) {
        rates.push_back(json::object{{"job", rate.job}, {"bytes_per_second", rate.bytes_per_second}});
    }
    const std::int64_t left_ns = std::max<std::int64_t>(0, plan.lease.expires_ns - now_ns);
    return {{"plan", plan.plan},
            {"quotas", std::move(quotas)},
            {"peers", json::array(plan.peers.begin(), plan.peers.end())},
            {"lease",
             {{"number", plan.lease.number},
              {"lease_ms", left_ns / 1'000'000},
              {"floor_bytes_per_second", plan.lease.floor_bytes_per_second},
              {"rates", std::move(rates)},
              {"cut", plan.lease.cut}}}};
}

Result<NodePlan> read_node_plan(const json::object& object, std::string_view where, std::int64_t now_ns) {
    JsonReader reader(object, std::string(where));
    NodePlan plan;
    plan.plan = reader.unsigned_integer("plan");
    const json::array& quotas = reader.array("quotas");
    const json::array& peers = reader.array("peers");
    const json::object& lease = reader.object("lease");
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    for (const json::value& peer : peers) {
        if (!peer.is_string()) return fail(ErrorCode::invalid_argument, "peers: not all are texts");
        plan.peers.emplace_back(peer.as_string());
    }
    auto read = read_each(quotas, "quotas", plan.quotas, [](JsonReader& of) {
        DatasetQuota quota;
        quota.name = of.string("name");
        quota.memory_bytes = of.unsigned_integer("memory_bytes");
        quota.disk_bytes = of.unsigned_integer("disk_bytes");
        return quota;
    });
    if (!read) return std::unexpected(read.error());
    JsonReader lease_reader(lease, "lease");
    plan.lease.number = lease_reader.unsigned_integer("number");
    plan.lease.expires_ns = now_ns + static_cast<std::int64_t>(lease_reader.unsigned_integer("lease_ms")) * 1'000'000;
    plan.lease.floor_bytes_per_second = lease_reader.number("floor_bytes_per_second");
    const json::array& rates = lease_reader.array("rates");
    plan.lease.cut = lease_reader.optional_boolean("cut").value_or(false);
    if (auto finished = lease_reader.finish(); !finished) return std::unexpected(finished.error());
    read = read_each(rates, "lease.rates", plan.lease.rates, [](JsonReader& of) {
        LeasedRate rate;
        rate.job = of.string("job");
        rate.bytes_per_second = of.number("bytes_per_second");
        return rate;
    });
    if (!read) return std::unexpected(read.error());
    return plan;
}

// --- jobs and the whole plan

std::string_view name(ObjectiveKind kind) {
    for (const auto& [of, text] : kObjectiveTexts) {
        if (of == kind) return text;
    }
    return "";
}

Result<ObjectiveKind> parse_objective(std::string_view text) {
    std::string known;
    for (const auto& [of, named] : kObjectiveTexts) {
        if (named == text) return of;
        known += (known.empty() ? "" : ", ") + std::string(named);
    }
    return fail(ErrorCode::invalid_argument, "\"" + std::string(text) + "\" is no objective; known: " + known);
}

JobSpec read_job_spec(JsonReader& reader) {
    JobSpec spec;
    spec.name = reader.string("name");
    spec.weight = optional_number(reader, "weight", spec.weight);
    spec.epochs = optional_number(reader, "epochs", spec.epochs);
    if (reader.has("ideal_bytes_per_second")) spec.ideal_bytes_per_second = reader.number("ideal_bytes_per_second");
    spec.bandwidth_floor_bytes_per_second = optional_number(reader, "bandwidth_floor_bytes_per_second", 0);
    spec.bandwidth_cap_bytes_per_second = optional_number(reader, "bandwidth_cap_bytes_per_second", kUnlimited);
    return spec;
}

Result<JobSpec> read_job_spec(const json::object& object, std::string_view where) {
    JsonReader reader(object, std::string(where));
    JobSpec spec = read_job_spec(reader);
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    return spec;
}

json::object plan_json(const Cluster& cluster, std::uint64_t number) {
    const ClusterState& state = cluster.planned_state();
    const Plan& plan = cluster.plan();
    json::array nodes;
    for (const Node& node : state.nodes) {
        nodes.push_back(
            json::object{{"name", node.name}, {"memory_bytes", node.memory_bytes}, {"disk_bytes", node.disk_bytes}});
    }
    json::array datasets;
    for (std::size_t i = 0; i < state.datasets.size(); ++i) {
        std::uint64_t cached_bytes = 0;
        for (const NodeCache& cached : state.datasets[i].cached) cached_bytes += cached.bytes();
        datasets.push_back(json::object{{"name", state.datasets[i].name},
                                        {"size_bytes", state.datasets[i].size_bytes},
                                        {"cached_bytes", cached_bytes},
                                        {"quota_bytes", plan.datasets[i].quota_bytes},
                                        {"nodes", node_caches(plan.datasets[i].quotas, state)}});
    }
    json::array jobs;
    for (std::size_t j = 0; j < state.jobs.size(); ++j) {
        const Job& job = state.jobs[j];
        const JobPlan& planned = plan.jobs[j];
        if (!planned.running) continue;  // waits for its turn
        json::array on;
        for (const GpuShare& share : placement_of(state, plan, j))
            on.push_back(json::value(state.nodes[share.node].name));
        jobs.push_back(json::object{{"name", job.name},
                                    {"dataset", state.datasets[job.dataset].name},
                                    {"nodes", std::move(on)},
                                    {"weight", job.weight},
                                    {"ideal_bytes_per_second", job.ideal_bytes_per_second},
                                    {"ideal_is_measured", cluster.measured_ideal(job.name).has_value()},
                                    {"equal_share_bytes_per_second", planned.equal_share_bytes_per_second},
                                    {"bandwidth_bytes_per_second", planned.bandwidth_bytes_per_second},
                                    {"hit_ratio", planned.hit_ratio},
                                    {"predicted_bytes_per_second", planned.predicted_bytes_per_second},
                                    {"steady_hit_ratio", planned.steady_hit_ratio},
                                    {"steady_bytes_per_second", planned.steady_bytes_per_second}});
    }
    return {{"plan", number},
            {"objective", name(cluster.options().objective.kind)},
            {"remote_bytes_per_second", state.remote_bytes_per_second},
            {"steady_remote_bytes_per_second", plan.steady_remote_bytes_per_second},
            {"moved_bytes", plan.moved_bytes},
            {"kept_quotas", plan.kept_quotas},
            {"nodes", std::move(nodes)},
            {"datasets", std::move(datasets)},
            {"jobs", std::move(jobs)}};
}

}  // namespace larder::allocator
