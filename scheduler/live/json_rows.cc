// Converts records to and from rows: the fields that the API shows, and those that it hides.

#include <boost/json.hpp>

#include <cmath>
#include <stdexcept>

#include "scheduler/live/json.h"

namespace larder::scheduler {
namespace json = boost::json;
namespace {

double number(const json::object& object, std::string_view key) {
    return object.at(key).to_number<double>();
}

std::uint64_t whole(const json::object& object, std::string_view key) {
    return object.at(key).to_number<std::uint64_t>();
}

json::object by_type(const std::vector<double>& values, std::span<const std::string> gpu_types) {
    json::object object;
    for (std::size_t i = 0; i < values.size() && i < gpu_types.size(); ++i) object[gpu_types[i]] = values[i];
    return object;
}

std::vector<double> by_index(const json::object& values, std::span<const std::string> gpu_types) {
    std::vector<double> numbers(values.empty() ? 0 : gpu_types.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        if (const json::value* value = values.if_contains(gpu_types[i])) numbers[i] = value->to_number<double>();
    }
    return numbers;
}

Allotment allotment_of(const json::object& object) {
    Allotment held{.count = static_cast<std::uint32_t>(whole(object, "gpus")),
                   .gpu_type = std::string(object.at("gpu_type").as_string()),
                   .opportunistic = object.at("opportunistic").as_bool()};
    for (const json::value& share : object.at("placement").as_array()) {
        NamedGpus gpus{.node = std::string(share.at("node").as_string())};
        for (const json::value& gpu : share.at("gpus").as_array()) {
            const auto index = gpu.to_number<unsigned>();
            if (index >= kGpusPerNodeMax) throw std::out_of_range("a GPU's number");
            gpus.gpus |= std::uint64_t{1} << index;
        }
        held.gpus.push_back(std::move(gpus));
    }
    if (object.contains("packed_with")) held.packed_with = whole(object, "packed_with");
    if (const json::value* cells = object.if_contains("cells")) {  // rows of older daemons have none
        for (const json::value& cell : cells->as_array()) {
            held.cells.push_back({.node = std::string(cell.at("node").as_string()),
                                  .gpu = cell.at("gpu").to_number<std::uint32_t>(),
                                  .level = std::string(cell.at("level").as_string())});
        }
    }
    return held;
}

Phase phase_of(std::string_view text) {
    for (std::size_t i = 0; i < kPhases; ++i) {
        if (name(static_cast<Phase>(i)) == text) return static_cast<Phase>(i);
    }
    throw std::out_of_range("a job's state");
}

StopCause cause_of(std::string_view text) {
    for (const StopCause cause : {StopCause::none, StopCause::preempted, StopCause::moved, StopCause::cancelled,
                                  StopCause::start_timeout, StopCause::node_removed}) {
        if (name(cause) == text) return cause;
    }
    throw std::out_of_range("why a job stops");
}

// Returns only the fields of a submission, because read_submission() rejects all others.
json::object submission_part(const json::object& row) {
    json::object part;
    for (const char* key : {"name",
                            "command",
                            "directory",
                            "environment",
                            "tenant",
                            "gpus",
                            "gpus_min",
                            "gpus_max",
                            "gpu_type",
                            "dataset",
                            "epochs",
                            "ideal_bytes_per_second",
                            "ideal_bytes_per_second_by_type",
                            "priority",
                            "deadline_unix_s",
                            "service",
                            "after",
                            "grace_s",
                            "preemptible",
                            "opportunistic",
                            "elastic",
                            "weight",
                            "restart_s",
                            "packed_rate",
                            "gpu_memory_part",
                            "scaling",
                            "rate_by_nodes",
                            "pods",
                            "hierarchy",
                            "together",
                            "cell",
                            "engine_parameters",
                            "reader_uid"}) {
        if (const json::value* value = row.if_contains(key)) part[key] = *value;
    }
    return part;
}

}  // namespace

json::object row_json(const JobRecord& job, std::span<const std::string> gpu_types) {
    json::object row = to_json(job);
    json::object environment;
    for (const auto& [key, value] : job.asked.environment) environment[key] = value;
    row["environment"] = std::move(environment);
    if (job.asked.user) row["user"] = json::array{job.asked.user->uid, job.asked.user->gid};
    if (!job.asked.submitter.empty()) row["submitter"] = job.asked.submitter;
    row["stop_cause"] = name(job.stop_cause);
    row["dataset_bytes"] = job.dataset_bytes;
    row["registered"] = job.registered;
    row["waiting_since_unix_s"] = job.state.waiting_since_s;
    row["started_unix_s"] = job.state.started_s;
    row["gpu_time"] = row_json(job.state.gpu_time);
    row["ran_s_by_type"] = by_type(job.state.ran_s_by_type, gpu_types);
    row["lately_s_by_type"] = by_type(job.state.recent_run_s_by_type, gpu_types);
    row["lately_at_unix_s"] = job.state.recent_run_at_s;
    row["lease_until_unix_s"] = job.state.lease_until_s;
    if (std::isfinite(job.state.admitted_s)) row["admitted_unix_s"] = job.state.admitted_s;
    if (job.state.promised.gpu_type < gpu_types.size()) {
        row["promised_type"] = gpu_types[job.state.promised.gpu_type];
        json::array spans;
        for (const auto& [from_s, until_s] : job.state.promised.spans) spans.push_back(json::array{from_s, until_s});
        row["promised_unix_s"] = std::move(spans);
    }
    if (job.last) row["last"] = to_json(*job.last);
    row["last_ideal_bytes_per_second"] = job.last_ideal;
    row["lost"] = job.lost;
    row["rejected"] = job.rejected;
    if (job.is_resizing) row["resize_unix_s"] = job.resize_s;
    // Older releases read only what the job holds, and may give all else to others.
    if (job.held && &job.in_use() != &*job.held) {
        row["resizes_from"] = to_json(*job.held);
        row["holds"] = to_json(job.in_use());
    }
    if (job.is_resizable) row["is_resizable"] = true;
    if (job.may_lack_nodes) row["may_lack_nodes"] = true;
    if (job.refused_growths > 0) row["refused_growths"] = job.refused_growths;
    if (job.grow_not_before_s > 0) row["grow_not_before_unix_s"] = job.grow_not_before_s;
    row["not_before_unix_s"] = job.not_before_s;
    json::object counted;
    for (const auto& [node, count] : job.counted) counted[node] = json::array{count.instance, count.bytes};
    row["counted"] = std::move(counted);
    return row;
}

JobRecord job_of_row(const json::object& row, std::span<const std::string> gpu_types) {
    auto asked = read_submission(submission_part(row), "");
    if (!asked) throw std::runtime_error(asked.error().message);
    JobRecord job{.id = whole(row, "id"), .asked = std::move(*asked)};
    if (const json::value* user = row.if_contains("user")) {
        job.asked.user = RunAs{user->at(0).to_number<std::uint32_t>(), user->at(1).to_number<std::uint32_t>()};
    }
    if (const json::value* submitter = row.if_contains("submitter")) job.asked.submitter = submitter->as_string();
    for (const json::value& id : row.at("waits_for_jobs").as_array()) job.after.push_back(id.to_number<JobId>());
    job.dataset_bytes = whole(row, "dataset_bytes");
    job.phase = phase_of(row.at("state").as_string());
    job.stop_cause = cause_of(row.at("stop_cause").as_string());
    job.attempt = static_cast<std::uint32_t>(whole(row, "attempt"));
    if (const json::value* held = row.if_contains("holds")) job.held = allotment_of(held->as_object());
    if (const json::value* next = row.if_contains("moves_to")) job.next = allotment_of(next->as_object());
    if (const json::value* next = row.if_contains("resizes_to")) job.next = allotment_of(next->as_object());
    if (const json::value* held = row.if_contains("resizes_from")) job.held = allotment_of(held->as_object());
    if (row.contains("resizes")) job.resizes = static_cast<std::uint32_t>(whole(row, "resizes"));
    job.is_resizing = row.contains("resize_unix_s");
    if (job.is_resizing) job.resize_s = number(row, "resize_unix_s");
    job.is_resizable = row.contains("is_resizable");
    job.may_lack_nodes = row.contains("may_lack_nodes");
    if (row.contains("refused_growths"))
        job.refused_growths = static_cast<std::uint32_t>(whole(row, "refused_growths"));
    if (row.contains("grow_not_before_unix_s")) job.grow_not_before_s = number(row, "grow_not_before_unix_s");
    if (const json::value* last = row.if_contains("last")) job.last = allotment_of(last->as_object());
    if (const json::value* devices = row.if_contains("devices")) {
        for (const json::value& granted : devices->as_array()) {
            GrantedDevices& into = job.devices.emplace_back();
            into.node = granted.at("node").as_string();
            for (const json::value& device : granted.at("devices").as_array()) {
                into.devices.emplace_back(device.as_string());
            }
        }
    }
    if (row.contains("last_ideal_bytes_per_second")) job.last_ideal = number(row, "last_ideal_bytes_per_second");
    job.registered = row.at("registered").as_bool();
    job.submitted_s = number(row, "submitted_unix_s");
    if (row.contains("ended_unix_s")) job.ended_s = number(row, "ended_unix_s");
    JobState& state = job.state;
    state.waiting_since_s = number(row, "waiting_since_unix_s");
    state.started_s = number(row, "started_unix_s");
    if (row.contains("first_started_unix_s")) state.first_started_s = number(row, "first_started_unix_s");
    state.attained_gpu_s = number(row, "attained_gpu_s");
    if (const json::value* gpu_time = row.if_contains("gpu_time"))
        state.gpu_time = gpu_time_of_row(gpu_time->as_object());
    state.ran_s = number(row, "ran_s");
    state.ran_s_by_type = by_index(row.at("ran_s_by_type").as_object(), gpu_types);
    state.recent_run_s_by_type = by_index(row.at("lately_s_by_type").as_object(), gpu_types);
    state.recent_run_at_s = number(row, "lately_at_unix_s");
    state.lease_until_s = number(row, "lease_until_unix_s");
    if (row.contains("admitted_unix_s")) state.admitted_s = number(row, "admitted_unix_s");
    if (row.contains("promised_type")) {
        const auto type = std::ranges::find(gpu_types, std::string_view(row.at("promised_type").as_string()));
        if (type != gpu_types.end()) state.promised.gpu_type = static_cast<std::uint32_t>(type - gpu_types.begin());
        for (const json::value& span : row.at("promised_unix_s").as_array()) {
            state.promised.spans.emplace_back(span.at(0).to_number<double>(), span.at(1).to_number<double>());
        }
    }
    state.preemptions = static_cast<std::uint32_t>(whole(row, "preemptions"));
    job.lost = static_cast<std::uint32_t>(whole(row, "lost"));
    if (row.contains("rejected")) {  // rows of older daemons lack these
        job.rejected = static_cast<std::uint32_t>(whole(row, "rejected"));
        job.not_before_s = number(row, "not_before_unix_s");
    }
    if (const json::value* reason = row.if_contains("pending_for")) job.pending_for = reason->as_string();
    job.read_bytes = number(row, "read_bytes");
    for (const auto& [node, count] : row.at("counted").as_object()) {
        job.counted[std::string(node)] = {count.at(0).to_number<std::uint64_t>(),
                                          count.at(1).to_number<std::uint64_t>()};
    }
    if (row.contains("exit_code")) job.exit_code = row.at("exit_code").to_number<int>();
    if (row.contains("exit_signal")) job.exit_signal = row.at("exit_signal").to_number<int>();
    if (row.contains("end_reason")) job.end_reason = row.at("end_reason").as_string();
    for (const json::value& entry : row.at("log").as_array()) {
        job.log.push_back({entry.at("unix_s").to_number<double>(), std::string(entry.at("text").as_string())});
    }
    return job;
}

json::object row_json(const GpuTime& use) {
    json::array used;
    for (const double gpu_s : use.gpu_s_by_interval) used.push_back(gpu_s);
    return {{"interval", use.interval}, {"gpu_s_by_interval", std::move(used)}};
}

json::object row_json(const NodeInventory& node) {
    json::object labels;
    for (const auto& [key, label] : node.labels) labels[key] = label;
    return {{"gpus", node.gpus}, {"gpu_type", node.gpu_type}, {"labels", std::move(labels)}};
}

NodeInventory node_of_row(const json::object& row) {
    NodeInventory node{.gpus = row.at("gpus").to_number<std::uint32_t>(),
                       .gpu_type = std::string(row.at("gpu_type").as_string()),
                       .labels = {}};
    if (node.gpus > kGpusPerNodeMax) throw std::out_of_range("a node's number of GPUs");
    for (const auto& [key, label] : row.at("labels").as_object()) {
        node.labels[std::string(key)] = label.as_string();
    }
    return node;
}

GpuTime gpu_time_of_row(const json::object& row) {
    GpuTime use{.interval = row.at("interval").to_number<std::int64_t>()};
    for (const json::value& gpu_s : row.at("gpu_s_by_interval").as_array()) {
        use.gpu_s_by_interval.push_back(gpu_s.to_number<double>());
    }
    return use;
}

}  // namespace larder::scheduler
