#include "base/server/config_text.h"

#include <toml++/toml.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "base/nearest_name.h"

namespace larder {
namespace {

constexpr std::size_t kNameBytesMax = 128;
constexpr std::string_view kNamePart = ".NAME.";

// Suggests the nearest key ("did you mean ...?"), or lists every key if none is near.
std::string advice(std::string_view wrong, const std::vector<std::string>& allowed) {
    if (const auto nearest = nearest_name(wrong, allowed)) return "did you mean \"" + *nearest + "\"?";
    std::string list = "allowed are ";
    for (const std::string& key : allowed) list += (&key == &allowed.front() ? "" : ", ") + key;
    return list;
}

bool is_good_name(std::string_view name) {
    constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return !name.empty() && name.size() <= kNameBytesMax && name.front() != '.' && name.front() != '-' &&
           name.find_first_not_of(letters) == std::string_view::npos;
}

// Returns the table of a key with a name: "job" of "job.NAME.remote_rate". Returns an empty text for other keys.
std::string_view named_table(std::string_view key) {
    const std::size_t end = key.find(kNamePart);
    return end == std::string_view::npos ? std::string_view() : key.substr(0, end);
}

std::string_view member_of(std::string_view key) {
    return key.substr(key.find(kNamePart) + kNamePart.size());
}

// A key and its value before the rule is looked up, with the place that errors name.
struct FoundKey {
    std::string key;    // "log.level", "job.resnet.remote_rate"
    std::string place;  // "larderd.toml:3: ", "flag --log.level: "
    ConfigSetting setting;
};

// The parts of a key: "job.a.b.remote_rate" has table "job", name "a.b" and member "remote_rate".
struct SplitKey {
    std::string_view table;
    std::string name;
    std::string member;
};

class Reader {
public:
    Reader(std::string_view source, std::span<const ConfigKey> keys) : source_(source), keys_(keys) {}

    void collect(const toml::table& table, const std::string& prefix) {
        if (table.empty() && !prefix.empty()) {
            text_.empty_tables.push_back(prefix.substr(0, prefix.size() - 1));
        }
        for (const auto& [name, node] : table) {
            std::string key = prefix + std::string(name.str());
            // A quoted name with a dot in it is one part; at this depth it cannot be a nested table.
            const bool named = !prefix.empty() && is_named_table(prefix.substr(0, prefix.size() - 1));
            if (node.is_table() && (named || is_table(key))) {
                collect(*node.as_table(), key + ".");
            } else {
                found_.push_back(read_key(std::move(key), node));
            }
        }
    }

    void add(const ConfigOverride& flag) {
        std::string shown = flag.key;
        std::ranges::replace(shown, '_', '-');
        FoundKey found{.key = flag.key, .place = "flag --" + shown + ": ", .setting = {}};
        found.setting.shown = "--" + shown + " " + flag.value;
        found.setting.value = {ConfigValue::Kind::flag, flag.value};
        found_.push_back(std::move(found));
    }

    Result<ConfigText> finish() {
        // Top-level keys come first: a named table starts from the defaults they set. Within each group, flags stay
        // after the file's keys.
        std::ranges::stable_partition(found_, [&](const FoundKey& found) { return split(found.key).table.empty(); });
        for (FoundKey& found : found_) {
            const SplitKey parts = split(found.key);
            if (!parts.table.empty() && !is_good_name(parts.name)) {
                return fail(ErrorCode::invalid_argument,
                            found.place + "\"" + parts.name +
                                "\" is not a name: expected at most 128 letters, digits, dots, _ and -, a letter or "
                                "digit first");
            }
            const auto key = std::ranges::find_if(keys_, [&](const ConfigKey& candidate) {
                return named_table(candidate.key) == parts.table &&
                       parts.member == (parts.table.empty() ? candidate.key : member_of(candidate.key));
            });
            if (key == keys_.end()) return unknown_key(found, parts);
            found.setting.rule = static_cast<std::size_t>(key - keys_.begin());
            found.setting.name = parts.name;
            text_.settings.push_back(std::move(found.setting));
        }
        return std::move(text_);
    }

private:
    bool is_named_table(std::string_view key) const {
        return std::ranges::any_of(keys_, [&](const ConfigKey& known) { return named_table(known.key) == key; });
    }

    // True for tables that hold keys. Any other table is a mistake and is reported as an unknown key.
    bool is_table(const std::string& key) const {
        return std::ranges::any_of(keys_, [&](const ConfigKey& known) { return known.key.starts_with(key + "."); });
    }

    FoundKey read_key(std::string key, const toml::node& node) const {
        FoundKey found;
        found.place = std::string(source_) + ":" + std::to_string(node.source().begin.line) + ": ";
        std::ostringstream shown;
        ConfigValue& value = found.setting.value;
        if (const auto* text = node.as_string()) {
            value = {ConfigValue::Kind::text, text->get()};
            shown << '"' << text->get() << '"';
        } else if (const auto* number = node.as_integer()) {
            value = {ConfigValue::Kind::integer, std::to_string(number->get())};
            shown << number->get();
        } else {
            node.visit([&](const auto& typed) { shown << typed; });
            if (node.is_boolean() || node.is_floating_point()) value.text = shown.str();
        }
        found.setting.shown = found.place + key + " = " + shown.str();
        found.key = std::move(key);
        return found;
    }

    SplitKey split(const std::string& key) const {
        for (const ConfigKey& known : keys_) {
            const std::string_view table = named_table(known.key);
            const std::size_t last = key.rfind('.');
            if (table.empty() || !key.starts_with(table) || key[table.size()] != '.' || last <= table.size()) continue;
            return {table, key.substr(table.size() + 1, last - table.size() - 1), key.substr(last + 1)};
        }
        return {{}, {}, key};
    }

    std::unexpected<Error> unknown_key(const FoundKey& found, const SplitKey& parts) const {
        std::vector<std::string> allowed;
        std::vector<std::string> tables;
        for (const ConfigKey& known : keys_) {
            const std::string_view table = named_table(known.key);
            if (table == parts.table) allowed.emplace_back(table.empty() ? known.key : member_of(known.key));
            const std::string form = std::string(table) + ".NAME";
            if (!table.empty() && std::ranges::find(tables, form) == tables.end()) tables.push_back(form);
        }
        if (parts.table.empty()) allowed.insert(allowed.end(), tables.begin(), tables.end());
        return fail(ErrorCode::invalid_argument,
                    found.place + "unknown key \"" + found.key + "\": " + advice(parts.member, allowed));
    }

    std::string_view source_;
    std::span<const ConfigKey> keys_;
    std::vector<FoundKey> found_;
    ConfigText text_;
};

}  // namespace

std::unexpected<Error> config_error(std::string_view source, std::string_view message) {
    return fail(ErrorCode::invalid_argument, std::string(source) + ": " + std::string(message));
}

Result<ConfigText> read_config_text(std::string_view toml, std::string_view source, std::span<const ConfigKey> keys,
                                    std::span<const ConfigOverride> overrides) {
    Reader reader(source, keys);
    try {
        reader.collect(toml::parse(toml, source), "");
    } catch (const toml::parse_error& error) {
        return fail(ErrorCode::invalid_argument, std::string(source) + ":" + std::to_string(error.source().begin.line) +
                                                     ": " + std::string(error.description()));
    }
    for (const ConfigOverride& flag : overrides) reader.add(flag);
    return reader.finish();
}

}  // namespace larder
