#pragma once

// The daemon's configuration, a TOML file. Each of its keys is also a flag (`log.level` in the file is
// `--log.level`, `_` in a key is `-` in a flag). Flags override the file. Parsing is strict
// (base/server/config_text.h): an Error names the file, the line, the key, the value and the allowed values.
// tools/larderd.example.toml shows every key.

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
#include "cache/control/dataset_request.h"

namespace larder::cache {

enum class IoMode : std::uint8_t { automatic, ring, threads };

// A job's grant of remote bandwidth. Rate 0: unlimited. Burst 0: follows the rate (default_burst_bytes).
struct JobConfig {
    double remote_bytes_per_second = 0;
    std::uint64_t remote_burst_bytes = 0;
};

// The allocator that sets this node's quotas and rates, and the node's properties that are reported to it. Without an
// endpoint the node runs standalone.
struct AllocatorClientConfig {
    std::string endpoint;                     // in the form that http_request takes
    HttpCredentials credentials;              // credentials for the allocator
    std::string node;                         // the node's name; default: the host's
    unsigned gpus = 0;                        // 0: the number of running training loops
    double nic_bytes_per_second = 0;          // 0: no limit known
    double disk_read_bytes_per_second = 0;    // 0: no limit known
    double floor_bytes_per_second = 1 << 20;  // rate of each job before the first lease
    // False: the allocator sets only quotas that were not set by hand, and the node's own rates apply.
    bool rates = true;
};

// Reading other nodes' caches, and serving ours to them. Without a listen address nothing is served.
struct PeersConfig {
    std::string listen;               // "0.0.0.0:7474"
    std::string endpoint;             // where peers reach us; empty: derived from `listen` and the host name
    std::string group = "default";    // the allocator makes nodes of one group peers
    std::vector<std::string> others;  // peers to read always, besides those that the allocator names
    std::string token_file;           // required with `listen` or `others`
    unsigned witnesses = 2;           // nodes that must have read a block from the remote; 0: peers are trusted
    std::string certificate_file;
    std::string key_file;
    std::string ca_file;
};

// Limits of requests to network remotes.
struct RemoteConfig {
    unsigned connections_max = 64;  // per endpoint
    std::int64_t retry_for_ns = 60'000'000'000;
    std::int64_t stall_timeout_ns = 10'000'000'000;
    std::int64_t request_timeout_ns = 300'000'000'000;
    bool hedge = false;
    std::string ca_file;  // empty: the system's authorities
};

struct DaemonConfig {
    std::string state_directory;    // default_state_directory() when not given
    std::string socket_path;        // sessions; default <state>/larderd.sock
    unsigned socket_mode = 0666;    // permissive: each dataset checks access itself
    std::string admin_socket_path;  // default <state>/admin.sock
    unsigned admin_socket_mode = 0660;
    std::string metrics_listen;  // "127.0.0.1:9464"; empty: /metrics on the admin socket only
    // Over metrics_listen, for the page: whether everyone may look, and a file with a token whose holder may steer,
    // too.
    bool page_anyone_reads = false;
    std::string page_token_file;  // empty: nobody may

    IoMode io = IoMode::automatic;
    // An old version of a dataset keeps its blocks for this long while no session reads it.
    std::int64_t version_grace_ns = 120'000'000'000;
    unsigned data_plane_threads = 0;  // never 0 in a parsed DaemonConfig

    unsigned disk_reads_max = 128;  // in flight, per data-plane thread

    std::uint64_t memory_bytes = std::uint64_t{1} << 30;  // the node's total, divided among dataset quotas
    std::uint64_t disk_bytes = std::uint64_t{16} << 30;

    std::optional<std::uint64_t> shared_window_bytes;  // of each dataset; empty: a part of memory_bytes

    std::uint64_t session_slot_bytes_max = std::uint64_t{4} << 30;
    unsigned sessions_max = 1024;
    double session_user_part = 0.5;  // of all sessions and all slot memory, for one user

    JobConfig default_job;  // for jobs not named in `jobs`

    std::string log_level = "info";  // trace, debug, info, warn, error
    std::string log_file;            // empty: stderr

    AllocatorClientConfig allocator;
    RemoteConfig remote;
    PeersConfig peers;

    std::map<std::string, JobConfig> jobs;
    // Datasets that the file declares, by name; their definitions' `name` is empty. The daemon adds and indexes those
    // that are unknown. A given quota is applied at every start and reload; the other fields count only when a dataset
    // is added.
    std::map<std::string, DatasetRequest> datasets;
};

using larder::ConfigKey;
using larder::ConfigOverride;

// All keys. In `key`, NAME stands for the name of the job or dataset.
std::vector<ConfigKey> config_keys();

// `source` names the text in errors: the file's path.
Result<DaemonConfig> parse_config(std::string_view toml, std::string_view source,
                                  std::span<const ConfigOverride> overrides = {});
// An empty path means no file: defaults and overrides only.
Result<DaemonConfig> load_config(const std::string& path, std::span<const ConfigOverride> overrides = {});

// Fails if the memory configured for datasets exceeds the machine's.
Result<void> check_memory(const DaemonConfig& config, const MachineMemory& machine);

// ~/.local/share/larder, the first place where clients look for a daemon.
std::string default_state_directory();

// The number of threads for `data_plane_threads = 0`: a quarter of the cores, 1 to 8.
unsigned data_plane_threads_of(unsigned cores);

}  // namespace larder::cache
