#include "cache/control/config.h"

#include <pwd.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <thread>

#include "base/file.h"
#include "base/units.h"
#include "cache/control/config_keys.h"

namespace larder::cache {
namespace {

constexpr std::size_t kSocketPathBytesMax = 107;
constexpr std::size_t kNameBytesMax = 128;

// One key with its value, wherever it came from, and how errors call that place.
struct Setting {
    std::string key;    // "log.level", "job.resnet.remote_rate"
    std::string shown;  // "larderd.toml:3: log.level = \"loud\"", "--log.level loud"
    std::string place;  // "larderd.toml:3: ", "flag "
    ConfigValue value;
};

std::unexpected<Error> refuse(std::string message) {
    return fail(ErrorCode::invalid_argument, std::move(message));
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), 0);
    for (std::size_t i = 0; i < a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i + 1;
        for (std::size_t j = 0; j < b.size(); ++j) {
            const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({row[j] + 1, diagonal + 1, replaced});
        }
    }
    return row[b.size()];
}

// "did you mean ...?" for a near miss, else every key there is.
std::string advice(std::string_view wrong, const std::vector<std::string>& allowed) {
    const auto nearest = std::ranges::min_element(
        allowed, {}, [&](const std::string& candidate) { return edit_distance(wrong, candidate); });
    if (nearest != allowed.end() && edit_distance(wrong, *nearest) <= 1 + wrong.size() / 4) {
        return "did you mean \"" + *nearest + "\"?";
    }
    std::string list = "allowed are ";
    for (const std::string& key : allowed) list += (&key == &allowed.front() ? "" : ", ") + key;
    return list;
}

// "job.a.b.remote_rate" is job "a.b" and member "remote_rate".
struct SplitKey {
    ConfigTable table = ConfigTable::top;
    std::string name;
    std::string member;
};

SplitKey split(const std::string& key) {
    for (const auto& [prefix, table] : {std::pair{std::string_view("job."), ConfigTable::job},
                                        std::pair{std::string_view("dataset."), ConfigTable::dataset}}) {
        const std::size_t last = key.rfind('.');
        if (key.starts_with(prefix) && last >= prefix.size()) {
            return {table, key.substr(prefix.size(), last - prefix.size()), key.substr(last + 1)};
        }
    }
    return {ConfigTable::top, {}, key};
}

bool is_good_name(std::string_view name) {
    constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return !name.empty() && name.size() <= kNameBytesMax && name.front() != '.' && name.front() != '-' &&
           name.find_first_not_of(letters) == std::string_view::npos;
}

std::unexpected<Error> unknown_key(const Setting& setting, const SplitKey& parts) {
    std::vector<std::string> allowed;
    for (const ConfigRule& rule : config_rules()) {
        if (rule.table != parts.table) continue;
        allowed.emplace_back(rule.table == ConfigTable::top ? rule.key.key : rule.member);
    }
    if (parts.table == ConfigTable::top) {
        allowed.emplace_back("job.NAME");
        allowed.emplace_back("dataset.NAME");
    }
    return refuse(setting.place + "unknown key \"" + setting.key + "\": " + advice(parts.member, allowed));
}

Result<void> apply(Config& config, const Setting& setting) {
    const SplitKey parts = split(setting.key);
    if (parts.table != ConfigTable::top && !is_good_name(parts.name)) {
        return refuse(setting.place + "\"" + parts.name +
                      "\" is not a name: expected at most 128 letters, digits, dots, _ and -, a letter or digit first");
    }
    const auto rules = config_rules();
    const auto rule = std::ranges::find_if(rules, [&](const ConfigRule& candidate) {
        return candidate.table == parts.table &&
               parts.member == (candidate.table == ConfigTable::top ? candidate.key.key : candidate.member);
    });
    if (rule == rules.end()) return unknown_key(setting, parts);
    if (parts.table == ConfigTable::job) config.jobs.try_emplace(parts.name, config.default_job);
    if (!rule->set(config, parts.name, setting.value)) {
        return refuse(setting.shown + ": expected " + std::string(rule->key.allowed));
    }
    return {};
}

Setting setting_of(std::string key, const toml::node& node, std::string_view source) {
    Setting setting;
    setting.place = std::string(source) + ":" + std::to_string(node.source().begin.line) + ": ";
    std::ostringstream shown;
    if (const auto* text = node.as_string()) {
        setting.value = {ConfigValue::Kind::text, text->get()};
        shown << '"' << text->get() << '"';
    } else if (const auto* number = node.as_integer()) {
        setting.value = {ConfigValue::Kind::integer, std::to_string(number->get())};
        shown << number->get();
    } else {
        node.visit([&](const auto& typed) { shown << typed; });
    }
    setting.shown = setting.place + key + " = " + shown.str();
    setting.key = std::move(key);
    return setting;
}

// Tables that hold keys of their own: all else that is a table is a mistake, and so reported as an unknown key.
bool is_table_key(const std::string& key) {
    return key == "log" || key == "session" || key == "allocator" || key == "job" || key == "dataset" ||
           (key.starts_with("job.") && key.find('.', 4) == std::string::npos) ||
           (key.starts_with("dataset.") && key.find('.', 8) == std::string::npos);
}

void collect(const toml::table& table, const std::string& prefix, std::string_view source,
             std::vector<Setting>& settings) {
    for (const auto& [name, node] : table) {
        std::string key = prefix + std::string(name.str());
        // A name with a dot, in quotes, is one part; it cannot be mistaken for a nested table at this depth.
        const bool named = prefix == "job." || prefix == "dataset.";
        if (node.is_table() && (named || is_table_key(key))) {
            collect(*node.as_table(), key + ".", source, settings);
        } else {
            settings.push_back(setting_of(std::move(key), node, source));
        }
    }
}

Setting setting_of(const ConfigOverride& flag) {
    std::string shown = flag.key;
    std::ranges::replace(shown, '_', '-');
    return {flag.key, "--" + shown + " " + flag.value, "flag --" + shown + ": ", {ConfigValue::Kind::flag, flag.value}};
}

// `quota` names the key, `capacity` the node's.
Result<void> check_quotas(const Config& config, std::optional<std::uint64_t> DatasetConfig::* quota,
                          std::uint64_t capacity_bytes, std::string_view quota_key, std::string_view capacity_key) {
    std::uint64_t free_bytes = capacity_bytes;
    for (const auto& [name, dataset] : config.datasets) {
        const std::uint64_t bytes = (dataset.*quota).value_or(0);
        if (bytes > free_bytes) {
            return refuse("dataset." + name + "." + std::string(quota_key) + " = " + format_bytes(bytes) +
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

Result<Config> complete(Config config, std::string_view source) {
    if (config.state_directory.empty()) config.state_directory = default_state_directory();
    if (config.socket_path.empty()) config.socket_path = config.state_directory + "/larderd.sock";
    if (config.admin_socket_path.empty()) config.admin_socket_path = config.state_directory + "/admin.sock";
    for (const auto& [key, path] :
         {std::pair<std::string, const std::string&>{"socket", config.socket_path},
          std::pair<std::string, const std::string&>{"admin_socket", config.admin_socket_path}}) {
        if (path.size() > kSocketPathBytesMax) {
            return refuse(std::string(source) + ": " + key + " = \"" + path + "\" has " + std::to_string(path.size()) +
                          " bytes: the kernel takes at most 107; set " + key + " to a shorter path");
        }
    }
    for (const auto& [name, dataset] : config.datasets) {
        if (dataset.url.empty()) return refuse(std::string(source) + ": [dataset." + name + "] has no url");
    }
    for (const auto& checked :
         {check_quotas(config, &DatasetConfig::quota_memory_bytes, config.memory_bytes, "quota_memory", "memory"),
          check_quotas(config, &DatasetConfig::quota_disk_bytes, config.disk_bytes, "quota_disk", "disk")}) {
        if (!checked) return std::unexpected(checked.error().within(source));
    }
    if (config.allocator.node.empty()) config.allocator.node = host_name();
    if (config.data_plane_threads == 0) {
        config.data_plane_threads = data_plane_threads_of(std::thread::hardware_concurrency());
    }
    return config;
}

}  // namespace

Result<Config> parse_config(std::string_view toml, std::string_view source, std::span<const ConfigOverride> overrides) {
    std::vector<Setting> settings;
    Config config;
    try {
        const toml::table table = toml::parse(toml, source);
        collect(table, "", source, settings);
        // An empty [dataset.NAME] has no setting to show itself by, and must be missed its url.
        if (const auto* datasets = table["dataset"].as_table()) {
            for (const auto& [name, node] : *datasets) {
                if (node.is_table() && node.as_table()->empty()) config.datasets[std::string(name.str())];
            }
        }
    } catch (const toml::parse_error& error) {
        return refuse(std::string(source) + ":" + std::to_string(error.source().begin.line) + ": " +
                      std::string(error.description()));
    }
    for (const ConfigOverride& flag : overrides) settings.push_back(setting_of(flag));
    // Top-level keys first: a job starts from the defaults they set. Flags stay behind the file, and so win.
    std::ranges::stable_partition(settings,
                                  [](const Setting& setting) { return split(setting.key).table == ConfigTable::top; });
    for (const Setting& setting : settings) {
        if (auto applied = apply(config, setting); !applied) return std::unexpected(applied.error());
    }
    return complete(std::move(config), source);
}

Result<Config> load_config(const std::string& path, std::span<const ConfigOverride> overrides) {
    if (path.empty()) return parse_config("", "flags", overrides);
    const auto content = read_file(path);
    if (!content) return std::unexpected(content.error().within("config"));
    return parse_config(*content, path, overrides);
}

std::vector<ConfigKey> config_keys() {
    std::vector<ConfigKey> keys;
    for (const ConfigRule& rule : config_rules()) keys.push_back(rule.key);
    return keys;
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
