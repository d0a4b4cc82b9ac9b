#include "cache/control/handshake.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/server/http_listen.h"
#include "base/server/logging.h"
#include "cache/control/handshake_connection.h"

namespace larder::cache {
namespace {

constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::seconds kSweepPeriod{1};

}  // namespace

struct HandshakeServer::State : std::enable_shared_from_this<HandshakeServer::State> {
    State(boost::asio::io_context& on_context, SessionHost& host, HandshakeLimits limits)
        : context(on_context),
          shared(std::make_shared<HandshakeShared>(host, std::move(limits))),
          listener(on_context),
          pause(on_context),
          sweep(on_context) {}

    void wait();
    void accept();
    void pause_accepting();
    bool make_room_for(uid_t user);
    void find_released_memory();

    boost::asio::io_context& context;
    std::shared_ptr<HandshakeShared> shared;
    boost::asio::posix::stream_descriptor listener;
    boost::asio::steady_timer pause;
    boost::asio::steady_timer sweep;
    std::string path;
    std::vector<std::weak_ptr<HandshakeConnection>> connections;
};

HandshakeServer::HandshakeServer(boost::asio::io_context& context, SessionHost& host, HandshakeLimits limits)
    : state_(std::make_shared<State>(context, host, std::move(limits))) {}

HandshakeServer::~HandshakeServer() {
    stop();
}

Result<void> HandshakeServer::listen(const std::string& path, unsigned mode) {
    auto socket = listen_on_unix(path, mode, SOCK_SEQPACKET);
    if (!socket) return std::unexpected(socket.error());
    state_->path = path;
    state_->listener.assign(socket->fd.release());
    state_->wait();
    state_->find_released_memory();
    return {};
}

void HandshakeServer::stop() {
    if (state_->listener.is_open()) {
        // Also closes clients that were not yet accepted.
        ClientSocket(FileDescriptor(state_->listener.release())).reset();
        ::unlink(state_->path.c_str());
    }
    state_->pause.cancel();
    state_->sweep.cancel();
    for (const auto& weak : std::exchange(state_->connections, {})) {
        if (const auto connection = weak.lock()) connection->close();
    }
}

std::uint32_t HandshakeServer::sessions() const {
    return state_->shared->open_sessions;
}
std::uint64_t HandshakeServer::slot_bytes() const {
    return state_->shared->all_sessions().slot_bytes;
}

void HandshakeServer::State::wait() {
    listener.async_wait(boost::asio::posix::descriptor_base::wait_read,
                        [self = shared_from_this()](const boost::system::error_code& error) {
                            if (!error && self->listener.is_open()) self->accept();
                        });
}

void HandshakeServer::State::accept() {
    for (;;) {
        // Sockets that are still closing hold descriptors; limit them too.
        if (ClientSocket::closing() >= shared->limits.handshakes_max) return pause_accepting();
        ClientSocket socket(
            FileDescriptor(::accept4(listener.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
        if (!socket && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (!socket && errno != EAGAIN) {
            log_warn("cannot accept a session", {{"error", errno_error(errno, "accept").message}});
            pause_accepting();
            return;
        }
        if (!socket) break;
        const auto peer = peer_of(socket.get());
        std::erase_if(connections, [](const auto& weak) { return weak.expired(); });
        if (!peer || !make_room_for(peer->uid)) continue;
        auto connection = std::make_shared<HandshakeConnection>(context, shared, std::move(socket), *peer);
        connections.push_back(connection);
        connection->start();
    }
    wait();
}

// Returns true if a client of this user may begin its handshake. If all handshakes are taken, it closes the oldest one
// of the user who has most, so that no user can lock out another by connecting and waiting.
bool HandshakeServer::State::make_room_for(uid_t user) {
    if (shared->handshakes < shared->limits.handshakes_max) return true;
    const auto& counts = shared->handshakes_of_user;
    const auto most = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
    const auto own = counts.find(user);
    if (most == counts.end() || most->second <= (own == counts.end() ? 0 : own->second) + 1) return false;
    for (const auto& weak : connections) {
        const auto connection = weak.lock();
        if (!connection || !connection->is_open() || connection->user() != most->first) continue;
        connection->close();
        return true;
    }
    return false;
}

void HandshakeServer::State::find_released_memory() {
    sweep.expires_after(kSweepPeriod);
    sweep.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
        if (error || !self->listener.is_open()) return;
        self->shared->slot_keeper->find_released();
        self->find_released_memory();
    });
}

// Pauses accepting when file descriptors are used up or nearly so. Connections wait in the kernel's queue; an immediate
// retry would only burn CPU time.
void HandshakeServer::State::pause_accepting() {
    pause.expires_after(kAcceptPause);
    pause.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
        if (!error && self->listener.is_open()) self->accept();
    });
}

}  // namespace larder::cache
