#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <list>
#include <vector>

#include "base/server/http_listen.h"
#include "base/server/http_session.h"

namespace larder {

namespace asio = boost::asio;
using Protocol = asio::generic::stream_protocol;

struct HttpServer::State : std::enable_shared_from_this<HttpServer::State> {
    struct Listener {
        asio::basic_socket_acceptor<Protocol> acceptor;
        asio::steady_timer retry;
        int family;
        std::string path;                 // Unix: unlinked at the end
        std::shared_ptr<TlsContext> tls;  // none: plain
        // Counted for each listener, so that idle clients of one cannot shut out the clients of another.
        std::shared_ptr<std::size_t> connections = std::make_shared<std::size_t>(0);
    };

    asio::io_context& context;
    std::shared_ptr<HttpServerCore> core;
    std::list<Listener> listeners;

    State(asio::io_context& io_context, HttpHandler handler, HttpServerOptions options)
        : context(io_context),
          core(std::make_shared<HttpServerCore>(std::move(handler), std::move(options), io_context)) {}

    Result<void> add(ListeningSocket socket, std::string path, std::shared_ptr<TlsContext> tls) {
        Listener& listener =
            listeners.emplace_back(asio::basic_socket_acceptor<Protocol>(context), asio::steady_timer(context),
                                   socket.family, std::move(path), std::move(tls));
        boost::system::error_code failure;
        listener.acceptor.assign(Protocol(socket.family, 0), socket.fd.get(), failure);
        if (failure) {
            listeners.pop_back();
            return fail_errno(failure.value(), "register a listening socket");
        }
        socket.fd.release();
        accept(listener);
        return {};
    }

    void accept(Listener& listener) {
        listener.acceptor.async_accept(
            [self = shared_from_this(), &listener](boost::system::error_code failure, Protocol::socket socket) {
                if (failure == asio::error::operation_aborted || self->core->stopping) return;
                if (!failure) {
                    self->start_session(listener, std::move(socket));
                    return self->accept(listener);
                }
                // Descriptors or memory have run out. Other connections will close theirs; a retry at once would spin.
                listener.retry.expires_after(std::chrono::milliseconds(100));
                listener.retry.async_wait([self, &listener](boost::system::error_code aborted) {
                    if (!aborted && !self->core->stopping) self->accept(listener);
                });
            });
    }

    void start_session(const Listener& listener, Protocol::socket socket) {
        if (*listener.connections >= core->options.connections_max) return;
        HttpSessionPeer peer;
        if (listener.family == AF_UNIX) {
            peer.credentials = peer_of(socket.native_handle());
        } else {
            peer.address = peer_address_of(socket.native_handle());
            set_tcp_options(socket.native_handle());
        }
        if (!core->peers.open(peer.limits_key())) return;
        std::make_shared<HttpSession>(core, std::move(socket), listener.tls, std::move(peer), listener.connections)
            ->start();
    }

    void stop() {
        if (core->stopping) return;
        core->stopping = true;
        for (Listener& listener : listeners) {
            boost::system::error_code ignored;
            listener.acceptor.close(ignored);
            listener.retry.cancel();
            if (!listener.path.empty()) ::unlink(listener.path.c_str());
        }
        std::vector<std::shared_ptr<HttpSession>> sessions;
        for (HttpSession* session : core->sessions) sessions.push_back(session->shared_from_this());
        for (const auto& session : sessions) session->stop();
    }
};

HttpServer::HttpServer(asio::io_context& context, HttpHandler handler, HttpServerOptions options)
    : state_(std::make_shared<State>(context, std::move(handler), std::move(options))) {}

HttpServer::~HttpServer() {
    state_->stop();
    // Sessions that still wait for a handler are destroyed now, on this thread, while the context exists.
    const auto waiting = std::move(state_->core->waiting);
    const std::lock_guard lock(state_->core->mutex);
    state_->core->context = nullptr;
}

Result<void> HttpServer::listen_unix(const std::string& path, unsigned mode) {
    auto socket = listen_on_unix(path, mode, SOCK_STREAM);
    if (!socket) return std::unexpected(socket.error());
    return state_->add(std::move(*socket), path, nullptr);
}

Result<std::uint16_t> HttpServer::listen_tcp(std::string_view address, std::shared_ptr<TlsContext> tls) {
    auto socket = listen_on_tcp(address);
    if (!socket) return std::unexpected(socket.error());
    const std::uint16_t port = socket->port;
    if (auto added = state_->add(std::move(*socket), {}, std::move(tls)); !added) {
        return std::unexpected(added.error());
    }
    return port;
}

void HttpServer::renew_tls(const std::shared_ptr<TlsContext>& tls) {
    for (State::Listener& listener : state_->listeners) {
        if (listener.tls) listener.tls = tls;
    }
}

void HttpServer::stop() {
    state_->stop();
}

std::size_t HttpServer::connections() const {
    return state_->core->sessions.size();
}

}  // namespace larder
