#pragma once

// A server of the bench's own, in a process of its own: one of Larder's programs, which lie beside the one that runs.
// Answers HTTP on a Unix socket; ended by its pid.

#include <boost/json/object.hpp>
#include <sys/types.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace larder::bench {

class ServerProcess {
public:
    // Starts it and waits until it answers at `socket`.
    static Result<ServerProcess> start(const std::string& program, const std::vector<std::string>& arguments,
                                       const std::string& socket);
    ServerProcess(ServerProcess&& other) noexcept;
    ServerProcess& operator=(ServerProcess&& other) noexcept;
    ~ServerProcess();

    // SIGTERM, and waits for its end.
    void stop();

    // The object it answers with; any status but a 2xx is an error.
    Result<boost::json::object> call(const std::string& method, const std::string& target,
                                     const boost::json::object& body = {}) const;

    const std::string& socket() const { return socket_; }
    pid_t pid() const { return pid_; }

private:
    ServerProcess(std::string socket) : socket_(std::move(socket)) {}

    pid_t pid_ = -1;
    std::string socket_;
};

}  // namespace larder::bench
