#include "scheduler/engines/agent/agent_json.h"

#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <limits>

#include "base/server/json_reader.h"
#include "scheduler/live/engine_event_names.h"

namespace larder::scheduler {
namespace json = boost::json;
namespace {

using Kind = EngineEvent::Kind;

constexpr std::size_t kEventsMax = 100'000;  // of one message
constexpr std::size_t kNodeMax = 400;        // bytes of a node's name: it has to fit a key of LMDB
constexpr std::size_t kTextMax = 500;        // bytes of a message to people
constexpr std::size_t kDeviceNodesMax = 1000;
constexpr std::size_t kLabelsMax = 64;             // of a node
constexpr std::size_t kLabelBytesMax = 16u << 10;  // of all labels of a node
constexpr std::size_t kQueueMax = 64;              // bytes of a queue's identity

bool is_about_node(Kind kind) {
    return kind >= Kind::node_lost;
}

json::object to_json(const std::map<std::string, std::string>& texts) {
    json::object object;
    for (const auto& [key, text] : texts) object[key] = text;
    return object;
}

// Every task of a gang knows its rank and where rank 0 is. Gangs that share their first node need ports of their own.
json::array tasks_of(const EngineJob& job) {
    constexpr JobId kFirstPort = 20'000;
    constexpr JobId kPorts = 10'000;
    json::array tasks;
    for (std::size_t rank = 0; rank < job.gpus.size(); ++rank) {
        const NamedGpus& share = job.gpus[rank];
        json::array gpus;
        for (unsigned gpu = 0; gpu < kGpusPerNodeMax; ++gpu) {
            if ((share.gpus >> gpu & 1) != 0) gpus.push_back(gpu);
        }
        json::object environment{{"LARDER_NODE_RANK", std::to_string(rank)},
                                 {"MASTER_ADDR", job.gpus.front().node},
                                 {"MASTER_PORT", std::to_string(kFirstPort + job.job % kPorts)}};
        tasks.push_back(json::object{
            {"node", share.node}, {"rank", rank}, {"gpus", std::move(gpus)}, {"environment", std::move(environment)}});
    }
    return tasks;
}

std::optional<int> exit_number(JsonReader& reader, std::string_view key, int least) {
    const auto number = reader.optional_integer(key);
    if (!number) return std::nullopt;
    if (*number < least || *number > 255) {
        reader.reject(key, "must be from " + std::to_string(least) + " to 255");
        return std::nullopt;
    }
    return static_cast<int>(*number);
}

std::string text_of(JsonReader& reader, std::string_view key) {
    std::string text = reader.optional_string(key).value_or("");
    if (text.size() > kTextMax) reader.reject(key, "must have at most 500 bytes");
    return text;
}

std::vector<GrantedDevices> devices_of(JsonReader& reader) {
    std::vector<GrantedDevices> granted;
    if (!reader.has("devices")) return granted;
    const auto is_text = [](const json::value& value) {
        return value.is_string() && !value.get_string().empty() && value.get_string().size() <= kNodeMax;
    };
    for (const json::value& value : reader.array("devices")) {
        const json::object* const one = value.if_object();
        const json::value* const node = one == nullptr ? nullptr : one->if_contains("node");
        const json::value* const names = one == nullptr ? nullptr : one->if_contains("devices");
        const bool is_good = node != nullptr && is_text(*node) && names != nullptr && names->is_array() &&
                             names->get_array().size() <= kGpusPerNodeMax && one->size() == 2 &&
                             std::ranges::all_of(names->get_array(), is_text) && granted.size() < kDeviceNodesMax;
        if (!is_good) {
            reader.reject("devices",
                          "must have a node and at most 64 devices, each a text, for each of at most 1000 nodes");
            return {};
        }
        GrantedDevices& into = granted.emplace_back();
        into.node = node->get_string();
        for (const json::value& name : names->get_array()) into.devices.emplace_back(name.get_string());
    }
    return granted;
}

std::vector<std::string> names_of(JsonReader& reader, std::string_view key) {
    std::vector<std::string> names;
    if (!reader.has(key)) return names;
    const json::array& array = reader.array(key);
    names.reserve(array.size());
    for (const json::value& name : array) {
        if (!name.is_string() || name.get_string().size() > kTextMax || names.size() == kEventsMax) {
            reader.reject(key, "must be at most 100000 names");
            return {};
        }
        names.emplace_back(name.get_string());
    }
    return names;
}

std::optional<NodeInventory> inventory_of(JsonReader& reader) {
    const auto gpus = reader.optional_unsigned_integer("gpus");
    NodeInventory inventory{.gpus = 0, .gpu_type = text_of(reader, "gpu_type"), .labels = {}};
    const json::object* const labels = reader.optional_object("labels");
    if (labels != nullptr) {
        if (labels->size() > kLabelsMax) reader.reject("labels", "are more than 64");
        std::size_t bytes = 0;
        for (const auto& [key, label] : *labels) {
            if (!label.is_string() || label.get_string().size() > kTextMax || key.size() > kTextMax) {
                reader.reject("labels", "must have strings of at most 500 bytes");
                break;
            }
            bytes += key.size() + label.get_string().size();
            inventory.labels[std::string(key)] = label.get_string();
        }
        if (bytes > kLabelBytesMax) reader.reject("labels", "must have at most 16384 bytes in all");
    }
    if (!gpus) return std::nullopt;
    if (*gpus > kGpusPerNodeMax) reader.reject("gpus", "must be at most 64");
    inventory.gpus = static_cast<std::uint32_t>(std::min<std::uint64_t>(*gpus, kGpusPerNodeMax));
    return inventory;
}

std::uint32_t resize_of(JsonReader& reader, Kind kind) {
    const auto resize = reader.optional_unsigned_integer("resize");
    if (resize && *resize > std::numeric_limits<std::uint32_t>::max()) reader.reject("resize", "is too large");
    const bool is_answer = kind == Kind::resized || kind == Kind::resize_refused;
    if (is_answer && resize.value_or(0) == 0) reader.reject("resize", "must be there, and at least 1");
    return static_cast<std::uint32_t>(resize.value_or(0));
}

enum class About : std::uint8_t { nodes, attempts, both };

Result<std::vector<EngineEvent>> read_events(const json::array& list, std::string_view key, About about) {
    std::vector<EngineEvent> events;
    events.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
        const std::string where = std::string(key) + "[" + std::to_string(i) + "]";
        if (!list[i].is_object()) return fail(ErrorCode::invalid_argument, where + " is not an object");
        auto event = read_engine_event(list[i].get_object(), where);
        if (!event) return std::unexpected(event.error());
        if (about != About::both && is_about_node(event->kind) != (about == About::nodes)) {
            return fail(ErrorCode::invalid_argument,
                        where + ": kind must be about " + (about == About::nodes ? "a node" : "an attempt"));
        }
        events.push_back(std::move(*event));
    }
    return events;
}

}  // namespace

json::object to_json(const AgentAction& action) {
    if (!action.job) {
        return {{"number", action.number},
                {"do", "stop"},
                {"queue", action.queue},
                {"job", action.stop_job},
                {"attempt", action.stop_attempt}};
    }
    const EngineJob& job = *action.job;
    json::array command;
    for (const std::string& word : job.command) command.push_back(json::value(word));
    if (action.is_resize) {
        return {{"number", action.number},
                {"do", "resize"},
                {"queue", action.queue},
                {"job", job.job},
                {"attempt", job.attempt},
                {"resize", job.resize},
                {"environment", to_json(job.environment)},
                {"tasks", tasks_of(job)}};
    }
    json::object object{{"number", action.number},
                        {"do", "start"},
                        {"queue", action.queue},
                        {"job", job.job},
                        {"attempt", job.attempt},
                        {"command", std::move(command)},
                        {"directory", job.directory},
                        {"environment", to_json(job.environment)},
                        {"parameters", to_json(job.parameters)},
                        {"grace_s", job.grace_s},
                        {"tasks", tasks_of(job)}};
    if (job.user) object["user"] = json::object{{"uid", job.user->uid}, {"gid", job.user->gid}};
    return object;
}

Result<EngineEvent> read_engine_event(const json::object& object, const std::string& where) {
    JsonReader reader(object, where);
    EngineEvent event;
    const std::string kind = reader.string("kind");
    const auto known = std::ranges::find(kEngineEventNames, kind, &std::pair<Kind, std::string_view>::second);
    if (known == kEngineEventNames.end()) {
        std::string names;
        for (const auto& [one, name] : kEngineEventNames) names += (names.empty() ? "" : ", ") + std::string(name);
        reader.reject("kind", "must be one of " + names);
    } else {
        event.kind = known->first;
    }
    event.message = text_of(reader, "message");
    if (reader.has("at_unix_s")) event.at_s = reader.number("at_unix_s");
    if (known != kEngineEventNames.end() && is_about_node(event.kind)) {
        event.node = reader.string("node");
        if (event.node.empty() || event.node.size() > kNodeMax) reader.reject("node", "must have 1 to 400 bytes");
        if (event.kind != Kind::node_removed) event.inventory = inventory_of(reader);
        const bool needs_gpus = event.kind == Kind::node_added || event.kind == Kind::node_resized;
        if (needs_gpus && !event.inventory) reader.reject("gpus", "is missing");
    } else {
        event.queue = reader.string("queue");
        if (event.queue.empty() || event.queue.size() > kQueueMax) reader.reject("queue", "must have 1 to 64 bytes");
        event.job = reader.unsigned_integer("job");
        const std::uint64_t attempt = reader.unsigned_integer("attempt");
        if (attempt > std::numeric_limits<std::uint32_t>::max()) reader.reject("attempt", "is too large");
        event.attempt = static_cast<std::uint32_t>(attempt);
        event.exit_code = exit_number(reader, "exit_code", 0);
        event.exit_signal = exit_number(reader, "exit_signal", 1);
        event.was_stopping = reader.optional_boolean("was_stopping").value_or(false);
        event.stopped_by = text_of(reader, "stopped_by");
        event.for_good = reader.optional_boolean("for_good").value_or(false);
        event.also_rejected = names_of(reader, "also_rejected");
        event.devices = devices_of(reader);
        event.resize = resize_of(reader, event.kind);
        if (event.kind == Kind::ended && event.exit_code.has_value() == event.exit_signal.has_value()) {
            reader.reject("exit_code", "or exit_signal must be there for \"ended\", and not both");
        }
    }
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    return event;
}

Result<AgentState> read_agent_state(const json::object& object) {
    JsonReader reader(object, "");
    AgentState state{
        .agent = reader.string("agent"), .resizes = false, .drain_commands = {}, .nodes = {}, .attempts = {}};
    const json::array& nodes = reader.array("nodes");
    const json::array& attempts = reader.array("attempts");
    state.resizes = reader.optional_boolean("resizes").value_or(false);
    state.drain_commands = {.drain = text_of(reader, "drain_command"), .undrain = text_of(reader, "undrain_command")};
    if (state.drain_commands.drain.empty() != state.drain_commands.undrain.empty()) {
        reader.reject("undrain_command", "and drain_command must both be there, or neither");
    }
    if (state.agent.empty() || state.agent.size() > 255) reader.reject("agent", "must be a name of 1 to 255 bytes");
    if (nodes.size() + attempts.size() > kEventsMax) reader.reject("attempts", "are too many");
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    auto of_nodes = read_events(nodes, "nodes", About::nodes);
    if (!of_nodes) return std::unexpected(of_nodes.error());
    auto of_attempts = read_events(attempts, "attempts", About::attempts);
    if (!of_attempts) return std::unexpected(of_attempts.error());
    state.nodes = std::move(*of_nodes);
    state.attempts = std::move(*of_attempts);
    return state;
}

Result<AgentReport> read_agent_report(const json::object& object) {
    JsonReader reader(object, "");
    AgentReport report{.session = reader.string("session"), .number = reader.unsigned_integer("number"), .events = {}};
    const json::array& events = reader.array("events");
    if (report.number == 0) reader.reject("number", "must be at least 1");
    if (events.size() > kEventsMax) reader.reject("events", "are too many");
    if (auto finished = reader.finish(); !finished) return std::unexpected(finished.error());
    auto read = read_events(events, "events", About::both);
    if (!read) return std::unexpected(read.error());
    report.events = std::move(*read);
    return report;
}

}  // namespace larder::scheduler
