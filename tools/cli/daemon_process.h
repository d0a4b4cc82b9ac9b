#pragma once

// A daemon as the whole work of this process, for larderd and `larder up`: logs, starts, tells systemd where it asks,
// serves until SIGTERM or Ctrl-C, drains.

#include <functional>

#include "base/error.h"
#include "cache/control/config.h"

namespace larder::cli {

struct DaemonProcess {
    cache::Config config;
    std::function<Result<cache::Config>()> reload;  // for SIGHUP
    std::function<Result<void>()> started;          // when it serves; an error ends it
    std::function<void()> ended;                    // it serves no more; the log is still there
};

Result<void> run_daemon(const DaemonProcess& process);

}  // namespace larder::cli
