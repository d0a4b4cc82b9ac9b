#include "scheduler/live/json.h"

#include <boost/json.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/server/json_reader.h"

namespace larder::scheduler {
namespace json = boost::json;
namespace {

constexpr std::array<std::string_view, 3> kServices{"best_effort", "soft", "strict"};

std::uint32_t count_of(JsonReader& reader, std::string_view key, std::uint32_t otherwise) {
    const auto value = reader.optional_unsigned_integer(key);
    if (!value) return otherwise;
    if (*value > std::numeric_limits<std::uint32_t>::max() - 1) reader.reject(key, "is too large");
    return static_cast<std::uint32_t>(*value);
}

std::vector<std::string> texts_of(JsonReader& reader, std::string_view key, bool required) {
    std::vector<std::string> texts;
    if (!required && !reader.has(key)) return texts;
    for (const json::value& value : reader.array(key)) {
        if (!value.is_string()) {
            reader.reject(key, "must be strings only");
            return {};
        }
        texts.emplace_back(value.get_string());
    }
    return texts;
}

std::vector<double> rates_of(JsonReader& reader, std::string_view key) {
    std::vector<double> rates;
    if (!reader.has(key)) return rates;
    for (const json::value& value : reader.array(key)) {
        if (!value.is_number()) {
            reader.reject(key, "must be numbers only");
            return {};
        }
        rates.push_back(value.to_number<double>());
    }
    return rates;
}

GangShape shape_of(JsonReader& reader) {
    GangShape shape;
    shape.hierarchy = reader.optional_string("hierarchy").value_or("");
    shape.together = reader.optional_string("together").value_or("");
    shape.cell = reader.optional_string("cell").value_or("");
    if (!reader.has("pods")) return shape;
    for (const json::value& value : reader.array("pods")) {
        boost::system::error_code error;
        const auto gpus = value.is_number() ? value.to_number<std::uint32_t>(error) : 0;
        if (!value.is_number() || error) {
            reader.reject("pods", "must be whole numbers of GPUs only");
            return shape;
        }
        shape.pods.push_back(gpus);
    }
    return shape;
}

std::uint32_t sum_of(JsonReader& reader, const std::vector<std::uint32_t>& pods) {
    const std::uint64_t gpus = std::accumulate(pods.begin(), pods.end(), std::uint64_t{0});
    if (gpus > std::numeric_limits<std::uint32_t>::max() - 1) reader.reject("pods", "have too many GPUs");
    return static_cast<std::uint32_t>(gpus);
}

void read_environment(JsonReader& reader, Submission& job) {
    const json::object* environment = reader.optional_object("environment");
    if (environment == nullptr) return;
    for (const auto& [key, value] : *environment) {
        if (!value.is_string()) return reader.reject("environment", "must have strings for values");
        job.environment[std::string(key)] = value.get_string();
    }
}

void read_parameters(JsonReader& reader, Submission& job) {
    const json::object* parameters = reader.optional_object("engine_parameters");
    if (parameters == nullptr) return;
    for (const auto& [key, value] : *parameters) {
        if (!value.is_string()) return reader.reject("engine_parameters", "must have strings for values");
        job.engine_parameters[std::string(key)] = value.get_string();
    }
}

void read_ideals(JsonReader& reader, Submission& job) {
    if (reader.has("ideal_bytes_per_second")) job.ideal_by_type[""] = reader.number("ideal_bytes_per_second");
    const json::object* by_type = reader.optional_object("ideal_bytes_per_second_by_type");
    if (by_type == nullptr) return;
    for (const auto& [type, rate] : *by_type) {
        if (!rate.is_number() || type.empty()) {
            return reader.reject("ideal_bytes_per_second_by_type", "must have a rate for each GPU type");
        }
        job.ideal_by_type[std::string(type)] = rate.to_number<double>();
    }
}

void read_service(JsonReader& reader, Submission& job) {
    if (reader.has("deadline_unix_s")) job.deadline_s = reader.number("deadline_unix_s");
    const auto service = reader.optional_string("service");
    if (!service) return;
    for (std::size_t i = 0; i < kServices.size(); ++i) {
        if (*service == kServices[i]) {
            job.service = static_cast<ServiceClass>(i);
            return;
        }
    }
    reader.reject("service", "must be \"strict\", \"soft\" or \"best_effort\"");
}

json::array texts(const std::vector<std::string>& values) {
    json::array array;
    for (const std::string& value : values) array.push_back(json::value(value));
    return array;
}

void put_submission(json::object& object, const Submission& job) {
    object["name"] = job.name;
    object["command"] = texts(job.command);
    object["directory"] = job.directory;
    object["tenant"] = job.tenant;
    object["gpus"] = job.gpus;
    if (job.gpus_min > 0) object["gpus_min"] = job.gpus_min;
    if (job.gpus_max > 0) object["gpus_max"] = job.gpus_max;
    if (!job.gpu_type.empty()) object["gpu_type"] = job.gpu_type;
    if (!job.dataset.empty()) object["dataset"] = job.dataset;
    if (job.epochs) object["epochs"] = *job.epochs;
    json::object by_type;
    for (const auto& [type, rate] : job.ideal_by_type) {
        if (type.empty()) {
            object["ideal_bytes_per_second"] = rate;
        } else {
            by_type[type] = rate;
        }
    }
    if (!by_type.empty()) object["ideal_bytes_per_second_by_type"] = std::move(by_type);
    object["priority"] = job.priority;
    if (job.deadline_s) object["deadline_unix_s"] = *job.deadline_s;
    object["service"] = kServices[static_cast<std::size_t>(job.service)];
    if (!job.after.empty()) object["after"] = texts(job.after);
    object["grace_s"] = job.grace_s;
    object["preemptible"] = job.preemptible;
    object["opportunistic"] = job.opportunistic;
    if (job.elastic) object["elastic"] = true;
    object["weight"] = job.weight;
    object["restart_s"] = job.restart_s;
    object["packed_rate"] = job.packed_rate;
    object["gpu_memory_part"] = job.gpu_memory_part;
    if (!job.scaling.empty()) object["scaling"] = json::value_from(job.scaling);
    if (!job.rate_by_nodes.empty()) object["rate_by_nodes"] = json::value_from(job.rate_by_nodes);
    if (!job.shape.pods.empty()) object["pods"] = json::value_from(job.shape.pods);
    if (!job.shape.hierarchy.empty()) object["hierarchy"] = job.shape.hierarchy;
    if (!job.shape.together.empty()) object["together"] = job.shape.together;
    if (!job.shape.cell.empty()) object["cell"] = job.shape.cell;
    json::object parameters;
    for (const auto& [key, value] : job.engine_parameters) parameters[key] = value;
    if (!parameters.empty()) object["engine_parameters"] = std::move(parameters);
    if (job.reader_uid) object["reader_uid"] = *job.reader_uid;
}

}  // namespace

json::object to_json(const Allotment& held) {
    json::array shares;
    for (const NamedGpus& share : held.gpus) {
        json::array numbers;
        for (unsigned i = 0; i < kGpusPerNodeMax; ++i) {
            if ((share.gpus >> i & 1) != 0) numbers.push_back(i);
        }
        shares.push_back(json::object{{"node", share.node}, {"gpus", std::move(numbers)}});
    }
    json::object object{{"gpus", held.count},
                        {"gpu_type", held.gpu_type},
                        {"opportunistic", held.opportunistic},
                        {"placement", std::move(shares)}};
    if (held.packed_with) object["packed_with"] = *held.packed_with;
    json::array cells;
    for (const NamedCell& cell : held.cells) {
        cells.push_back(json::object{{"level", cell.level}, {"node", cell.node}, {"gpu", cell.gpu}});
    }
    if (!cells.empty()) object["cells"] = std::move(cells);
    return object;
}

Result<Submission> read_submission(const json::object& object, std::string where) {
    JsonReader reader(object, std::move(where));
    Submission job;
    job.name = reader.optional_string("name").value_or("");
    job.command = texts_of(reader, "command", true);
    job.directory = reader.string("directory");
    read_environment(reader, job);
    read_parameters(reader, job);
    job.tenant = reader.optional_string("tenant").value_or(job.tenant);
    job.shape = shape_of(reader);
    const bool counts_pods = !job.shape.pods.empty() && !reader.has("gpus");
    job.gpus = counts_pods ? sum_of(reader, job.shape.pods) : count_of(reader, "gpus", 1);
    job.gpus_min = count_of(reader, "gpus_min", 0);
    job.gpus_max = count_of(reader, "gpus_max", 0);
    job.gpu_type = reader.optional_string("gpu_type").value_or("");
    job.dataset = reader.optional_string("dataset").value_or("");
    if (reader.has("epochs")) job.epochs = reader.number("epochs");
    read_ideals(reader, job);
    const std::int64_t priority = reader.optional_integer("priority").value_or(0);
    if (priority < -1'000'000 || priority > 1'000'000) reader.reject("priority", "must be from -1000000 to 1000000");
    job.priority = static_cast<std::int32_t>(priority);
    read_service(reader, job);
    job.after = texts_of(reader, "after", false);
    if (reader.has("grace_s")) job.grace_s = reader.number("grace_s");
    job.preemptible = reader.optional_boolean("preemptible").value_or(true);
    job.opportunistic = reader.optional_boolean("opportunistic").value_or(false);
    job.elastic = reader.optional_boolean("elastic").value_or(false);
    if (reader.has("weight")) job.weight = reader.number("weight");
    if (reader.has("restart_s")) job.restart_s = reader.number("restart_s");
    if (reader.has("packed_rate")) job.packed_rate = reader.number("packed_rate");
    if (reader.has("gpu_memory_part")) job.gpu_memory_part = reader.number("gpu_memory_part");
    job.scaling = rates_of(reader, "scaling");
    job.rate_by_nodes = rates_of(reader, "rate_by_nodes");
    if (reader.has("reader_uid")) job.reader_uid = count_of(reader, "reader_uid", 0);
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    return job;
}

json::object to_json(const JobRecord& job) {
    json::object object{{"id", job.id}};
    put_submission(object, job.asked);
    object["state"] = name(job.phase);
    if (job.phase == Phase::stopping) object["stop_cause"] = name(job.stop_cause);
    json::array after;
    for (const JobId id : job.after) after.push_back(json::value(id));
    object["waits_for_jobs"] = std::move(after);
    object["attempt"] = job.attempt;
    object["preemptions"] = job.state.preemptions;
    if (!job.pending_for.empty()) object["pending_for"] = job.pending_for;
    if (job.held) object["holds"] = to_json(*job.held);
    if (job.resizes > 0) object["resizes"] = job.resizes;
    if (job.next) object[job.phase == Phase::running ? "resizes_to" : "moves_to"] = to_json(*job.next);
    json::array devices;
    for (const GrantedDevices& granted : job.devices) {
        devices.push_back(json::object{{"node", granted.node}, {"devices", texts(granted.devices)}});
    }
    if (!devices.empty()) object["devices"] = std::move(devices);
    object["submitted_unix_s"] = job.submitted_s;
    if (std::isfinite(job.state.first_started_s)) object["first_started_unix_s"] = job.state.first_started_s;
    if (job.attempt > 0) object["started_unix_s"] = job.state.started_s;
    if (has_ended(job.phase)) object["ended_unix_s"] = job.ended_s;
    object["ran_s"] = job.state.ran_s;
    object["attained_gpu_s"] = job.state.attained_gpu_s;
    object["read_bytes"] = job.read_bytes;
    if (std::isfinite(job.total_bytes())) object["total_bytes"] = job.total_bytes();
    if (job.exit_code) object["exit_code"] = *job.exit_code;
    if (job.exit_signal) object["exit_signal"] = *job.exit_signal;
    if (!job.end_reason.empty()) object["end_reason"] = job.end_reason;
    json::array log;
    for (const LogEntry& entry : job.log) log.push_back(json::object{{"unix_s", entry.at_s}, {"text", entry.text}});
    object["log"] = std::move(log);
    return object;
}

}  // namespace larder::scheduler
