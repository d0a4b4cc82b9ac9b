#pragma once

// Listening sockets, made ready with plain system calls so that every failure has a clear Error.

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

// Replaces the socket file of a process that is gone; `already_exists` when somebody answers on it. `type` is
// SOCK_STREAM or SOCK_SEQPACKET.
Result<ListeningSocket> listen_on_unix(const std::string& path, unsigned mode, int type);
Result<ListeningSocket> listen_on_tcp(std::string_view address);

// SO_PEERCRED of a connected Unix socket.
std::optional<PeerCredentials> peer_of(int fd);
// The other end's IP address of a connected TCP socket: "10.0.0.7".
std::string peer_address_of(int fd);
// Has the kernel look now and then whether the other end of a TCP connection is still there.
void keep_alive(int fd);

}  // namespace larder
