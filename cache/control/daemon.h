#pragma once

// The node daemon as one object: lock, index, catalog, data-plane threads, session socket, admin and metrics HTTP.
// `start` returns once the daemon serves. tools/larderd runs it as a program (`run` handles signals). `larder up` and
// tests run it inside another process and end it with `stop` or the destructor.
//
//     auto daemon = larder::cache::Daemon::start(config);
//     if (!daemon) return report(daemon.error().message);
//     (*daemon)->run({.reload = [] { return larder::cache::load_config(path); }});
//
// The state directory holds all persistent state of a daemon:
//   larderd.lock  held while it runs        datasets/NAME/  dataset.json, manifest-VERSION   (catalog.h)
//   larderd.sock  sessions (handshake.h)    segments/ID/    cached blocks                    (cache/store/store.h)
//   admin.sock    HTTP (daemon_api.h)       index/          LMDB                             (cache/store/index.h)
//   limits.json   job limits set by the API (job_limits.h)
//   promised-floor  the rate before the first lease (promised_floor.h)

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "cache/control/daemon_config.h"

namespace larder {
class BlockingCalls;
}

namespace larder::cache {

class Daemon {
public:
    // taken: the daemon handles SIGTERM, SIGINT and SIGHUP from its first answer on. left: only in `run`.
    // A program whose users send signals as soon as it answers takes them: by default they would kill it.
    enum class Signals : std::uint8_t { taken, left };

    // The caller starts logging; a reload changes the log level. On error nothing is left behind.
    static Result<std::unique_ptr<Daemon>> start(const DaemonConfig& config, Signals signals = Signals::left);
    // Stops the daemon if it is running.
    ~Daemon();

    struct RunOptions {
        // Reads the config for `reload` on SIGHUP, on a thread of its own. That may hang with a disk or the name
        // service and end when all else is gone, so this must own all that it uses. The next SIGHUP does not wait for
        // it, so calls may overlap. Empty: SIGHUP is ignored.
        std::function<Result<DaemonConfig>()> reload;
        // Called once the daemon handles signals. May be empty.
        std::function<void()> ready;
    };
    // Serves until SIGTERM, SIGINT or `stop`, then closes everything and saves the state.
    void run(RunOptions options = {});

    // Call it on any thread but the daemon's own, any number of times. Stops accepting, closes sessions, lets reads and
    // writes in flight finish, and saves the index. Returns when all of this is done. Without memory it ends the
    // program.
    void stop() noexcept;

    // Any thread. Applies the quotas, job limits and log level of a config, and adds its new datasets, as SIGHUP does.
    // Applies all quotas or none. Waits for the name service if users are named.
    Result<void> reload(const DaemonConfig& config);

    const std::string& socket_path() const;        // of sessions
    const std::string& admin_socket_path() const;  // of HTTP
    std::uint16_t metrics_port() const;            // 0 without config.metrics_listen

private:
    struct State;
    // Reads a config and looks up its users, without waiting for that; then applies it, unless a later one was begun.
    void start_reload(const std::function<Result<DaemonConfig>()>& read, BlockingCalls& reads);
    // As `reload`, with the numbers of users for their names.
    Result<void> apply(const DaemonConfig& with_numbers);
    explicit Daemon(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace larder::cache
