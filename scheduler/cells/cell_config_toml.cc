#include "scheduler/cells/cell_config_toml.h"

#include <toml++/toml.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <sstream>

#include "base/file.h"

namespace larder::scheduler {
namespace {

constexpr std::uint64_t kNamesMax = 100'000;
constexpr std::uint32_t kCountMax = 1'000'000;

std::string quoted_text(std::string_view text) {
    return "\"" + std::string(text) + "\"";
}

std::string shown(const toml::node& node) {
    std::ostringstream text;
    node.visit([&](const auto& typed) { text << typed; });
    const auto* string = node.as_string();
    std::string line = string != nullptr ? quoted_text(string->get()) : text.str();
    std::ranges::replace(line, '\n', ' ');
    constexpr std::size_t kShownBytesMax = 80;
    if (line.size() > kShownBytesMax) line = line.substr(0, kShownBytesMax) + "...";
    return line;
}

template <typename Names>
std::string quoted_list(const Names& names) {
    std::string text;
    for (const auto& name : names) text += (text.empty() ? "" : ", ") + quoted_text(name);
    return text;
}

// Reports only the first error. Values read after it may be defaults.
class Reader {
public:
    explicit Reader(std::string_view source) : source_(source) {}

    Result<CellConfig> read(const toml::table& root) {
        check_keys(root, "", {"hierarchy", "virtual_cluster"});
        CellConfig config;
        for (const toml::table* table : tables(root, "", "hierarchy")) {
            config.hierarchies.push_back(hierarchy(*table));
        }
        if (error_) return std::unexpected(*error_);
        if (auto good = check_cells(config, source_); !good) return std::unexpected(good.error());
        for (const toml::table* table : tables(root, "", "virtual_cluster")) {
            config.virtual_clusters.push_back(virtual_cluster(*table, config));
        }
        if (error_) return std::unexpected(*error_);
        if (auto good = check_cells(config, source_); !good) return std::unexpected(good.error());
        sort_cells(config);
        return config;
    }

private:
    void refuse(const toml::node& at, const std::string& what) {
        if (error_) return;
        error_ = Error{.code = ErrorCode::invalid_argument,
                       .message = source_ + ":" + std::to_string(at.source().begin.line) + ": " + what};
    }

    void refuse_value(const toml::node& node, const std::string& key, const std::string& expected) {
        refuse(node, key + " = " + shown(node) + ": expected " + expected);
    }

    void check_keys(const toml::table& table, const std::string& prefix, std::initializer_list<std::string_view> keys) {
        for (const auto& [key, node] : table) {
            if (std::ranges::find(keys, key.str()) != keys.end()) continue;
            refuse(node, (prefix.empty() ? "" : prefix.substr(0, prefix.size() - 1) + ": ") + "unknown key " +
                             quoted_text(key.str()) + ": expected one of " + quoted_list(keys));
        }
    }

    // Returns the tables of a list, inline or not; empty if the key is missing.
    std::vector<const toml::table*> tables(const toml::table& in, const std::string& prefix, std::string_view key) {
        std::vector<const toml::table*> found;
        const toml::node* node = in.get(key);
        if (node == nullptr) return found;
        const std::string name = prefix + std::string(key);
        const toml::array* list = node->as_array();
        if (list == nullptr) {
            refuse_value(*node, name, "a list of tables");
            return found;
        }
        for (const toml::node& entry : *list) {
            if (!entry.is_table()) {
                refuse_value(entry, name, "a list of tables");
                return {};
            }
            found.push_back(entry.as_table());
        }
        return found;
    }

    std::string text(const toml::table& in, const std::string& prefix, std::string_view key,
                     const std::string& expected) {
        const toml::node* node = in.get(key);
        const std::string name = prefix + std::string(key);
        if (node == nullptr) {
            refuse(in, name + " is missing: expected " + expected);
            return {};
        }
        const auto* value = node->as_string();
        if (value == nullptr || value->get().empty()) {
            refuse_value(*node, name, expected);
            return {};
        }
        return value->get();
    }

    std::uint32_t count(const toml::table& in, const std::string& prefix, std::string_view key, std::uint32_t least,
                        std::uint32_t most) {
        const std::string expected = "a whole number, " + std::to_string(least) + " to " + std::to_string(most);
        const toml::node* node = in.get(key);
        const std::string name = prefix + std::string(key);
        if (node == nullptr) {
            refuse(in, name + " is missing: expected " + expected);
            return least;
        }
        const auto* value = node->as_integer();
        if (value == nullptr || value->get() < least || value->get() > most) {
            refuse_value(*node, name, expected);
            return least;
        }
        return static_cast<std::uint32_t>(value->get());
    }

    std::uint32_t level(const toml::table& in, const std::string& prefix, std::string_view key,
                        const HierarchyConfig& hierarchy, std::uint32_t least) {
        std::vector<std::string_view> names;
        names.reserve(hierarchy.levels_count());
        for (std::uint32_t k = least; k < hierarchy.levels_count(); ++k) names.push_back(hierarchy.level_name(k));
        const std::string expected = "one of " + quoted_list(names);
        const std::string value = text(in, prefix, key, expected);
        const auto found = std::ranges::find(names, value);
        if (found != names.end()) return least + static_cast<std::uint32_t>(found - names.begin());
        if (const toml::node* node = in.get(key)) refuse_value(*node, prefix + std::string(key), expected);
        return least;
    }

    HierarchyConfig hierarchy(const toml::table& table) {
        HierarchyConfig read;
        read.name = text(table, "hierarchy.", "name", "a name, in text");
        const std::string prefix = "hierarchy " + quoted_text(read.name) + " ";
        check_keys(table, prefix, {"name", "gpu_type", "levels", "node", "nodes", "first_gpu"});
        read.gpu_type = text(table, prefix, "gpu_type", "a name, in text");
        std::vector<const toml::table*> levels = tables(table, prefix, "levels");
        if (levels.empty() || levels.size() > kCellLevelsMax) {
            refuse(table, prefix + "levels has " + std::to_string(levels.size()) +
                              " entries: expected 1 to 8 of the form { name = \"node\", of = 8 }");
            return read;
        }
        for (const toml::table* level : levels) {
            const std::string at = prefix + "levels[" + std::to_string(read.levels.size()) + "].";
            check_keys(*level, at, {"name", "of"});
            read.levels.push_back(
                {.name = text(*level, at, "name", "a name, in text"), .of = count(*level, at, "of", 1, kCellGpusMax)});
        }
        read.node_level = level(table, prefix, "node", read, 1);
        nodes(table, prefix, read);
        if (table.contains("first_gpu")) read.first_gpu = count(table, prefix, "first_gpu", 0, kGpusPerNodeMax - 1);
        return read;
    }

    void nodes(const toml::table& table, const std::string& prefix, HierarchyConfig& read) {
        const std::string expected = "a list of names such as \"gpu17\" or \"gpu[00-15]\"";
        const toml::node* node = table.get("nodes");
        if (node == nullptr) return refuse(table, prefix + "nodes is missing: expected " + expected);
        const toml::array* list = node->as_array();
        if (list == nullptr) return refuse_value(*node, prefix + "nodes", expected);
        for (const toml::node& entry : *list) {
            const auto* value = entry.as_string();
            std::vector<std::string> names = value == nullptr ? std::vector<std::string>{} : expand_names(value->get());
            if (names.empty()) return refuse_value(entry, prefix + "nodes", expected);
            if (read.nodes.size() + names.size() > kCellGpusMax) {
                return refuse(entry, prefix + "nodes has too many names: expected at most 1000000");
            }
            std::ranges::move(names, std::back_inserter(read.nodes));
        }
    }

    std::uint32_t hierarchy_of(const toml::table& table, const std::string& prefix, const CellConfig& config) {
        std::vector<std::string_view> names;
        names.reserve(config.hierarchies.size());
        for (const HierarchyConfig& hierarchy : config.hierarchies) names.push_back(hierarchy.name);
        const std::string expected = "the name of a hierarchy: " + quoted_list(names);
        const std::string value = text(table, prefix, "hierarchy", expected);
        const auto found = std::ranges::find(names, value);
        if (found != names.end()) return static_cast<std::uint32_t>(found - names.begin());
        if (const toml::node* node = table.get("hierarchy")) refuse_value(*node, prefix + "hierarchy", expected);
        return kNoHierarchy;
    }

    VirtualClusterConfig virtual_cluster(const toml::table& table, const CellConfig& config) {
        VirtualClusterConfig read;
        read.name = text(table, "virtual_cluster.", "name", "a tenant's name, in text");
        const std::string prefix = "virtual_cluster " + quoted_text(read.name) + " ";
        check_keys(table, prefix, {"name", "cells", "pinned"});
        for (const toml::table* cell : tables(table, prefix, "cells")) {
            const std::string at = prefix + "cells[" + std::to_string(read.cells.size()) + "].";
            check_keys(*cell, at, {"hierarchy", "level", "count"});
            const std::uint32_t h = hierarchy_of(*cell, at, config);
            if (h == kNoHierarchy) return read;
            read.cells.push_back({.hierarchy = h,
                                  .level = level(*cell, at, "level", config.hierarchies[h], 0),
                                  .count = count(*cell, at, "count", 1, kCountMax)});
        }
        for (const toml::table* pin : tables(table, prefix, "pinned")) {
            const std::string at = prefix + "pinned[" + std::to_string(read.pinned.size()) + "].";
            const std::uint32_t h = hierarchy_of(*pin, at, config);
            if (h == kNoHierarchy || error_) return read;
            read.pinned.push_back(pinned(*pin, at, config.hierarchies[h], h));
        }
        return read;
    }

    PinnedCell pinned(const toml::table& table, const std::string& prefix, const HierarchyConfig& hierarchy,
                      std::uint32_t h) {
        check_keys(table, prefix, {"name", "hierarchy", "level", "node", "gpu"});
        PinnedCell read{.hierarchy = h, .level = level(table, prefix, "level", hierarchy, 0), .index = 0};
        if (table.contains("name")) read.name = text(table, prefix, "name", "a name, in text");
        const std::string node = text(table, prefix, "node", "the name of a node of the cell");
        const auto found = std::ranges::find(hierarchy.nodes, node);
        if (found == hierarchy.nodes.end()) {
            if (const toml::node* at = table.get("node")) {
                refuse_value(*at, prefix + "node", "the name of a node of hierarchy " + quoted_text(hierarchy.name));
            }
            return read;
        }
        const std::uint32_t per_node = hierarchy.gpus_in(hierarchy.node_level);
        auto gpu = static_cast<std::uint32_t>(found - hierarchy.nodes.begin()) * per_node;
        if (read.level < hierarchy.node_level) {
            const std::uint32_t first = hierarchy.first_gpu;
            gpu += count(table, prefix, "gpu", first, first + per_node - 1) - first;
        } else if (const toml::node* at = table.get("gpu")) {
            refuse(*at, prefix + "gpu is given, but level " + quoted_text(hierarchy.level_name(read.level)) +
                            " is not below the node");
        }
        read.index = gpu / hierarchy.gpus_in(read.level);
        return read;
    }

    static constexpr std::uint32_t kNoHierarchy = ~0U;

    std::string source_;
    std::optional<Error> error_;
};

}  // namespace

std::vector<std::string> expand_names(std::string_view text) {
    const std::size_t open = text.find('[');
    const std::size_t close = text.find(']');
    if (open == std::string_view::npos && close == std::string_view::npos) {
        if (text.empty()) return {};
        return {std::string(text)};
    }
    if (open == std::string_view::npos || close == std::string_view::npos || close < open) return {};
    const std::string_view before = text.substr(0, open);
    const std::string_view after = text.substr(close + 1);
    const std::string_view range = text.substr(open + 1, close - open - 1);
    if (after.find_first_of("[]") != std::string_view::npos || range.find('[') != std::string_view::npos) return {};
    const std::size_t dash = range.find('-');
    if (dash == std::string_view::npos) return {};
    const auto number = [](std::string_view digits, std::uint64_t& into) {
        constexpr std::size_t kDigitsMax = 12;
        for (const char digit : digits) {
            if (digit < '0' || digit > '9') return false;
            into = into * 10 + static_cast<std::uint64_t>(digit - '0');
        }
        return !digits.empty() && digits.size() <= kDigitsMax;
    };
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    const std::string_view from = range.substr(0, dash);
    if (!number(from, first) || !number(range.substr(dash + 1), last)) return {};
    if (last < first || last - first >= kNamesMax) return {};
    std::vector<std::string> names;
    names.reserve(last - first + 1);
    for (std::uint64_t i = first; i <= last; ++i) {
        std::string digits = std::to_string(i);
        if (digits.size() < from.size()) digits.insert(0, from.size() - digits.size(), '0');
        names.push_back(std::string(before) + digits + std::string(after));
    }
    return names;
}

Result<CellConfig> parse_cell_config(std::string_view toml, std::string_view source) {
    try {
        const toml::table root = toml::parse(toml, source);
        return Reader(source).read(root);
    } catch (const toml::parse_error& error) {
        return fail(ErrorCode::invalid_argument, std::string(source) + ":" + std::to_string(error.source().begin.line) +
                                                     ": " + std::string(error.description()));
    }
}

Result<CellConfig> load_cell_config(const std::string& path) {
    const auto content = read_file(path);
    if (!content) return std::unexpected(content.error().within("cells"));
    return parse_cell_config(*content, path);
}

}  // namespace larder::scheduler
