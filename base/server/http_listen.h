#pragma once

// Listening sockets, set up with plain system calls so that every failure has a clear Error.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/server/http_message.h"

namespace larder {

struct ListeningSocket {
    FileDescriptor fd;
    int family = 0;
    std::uint16_t port = 0;  // TCP
};

// Listens at `path` and replaces the socket file of a process that has gone. Returns `already_exists` when a process
// answers on it. `type` is SOCK_STREAM or SOCK_SEQPACKET.
Result<ListeningSocket> listen_on_unix(const std::string& path, unsigned mode, int type);
Result<ListeningSocket> listen_on_tcp(std::string_view address);

// Returns SO_PEERCRED of a connected Unix socket.
std::optional<PeerCredentials> peer_of(int fd);
// Returns the IP address of the other end of a connected TCP socket: "10.0.0.7".
std::string peer_address_of(int fd);
// Sets the options of an accepted TCP connection: the kernel probes from time to time whether the other end is still
// there, and sends small writes at once.
void set_tcp_options(int fd);

}  // namespace larder
