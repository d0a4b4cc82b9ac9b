#include "cache/control/daemon_config.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <thread>

#include "base/file.h"
#include "base/server/http_target.h"
#include "base/units.h"
#include "cache/control/config_keys.h"

namespace larder::cache {
namespace {

constexpr std::size_t kSocketPathBytesMax = 107;

// `quota` selects the tier. `quota_key` and `capacity_key` name config keys in errors.
Result<void> check_quotas(const DaemonConfig& config, std::optional<std::uint64_t> DatasetRequest::* quota,
                          std::uint64_t capacity_bytes, std::string_view quota_key, std::string_view capacity_key) {
    std::uint64_t free_bytes = capacity_bytes;
    for (const auto& [name, dataset] : config.datasets) {
        const std::uint64_t bytes = (dataset.*quota).value_or(0);
        if (bytes > free_bytes) {
            return fail(ErrorCode::invalid_argument,
                        "dataset." + name + "." + std::string(quota_key) + " = " + format_bytes(bytes) +
                            " does not fit: " + format_bytes(free_bytes) + " are left of " + std::string(capacity_key) +
                            " = " + format_bytes(capacity_bytes));
        }
        free_bytes -= bytes;
    }
    return {};
}

std::string host_name() {
    std::array<char, 256> name{};
    if (::gethostname(name.data(), name.size() - 1) != 0) return "node";
    return name.data();
}

Result<DaemonConfig> complete(DaemonConfig config, std::string_view source) {
    if (config.state_directory.empty()) config.state_directory = default_state_directory();
    if (config.socket_path.empty()) config.socket_path = config.state_directory + "/larderd.sock";
    if (config.admin_socket_path.empty()) config.admin_socket_path = config.state_directory + "/admin.sock";
    for (const auto& [key, path] :
         {std::pair<std::string, const std::string&>{"socket", config.socket_path},
          std::pair<std::string, const std::string&>{"admin_socket", config.admin_socket_path}}) {
        if (path.size() > kSocketPathBytesMax) {
            return config_error(source, key + " = \"" + path + "\" has " + std::to_string(path.size()) +
                                            " bytes: the kernel takes at most 107; set " + key + " to a shorter path");
        }
    }
    for (const auto& [name, dataset] : config.datasets) {
        if (dataset.definition.url.empty()) return config_error(source, "[dataset." + name + "] has no url");
    }
    for (const auto& checked :
         {check_quotas(config, &DatasetRequest::quota_memory_bytes, config.memory_bytes, "quota_memory", "memory"),
          check_quotas(config, &DatasetRequest::quota_disk_bytes, config.disk_bytes, "quota_disk", "disk")}) {
        if (!checked) return std::unexpected(checked.error().within(source));
    }
    if (config.allocator.node.empty()) config.allocator.node = host_name();
    const bool uses_peers = !config.peers.listen.empty() || !config.peers.others.empty();
    if (uses_peers && config.peers.token_file.empty()) {
        return config_error(source, std::string("peers.") + (config.peers.listen.empty() ? "others" : "listen") +
                                        " needs peers.token_file, a file with the secret that all peers share");
    }
    if (config.metrics_listen.empty() && (config.page_anyone_reads || !config.page_token_file.empty())) {
        return config_error(source,
                            "page.anyone_reads and page.token_file need metrics_listen, where the page is served");
    }
    if (!config.page_token_file.empty() && !is_loopback(parse_host_port(config.metrics_listen)->host)) {
        return config_error(source,
                            "page.token_file needs a metrics_listen on 127.0.0.1: without TLS, anyone who can "
                            "read the network could read the token");
    }
    if (config.peers.certificate_file.empty() != config.peers.key_file.empty()) {
        return config_error(source, "peers.certificate and peers.key go together");
    }
    if (config.data_plane_threads == 0) {
        config.data_plane_threads = data_plane_threads_of(std::thread::hardware_concurrency());
    }
    return config;
}

}  // namespace

Result<DaemonConfig> parse_config(std::string_view toml, std::string_view source,
                                  std::span<const ConfigOverride> overrides) {
    const auto text = read_config_text(toml, source, config_keys(), overrides);
    if (!text) return std::unexpected(text.error());
    DaemonConfig config;
    const auto rules = config_rules();
    for (const ConfigSetting& setting : text->settings) {
        // A job starts from the defaults, which were applied before.
        if (rules[setting.rule].key.key.starts_with("job.")) config.jobs.try_emplace(setting.name, config.default_job);
        if (auto applied = apply_setting(config, rules, setting); !applied) return std::unexpected(applied.error());
    }
    // Enter empty [dataset.NAME] tables too, so that their missing url is reported.
    constexpr std::string_view dataset = "dataset.";
    for (const std::string& table : text->empty_tables) {
        if (table.starts_with(dataset)) config.datasets.try_emplace(table.substr(dataset.size()));
    }
    return complete(std::move(config), source);
}

Result<DaemonConfig> load_config(const std::string& path, std::span<const ConfigOverride> overrides) {
    return load_config_text(
        path, [&](std::string_view toml, std::string_view source) { return parse_config(toml, source, overrides); });
}

Result<void> check_memory(const DaemonConfig& config, const MachineMemory& machine) {
    if (config.memory_bytes <= machine.bytes) return {};
    return fail(ErrorCode::invalid_argument,
                "memory = " + format_bytes(config.memory_bytes) + " is more than there is: " + describe(machine) +
                    "; give the cache a part of that and leave the rest to the training jobs");
}

std::vector<ConfigKey> config_keys() {
    return keys_of(config_rules());
}

std::string default_state_directory() {
    const char* home = std::getenv("HOME");
    if (home == nullptr || *home == '\0') {
        const passwd* account = ::getpwuid(::getuid());
        home = account == nullptr ? "/" : account->pw_dir;
    }
    return std::string(home) + "/.local/share/larder";
}

unsigned data_plane_threads_of(unsigned cores) {
    return std::clamp(cores / 4, 1u, 8u);
}

}  // namespace larder::cache
