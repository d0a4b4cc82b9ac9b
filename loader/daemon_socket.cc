#include "loader/daemon_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/environment.h"

namespace larder::detail {
namespace {

constexpr int kSendTimeout_s = 5;
constexpr const char* kServiceSocket = "/run/larder/larderd.sock";

std::unexpected<Error> hang_up_error() {
    return fail(ErrorCode::unavailable, "the Larder daemon closed the session");
}

bool is_hang_up(int error) {
    return error == EPIPE || error == ECONNRESET || error == ENOTCONN;
}

Result<bool> wait_readable(int fd, int timeout_ms) {
    pollfd poll_fd{.fd = fd, .events = POLLIN, .revents = 0};
    for (;;) {
        const int ready = ::poll(&poll_fd, 1, timeout_ms);
        if (ready >= 0) return ready > 0;
        if (errno != EINTR) return fail_errno(errno, "poll on the daemon's socket");
    }
}

}  // namespace

Result<std::string> socket_path(const std::string& configured) {
    if (!configured.empty()) return configured;
    if (std::string from_environment = environment("LARDER_SOCKET"); !from_environment.empty()) return from_environment;
    const std::string home = environment("HOME");
    std::string own = home.empty() ? "" : home + "/.local/share/larder/larderd.sock";
    // A user's own daemon comes before the machine's.
    if ((own.empty() || ::access(own.c_str(), F_OK) != 0) && ::access(kServiceSocket, F_OK) == 0) return kServiceSocket;
    if (own.empty()) {
        return fail(ErrorCode::invalid_argument,
                    "no socket of a Larder daemon is known: HOME is not set; set LARDER_SOCKET");
    }
    return own;
}

Result<DaemonSocket> DaemonSocket::connect(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path) {
        return fail(ErrorCode::invalid_argument, "socket path \"" + path + "\" must have 1 to " +
                                                     std::to_string(sizeof address.sun_path - 1) + " bytes");
    }
    std::memcpy(address.sun_path, path.data(), path.size());
    FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!fd) return fail_errno(errno, "socket");
    // A daemon that has stopped accepting must not block the job forever: connect and send then fail with EAGAIN.
    const timeval timeout{.tv_sec = kSendTimeout_s, .tv_usec = 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        const int error = errno;
        if (error == EINTR) continue;
        if (error == ENOENT || error == ECONNREFUSED || error == EAGAIN) {
            return std::unexpected(Error{ErrorCode::unavailable,
                                         "no Larder daemon answers at " + path + " (" + std::strerror(error) +
                                             "): start one with `larder up`, or name its socket in LARDER_SOCKET",
                                         error});
        }
        if (error == EPROTOTYPE) {
            return fail(ErrorCode::invalid_argument,
                        path +
                            " is not the socket for training jobs, but maybe the admin socket: use larderd.sock in the "
                            "same directory, unless the daemon's config sets another");
        }
        Error refused = errno_error(error, "connect to the Larder daemon at " + path);
        if (error == EACCES) refused.message += "; socket_mode in the daemon's config says who may connect";
        return std::unexpected(std::move(refused));
    }
    return DaemonSocket(std::move(fd));
}

Result<void> DaemonSocket::send(std::span<const std::byte> message) {
    for (;;) {
        const ssize_t sent = ::send(fd_.get(), message.data(), message.size(), MSG_NOSIGNAL);
        if (sent == static_cast<ssize_t>(message.size())) return {};
        if (sent >= 0) return fail(ErrorCode::protocol, "a message to the Larder daemon was cut short");
        if (errno == EINTR) continue;
        if (is_hang_up(errno)) return hang_up_error();
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return fail(ErrorCode::unavailable, "the Larder daemon does not read its socket");
        }
        return fail_errno(errno, "send to the Larder daemon");
    }
}

Result<DaemonSocket::Message> DaemonSocket::receive(std::span<std::byte> into, int timeout_ms) {
    if (timeout_ms > 0) {
        auto readable = wait_readable(fd_.get(), timeout_ms);
        if (!readable) return std::unexpected(readable.error());
        if (!*readable) {
            return fail(ErrorCode::unavailable,
                        "the Larder daemon did not answer within " + std::to_string(timeout_ms) + " ms");
        }
    }
    iovec part{into.data(), into.size()};
    alignas(cmsghdr) char ancillary[CMSG_SPACE(kDescriptorsMax * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = ancillary;
    header.msg_controllen = sizeof ancillary;
    ssize_t got;
    do got = ::recvmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Message{};
    if (got == 0 || (got < 0 && is_hang_up(errno))) return hang_up_error();
    if (got < 0) return fail_errno(errno, "receive from the Larder daemon");

    Message message;
    message.bytes = static_cast<std::size_t>(got);
    for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr; control = CMSG_NXTHDR(&header, control)) {
        if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count && message.descriptor_count < kDescriptorsMax; ++i) {
            int received;
            std::memcpy(&received, CMSG_DATA(control) + i * sizeof(int), sizeof received);
            message.descriptors[message.descriptor_count++] = FileDescriptor(received);
        }
    }
    if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        return fail(ErrorCode::protocol,
                    "a message from the Larder daemon did not fit (too many open files, or another version)");
    }
    return message;
}

}  // namespace larder::detail
