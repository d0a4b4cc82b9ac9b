#include "cache/control/config_keys.h"

#include <array>
#include <ranges>
#include <string_view>

#include "base/server/config_values.h"
#include "base/server/http_target.h"
#include "base/units.h"
#include "cache/control/remote_json.h"
#include "cache/dataset/dataset_index.h"
#include "cache/store/compression.h"

namespace larder::cache {
namespace {

bool set_bytes_above_0(std::uint64_t& into, const ConfigValue& value) {
    return set_config_bytes(into, value) && into > 0;
}

bool set_io(IoMode& into, const ConfigValue& value) {
    if (config_text_of(value) == nullptr) return false;
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
    return (value.text == "sample" || value.text == "object" || (bytes && *bytes > 0)) && set_config_text(into, value);
}

bool is_http_url(const std::string& text) {
    const auto endpoint = parse_http_endpoint(text);
    return endpoint.has_value() && endpoint->path.empty() && text.contains("://");
}

bool set_endpoint(std::string& into, const ConfigValue& value) {
    return is_http_url(value.text) && set_config_text(into, value);
}

// "http://a:7474, http://b:7474"
bool set_endpoints(std::vector<std::string>& into, const ConfigValue& value) {
    if (config_text_of(value) == nullptr) return false;
    into.clear();
    for (const auto part : std::views::split(std::string_view(value.text), ',')) {
        std::string_view endpoint(part);
        while (endpoint.starts_with(' ')) endpoint.remove_prefix(1);
        while (endpoint.ends_with(' ')) endpoint.remove_suffix(1);
        if (!is_http_url(std::string(endpoint))) return false;
        into.emplace_back(endpoint);
    }
    return true;
}

constexpr std::int64_t kRetryForMost_ns = 3600 * std::int64_t{1'000'000'000};

constexpr std::int64_t kVersionGraceMost_ns = std::int64_t{7} * 24 * 3600 * 1'000'000'000;

constexpr std::string_view kSize = "a size such as \"8 GiB\", in text";
constexpr std::string_view kRate = "a rate such as \"200 MB/s\" or \"1 Gbit\", in text; 0 for no limit";
constexpr std::string_view kBurst = "a size such as \"16 MiB\", in text; 0 to choose it from the rate";
constexpr std::string_view kSlots = "a size such as \"4 GiB\", in text, above 0";
constexpr std::string_view kEndpoint = "a Unix socket's path, http://HOST:PORT or https://HOST:PORT, in text";
constexpr std::string_view kPeerEndpoint = "http://HOST:PORT or https://HOST:PORT, in text";
constexpr std::string_view kAccount = "a name or a number, in text";

using Rule = ConfigRule<DaemonConfig>;
using Value = const ConfigValue&;
using Name = const std::string&;

constexpr std::array kRules{
    Rule{{"state_directory", kConfigPath, "directory for datasets, the index and disk segments"},
         [](DaemonConfig& config, Name, Value value) { return set_config_path(config.state_directory, value); }},
    Rule{{"socket", kConfigPath, "socket that training jobs connect to; default: larderd.sock in state_directory"},
         [](DaemonConfig& config, Name, Value value) { return set_config_path(config.socket_path, value); }},
    Rule{{"socket_mode", kConfigMode,
          "mode of the socket, which says who may connect; datasets have their own access control"},
         [](DaemonConfig& config, Name, Value value) { return set_config_mode(config.socket_mode, value); }},
    Rule{{"admin_socket", kConfigPath,
          "socket that the larder command connects to; default: admin.sock in state_directory"},
         [](DaemonConfig& config, Name, Value value) { return set_config_path(config.admin_socket_path, value); }},
    Rule{{"admin_socket_mode", kConfigMode, "mode of the admin socket, which says who may administer"},
         [](DaemonConfig& config, Name, Value value) { return set_config_mode(config.admin_socket_mode, value); }},
    Rule{{"metrics_listen", "IP:PORT such as \"127.0.0.1:9464\", in text",
          "address that also serves /metrics and /healthz; default: on the admin socket only"},
         [](DaemonConfig& config, Name, Value value) {
             return parse_host_port(value.text).has_value() && set_config_text(config.metrics_listen, value);
         }},
    Rule{{"io", "\"auto\", \"ring\" or \"threads\"",
          "how to read: by io_uring or by a pool of threads; auto uses threads if io_uring is refused"},
         [](DaemonConfig& config, Name, Value value) { return set_io(config.io, value); }},
    Rule{{"data_plane_threads", "a whole number, 0 to 64",
          "threads that serve blocks; 0: a quarter of the cores, 1 to 8"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_count(config.data_plane_threads, value, 0, 64);
         }},
    Rule{{"disk_reads_max", "a whole number, 1 to 65536",
          "disk reads that one data-plane thread runs at a time; more wait in order"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_count(config.disk_reads_max, value, 1, 65536);
         }},
    Rule{{"memory", kSize, "memory of this node to divide into memory quotas"},
         [](DaemonConfig& config, Name, Value value) { return set_config_bytes(config.memory_bytes, value); }},
    Rule{{"disk", kSize, "disk space of this node to divide into disk quotas"},
         [](DaemonConfig& config, Name, Value value) { return set_config_bytes(config.disk_bytes, value); }},
    Rule{{"version_grace", "a duration such as \"120 s\", in text",
          "time to keep an old version of a dataset that no session reads"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_duration(config.version_grace_ns, value, 0, kVersionGraceMost_ns);
         }},
    Rule{{"default_remote_rate", kRate, "remote bandwidth of a job that has no [job.NAME]"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_rate(config.default_job.remote_bytes_per_second, value);
         }},
    Rule{{"default_remote_burst", kBurst, "bytes that a job without [job.NAME] may read at once after a pause"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_bytes(config.default_job.remote_burst_bytes, value);
         }},
    Rule{{"log.level", kConfigLogLevel, "lowest level to log"},
         [](DaemonConfig& config, Name, Value value) { return set_config_log_level(config.log_level, value); }},
    Rule{{"log.file", kConfigPath, "log file; default: stderr"},
         [](DaemonConfig& config, Name, Value value) { return set_config_path(config.log_file, value); }},
    Rule{{"session.slot_memory_max", kSlots, "most memory that one session may ask for its prefetched blocks"},
         [](DaemonConfig& config, Name, Value value) {
             return set_bytes_above_0(config.session_slot_bytes_max, value);
         }},
    Rule{
        {"session.count_max", "a whole number, 1 to 65536", "most sessions at a time"},
        [](DaemonConfig& config, Name, Value value) { return set_config_count(config.sessions_max, value, 1, 65536); }},
    Rule{{"remote.connections", "a whole number, 1 to 1024", "most requests at a time to one endpoint"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_count(config.remote.connections_max, value, 1, 1024);
         }},
    Rule{{"remote.retry_for", "a duration such as \"60 s\", in text",
          "time after which a request that keeps failing is given up"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_duration(config.remote.retry_for_ns, value, 0, kRetryForMost_ns);
         }},
    Rule{{"remote.stall_timeout", "a duration such as \"10 s\", in text",
          "time without bytes after which a request is retried"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_duration(config.remote.stall_timeout_ns, value, 1'000'000'000, kRetryForMost_ns);
         }},
    Rule{{"remote.request_timeout", "a duration such as \"300 s\", in text",
          "time, plus a second per 64 KiB requested, after which a request is retried"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_duration(config.remote.request_timeout_ns, value, 1'000'000'000, kRetryForMost_ns);
         }},
    Rule{{"remote.hedge", kConfigFlag, "sends a second request when one is slower than 99 of 100"},
         [](DaemonConfig& config, Name, Value value) { return set_config_flag(config.remote.hedge, value); }},
    Rule{{"remote.ca", kConfigPath, "CA file to verify https:// servers; default: the system's CAs"},
         [](DaemonConfig& config, Name, Value value) { return set_config_path(config.remote.ca_file, value); }},
    Rule{{"allocator.endpoint", kEndpoint, "the allocator that sets quotas and rates; default: none"},
         [](DaemonConfig& config, Name, Value value) {
             return parse_http_endpoint(value.text).has_value() && set_config_text(config.allocator.endpoint, value);
         }},
    Rule{{"allocator.node", "a name, in text", "this node's name at the allocator; default: the host's name"},
         [](DaemonConfig& config, Name, Value value) { return set_config_text(config.allocator.node, value); }},
    Rule{{"allocator.token_file", kConfigPath,
          "file with the token that this node sends to an allocator over the network"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_path(config.allocator.credentials.token_file, value);
         }},
    Rule{{"allocator.ca", kConfigPath, "CA file to verify the allocator's certificate; default: the system's CAs"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_path(config.allocator.credentials.ca_file, value);
         }},
    Rule{{"allocator.certificate", kConfigPath, "client certificate to show the allocator"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_path(config.allocator.credentials.certificate_file, value);
         }},
    Rule{{"allocator.key", kConfigPath, "key of the client certificate"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_path(config.allocator.credentials.key_file, value);
         }},
    Rule{{"allocator.rates", kConfigFlag,
          "false: the allocator sets quotas only, except quotas set by hand; default: true"},
         [](DaemonConfig& config, Name, Value value) { return set_config_flag(config.allocator.rates, value); }},
    Rule{{"allocator.gpus", "a whole number, 0 to 65536", "GPUs of this node; 0: one per running training loop"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_count(config.allocator.gpus, value, 0, 65536);
         }},
    Rule{{"allocator.nic", kRate, "bandwidth of this node's network, each way"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_rate(config.allocator.nic_bytes_per_second, value);
         }},
    Rule{{"allocator.disk_read", kRate, "read rate of this node's cache disk"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_rate(config.allocator.disk_read_bytes_per_second, value);
         }},
    Rule{{"allocator.floor", "a rate such as \"1 MiB/s\", in text, above 0",
          "remote bandwidth of all jobs on this node until the allocator has answered"},
         [](DaemonConfig& config, Name, Value value) {
             return set_config_rate(config.allocator.floor_bytes_per_second, value) &&
                    config.allocator.floor_bytes_per_second > 0;
         }},
    Rule{{"peers.listen", "IP:PORT such as \"0.0.0.0:7474\", in text",
          "address that lends cached blocks to other nodes; default: none are lent"},
         [](DaemonConfig& config, Name, Value value) {
             return parse_host_port(value.text).has_value() && set_config_text(config.peers.listen, value);
         }},
    Rule{{"peers.endpoint", kPeerEndpoint,
          "endpoint where other nodes reach peers.listen; default: peers.listen, with the host's name for 0.0.0.0"},
         [](DaemonConfig& config, Name, Value value) { return set_endpoint(config.peers.endpoint, value); }},
    Rule{{"peers.group", "a name, in text", "group of nodes that the allocator lets read each other's cache"},
         [](DaemonConfig& config, Name, Value value) { return set_config_text(config.peers.group, value); }},
    Rule{{"peers.others", "endpoints such as \"http://node-2:7474, http://node-3:7474\", in text",
          "nodes whose cache this node reads if no allocator names them"},
         [](DaemonConfig& config, Name, Value value) { return set_endpoints(config.peers.others, value); }},
    Rule{{"peers.token_file", kConfigPath,
          "file with the secret that peers share; whoever has it can read everything cached"},
         [](DaemonConfig& config, Name, Value value) { return set_config_path(config.peers.token_file, value); }},
    Rule{{"peers.certificate", kConfigPath, "server certificate for https:// at peers.listen"},
         [](DaemonConfig& config, Name, Value value) { return set_config_path(config.peers.certificate_file, value); }},
    Rule{{"peers.key", kConfigPath, "key of peers.certificate"},
         [](DaemonConfig& config, Name, Value value) { return set_config_path(config.peers.key_file, value); }},
    Rule{{"peers.ca", kConfigPath, "CA file to verify peers' certificates; default: the system's CAs"},
         [](DaemonConfig& config, Name, Value value) { return set_config_path(config.peers.ca_file, value); }},
    Rule{{"job.NAME.remote_rate", kRate, "remote bandwidth of this job on this node"},
         [](DaemonConfig& config, Name name, Value value) {
             return set_config_rate(config.jobs[name].remote_bytes_per_second, value);
         }},
    Rule{{"job.NAME.remote_burst", kBurst, "bytes that this job may read at once after a pause"},
         [](DaemonConfig& config, Name name, Value value) {
             return set_config_bytes(config.jobs[name].remote_burst_bytes, value);
         }},
    Rule{{"dataset.NAME.url", "a URL such as \"file:///data/images\" or an absolute path, in text",
          "location of the dataset"},
         [](DaemonConfig& config, Name name, Value value) {
             return is_url(value.text) && set_config_text(config.datasets[name].url, value);
         }},
    Rule{{"dataset.NAME.format",
          "one of \"raw\", \"webdataset\", \"mds\", \"litdata\", \"tfrecord\", \"megatron\", \"larder\"",
          "format of the dataset; raw: one file is one sample; default: detected from the files"},
         [](DaemonConfig& config, Name name, Value value) {
             if (!parse_format(value.text)) return false;
             return set_config_text(config.datasets[name].format.emplace(), value);
         }},
    Rule{{"dataset.NAME.block", "\"sample\", \"object\" or a size such as \"8 MiB\"",
          "the unit that is fetched and cached"},
         [](DaemonConfig& config, Name name, Value value) { return set_block(config.datasets[name].block, value); }},
    Rule{{"dataset.NAME.endpoint", "http://host:port or https://host:port",
          "for s3://: the endpoint; default: Amazon's"},
         [](DaemonConfig& config, Name name, Value value) {
             return set_config_text(config.datasets[name].remote.endpoint, value);
         }},
    Rule{{"dataset.NAME.region", "a name, in text",
          "for s3://: the region; default: from the environment or the profile"},
         [](DaemonConfig& config, Name name, Value value) {
             return set_config_text(config.datasets[name].remote.region, value);
         }},
    Rule{{"dataset.NAME.profile", "a name, in text", "for s3://: profile in the shared credentials and config files"},
         [](DaemonConfig& config, Name name, Value value) {
             return set_config_text(config.datasets[name].remote.profile, value);
         }},
    Rule{{"dataset.NAME.addressing", "\"auto\", \"path\" or \"host\"", "for s3://: where the request names the bucket"},
         [](DaemonConfig& config, Name name, Value value) {
             const auto addressing = parse_addressing(value.text);
             if (addressing) config.datasets[name].remote.addressing = *addressing;
             return addressing.has_value();
         }},
    Rule{{"dataset.NAME.unsigned", kConfigFlag, "for s3://: read a public bucket without credentials"},
         [](DaemonConfig& config, Name name, Value value) {
             return set_config_flag(config.datasets[name].remote.unsigned_access, value);
         }},
    Rule{{"dataset.NAME.requester_pays", kConfigFlag, "for s3://: agree to pay for the requests"},
         [](DaemonConfig& config, Name name, Value value) {
             return set_config_flag(config.datasets[name].remote.requester_pays, value);
         }},
    Rule{{"dataset.NAME.compression", "\"none\", \"auto\", \"zstd\" or \"zstd:LEVEL\", level 1 to 19",
          "how blocks are compressed in the cache"},
         [](DaemonConfig& config, Name name, Value value) {
             config.datasets[name].compression = value.text;
             return parse_compression(value.text).has_value();
         }},
    Rule{{"dataset.NAME.checksum", kConfigFlag, "read everything once and keep the checksum of each block"},
         [](DaemonConfig& config, Name name, Value value) {
             return set_config_flag(config.datasets[name].checksum, value);
         }},
    Rule{{"dataset.NAME.tokens_per_sample", "a whole number, 1 to 67108864",
          "for datasets of tokens (megatron, litdata): length of a sample; default: a sample is a document"},
         [](DaemonConfig& config, Name name, Value value) {
             return set_config_count(config.datasets[name].tokens_per_sample, value, 1, kTokensPerSampleMax);
         }},
    Rule{{"dataset.NAME.owner", kAccount, "user who owns the dataset; default: the daemon's user"},
         [](DaemonConfig& config, Name name, Value value) {
             return set_config_text(config.datasets[name].owner, value);
         }},
    Rule{{"dataset.NAME.group", kAccount, "group that owns the dataset; default: the daemon's group"},
         [](DaemonConfig& config, Name name, Value value) {
             return set_config_text(config.datasets[name].group, value);
         }},
    Rule{{"dataset.NAME.mode", kConfigMode, "who may read the dataset, as a file mode"},
         [](DaemonConfig& config, Name name, Value value) {
             return set_config_mode(config.datasets[name].mode, value);
         }},
    Rule{{"dataset.NAME.quota_memory", kSize, "the dataset's quota of the node's memory"},
         [](DaemonConfig& config, Name name, Value value) {
             return set_config_bytes(config.datasets[name].quota_memory_bytes.emplace(), value);
         }},
    Rule{{"dataset.NAME.quota_disk", kSize, "the dataset's quota of the node's disk"},
         [](DaemonConfig& config, Name name, Value value) {
             return set_config_bytes(config.datasets[name].quota_disk_bytes.emplace(), value);
         }},
};

}  // namespace

std::span<const ConfigRule<DaemonConfig>> config_rules() {
    return kRules;
}

}  // namespace larder::cache
