#pragma once

// The part of configuration that all daemons share: one TOML file, read strictly. Every key is also a flag (`log.level`
// in the file is `--log.level`, `_` in a key is `-` in a flag). A daemon passes its table of rules and gets settings in
// the order to apply them: top-level keys first, flags after the file, so that flags win. An unknown key, a wrong type
// or a wrong value is an Error naming the file and line (or the flag), the key, the value and what is allowed. A key
// with NAME in it, "job.NAME.remote_rate", stands for a table per name: [job.resnet].

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace larder {

// A key and value from a flag: {"log.level", "debug"}, {"job.resnet.remote_rate", "200 MB/s"}.
struct ConfigOverride {
    std::string key;
    std::string value;
};

// One key, as --help and the flags need it.
struct ConfigKey {
    std::string_view key;
    std::string_view allowed;
    std::string_view meaning;
};

// A value as the file or a flag gave it. A flag's value is always text, whatever type the key has.
struct ConfigValue {
    enum class Kind : std::uint8_t { text, integer, other, flag };
    Kind kind = Kind::other;
    std::string text;  // without quotes
};

// One key with its value, from the file or from a flag.
struct ConfigSetting {
    std::size_t rule = 0;  // index of the key among those given to read_config_text()
    std::string name;      // the part at NAME; empty for other keys
    std::string shown;     // "larderd.toml:3: log.level = \"loud\"", "--log.level loud"
    ConfigValue value;
};

struct ConfigText {
    std::vector<ConfigSetting> settings;
    std::vector<std::string> empty_tables;  // "dataset.images" of a [dataset.images] with nothing in it
};

// Returns an invalid_argument Error "SOURCE: MESSAGE".
std::unexpected<Error> config_error(std::string_view source, std::string_view message);

// Calls parse(toml, source) with the file's content and path, or with "" and "flags" if `path` is empty.
template <typename Parse>
auto load_config_text(const std::string& path, Parse parse) -> decltype(parse(std::string_view(), std::string_view())) {
    if (path.empty()) return parse("", "flags");
    const auto content = read_file(path);
    if (!content) return std::unexpected(content.error().within("config"));
    return parse(*content, path);
}

// Reads the TOML text and the flags. `source` names the text in errors; normally it is the file's path.
Result<ConfigText> read_config_text(std::string_view toml, std::string_view source, std::span<const ConfigKey> keys,
                                    std::span<const ConfigOverride> overrides);

// A rule in a daemon's own table: stores a key's value in the daemon's Config. `set` returns false if the value is not
// allowed.
template <typename Config>
struct ConfigRule {
    ConfigKey key;
    bool (*set)(Config& config, const std::string& name, const ConfigValue& value) = nullptr;
};

template <typename Class, typename Member>
Class class_of_member(Member Class::*);

// A rule's `set` that stores the value in a member. Setter is a function of config_values.h; the pointers lead from the
// config to the member: set_member<set_config_path, &AllocatorConfig::tls, &TlsServerFiles::key_file>.
template <auto Setter, auto First, auto... Rest>
bool set_member(decltype(class_of_member(First))& config, const std::string& /*name*/, const ConfigValue& value) {
    return Setter(((config.*First).*....*Rest), value);
}

// The same for a key with NAME: Map leads to a map by name, and the other pointers lead on from the name's value.
template <auto Setter, auto Map, auto... Rest>
bool set_entry(decltype(class_of_member(Map))& config, const std::string& name, const ConfigValue& value) {
    return Setter(((config.*Map)[name].*....*Rest), value);
}

template <typename Config>
std::vector<ConfigKey> keys_of(std::span<const ConfigRule<Config>> rules) {
    std::vector<ConfigKey> keys;
    for (const auto& rule : rules) keys.push_back(rule.key);
    return keys;
}

template <typename Config>
Result<void> apply_setting(Config& config, std::span<const ConfigRule<Config>> rules, const ConfigSetting& setting) {
    const ConfigRule<Config>& rule = rules[setting.rule];
    if (rule.set(config, setting.name, setting.value)) return {};
    return fail(ErrorCode::invalid_argument, setting.shown + ": expected " + std::string(rule.key.allowed));
}

}  // namespace larder
