#pragma once

// The control socket to the node's daemon: whole messages (SOCK_SEQPACKET) with file descriptors attached. Blocking
// with a deadline during the handshake, non-blocking afterwards.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace larder::detail {

// The socket path: `configured`, else $LARDER_SOCKET, else that of the user's `larder up`, else that of the service
// larderd if only that exists.
Result<std::string> socket_path(const std::string& configured);

class DaemonSocket {
public:
    static constexpr std::size_t kDescriptorsMax = 3;

    struct Message {
        std::size_t bytes = 0;  // 0: nothing was waiting
        std::size_t descriptor_count = 0;
        std::array<FileDescriptor, kDescriptorsMax> descriptors;
    };

    static Result<DaemonSocket> connect(const std::string& path);

    Result<void> send(std::span<const std::byte> message);
    // Waits up to `timeout_ms` for the next message; 0 does not wait. A hang-up is ErrorCode::unavailable.
    Result<Message> receive(std::span<std::byte> into, int timeout_ms);

private:
    explicit DaemonSocket(FileDescriptor fd) : fd_(std::move(fd)) {}
    FileDescriptor fd_;
};

}  // namespace larder::detail
