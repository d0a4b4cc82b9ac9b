#pragma once

// The node daemon as one object: lock, index, catalog, data-plane threads, session socket, admin and metrics HTTP.
// `start` returns when it serves. tools/larderd runs it as a program (`run` handles signals); `larder up` and tests run
// it inside another process and end it with `stop` or the destructor.
//
//     auto daemon = larder::cache::Daemon::start(config);
//     if (!daemon) return report(daemon.error().message);
//     (*daemon)->run({.reload = [] { return larder::cache::load_config(path); }});
//
// Everything a daemon keeps is under its state directory:
//   larderd.lock  held while it runs        datasets/NAME/  dataset.json, manifest-VERSION   (catalog.h)
//   larderd.sock  sessions (handshake.h)    segments/ID/    cached blocks                    (cache/store.h)
//   admin.sock    HTTP (api.h)              index/          LMDB                             (cache/store/index.h)
//   limits.json   job limits set by the API (job_limits.h)

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "cache/control/config.h"

namespace larder::cache {

class Daemon {
public:
    // Logging is the caller's to start; a reload changes its level. An error leaves nothing behind.
    static Result<std::unique_ptr<Daemon>> start(const Config& config);
    // Stops it if it still runs.
    ~Daemon();

    struct RunOptions {
        // What SIGHUP reads anew; see `reload`. Empty: SIGHUP is ignored.
        std::function<Result<Config>()> reload;
        // Called once signals are waited for. May be empty.
        std::function<void()> ready;
    };
    // Serves until SIGTERM, SIGINT or `stop`; then everything is closed and written down.
    void run(RunOptions options = {});

    // Any thread but the daemon's own, any number of times: stops accepting, closes sessions, lets reads and writes in
    // flight end, writes the index down. Returns when all of it is done.
    void stop();

    // Any thread. Applies the quotas, job limits and log level of a config, and adds datasets it newly names, as SIGHUP
    // does. All quotas or none.
    Result<void> reload(const Config& config);

    const std::string& socket_path() const;        // of sessions
    const std::string& admin_socket_path() const;  // of HTTP
    std::uint16_t metrics_port() const;            // 0 without config.metrics_listen

private:
    struct State;
    explicit Daemon(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace larder::cache
