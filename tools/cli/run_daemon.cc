#include "tools/cli/run_daemon.h"

#include "base/server/logging.h"
#include "base/server/systemd.h"
#include "cache/control/daemon.h"

namespace larder::cli {
namespace {

Result<void> start_log(const cache::DaemonConfig& config) {
    const auto level = parse_log_level(config.log_level);
    if (!level) return std::unexpected(level.error());
    return start_logging({*level, config.log_file});
}

}  // namespace

Result<void> run_daemon(const DaemonRun& process) {
    if (auto logging = start_log(process.config); !logging) return logging;
    auto daemon = cache::Daemon::start(process.config, cache::Daemon::Signals::taken);
    if (!daemon) return std::unexpected(daemon.error());
    if (process.started) {
        if (auto started = process.started(); !started) return started;
    }
    (*daemon)->run({.reload = process.reload, .ready = [] { tell_systemd("READY=1"); }});
    tell_systemd("STOPPING=1");
    daemon->reset();
    if (process.ended) process.ended();
    stop_logging();
    return {};
}

}  // namespace larder::cli
