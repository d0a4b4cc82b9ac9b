#pragma once

// Every key of a daemon's config as a flag, for larderd, larder-allocator and `larder up`: `log.level` is --log.level,
// and a key of a named table has the name in the middle: --job.resnet.remote-rate 200MB/s.

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/server/config_text.h"

namespace CLI {
class App;
}

namespace larder::cli {

class DaemonFlags {
public:
    // Adds the flags. This object must outlive the parsing of `app`, which is told to leave unknown flags to
    // `overrides`.
    void add_to(CLI::App& app, const std::vector<ConfigKey>& keys);
    // Returns the flags that were given. Call after parsing.
    Result<std::vector<ConfigOverride>> overrides(const CLI::App& app) const;

private:
    struct Flag {
        std::string key;
        std::vector<std::string> values;
    };
    std::deque<Flag> flags_;  // a deque, as options point into it
};

}  // namespace larder::cli
