#pragma once

// A server for a bench, in a child process: one of Larder's programs, from the directory of the running program. It
// answers HTTP on a Unix socket and is ended by its pid.

#include <boost/json/object.hpp>
#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/cluster/private_network.h"

namespace larder::bench {

class ServerProcess {
public:
    // Starts the program, in the given network if any, and waits until it answers at `socket`.
    static Result<ServerProcess> start(const std::string& program, const std::vector<std::string>& arguments,
                                       const std::string& socket, const test::NetworkNamespace* network = nullptr);
    ServerProcess(ServerProcess&& other) noexcept;
    ServerProcess& operator=(ServerProcess&& other) noexcept;
    ~ServerProcess();

    // Sends SIGTERM and waits for the end.
    void stop() { end(SIGTERM); }
    // Sends SIGKILL.
    void kill() { end(SIGKILL); }

    // Calls the server and returns the object in the answer; any status but a 2xx is an error.
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
