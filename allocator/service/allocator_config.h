#pragma once

// The configuration of larder-allocator: one TOML file, every key of which is also a flag (base/server/config_text.h).
// A flag wins over the file. tools/larder-allocator.example.toml shows every key.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/cluster.h"
#include "allocator/service/access.h"
#include "base/error.h"
#include "base/server/config_text.h"
#include "base/server/etcd.h"
#include "base/server/tls.h"

namespace larder::allocator {

// The limits of API clients. base/server/http.h says how each is enforced.
struct ServiceLimits {
    std::uint64_t header_bytes = 16u << 10;
    std::uint64_t body_bytes = 4u << 20;  // a report of some thousand datasets and jobs
    unsigned connections = 8192;          // each node keeps one
    unsigned connections_per_peer = 256;
    // A thousand jobs may register in one second from one machine.
    unsigned requests_per_second_per_peer = 1000;
    unsigned request_burst_per_peer = 2000;
    std::int64_t request_timeout_ns = 10'000'000'000;
    std::int64_t idle_timeout_ns = 60'000'000'000;
};

// One of several allocators that stand in for each other.
struct EtcdConfig {
    EtcdOptions options;
    std::string name;  // the machine's when not given
    std::int64_t lease_ns = 5'000'000'000;
};

struct AllocatorConfig {
    std::string state_directory;  // empty: the state is in memory only
    // Has no key: only a cluster of millions of nodes needs more.
    std::uint64_t state_bytes_max = std::uint64_t{1} << 30;
    std::string socket;  // allocator.sock in the state directory when not given
    unsigned socket_mode = 0660;
    // Set by a daemon that runs the allocator in its own process and is its only node.
    bool only_this_process = false;
    std::string listen;      // "0.0.0.0:7600"; empty: on the Unix socket only
    bool plain_tcp = false;  // without TLS, also beyond this machine
    TlsServerFiles tls;      // no certificate: plain TCP
    std::string token_file;
    std::map<std::string, Grant> certificates;  // by common name
    std::map<std::string, Role> users;          // of the Unix socket, by name or uid
    Role local_role = Role::submitter;          // of all others on the Unix socket
    bool anyone_reads = false;                  // over TCP, without a token
    EtcdConfig etcd;                            // without endpoints: this allocator is the only one
    ServiceLimits limits;
    ClusterOptions cluster;
    bool objective_is_set = false;
    std::string log_level = "info";
    std::string log_file;  // empty: stderr
};

std::vector<ConfigKey> config_keys();

// The keys of another program that shares the file. parse_config() fills in `settings`; ConfigSetting::rule is an index
// in `keys`.
struct OthersConfig {
    std::span<const ConfigKey> keys;
    std::vector<ConfigSetting> settings;
    std::vector<std::string> empty_tables;  // those of the whole file (see ConfigText)
};

Result<AllocatorConfig> parse_config(std::string_view toml, std::string_view source,
                                     std::span<const ConfigOverride> overrides = {}, OthersConfig* others = nullptr);
// An empty path means no file: defaults and overrides only.
Result<AllocatorConfig> load_config(const std::string& path, std::span<const ConfigOverride> overrides = {},
                                    OthersConfig* others = nullptr);

}  // namespace larder::allocator
