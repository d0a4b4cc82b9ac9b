#pragma once

// The allocator as a running program: the cluster, its state, and its API on a Unix socket and over TCP, all on one
// thread, that of the io_context it is given. `serve` is the whole program but for its command line and its log.

#include <cstdint>
#include <functional>
#include <memory>

#include "allocator/service/config.h"
#include "allocator/service/extension.h"
#include "base/clock.h"
#include "base/error.h"

namespace boost::asio {
class io_context;
}

namespace larder::allocator {

class Service {
public:
    // Listens when it returns; requests are taken once `context` runs. `context` and `clock` must outlive it.
    static Result<std::unique_ptr<Service>> start(boost::asio::io_context& context, const Config& config,
                                                  const Clock& clock, const MakeExtension& extend = {});
    ~Service();
    Service(const Service&) = delete;
    Service& operator=(const Service&) = delete;

    // Takes tokens, roles of certificates, and the TLS files anew; all of them or, with the error, none. The rest of
    // the config holds until a restart.
    Result<void> reload(const Config& config);
    // Takes no more requests; the context's run() returns when those in hand are answered.
    void stop();
    // Where it listens on TCP; 0: it does not.
    std::uint16_t tcp_port() const;

private:
    struct State;
    explicit Service(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

struct ServeOptions {
    Config config;
    MakeExtension extend;                         // what else it serves
    std::function<Result<Config>()> reload;       // what SIGHUP reads
    std::function<void(const Service&)> started;  // requests are taken
    std::function<void()> stopping;
};

// Serves until SIGTERM or SIGINT.
Result<void> serve(const ServeOptions& options);

}  // namespace larder::allocator
