#include "base/server/http_listen.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/server/http_target.h"

namespace larder {
namespace {

constexpr int kBacklog = 128;
// SO_PASSRIGHTS of Linux 6.16, which the C library's headers do not define yet.
constexpr int kPassRights = 83;

FileDescriptor make_socket(int family, int type) {
    return FileDescriptor(::socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool somebody_listens(const sockaddr_un& address, int type) {
    const FileDescriptor probe = make_socket(AF_UNIX, type);
    if (!probe) return false;
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    return ::connect(probe.get(), generic, sizeof address) == 0 || errno == EAGAIN;
}

}  // namespace

Result<ListeningSocket> listen_on_unix(const std::string& path, unsigned mode, int type) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path) {
        return fail(ErrorCode::invalid_argument, "socket path \"" + path + "\" has " + std::to_string(path.size()) +
                                                     " bytes: the kernel takes 1 to " +
                                                     std::to_string(sizeof address.sun_path - 1));
    }
    std::memcpy(address.sun_path, path.data(), path.size());

    struct stat status{};
    if (::lstat(path.c_str(), &status) == 0) {
        if (!S_ISSOCK(status.st_mode)) {
            return fail(ErrorCode::already_exists, path + " exists and is not a socket: move it away");
        }
        if (somebody_listens(address, type))
            return fail(ErrorCode::already_exists, "another process listens on " + path);
        if (::unlink(path.c_str()) != 0) return fail_errno(errno, "unlink " + path);
    }
    FileDescriptor fd = make_socket(AF_UNIX, type);
    if (!fd) return fail_errno(errno, "socket for " + path);
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    if (::bind(fd.get(), generic, sizeof address) != 0) return fail_errno(errno, "bind " + path);
    // Connections inherit this option: no client may send descriptors. A received descriptor would be closed by the
    // reader of the message, and closing a TCP socket that lingers blocks. Older kernels refuse the option.
    constexpr int none = 0;
    ::setsockopt(fd.get(), SOL_SOCKET, kPassRights, &none, sizeof none);
    // Nobody can connect before listen, so the mode holds from the first connection on.
    if (::chmod(path.c_str(), mode) != 0) return fail_errno(errno, "chmod " + path);
    if (::listen(fd.get(), kBacklog) != 0) return fail_errno(errno, "listen on " + path);
    return ListeningSocket{std::move(fd), AF_UNIX, 0};
}

Result<ListeningSocket> listen_on_tcp(std::string_view address) {
    const auto host_port = parse_host_port(address);
    if (!host_port) return std::unexpected(host_port.error());
    union {
        sockaddr generic;
        sockaddr_in v4;
        sockaddr_in6 v6;
    } socket_address{};
    socklen_t length = 0;
    if (::inet_pton(AF_INET, host_port->host.c_str(), &socket_address.v4.sin_addr) == 1) {
        socket_address.v4.sin_family = AF_INET;
        socket_address.v4.sin_port = htons(host_port->port);
        length = sizeof socket_address.v4;
    } else if (::inet_pton(AF_INET6, host_port->host.c_str(), &socket_address.v6.sin6_addr) == 1) {
        socket_address.v6.sin6_family = AF_INET6;
        socket_address.v6.sin6_port = htons(host_port->port);
        length = sizeof socket_address.v6;
    } else {
        return fail(ErrorCode::invalid_argument, "\"" + host_port->host + "\" is not an IP address");
    }
    const int family = socket_address.generic.sa_family;
    const std::string what = "listen on " + std::string(address);
    FileDescriptor fd = make_socket(family, SOCK_STREAM);
    if (!fd) return fail_errno(errno, what);
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(fd.get(), &socket_address.generic, length) != 0) return fail_errno(errno, what);
    if (::listen(fd.get(), kBacklog) != 0) return fail_errno(errno, what);
    length = sizeof socket_address;
    if (::getsockname(fd.get(), &socket_address.generic, &length) != 0) return fail_errno(errno, what);
    const auto port = family == AF_INET ? socket_address.v4.sin_port : socket_address.v6.sin6_port;
    return ListeningSocket{std::move(fd), family, ntohs(port)};
}

std::optional<PeerCredentials> peer_of(int fd) {
    ucred credentials{};
    socklen_t length = sizeof credentials;
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return std::nullopt;
    return PeerCredentials{credentials.uid, credentials.gid, credentials.pid};
}

std::string peer_address_of(int fd) {
    union {
        sockaddr generic;
        sockaddr_in v4;
        sockaddr_in6 v6;
    } address{};
    socklen_t length = sizeof address;
    if (::getpeername(fd, &address.generic, &length) != 0) return {};
    char text[INET6_ADDRSTRLEN] = {};
    const bool is_v4 = address.generic.sa_family == AF_INET;
    const void* bytes = is_v4 ? static_cast<const void*>(&address.v4.sin_addr) : &address.v6.sin6_addr;
    if (::inet_ntop(address.generic.sa_family, bytes, text, sizeof text) == nullptr) return {};
    return text;
}

void set_tcp_options(int fd) {
    constexpr int on = 1;
    constexpr int idle_s = 30;
    constexpr int interval_s = 10;
    constexpr int tries = 3;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
}

}  // namespace larder
