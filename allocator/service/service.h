#pragma once

// The allocator as a running program: the cluster, its state, and its API on a Unix socket and over TCP, all on the
// thread of its io_context. `serve` is the whole program except its command line and its log.

#include <cstdint>
#include <functional>
#include <memory>

#include "allocator/service/allocator_config.h"
#include "allocator/service/extension.h"
#include "base/clock.h"
#include "base/error.h"

namespace boost::asio {
class io_context;
}

namespace larder::allocator {

class AllocatorService {
public:
    // Returns a service that listens. Requests are answered once `context` runs. `context` and `clock` must outlive the
    // service.
    static Result<std::unique_ptr<AllocatorService>> start(boost::asio::io_context& context,
                                                           const AllocatorConfig& config, const Clock& clock,
                                                           const MakeExtension& extend = {});
    ~AllocatorService();
    AllocatorService(const AllocatorService&) = delete;
    AllocatorService& operator=(const AllocatorService&) = delete;

    // Reloads tokens, roles of certificates, and the TLS files: all of them; on an error none. Changes to the rest
    // of the config take effect at a restart.
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
    MakeExtension extend;                                  // makes the extension
    std::function<Result<AllocatorConfig>()> reload;       // reads the config again on SIGHUP
    std::function<void(const AllocatorService&)> started;  // called when the service listens
    std::function<void()> stopping;
};

// Serves until SIGTERM or SIGINT.
Result<void> serve(const ServeOptions& options);

}  // namespace larder::allocator
