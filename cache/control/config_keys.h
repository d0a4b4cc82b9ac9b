#pragma once

// The table of every config key: what it is called, what it takes, and how it is put into a Config. Only config.cc and
// its tests include this.

#include <span>
#include <string>
#include <string_view>

#include "cache/control/config.h"

namespace larder::cache {

// A value as the file or a flag gave it. A flag's value is text whatever the key's type.
struct ConfigValue {
    enum class Kind : std::uint8_t { text, integer, other, flag };
    Kind kind = Kind::other;
    std::string text;  // without quotes
};

enum class ConfigTable : std::uint8_t { top, job, dataset };

struct ConfigRule {
    ConfigKey key;
    ConfigTable table = ConfigTable::top;
    std::string_view member;  // the last part of the key, for jobs and datasets
    // False when the value is not allowed. `name` is the job's or dataset's.
    bool (*set)(Config& config, const std::string& name, const ConfigValue& value) = nullptr;
};

std::span<const ConfigRule> config_rules();

}  // namespace larder::cache
