#pragma once

// The daemon's end of a client's SOCK_SEQPACKET socket. Closing it never blocks the caller, although a client may send
// descriptors, which the protocol does not have. Discarding such a message closes its descriptors, and closing a
// lingering TCP socket blocks for as long as the client has set. Linux 6.16 can refuse such messages (listen_on_unix).
// For older kernels, ClientSocket::receive leaves such a message unread, and a separate thread closes the socket and
// its unread messages.

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
    // The caller must close the descriptor, as a ClientSocket.
    int release() { return socket_.release(); }
    explicit operator bool() const { return static_cast<bool>(socket_); }

    // Ends the connection. Never blocks: another thread closes the descriptor later.
    void reset();
    // Returns how many of the sockets that were reset still have an open descriptor.
    static std::size_t closing();

    // Receives like recv() with MSG_DONTWAIT. Fails with EBADMSG if the next message carries descriptors; that message
    // stays unread.
    static ssize_t receive(int socket, std::span<std::byte> target);

private:
    FileDescriptor socket_;
};

}  // namespace larder::cache
