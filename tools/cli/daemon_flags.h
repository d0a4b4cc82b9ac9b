#pragma once

// Every key of the daemon's config as a flag, for larderd and `larder up`: `log.level` is --log.level, and a job's or
// dataset's key has its name in the middle: --job.resnet.remote-rate 200MB/s.

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cache/control/config.h"

namespace CLI {
class App;
}

namespace larder::cli {

class DaemonFlags {
public:
    // Must outlive the parsing of `app`, which is told to leave unknown flags to `overrides`.
    void add_to(CLI::App& app);
    // What was given, after the parsing.
    Result<std::vector<cache::ConfigOverride>> overrides(const CLI::App& app) const;

private:
    struct Flag {
        std::string key;
        std::vector<std::string> values;
    };
    std::deque<Flag> flags_;  // not moved while options point into it
};

}  // namespace larder::cli
