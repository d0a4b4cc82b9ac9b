#pragma once

// The daemon's end of a client's SOCK_SEQPACKET socket. A client may send descriptors, though nobody asks for any.
// Whoever discards such a message closes its descriptors, and closing a TCP socket that lingers blocks for as long as
// its sender said. Linux 6.16 can refuse such messages (listen_on_unix). For older kernels, ClientSocket::receive takes
// none of them, and the socket is closed, with all that lies unread in it, on a thread of its own.

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <utility>

#include "base/file.h"

namespace larder::cache {

class ClientSocket {
public:
    ClientSocket() = default;
    explicit ClientSocket(FileDescriptor socket) : socket_(std::move(socket)) {}
    ~ClientSocket() { reset(); }
    ClientSocket(ClientSocket&&) noexcept = default;
    ClientSocket& operator=(ClientSocket&& other) noexcept;

    int get() const { return socket_.get(); }
    // The caller closes it, as a ClientSocket.
    int release() { return socket_.release(); }
    explicit operator bool() const { return static_cast<bool>(socket_); }

    // Ends the connection. Never blocks: the descriptor is closed a moment later.
    void reset();
    // Returns how many of the sockets that were reset still have an open descriptor.
    static std::size_t closing();

    // As recv() with MSG_DONTWAIT. EBADMSG: the next message carries descriptors; it stays unread.
    static ssize_t receive(int socket, std::span<std::byte> into);

private:
    FileDescriptor socket_;
};

}  // namespace larder::cache
