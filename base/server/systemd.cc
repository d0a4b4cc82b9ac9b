#include "base/server/systemd.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/file.h"
#include "base/server/logging.h"

namespace larder {

void tell_systemd(std::string_view state) {
    const char* path = std::getenv("NOTIFY_SOCKET");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path == nullptr || std::strlen(path) >= sizeof address.sun_path) return;
    std::memcpy(address.sun_path, path, std::strlen(path));
    // A leading @ marks an abstract address.
    if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
    const FileDescriptor fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(path));
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    if (::sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL, generic, length) < 0 &&
        errno != ECONNREFUSED) {  // systemd no longer listens
        log_warn("could not notify systemd", {{"state", state}, {"socket", path}, {"error", std::strerror(errno)}});
    }
}

}  // namespace larder
