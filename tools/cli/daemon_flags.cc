#include "tools/cli/daemon_flags.h"

#include <CLI/CLI.hpp>

#include <algorithm>

namespace larder::cli {
namespace {

std::string replace_char(std::string text, char from, char to) {
    std::ranges::replace(text, from, to);
    return text;
}

// Converts a flag to a key. Dashes become underscores only after the last dot: a job's or dataset's name before it may
// contain dashes.
std::string key_of_flag(const std::string& flag) {
    const std::size_t last = flag.rfind('.');
    if (last == std::string::npos) return replace_char(flag, '-', '_');
    return flag.substr(0, last + 1) + replace_char(flag.substr(last + 1), '-', '_');
}

}  // namespace

void DaemonFlags::add_to(CLI::App& app, const std::vector<ConfigKey>& keys) {
    for (const ConfigKey& key : keys) {
        const bool has_name = key.key.find("NAME") != std::string_view::npos;
        Flag& flag = flags_.emplace_back(Flag{std::string(key.key), {}});
        const std::string help = std::string(key.meaning) + ": " + std::string(key.allowed);
        // Flags with NAME are listed for --help only; real ones arrive among the extras.
        app.add_option("--" + replace_char(flag.key, '_', '-'), flag.values, help)
            ->type_name("VALUE")
            ->expected(1)
            ->group(has_name ? "Config, per name" : "Config");
    }
    app.allow_extras();
}

Result<std::vector<ConfigOverride>> DaemonFlags::overrides(const CLI::App& app) const {
    std::vector<ConfigOverride> overrides;
    for (const Flag& flag : flags_) {
        for (const std::string& value : flag.values) overrides.push_back({flag.key, value});
    }
    const std::vector<std::string> extras = app.remaining();
    for (std::size_t at = 0; at < extras.size(); ++at) {
        if (!extras[at].starts_with("--")) {
            return fail(ErrorCode::invalid_argument, "unexpected argument \"" + extras[at] + "\"; see --help");
        }
        std::string key = extras[at].substr(2);
        if (const std::size_t equals = key.find('='); equals != std::string::npos) {
            overrides.push_back({key_of_flag(key.substr(0, equals)), key.substr(equals + 1)});
        } else if (at + 1 < extras.size() && !extras[at + 1].starts_with("--")) {
            overrides.push_back({key_of_flag(key), extras[++at]});
        } else {
            return fail(ErrorCode::invalid_argument, "flag --" + key + " has no value; see --help");
        }
    }
    return overrides;
}

}  // namespace larder::cli
