#pragma once

// What a daemon is told: one TOML file, every key of which is also a flag (`log.level` in the file is `--log.level`,
// `_` in a key is `-` in a flag). Parsing is strict (base/server/config_text.h): an Error names the file, the line, the
// key, the value and what is allowed. A flag wins over the file. tools/larderd.example.toml shows every key.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/machine_memory.h"
#include "base/server/config_text.h"
#include "base/server/http_client.h"
#include "cache/remote/remote_options.h"

namespace larder::cache {

enum class IoMode : std::uint8_t { automatic, ring, threads };

// A job's grant of remote bandwidth. Rate 0: unlimited. Burst 0: follows the rate (default_burst_bytes).
struct JobConfig {
    double remote_bytes_per_second = 0;
    std::uint64_t remote_burst_bytes = 0;
};

// A dataset declared in the file: added and indexed when the daemon does not know it yet. Its quota, where given, holds
// at start and at reload; all else is looked at only when the dataset is added.
struct DatasetConfig {
    std::string url;
    RemoteOptions remote;
    std::optional<std::string> format;  // as protocol::name says them; none: as its files look
    std::string block = "sample";       // sample, object or a size
    std::string compression = "none";   // none, auto, zstd or zstd:LEVEL
    bool checksum = false;
    unsigned tokens_per_sample = 0;  // 0: none wished
    std::string owner;               // user name or number; empty: the daemon's own
    std::string group;
    unsigned mode = 0640;
    std::optional<std::uint64_t> quota_memory_bytes;
    std::optional<std::uint64_t> quota_disk_bytes;
};

// The allocator that sets this node's quotas and rates, and what it is told of the node. Without an endpoint the node
// is on its own.
struct AllocatorConfig {
    std::string endpoint;                     // as http_request takes it
    HttpCredentials credentials;              // to show there
    std::string node;                         // the node's name; default: the host's
    unsigned gpus = 0;                        // 0: as many as training loops run
    double nic_bytes_per_second = 0;          // 0: no limit known
    double disk_read_bytes_per_second = 0;    // 0: no limit known
    double floor_bytes_per_second = 1 << 20;  // of each job, before the first lease
    // False: it sets quotas only, and of those only the ones nobody set by hand; rates are this node's own.
    bool rates = true;
};

// Reading other nodes' caches, and lending ours. Without an address to listen on nothing is lent.
struct PeersConfig {
    std::string listen;               // "0.0.0.0:7474"
    std::string endpoint;             // where peers reach us; empty: made of `listen` and the host's name
    std::string group = "default";    // the allocator makes peers of nodes of one group
    std::vector<std::string> others;  // endpoints that are read whatever the allocator says
    std::string token_file;           // needed to listen where other machines can connect
    std::string certificate_file;
    std::string key_file;
    std::string ca_file;
};

// What requests to remotes over the network keep to.
struct RemoteConfig {
    unsigned connections_max = 64;  // to one endpoint
    std::int64_t retry_for_ns = 60'000'000'000;
    std::int64_t stall_timeout_ns = 10'000'000'000;
    std::int64_t request_timeout_ns = 300'000'000'000;
    bool hedge = false;
    std::string ca_file;  // empty: the system's authorities
};

struct Config {
    std::string state_directory;    // default_state_directory() when not given
    std::string socket_path;        // sessions; default <state>/larderd.sock
    unsigned socket_mode = 0666;    // datasets have their own access control
    std::string admin_socket_path;  // default <state>/admin.sock
    unsigned admin_socket_mode = 0660;
    std::string metrics_listen;  // "127.0.0.1:9464"; empty: /metrics on the admin socket only

    IoMode io = IoMode::automatic;
    // How long a dataset's version that is not the newest stays, with its blocks, when no session reads it.
    std::int64_t version_grace_ns = 120'000'000'000;
    unsigned data_plane_threads = 0;  // resolved: never 0 in a Config that was parsed

    unsigned disk_reads_max = 128;  // in flight, of each data-plane thread

    std::uint64_t memory_bytes = std::uint64_t{1} << 30;  // of this node, to be shared out as quotas
    std::uint64_t disk_bytes = std::uint64_t{16} << 30;

    std::uint64_t session_slot_bytes_max = std::uint64_t{4} << 30;
    unsigned sessions_max = 1024;

    JobConfig default_job;  // for jobs not named in `jobs`

    std::string log_level = "info";  // trace, debug, info, warn, error
    std::string log_file;            // empty: stderr

    AllocatorConfig allocator;
    RemoteConfig remote;
    PeersConfig peers;

    std::map<std::string, JobConfig> jobs;
    std::map<std::string, DatasetConfig> datasets;
};

using larder::ConfigKey;
using larder::ConfigOverride;

// `key` of a table's member has NAME for the job's or dataset's name.
std::vector<ConfigKey> config_keys();

// `source` is what errors call the text: the file's path.
Result<Config> parse_config(std::string_view toml, std::string_view source,
                            std::span<const ConfigOverride> overrides = {});
// An empty path means no file: defaults and overrides only.
Result<Config> load_config(const std::string& path, std::span<const ConfigOverride> overrides = {});

// An error if the memory for datasets is more than there is.
Result<void> check_memory(const Config& config, const MachineMemory& machine);

// ~/.local/share/larder, where clients look for a daemon first.
std::string default_state_directory();

// What `data_plane_threads = 0` means on a machine of so many cores: a quarter of them, 1 to 8.
unsigned data_plane_threads_of(unsigned cores);

}  // namespace larder::cache
