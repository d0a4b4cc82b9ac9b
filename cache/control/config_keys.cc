#include "cache/control/config_keys.h"

#include <array>
#include <ranges>
#include <string_view>

#include "base/server/config_values.h"
#include "base/server/http_target.h"
#include "base/units.h"
#include "cache/control/remote_json.h"
#include "cache/dataset/dataset_index.h"
#include "cache/peers/witnesses.h"
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

bool set_user_part(double& into, const ConfigValue& value) {
    return set_config_number<0, 1>(into, value) && into > 0;
}

bool set_url(std::string& into, const ConfigValue& value) {
    return (value.text.starts_with('/') || value.text.contains("://")) && set_config_text(into, value);
}

bool set_format(std::optional<protocol::Format>& into, const ConfigValue& value) {
    const auto format = parse_format(value.text);
    if (!format || config_text_of(value) == nullptr) return false;
    into = *format;
    return true;
}

bool set_addressing(S3Addressing& into, const ConfigValue& value) {
    const auto addressing = parse_addressing(value.text);
    if (addressing) into = *addressing;
    return addressing.has_value();
}

bool set_compression(Compression& into, const ConfigValue& value) {
    const auto compression = parse_compression(value.text);
    if (compression) into = *compression;
    return compression.has_value();
}

// Accepts every form of endpoint that http_request takes, also a Unix socket, and several of them.
bool set_allocator_endpoint(std::string& into, const ConfigValue& value) {
    return check_http_endpoints(value.text).has_value() && set_config_text(into, value);
}

// Accepts any size above 0. A new dataset's size is checked when the dataset is added.
bool set_block(BlockGoal& into, const ConfigValue& value) {
    if (config_text_of(value) == nullptr) return false;
    if (const auto bytes = parse_bytes(value.text)) {
        into = {.target = protocol::BlockTarget::bytes, .bytes = *bytes};
        return *bytes > 0;
    }
    const auto goal = parse_block_goal(value.text);
    if (goal) into = *goal;
    return goal.has_value();
}

bool set_columns(std::vector<std::string>& into, const ConfigValue& value) {
    if (config_text_of(value) == nullptr) return false;
    const auto columns = parse_columns(value.text);
    if (columns) into = *columns;
    return columns.has_value();
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
    into = split_http_endpoints(value.text);
    return std::ranges::all_of(into, is_http_url);
}

constexpr std::int64_t kRetryForMost_ns = 3600 * std::int64_t{1'000'000'000};

constexpr std::int64_t kVersionGraceMost_ns = std::int64_t{7} * 24 * 3600 * 1'000'000'000;

constexpr std::string_view kSize = "a size such as \"8 GiB\", in text";
constexpr std::string_view kRate = "a rate such as \"200 MB/s\" or \"1 Gbit\", in text; 0 for no limit";
constexpr std::string_view kBurst = "a size such as \"16 MiB\", in text; 0 to choose it from the rate";
constexpr std::string_view kSlots = "a size such as \"4 GiB\", in text, above 0";
constexpr std::string_view kEndpoint =
    "a Unix socket's path, http://HOST:PORT or https://HOST:PORT, several separated by commas, in text";
constexpr std::string_view kPeerEndpoint = "http://HOST:PORT or https://HOST:PORT, in text";
constexpr std::string_view kAccount = "a name or a number, in text";

using Rule = ConfigRule<DaemonConfig>;

constexpr std::array kRules{
    Rule{{"state_directory", kConfigPath, "directory for datasets, the index and disk segments"},
         set_member<set_config_path, &DaemonConfig::state_directory>},
    Rule{{"socket", kConfigPath, "socket that training jobs connect to; default: larderd.sock in state_directory"},
         set_member<set_config_path, &DaemonConfig::socket_path>},
    Rule{{"socket_mode", kConfigMode,
          "mode of the socket, which says who may connect; datasets have their own access control"},
         set_member<set_config_mode, &DaemonConfig::socket_mode>},
    Rule{{"admin_socket", kConfigPath,
          "socket that the larder command connects to; default: admin.sock in state_directory"},
         set_member<set_config_path, &DaemonConfig::admin_socket_path>},
    Rule{{"admin_socket_mode", kConfigMode, "mode of the admin socket, which says who may administer"},
         set_member<set_config_mode, &DaemonConfig::admin_socket_mode>},
    Rule{{"metrics_listen", "IP:PORT such as \"127.0.0.1:9464\", in text",
          "address that also serves /metrics, /healthz and the page; default: on the admin socket only"},
         set_member<set_config_listen, &DaemonConfig::metrics_listen>},
    Rule{{"page.anyone_reads", kConfigFlag,
          "lets everyone who reaches metrics_listen see datasets, jobs and status, in the page too"},
         set_member<set_config_flag, &DaemonConfig::page_anyone_reads>},
    Rule{{"page.token_file", kConfigPath,
          "file of the token that lets its holder look and, in the page too, warm datasets, set quotas and limit jobs"},
         set_member<set_config_path, &DaemonConfig::page_token_file>},
    Rule{{"io", "\"auto\", \"ring\" or \"threads\"",
          "how to read: by io_uring or by a pool of threads; auto uses threads if io_uring is refused"},
         set_member<set_io, &DaemonConfig::io>},
    Rule{{"data_plane_threads", "a whole number, 0 to 64",
          "threads that serve blocks; 0: a quarter of the cores, 1 to 8"},
         set_member<set_config_count<0, 64>, &DaemonConfig::data_plane_threads>},
    Rule{{"disk_reads_max", "a whole number, 1 to 65536",
          "disk reads that one data-plane thread runs at a time; more wait in order"},
         set_member<set_config_count<1, 65536>, &DaemonConfig::disk_reads_max>},
    Rule{{"memory", kSize, "memory of this node to divide into memory quotas"},
         set_member<set_config_bytes, &DaemonConfig::memory_bytes>},
    Rule{{"shared_window", kSize,
          "memory beyond `memory`, for each dataset, for blocks that jobs with the order shared pass to each other; 16 "
          "blocks a job at least; default: a twentieth of `memory`"},
         set_member<set_config_optional<set_config_bytes, std::uint64_t>, &DaemonConfig::shared_window_bytes>},
    Rule{{"disk", kSize, "disk space of this node to divide into disk quotas"},
         set_member<set_config_bytes, &DaemonConfig::disk_bytes>},
    Rule{{"version_grace", "a duration such as \"120 s\", in text",
          "time to keep an old version of a dataset that no session reads"},
         set_member<set_config_duration<0, kVersionGraceMost_ns>, &DaemonConfig::version_grace_ns>},
    Rule{{"default_remote_rate", kRate, "remote bandwidth of a job that has no [job.NAME]"},
         set_member<set_config_rate, &DaemonConfig::default_job, &JobConfig::remote_bytes_per_second>},
    Rule{{"default_remote_burst", kBurst, "bytes that a job without [job.NAME] may read at once after a pause"},
         set_member<set_config_bytes, &DaemonConfig::default_job, &JobConfig::remote_burst_bytes>},
    Rule{{"log.level", kConfigLogLevel, "lowest level to log"},
         set_member<set_config_log_level, &DaemonConfig::log_level>},
    Rule{{"log.file", kConfigPath, "log file; default: stderr"}, set_member<set_config_path, &DaemonConfig::log_file>},
    Rule{{"session.slot_memory_max", kSlots, "most memory that one session may ask for its prefetched blocks"},
         set_member<set_bytes_above_0, &DaemonConfig::session_slot_bytes_max>},
    Rule{{"session.count_max", "a whole number, 1 to 65536", "most sessions at a time"},
         set_member<set_config_count<1, 65536>, &DaemonConfig::sessions_max>},
    Rule{{"session.user_part", "a number above 0, at most 1",
          "part of all sessions, and of the memory for their blocks, that one user may take"},
         set_member<set_user_part, &DaemonConfig::session_user_part>},
    Rule{{"remote.connections", "a whole number, 1 to 1024", "most requests at a time to one endpoint"},
         set_member<set_config_count<1, 1024>, &DaemonConfig::remote, &RemoteConfig::connections_max>},
    Rule{{"remote.retry_for", "a duration such as \"60 s\", in text",
          "time after which a request that keeps failing is given up"},
         set_member<set_config_duration<0, kRetryForMost_ns>, &DaemonConfig::remote, &RemoteConfig::retry_for_ns>},
    Rule{{"remote.stall_timeout", "a duration such as \"10 s\", in text",
          "time without bytes after which a request is retried"},
         set_member<set_config_duration<1'000'000'000, kRetryForMost_ns>, &DaemonConfig::remote,
                    &RemoteConfig::stall_timeout_ns>},
    Rule{{"remote.request_timeout", "a duration such as \"300 s\", in text",
          "time, plus a second per 64 KiB requested, after which a request is retried"},
         set_member<set_config_duration<1'000'000'000, kRetryForMost_ns>, &DaemonConfig::remote,
                    &RemoteConfig::request_timeout_ns>},
    Rule{{"remote.hedge", kConfigFlag, "sends a second request when one is slower than 99 of 100"},
         set_member<set_config_flag, &DaemonConfig::remote, &RemoteConfig::hedge>},
    Rule{{"remote.ca", kConfigPath, "CA file to verify https:// servers; default: the system's CAs"},
         set_member<set_config_path, &DaemonConfig::remote, &RemoteConfig::ca_file>},
    Rule{{"allocator.endpoint", kEndpoint, "the allocator that sets quotas and rates; default: none"},
         set_member<set_allocator_endpoint, &DaemonConfig::allocator, &AllocatorClientConfig::endpoint>},
    Rule{{"allocator.node", "a name, in text", "this node's name at the allocator; default: the host's name"},
         set_member<set_config_text, &DaemonConfig::allocator, &AllocatorClientConfig::node>},
    Rule{{"allocator.token_file", kConfigPath,
          "file with the token that this node sends to an allocator over the network"},
         set_member<set_config_path, &DaemonConfig::allocator, &AllocatorClientConfig::credentials,
                    &HttpCredentials::token_file>},
    Rule{{"allocator.ca", kConfigPath, "CA file to verify the allocator's certificate; default: the system's CAs"},
         set_member<set_config_path, &DaemonConfig::allocator, &AllocatorClientConfig::credentials,
                    &HttpCredentials::ca_file>},
    Rule{{"allocator.certificate", kConfigPath, "client certificate to show the allocator"},
         set_member<set_config_path, &DaemonConfig::allocator, &AllocatorClientConfig::credentials,
                    &HttpCredentials::certificate_file>},
    Rule{{"allocator.key", kConfigPath, "key of the client certificate"},
         set_member<set_config_path, &DaemonConfig::allocator, &AllocatorClientConfig::credentials,
                    &HttpCredentials::key_file>},
    Rule{{"allocator.rates", kConfigFlag,
          "false: the allocator sets quotas only, except quotas set by hand; default: true"},
         set_member<set_config_flag, &DaemonConfig::allocator, &AllocatorClientConfig::rates>},
    Rule{{"allocator.gpus", "a whole number, 0 to 65536", "GPUs of this node; 0: one per running training loop"},
         set_member<set_config_count<0, 65536>, &DaemonConfig::allocator, &AllocatorClientConfig::gpus>},
    Rule{{"allocator.nic", kRate, "bandwidth of this node's network, each way"},
         set_member<set_config_rate, &DaemonConfig::allocator, &AllocatorClientConfig::nic_bytes_per_second>},
    Rule{{"allocator.disk_read", kRate, "read rate of this node's cache disk"},
         set_member<set_config_rate, &DaemonConfig::allocator, &AllocatorClientConfig::disk_read_bytes_per_second>},
    Rule{{"allocator.floor", "a rate such as \"1 MiB/s\", in text, above 0",
          "remote bandwidth of all jobs on this node until the allocator has answered"},
         set_member<set_config_rate_above_0, &DaemonConfig::allocator, &AllocatorClientConfig::floor_bytes_per_second>},
    Rule{{"peers.listen", "IP:PORT such as \"0.0.0.0:7474\", in text",
          "address that lends cached blocks to other nodes; default: none are lent"},
         set_member<set_config_listen, &DaemonConfig::peers, &PeersConfig::listen>},
    Rule{{"peers.endpoint", kPeerEndpoint,
          "endpoint where other nodes reach peers.listen; default: peers.listen, with the host's name for 0.0.0.0"},
         set_member<set_endpoint, &DaemonConfig::peers, &PeersConfig::endpoint>},
    Rule{{"peers.group", "a name, in text", "group of nodes that the allocator lets read each other's cache"},
         set_member<set_config_text, &DaemonConfig::peers, &PeersConfig::group>},
    Rule{{"peers.others", "endpoints such as \"http://node-2:7474, http://node-3:7474\", in text",
          "nodes whose cache this node reads if no allocator names them"},
         set_member<set_endpoints, &DaemonConfig::peers, &PeersConfig::others>},
    Rule{{"peers.token_file", kConfigPath,
          "file with the secret that peers share; whoever has it can read everything cached"},
         set_member<set_config_path, &DaemonConfig::peers, &PeersConfig::token_file>},
    Rule{
        {"peers.witnesses", "a number from 0 to 4",
         "a block is read from peers once this node, or so many others, have read it from the remote; 0: trusts peers"},
        set_member<set_config_count<0, Witnesses::kNeededMax>, &DaemonConfig::peers, &PeersConfig::witnesses>},
    Rule{{"peers.certificate", kConfigPath, "server certificate for https:// at peers.listen"},
         set_member<set_config_path, &DaemonConfig::peers, &PeersConfig::certificate_file>},
    Rule{{"peers.key", kConfigPath, "key of peers.certificate"},
         set_member<set_config_path, &DaemonConfig::peers, &PeersConfig::key_file>},
    Rule{{"peers.ca", kConfigPath, "CA file to verify peers' certificates; default: the system's CAs"},
         set_member<set_config_path, &DaemonConfig::peers, &PeersConfig::ca_file>},
    Rule{{"job.NAME.remote_rate", kRate, "remote bandwidth of this job on this node"},
         set_entry<set_config_rate, &DaemonConfig::jobs, &JobConfig::remote_bytes_per_second>},
    Rule{{"job.NAME.remote_burst", kBurst, "bytes that this job may read at once after a pause"},
         set_entry<set_config_bytes, &DaemonConfig::jobs, &JobConfig::remote_burst_bytes>},
    Rule{{"dataset.NAME.url", "a URL such as \"file:///data/images\" or an absolute path, in text",
          "location of the dataset"},
         set_entry<set_url, &DaemonConfig::datasets, &DatasetRequest::definition, &DatasetDefinition::url>},
    Rule{{"dataset.NAME.format",
          "one of \"raw\", \"webdataset\", \"mds\", \"litdata\", \"tfrecord\", \"megatron\", \"larder\", "
          "\"parquet\", \"array_record\"",
          "format of the dataset; raw: one file is one sample; default: detected from the files"},
         set_entry<set_format, &DaemonConfig::datasets, &DatasetRequest::definition, &DatasetDefinition::format>},
    Rule{{"dataset.NAME.block", "\"sample\", \"object\" or a size such as \"8 MiB\"",
          "the unit that is fetched and cached"},
         set_entry<set_block, &DaemonConfig::datasets, &DatasetRequest::definition, &DatasetDefinition::block>},
    Rule{{"dataset.NAME.endpoint", "http://host:port or https://host:port",
          "for s3://, gs:// and az://: the endpoint; default: the store's own"},
         set_entry<set_config_text, &DaemonConfig::datasets, &DatasetRequest::definition, &DatasetDefinition::remote,
                   &RemoteOptions::endpoint>},
    Rule{{"dataset.NAME.region", "a name, in text",
          "for s3://: the region; default: from the environment or the profile"},
         set_entry<set_config_text, &DaemonConfig::datasets, &DatasetRequest::definition, &DatasetDefinition::remote,
                   &RemoteOptions::region>},
    Rule{{"dataset.NAME.profile", "a name, in text",
          "for s3://: profile in the shared credentials and config files; for gs://: NAME.json in gcloud's directory; "
          "for "
          "az://: section of ~/.azure/config"},
         set_entry<set_config_text, &DaemonConfig::datasets, &DatasetRequest::definition, &DatasetDefinition::remote,
                   &RemoteOptions::profile>},
    Rule{{"dataset.NAME.addressing", "\"auto\", \"path\" or \"host\"", "for s3://: where the request names the bucket"},
         set_entry<set_addressing, &DaemonConfig::datasets, &DatasetRequest::definition, &DatasetDefinition::remote,
                   &RemoteOptions::addressing>},
    Rule{{"dataset.NAME.unsigned", kConfigFlag, "for s3://, gs:// and az://: read a public bucket without credentials"},
         set_entry<set_config_flag, &DaemonConfig::datasets, &DatasetRequest::definition, &DatasetDefinition::remote,
                   &RemoteOptions::unsigned_access>},
    Rule{{"dataset.NAME.requester_pays", kConfigFlag, "for s3://: agree to pay for the requests"},
         set_entry<set_config_flag, &DaemonConfig::datasets, &DatasetRequest::definition, &DatasetDefinition::remote,
                   &RemoteOptions::requester_pays>},
    Rule{
        {"dataset.NAME.follow_symlinks", kConfigFlag,
         "for file://: follow symbolic links out of the directory; its writers can then read what the daemon can read"},
        set_entry<set_config_flag, &DaemonConfig::datasets, &DatasetRequest::definition, &DatasetDefinition::remote,
                  &RemoteOptions::follow_symlinks>},
    Rule{{"dataset.NAME.compression", "\"none\", \"auto\", \"zstd\" or \"zstd:LEVEL\", level 1 to 19",
          "how blocks are compressed in the cache"},
         set_entry<set_compression, &DaemonConfig::datasets, &DatasetRequest::definition,
                   &DatasetDefinition::compression>},
    Rule{
        {"dataset.NAME.checksum", kConfigFlag, "read everything once and keep the checksum of each block"},
        set_entry<set_config_flag, &DaemonConfig::datasets, &DatasetRequest::definition, &DatasetDefinition::checksum>},
    Rule{{"dataset.NAME.tokens_per_sample", "a whole number, 1 to 67108864",
          "for datasets of tokens (megatron, litdata): length of a sample; default: a sample is a document"},
         set_entry<set_config_count<1, kTokensPerSampleMax>, &DaemonConfig::datasets, &DatasetRequest::definition,
                   &DatasetDefinition::tokens_per_sample>},
    Rule{{"dataset.NAME.columns", "names separated by commas, in text",
          "for Parquet: the columns that are fetched and cached; default: all"},
         set_entry<set_columns, &DaemonConfig::datasets, &DatasetRequest::definition, &DatasetDefinition::columns>},
    Rule{{"dataset.NAME.owner", kAccount, "user who owns the dataset; default: the daemon's user"},
         set_entry<set_config_optional<set_config_text, std::string>, &DaemonConfig::datasets, &DatasetRequest::owner>},
    Rule{{"dataset.NAME.group", kAccount, "group that owns the dataset; default: the daemon's group"},
         set_entry<set_config_optional<set_config_text, std::string>, &DaemonConfig::datasets, &DatasetRequest::group>},
    Rule{{"dataset.NAME.mode", kConfigMode, "who may read the dataset, as a file mode"},
         set_entry<set_config_optional<set_config_mode, unsigned>, &DaemonConfig::datasets, &DatasetRequest::mode>},
    Rule{{"dataset.NAME.quota_memory", kSize, "the dataset's quota of the node's memory"},
         set_entry<set_config_optional<set_config_bytes, std::uint64_t>, &DaemonConfig::datasets,
                   &DatasetRequest::quota_memory_bytes>},
    Rule{{"dataset.NAME.quota_disk", kSize, "the dataset's quota of the node's disk"},
         set_entry<set_config_optional<set_config_bytes, std::uint64_t>, &DaemonConfig::datasets,
                   &DatasetRequest::quota_disk_bytes>},
};

}  // namespace

std::span<const ConfigRule<DaemonConfig>> config_rules() {
    return kRules;
}

}  // namespace larder::cache
