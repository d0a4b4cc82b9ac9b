#include "allocator/service/allocator_config.h"

#include <algorithm>
#include <array>
#include <optional>

#include "allocator/protocol/objective.h"
#include "base/file.h"
#include "base/server/config_values.h"
#include "base/server/http_client.h"
#include "base/server/http_target.h"
#include "base/units.h"

namespace larder::allocator {
namespace {

constexpr std::size_t kSocketPathBytesMax = 107;
constexpr std::int64_t kMillisecond_ns = 1'000'000;
constexpr std::int64_t kSecond_ns = 1000 * kMillisecond_ns;

constexpr std::string_view kRate = "a rate such as \"10 Gbit\" or \"200 MB/s\", in text";
constexpr std::string_view kRateAbove0 = "a rate above 0 such as \"10 Gbit\" or \"200 MB/s\", in text";
constexpr std::string_view kTime = "a time from \"10 ms\" to \"1 h\", in text";
constexpr std::string_view kRole = "\"viewer\", \"job\", \"submitter\", \"node\", \"agent\" or \"operator\"";
constexpr std::string_view kCount = "a whole number, 1 to 1000000";

bool set_objective(AllocatorConfig& config, const std::string& /*name*/, const ConfigValue& value) {
    const auto kind = parse_objective(value.text);
    if (config_text_of(value) == nullptr || !kind) return false;
    config.objective_is_set = true;
    config.cluster.objective.kind = *kind;
    return true;
}

bool set_role(Role& into, const ConfigValue& value) {
    const auto role = parse_role(value.text);
    if (!role || config_text_of(value) == nullptr) return false;
    into = *role;
    return true;
}

bool set_peer_endpoint(std::string& into, const ConfigValue& value) {
    const std::string* text = config_text_of(value);
    if (text == nullptr || !is_tcp_endpoint(*text)) return false;
    into = *text;
    return true;
}

// "http://10.0.0.1:2379, http://10.0.0.2:2379"
bool set_etcd_endpoints(EtcdOptions& into, const ConfigValue& value) {
    if (config_text_of(value) == nullptr) return false;
    into.endpoints = split_http_endpoints(value.text);
    return !into.endpoints.empty() && std::ranges::all_of(into.endpoints, is_tcp_endpoint);
}

// etcd counts leases in seconds.
bool set_etcd_lease(std::int64_t& into_ns, const ConfigValue& value) {
    return set_config_duration<3 * kSecond_ns, 60 * kSecond_ns>(into_ns, value) && into_ns % kSecond_ns == 0;
}

constexpr auto set_timeout = set_config_duration<10 * kMillisecond_ns, 3600 * kSecond_ns>;
bool set_jobs(std::size_t& into, const ConfigValue& value) {
    unsigned jobs = 0;
    if (!set_config_count<1, 1'000'000>(jobs, value)) return false;
    into = jobs;
    return true;
}

constexpr auto set_limit = set_config_count<1, 1'000'000>;

using Rule = ConfigRule<AllocatorConfig>;

constexpr std::array kAllocatorRules{
    Rule{{"state", kConfigPath, "directory for the state that must survive a restart; default: memory only"},
         set_member<set_config_path, &AllocatorConfig::state_directory>},
    Rule{{"socket", kConfigPath, "socket for nodes and operators of this machine; default: allocator.sock in state"},
         set_member<set_config_path, &AllocatorConfig::socket>},
    Rule{{"socket_mode", kConfigMode,
          "mode of the socket: who may connect; the role of who connects is user.NAME.role, else access.local_role"},
         set_member<set_config_mode, &AllocatorConfig::socket_mode>},
    Rule{{"listen", "IP:PORT such as \"0.0.0.0:7600\", in text",
          "address to serve over TCP too, for clients with a token"},
         set_member<set_config_listen, &AllocatorConfig::listen>},
    Rule{{"plain_tcp", kConfigFlag,
          "allows listen without TLS beyond this machine: others on the network can read tokens"},
         set_member<set_config_flag, &AllocatorConfig::plain_tcp>},
    Rule{{"remote_bandwidth", kRateAbove0, "remote bandwidth of all jobs together"},
         set_member<set_config_rate_above_0, &AllocatorConfig::cluster, &ClusterOptions::remote_bytes_per_second>},
    Rule{{"objective", "\"efficiency\", \"max-min\", \"throughput\", \"utilisation\", \"equal-shares\" or \"pinned\"",
          "objective of the plan; default: max-min, or the objective of scheduler.policy if jobs are run"},
         set_objective},
    Rule{{"hysteresis", "a number from 0 to 1", "quotas stay if new ones gain less than this fraction"},
         set_member<set_config_number<0, 1>, &AllocatorConfig::cluster, &ClusterOptions::objective,
                    &Objective::hysteresis>},
    Rule{{"floor", kRate, "remote bandwidth of a job on a node that has lost its lease"},
         set_member<set_config_rate, &AllocatorConfig::cluster, &ClusterOptions::floor_bytes_per_second>},
    Rule{{"lease", "a time from \"1 s\" to \"1 h\", in text", "time that a granted rate holds without renewal"},
         set_member<set_config_duration<kSecond_ns, 3600 * kSecond_ns>, &AllocatorConfig::cluster,
                    &ClusterOptions::lease_ns>},
    Rule{
        {"tls.certificate", kConfigPath, "PEM file of the server's certificate and chain; with tls.key, listen is TLS"},
        set_member<set_config_path, &AllocatorConfig::tls, &TlsServerFiles::certificate_file>},
    Rule{{"tls.key", kConfigPath, "PEM file of the server certificate's key"},
         set_member<set_config_path, &AllocatorConfig::tls, &TlsServerFiles::key_file>},
    Rule{{"tls.client_ca", kConfigPath, "PEM file of the CAs whose client certificates are accepted"},
         set_member<set_config_path, &AllocatorConfig::tls, &TlsServerFiles::client_ca_file>},
    Rule{{"tls.client_certificate_required", kConfigFlag, "refuses clients without a certificate, even with a token"},
         set_member<set_config_flag, &AllocatorConfig::tls, &TlsServerFiles::client_certificate_required>},
    Rule{{"access.tokens", kConfigPath,
          "file of bearer tokens, a \"ROLE NAME TOKEN\" a line, of nodes \"node NAME TOKEN ENDPOINT GROUP\"; read "
          "again on "
          "SIGHUP"},
         set_member<set_config_path, &AllocatorConfig::token_file>},
    Rule{{"access.local_role", kRole, "role of clients on the Unix socket that no user.NAME.role names"},
         set_member<set_role, &AllocatorConfig::local_role>},
    Rule{{"access.anyone_reads", kConfigFlag, "serves reads over TCP without a token, to everyone who reaches listen"},
         set_member<set_config_flag, &AllocatorConfig::anyone_reads>},
    Rule{{"certificate.NAME.role", kRole,
          "role of the client certificate with this common name, which is also the name of a node"},
         set_entry<set_role, &AllocatorConfig::certificates, &Grant::role>},
    Rule{{"certificate.NAME.peer_endpoint", "http://HOST:PORT or https://HOST:PORT, in text",
          "where peers reach this node; default: it may not lend its cache"},
         set_entry<set_peer_endpoint, &AllocatorConfig::certificates, &Grant::node,
                   &HttpRequest::NodeBinding::peer_endpoint>},
    Rule{{"certificate.NAME.peer_group", "a name, in text", "peer group of this node; default: \"default\""},
         set_entry<set_config_text, &AllocatorConfig::certificates, &Grant::node,
                   &HttpRequest::NodeBinding::peer_group>},
    Rule{{"user.NAME.role", kRole,
          "role of this user of the machine, a name or uid, on the Unix socket; root and the allocator's user are "
          "operators"},
         set_entry<set_role, &AllocatorConfig::users>},
    Rule{{"limits.header", "a size from \"1 KiB\" to \"1 MiB\", in text", "most bytes in the header of a request"},
         set_member<set_config_bytes_within<1u << 10, 1u << 20>, &AllocatorConfig::limits,
                    &ServiceLimits::header_bytes>},
    Rule{{"limits.body", "a size from \"64 KiB\" to \"256 MiB\", in text", "most bytes in the body of a request"},
         set_member<set_config_bytes_within<64u << 10, 256u << 20>, &AllocatorConfig::limits,
                    &ServiceLimits::body_bytes>},
    Rule{{"limits.connections", kCount, "most connections at a time"},
         set_member<set_limit, &AllocatorConfig::limits, &ServiceLimits::connections>},
    Rule{{"limits.connections_per_peer", kCount,
          "most connections at a time from one IP address, or one user on the Unix socket"},
         set_member<set_limit, &AllocatorConfig::limits, &ServiceLimits::connections_per_peer>},
    Rule{{"limits.requests_per_second_per_peer", kCount,
          "sustained requests per second of one peer; more are answered 429"},
         set_member<set_limit, &AllocatorConfig::limits, &ServiceLimits::requests_per_second_per_peer>},
    Rule{{"limits.request_burst_per_peer", kCount, "requests one peer may send at once after a pause"},
         set_member<set_limit, &AllocatorConfig::limits, &ServiceLimits::request_burst_per_peer>},
    Rule{{"limits.jobs_per_owner", kCount,
          "most jobs that one user or token may register, unless it is an operator; default: 1000"},
         set_member<set_jobs, &AllocatorConfig::cluster, &ClusterOptions::jobs_per_owner_max>},
    Rule{{"limits.request_timeout", kTime, "time for one request to arrive and one answer to be read"},
         set_member<set_timeout, &AllocatorConfig::limits, &ServiceLimits::request_timeout_ns>},
    Rule{{"limits.idle_timeout", kTime, "most time between two requests of one connection"},
         set_member<set_timeout, &AllocatorConfig::limits, &ServiceLimits::idle_timeout_ns>},
    Rule{{"etcd.endpoints", "http://HOST:PORT or https://HOST:PORT, several separated by commas, in text",
          "members of the etcd that elects one of several allocators and has their state; default: no etcd"},
         set_member<set_etcd_endpoints, &AllocatorConfig::etcd, &EtcdConfig::options>},
    Rule{{"etcd.name", "a name, in text", "name of this allocator in messages of the others; default: the machine's"},
         set_member<set_config_text, &AllocatorConfig::etcd, &EtcdConfig::name>},
    Rule{{"etcd.prefix", "text such as \"/larder/\"", "start of every key in etcd"},
         set_member<set_config_text, &AllocatorConfig::etcd, &EtcdConfig::options, &EtcdOptions::prefix>},
    Rule{{"etcd.lease", "a time of whole seconds from \"3 s\" to \"60 s\", in text",
          "time after which another allocator leads if the leader cannot reach etcd"},
         set_member<set_etcd_lease, &AllocatorConfig::etcd, &EtcdConfig::lease_ns>},
    Rule{
        {"etcd.user", "a name, in text", "user of etcd that may read and write the prefix; default: etcd has no users"},
        set_member<set_config_text, &AllocatorConfig::etcd, &EtcdConfig::options, &EtcdOptions::user>},
    Rule{{"etcd.password_file", kConfigPath, "file whose first line is that user's password; read again when needed"},
         set_member<set_config_path, &AllocatorConfig::etcd, &EtcdConfig::options, &EtcdOptions::password_file>},
    Rule{{"etcd.ca", kConfigPath, "PEM file of the CAs of etcd's certificates; default: the system's"},
         set_member<set_config_path, &AllocatorConfig::etcd, &EtcdConfig::options, &EtcdOptions::ca_file>},
    Rule{{"etcd.certificate", kConfigPath, "PEM file of the client certificate for etcd"},
         set_member<set_config_path, &AllocatorConfig::etcd, &EtcdConfig::options, &EtcdOptions::certificate_file>},
    Rule{{"etcd.key", kConfigPath, "PEM file of that certificate's key"},
         set_member<set_config_path, &AllocatorConfig::etcd, &EtcdConfig::options, &EtcdOptions::key_file>},
    Rule{{"log.level", kConfigLogLevel, "lowest level to log"},
         set_member<set_config_log_level, &AllocatorConfig::log_level>},
    Rule{{"log.file", kConfigPath, "log file; default: stderr"},
         set_member<set_config_path, &AllocatorConfig::log_file>},
};

std::span<const Rule> rules() {
    return kAllocatorRules;
}

Result<void> check_tls(const AllocatorConfig& config, std::string_view source) {
    const TlsServerFiles& tls = config.tls;
    if (tls.certificate_file.empty() != tls.key_file.empty()) {
        return config_error(source, tls.key_file.empty() ? "tls.certificate is given, but tls.key is missing"
                                                         : "tls.key is given, but tls.certificate is missing");
    }
    if (tls.certificate_file.empty() && !tls.client_ca_file.empty()) {
        return config_error(source,
                            "tls.client_ca needs tls.certificate and tls.key: without TLS there are no certificates");
    }
    if (tls.client_ca_file.empty() && (tls.client_certificate_required || !config.certificates.empty())) {
        return config_error(source, std::string(tls.client_certificate_required ? "tls.client_certificate_required"
                                                                                : "certificate.NAME.role") +
                                        " needs tls.client_ca: without it no client certificate is accepted");
    }
    return {};
}

Result<void> check_listen(const AllocatorConfig& config, std::string_view source) {
    if (config.listen.empty()) {
        if (config.tls.certificate_file.empty()) return {};
        return config_error(source, "tls.certificate is given, but listen is not: TLS is spoken over TCP only");
    }
    if (config.token_file.empty() && config.certificates.empty() && !config.anyone_reads) {
        return config_error(
            source,
            "listen = \"" + config.listen +
                "\" serves only clients with a token or a certificate: set access.tokens or certificate.NAME.role, or "
                "access.anyone_reads");
    }
    if (config.tls.certificate_file.empty() && !config.plain_tcp &&
        !is_loopback(parse_host_port(config.listen)->host)) {
        return config_error(source,
                            "listen = \"" + config.listen +
                                "\" without TLS would show every token to anyone who can read the network: set "
                                "tls.certificate and tls.key, listen on 127.0.0.1, or allow it with plain_tcp = true");
    }
    return {};
}

Result<void> check_etcd(const EtcdConfig& etcd, std::string_view source) {
    const EtcdOptions& options = etcd.options;
    if (options.certificate_file.empty() != options.key_file.empty()) {
        return config_error(source, options.key_file.empty() ? "etcd.certificate is given, but etcd.key is missing"
                                                             : "etcd.key is given, but etcd.certificate is missing");
    }
    if (options.user.empty() != options.password_file.empty()) {
        return config_error(source, options.user.empty() ? "etcd.password_file is given, but etcd.user is missing"
                                                         : "etcd.user is given, but etcd.password_file is missing");
    }
    return {};
}

Result<AllocatorConfig> complete(AllocatorConfig config, std::string_view source) {
    std::string missing;
    if (config.cluster.remote_bytes_per_second == 0) {
        missing = "remote_bandwidth is missing: expected " + std::string(kRateAbove0);
    }
    if (config.socket.empty() && config.state_directory.empty()) {
        missing += std::string(missing.empty() ? "" : "; ") +
                   "state and socket are missing: expected one of them, a directory or a socket's path";
    }
    if (!missing.empty()) return config_error(source, missing);
    if (config.socket.empty()) config.socket = config.state_directory + "/allocator.sock";
    if (config.socket.size() > kSocketPathBytesMax) {
        return config_error(source, "socket = \"" + config.socket + "\" has " + std::to_string(config.socket.size()) +
                                        " bytes: the kernel takes at most 107; set socket to a shorter path");
    }
    if (config.cluster.floor_bytes_per_second > config.cluster.remote_bytes_per_second) {
        return config_error(source, "floor = " + format_bytes_per_second(config.cluster.floor_bytes_per_second) +
                                        " is above remote_bandwidth = " +
                                        format_bytes_per_second(config.cluster.remote_bytes_per_second));
    }
    if (auto good = check_tls(config, source); !good) return std::unexpected(good.error());
    if (auto good = check_listen(config, source); !good) return std::unexpected(good.error());
    if (auto good = check_etcd(config.etcd, source); !good) return std::unexpected(good.error());
    return config;
}

}  // namespace

std::vector<ConfigKey> config_keys() {
    return keys_of(rules());
}

Result<AllocatorConfig> parse_config(std::string_view toml, std::string_view source,
                                     std::span<const ConfigOverride> overrides, OthersConfig* others) {
    std::vector<ConfigKey> keys = config_keys();
    const std::size_t own = keys.size();
    if (others != nullptr) keys.insert(keys.end(), others->keys.begin(), others->keys.end());
    auto text = read_config_text(toml, source, keys, overrides);
    if (!text) return std::unexpected(text.error());
    AllocatorConfig config;
    if (others != nullptr) others->empty_tables = std::move(text->empty_tables);
    for (ConfigSetting& setting : text->settings) {
        if (setting.rule >= own) {
            setting.rule -= own;
            others->settings.push_back(std::move(setting));
        } else if (auto applied = apply_setting(config, rules(), setting); !applied) {
            return std::unexpected(applied.error());
        }
    }
    return complete(std::move(config), source);
}

Result<AllocatorConfig> load_config(const std::string& path, std::span<const ConfigOverride> overrides,
                                    OthersConfig* others) {
    return load_config_text(path, [&](std::string_view toml, std::string_view source) {
        return parse_config(toml, source, overrides, others);
    });
}

}  // namespace larder::allocator
