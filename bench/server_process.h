#pragma once

// A server of the bench's own, in a process of its own: one of Larder's programs, which lie beside the one that runs.
// Answers HTTP on a Unix socket; ended by its pid.

#include <boost/json/object.hpp>
#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/cluster/private_network.h"

namespace larder::bench {

class ServerProcess {
public:
    // Starts it, in that network if one is given, and waits until it answers at `socket`.
    static Result<ServerProcess> start(const std::string& program, const std::vector<std::string>& arguments,
                                       const std::string& socket, const NetworkNamespace* network = nullptr);
    ServerProcess(ServerProcess&& other) noexcept;
    ServerProcess& operator=(ServerProcess&& other) noexcept;
    ~ServerProcess();

    // SIGTERM, and waits for its end.
    void stop() { end(SIGTERM); }
    // SIGKILL: it does nothing more.
    void kill() { end(SIGKILL); }

    // The object it answers with; any status but a 2xx is an error.
    Result<boost::json::object> call(const std::string& method, const std::string& target,
                                     const boost::json::object& body = {}) const;

    const std::string& socket() const { return socket_; }
    pid_t pid() const { return pid_; }

private:
    ServerProcess(std::string socket) : socket_(std::move(socket)) {}
    void end(int signal);

    pid_t pid_ = -1;
    std::string socket_;
};

}  // namespace larder::bench
