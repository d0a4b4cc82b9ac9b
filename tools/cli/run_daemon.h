#pragma once

// Runs a daemon as the sole work of this process, for larderd and `larder up`: sets up logs, starts, tells systemd if
// asked, serves until SIGTERM or Ctrl-C, drains.

#include <functional>

#include "base/error.h"
#include "cache/control/daemon_config.h"

namespace larder::cli {

struct DaemonRun {
    cache::DaemonConfig config;
    std::function<Result<cache::DaemonConfig>()> reload;  // for SIGHUP
    std::function<Result<void>()> started;                // called once it serves; an error ends it
    std::function<void()> ended;                          // called once it no longer serves; the log still works
};

Result<void> run_daemon(const DaemonRun& process);

}  // namespace larder::cli
