#include "cache/control/config_keys.h"

#include <array>
#include <charconv>
#include <cstdlib>

#include "base/server/http_target.h"
#include "base/server/logging.h"
#include "base/units.h"

namespace larder::cache {
namespace {

using Kind = ConfigValue::Kind;

const std::string* text_of(const ConfigValue& value) {
    return value.kind == Kind::text || value.kind == Kind::flag ? &value.text : nullptr;
}

template <typename Number>
bool set_number(Number& into, const ConfigValue& value, int base, Number least, Number most) {
    Number number{};
    const char* end = value.text.data() + value.text.size();
    const auto [stopped, error] = std::from_chars(value.text.data(), end, number, base);
    if (error != std::errc{} || stopped != end || number < least || number > most) return false;
    into = number;
    return true;
}

bool set_count(unsigned& into, const ConfigValue& value, unsigned least, unsigned most) {
    return (value.kind == Kind::integer || value.kind == Kind::flag) && set_number(into, value, 10, least, most);
}

// "0640", always octal, always text: as a TOML integer 640 would be another number than it looks.
bool set_mode(unsigned& into, const ConfigValue& value) {
    return text_of(value) != nullptr && value.text.size() >= 3 && set_number(into, value, 8, 0u, 0777u);
}

// A bare 0 may be an integer; everything else has a unit and so is text.
bool has_unit(const ConfigValue& value) {
    return text_of(value) != nullptr || value.text == "0";
}

template <typename Bytes>
bool set_bytes(Bytes& into, const ConfigValue& value) {
    const auto bytes = parse_bytes(value.text);
    if (!has_unit(value) || !bytes) return false;
    into = *bytes;
    return true;
}

bool set_rate(double& into, const ConfigValue& value) {
    const auto rate = parse_bytes_per_second(value.text);
    if (!has_unit(value) || !rate) return false;
    into = *rate;
    return true;
}

bool set_bytes_above_0(std::uint64_t& into, const ConfigValue& value) {
    return set_bytes(into, value) && into > 0;
}

bool set_text(std::string& into, const ConfigValue& value) {
    if (text_of(value) == nullptr || value.text.empty()) return false;
    into = value.text;
    return true;
}

bool set_path(std::string& into, const ConfigValue& value) {
    if (!set_text(into, value)) return false;
    if (into.starts_with("~/")) {
        const char* home = std::getenv("HOME");
        if (home == nullptr) return false;
        into.replace(0, 1, home);
    }
    return true;
}

bool set_io(IoMode& into, const ConfigValue& value) {
    if (text_of(value) == nullptr) return false;
    if (value.text == "auto") into = IoMode::automatic;
    if (value.text == "ring") into = IoMode::ring;
    if (value.text == "threads") into = IoMode::threads;
    return value.text == "auto" || value.text == "ring" || value.text == "threads";
}

bool is_url(const std::string& text) {
    return text.starts_with('/') || text.find("://") != std::string::npos;
}

bool set_block(std::string& into, const ConfigValue& value) {
    const auto bytes = parse_bytes(value.text);
    return (value.text == "sample" || value.text == "object" || (bytes && *bytes > 0)) && set_text(into, value);
}

constexpr std::string_view kSize = "a size such as \"8 GiB\", in text";
constexpr std::string_view kRate = "a rate such as \"200 MB/s\" or \"1 Gbit\", in text; 0 for no limit";
constexpr std::string_view kBurst = "a size such as \"16 MiB\", in text; 0 for what suits the rate";
constexpr std::string_view kSlots = "a size such as \"4 GiB\", in text, above 0";
constexpr std::string_view kPath = "a path, in text";
constexpr std::string_view kMode = "an octal mode such as \"0660\", in text";
constexpr std::string_view kEndpoint = "where it listens: the path of a Unix socket, or HOST:PORT, in text";
constexpr std::string_view kAccount = "a name or a number, in text";

using Value = const ConfigValue&;
using Name = const std::string&;

constexpr std::array kRules{
    ConfigRule{{"state_directory", kPath, "where datasets, the index and disk segments are kept"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_path(config.state_directory, value); }},
    ConfigRule{{"socket", kPath, "where training jobs connect; default: larderd.sock in state_directory"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_path(config.socket_path, value); }},
    ConfigRule{{"socket_mode", kMode, "who may connect; datasets have their own access control"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_mode(config.socket_mode, value); }},
    ConfigRule{{"admin_socket", kPath, "where the larder command connects; default: admin.sock in state_directory"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_path(config.admin_socket_path, value); }},
    ConfigRule{{"admin_socket_mode", kMode, "who may administer"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_mode(config.admin_socket_mode, value); }},
    ConfigRule{{"metrics_listen", "IP:PORT such as \"127.0.0.1:9464\", in text",
                "serves /metrics and /healthz over TCP too; default: on the admin socket only"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) {
                   return parse_host_port(value.text).has_value() && set_text(config.metrics_listen, value);
               }},
    ConfigRule{{"io", "\"auto\", \"ring\" or \"threads\"",
                "io_uring, or a pool of threads where it is refused; auto tries the ring first"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_io(config.io, value); }},
    ConfigRule{{"data_plane_threads", "a whole number, 0 to 64", "0: a quarter of the cores, 1 to 8"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_count(config.data_plane_threads, value, 0, 64); }},
    ConfigRule{{"disk_reads_max", "a whole number, 1 to 65536",
                "reads one data-plane thread has at the disk at one time; more wait in order"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_count(config.disk_reads_max, value, 1, 65536); }},
    ConfigRule{{"memory", kSize, "of this node, to be shared out as memory quotas"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_bytes(config.memory_bytes, value); }},
    ConfigRule{{"disk", kSize, "of this node, to be shared out as disk quotas"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_bytes(config.disk_bytes, value); }},
    ConfigRule{
        {"default_remote_rate", kRate, "remote bandwidth of a job that has no [job.NAME]"},
        ConfigTable::top,
        {},
        [](Config& config, Name, Value value) { return set_rate(config.default_job.remote_bytes_per_second, value); }},
    ConfigRule{
        {"default_remote_burst", kBurst, "what such a job may take at once after a pause"},
        ConfigTable::top,
        {},
        [](Config& config, Name, Value value) { return set_bytes(config.default_job.remote_burst_bytes, value); }},
    ConfigRule{{"log.level", "\"trace\", \"debug\", \"info\", \"warn\" or \"error\"", "the least level written"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) {
                   return parse_log_level(value.text).has_value() && set_text(config.log_level, value);
               }},
    ConfigRule{{"log.file", kPath, "default: stderr"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_path(config.log_file, value); }},
    ConfigRule{
        {"session.slot_memory_max", kSlots, "what one session may ask for its prefetched blocks"},
        ConfigTable::top,
        {},
        [](Config& config, Name, Value value) { return set_bytes_above_0(config.session_slot_bytes_max, value); }},
    ConfigRule{{"session.count_max", "a whole number, 1 to 65536", "sessions at one time"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_count(config.sessions_max, value, 1, 65536); }},
    ConfigRule{{"allocator.endpoint", kEndpoint, "the allocator that sets quotas and rates; default: none"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_text(config.allocator.endpoint, value); }},
    ConfigRule{{"allocator.node", "a name, in text", "what the allocator calls this node; default: the host's name"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_text(config.allocator.node, value); }},
    ConfigRule{{"allocator.gpus", "a whole number, 0 to 65536", "GPUs of this node; 0: as many as training loops run"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) { return set_count(config.allocator.gpus, value, 0, 65536); }},
    ConfigRule{
        {"allocator.nic", kRate, "what this node's network carries each way"},
        ConfigTable::top,
        {},
        [](Config& config, Name, Value value) { return set_rate(config.allocator.nic_bytes_per_second, value); }},
    ConfigRule{
        {"allocator.disk_read", kRate, "what this node's cache disk reads"},
        ConfigTable::top,
        {},
        [](Config& config, Name, Value value) { return set_rate(config.allocator.disk_read_bytes_per_second, value); }},
    ConfigRule{{"allocator.floor", "a rate such as \"1 MiB/s\", in text, above 0",
                "remote bandwidth of a job before the allocator has granted it any"},
               ConfigTable::top,
               {},
               [](Config& config, Name, Value value) {
                   return set_rate(config.allocator.floor_bytes_per_second, value) &&
                          config.allocator.floor_bytes_per_second > 0;
               }},
    ConfigRule{{"job.NAME.remote_rate", kRate, "remote bandwidth of this job on this node"},
               ConfigTable::job,
               "remote_rate",
               [](Config& config, Name name, Value value) {
                   return set_rate(config.jobs[name].remote_bytes_per_second, value);
               }},
    ConfigRule{
        {"job.NAME.remote_burst", kBurst, "what it may take at once after a pause"},
        ConfigTable::job,
        "remote_burst",
        [](Config& config, Name name, Value value) { return set_bytes(config.jobs[name].remote_burst_bytes, value); }},
    ConfigRule{{"dataset.NAME.url", "a URL such as \"file:///data/images\" or an absolute path, in text",
                "where the dataset lives"},
               ConfigTable::dataset,
               "url",
               [](Config& config, Name name, Value value) {
                   return is_url(value.text) && set_text(config.datasets[name].url, value);
               }},
    ConfigRule{{"dataset.NAME.format", "\"raw\" or \"webdataset\"",
                "raw: one file is one sample; webdataset: tar shards; default: as its files look"},
               ConfigTable::dataset,
               "format",
               [](Config& config, Name name, Value value) {
                   if (value.text != "raw" && value.text != "webdataset") return false;
                   return set_text(config.datasets[name].format.emplace(), value);
               }},
    ConfigRule{{"dataset.NAME.block", "\"sample\", \"object\" or a size such as \"8 MiB\"",
                "the unit that is fetched and cached"},
               ConfigTable::dataset,
               "block",
               [](Config& config, Name name, Value value) { return set_block(config.datasets[name].block, value); }},
    ConfigRule{{"dataset.NAME.owner", kAccount, "the user who owns it; default: the daemon's"},
               ConfigTable::dataset,
               "owner",
               [](Config& config, Name name, Value value) { return set_text(config.datasets[name].owner, value); }},
    ConfigRule{{"dataset.NAME.group", kAccount, "the group that owns it; default: the daemon's"},
               ConfigTable::dataset,
               "group",
               [](Config& config, Name name, Value value) { return set_text(config.datasets[name].group, value); }},
    ConfigRule{{"dataset.NAME.mode", kMode, "who may read it, as for a file"},
               ConfigTable::dataset,
               "mode",
               [](Config& config, Name name, Value value) { return set_mode(config.datasets[name].mode, value); }},
    ConfigRule{{"dataset.NAME.quota_memory", kSize, "its part of the node's memory"},
               ConfigTable::dataset,
               "quota_memory",
               [](Config& config, Name name, Value value) {
                   return set_bytes(config.datasets[name].quota_memory_bytes, value);
               }},
    ConfigRule{{"dataset.NAME.quota_disk", kSize, "its part of the node's disk"},
               ConfigTable::dataset,
               "quota_disk",
               [](Config& config, Name name, Value value) {
                   return set_bytes(config.datasets[name].quota_disk_bytes, value);
               }},
};

}  // namespace

std::span<const ConfigRule> config_rules() {
    return kRules;
}

}  // namespace larder::cache
