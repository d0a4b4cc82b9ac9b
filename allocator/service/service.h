#pragma once

// The allocator as a running program: the cluster, its state, and its API on a Unix socket and over TCP, all on the
// thread of its io_context. `serve` is the whole program except its command line and its log.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "allocator/service/allocator_config.h"
#include "allocator/service/extension.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/server/etcd_rows.h"

namespace boost::asio {
class io_context;
}

namespace larder {
class HttpServer;
}

namespace larder::allocator {

class AllocatorService {
public:
    // Returns a service that listens. Requests are answered once `context` runs. `context` and `clock` must outlive the
    // service.
    // With a term, its state is in etcd, and it answers only while the term lasts.
    static Result<std::unique_ptr<AllocatorService>> start(boost::asio::io_context& context,
                                                           const AllocatorConfig& config, const Clock& clock,
                                                           const MakeExtension& extend = {},
                                                           const std::optional<EtcdFence>& term = std::nullopt);
    ~AllocatorService();
    AllocatorService(const AllocatorService&) = delete;
    AllocatorService& operator=(const AllocatorService&) = delete;

    // The settings that a reload renews: tokens, roles of users and of certificates, and the TLS files. Other changes
    // of the config take effect at a restart.
    struct Renewed;
    // Any thread. Reads the files and looks up the users, which may block for as long as a disk or the name service
    // does.
    static Result<std::shared_ptr<const Renewed>> read_renewed(const AllocatorConfig& config);
    // Returns an error if it cannot be used by a service that began with `config`.
    static Result<void> check_renewed(const Renewed& renewed, const AllocatorConfig& config);
    static void renew_tls(const Renewed& renewed, HttpServer& http);
    void take(const Renewed& renewed);
    // All of these.
    Result<void> reload(const AllocatorConfig& config);
    // Accepts no more requests. The context's run() returns when the requests in flight are answered.
    void stop();
    // Returns the TCP port, or 0 if the service does not listen on TCP.
    std::uint16_t tcp_port() const;

private:
    struct State;
    explicit AllocatorService(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

struct ServeOptions {
    AllocatorConfig config;
    MakeExtension extend;  // makes the extension
    // Reads the config again on SIGHUP, on a thread of its own. That may hang and end when all else is gone, so this
    // must own all that it uses.
    std::function<Result<AllocatorConfig>()> reload;
    std::function<void(const AllocatorService&)> started;  // called when the service listens
    std::function<void()> standing_by;                     // called when it listens, but another allocator leads
    std::function<void()> stopping;
};

// Serves until SIGTERM or SIGINT. One of several allocators stands by until it leads: meanwhile it answers /healthz and
// /metrics, and everything else with 421.
Result<void> serve(const ServeOptions& options);

}  // namespace larder::allocator
