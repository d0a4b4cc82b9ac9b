#include "tools/cli/daemon_process.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/file.h"
#include "base/server/logging.h"
#include "cache/control/daemon.h"

namespace larder::cli {
namespace {

// systemd's readiness protocol: one datagram to the socket it names (a leading @ is an abstract address).
void tell_systemd(std::string_view state) {
    const char* path = std::getenv("NOTIFY_SOCKET");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path == nullptr || std::strlen(path) >= sizeof address.sun_path) return;
    std::memcpy(address.sun_path, path, std::strlen(path));
    if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
    const FileDescriptor fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(path));
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    if (::sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL, generic, length) < 0) {
        log_warn("systemd was not told", {{"state", state}, {"socket", path}, {"error", std::strerror(errno)}});
    }
}

Result<void> log_as(const cache::Config& config) {
    const auto level = parse_log_level(config.log_level);
    if (!level) return std::unexpected(level.error());
    return start_logging({*level, config.log_file});
}

}  // namespace

Result<void> run_daemon(const DaemonProcess& process) {
    if (auto logging = log_as(process.config); !logging) return logging;
    auto daemon = cache::Daemon::start(process.config);
    if (!daemon) return std::unexpected(daemon.error());
    tell_systemd("READY=1");
    if (process.started) process.started();
    (*daemon)->run({.reload = process.reload});
    tell_systemd("STOPPING=1");
    daemon->reset();
    stop_logging();
    return {};
}

}  // namespace larder::cli
