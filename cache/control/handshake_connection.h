#pragma once

// One client during its handshake; see handshake.h. Its pending operations own it.

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/control/handshake.h"
#include "cache/control/session_memory.h"
#include "cache/protocol/wire.h"

namespace larder::cache {

// Counts sessions and their memory, including ended sessions whose memory a client still has.
struct UserSessions {
    std::uint32_t sessions = 0;
    std::uint64_t slot_bytes = 0;
};

// State that all connections of a server share.
struct HandshakeShared {
    HandshakeShared(SessionHost& with_host, HandshakeLimits with_limits)
        : host(with_host), limits(std::move(with_limits)) {}

    SessionHost& host;
    HandshakeLimits limits;
    std::uint64_t next_session_id = 1;
    std::uint32_t handshakes = 0;
    std::atomic<std::uint32_t> open_sessions{0};
    std::map<uid_t, std::uint32_t> handshakes_of_user;

    // Any thread.
    UserSessions all_sessions() const;
    UserSessions sessions_of(uid_t user) const;
    void count_session(uid_t user, std::uint64_t slot_bytes);
    void uncount_session(uid_t user, std::uint64_t slot_bytes);

private:
    mutable std::mutex mutex_;  // the slot keeper's thread uncounts
    UserSessions all_;
    std::map<uid_t, UserSessions> users_;

public:
    // Declared last, so destroyed first: until its thread has ended, the thread uncounts sessions.
    std::unique_ptr<SlotKeeper> slot_keeper = std::make_unique<SlotKeeper>();
};

class HandshakeConnection : public std::enable_shared_from_this<HandshakeConnection> {
public:
    HandshakeConnection(boost::asio::io_context& context, std::shared_ptr<HandshakeShared> shared, ClientSocket socket,
                        const PeerCredentials& peer);
    ~HandshakeConnection();

    void start() { wait(); }
    void close();
    uid_t user() const { return peer_.uid; }
    bool is_open() const { return socket_.is_open(); }

private:
    void wait();
    void receive();
    // Calls `then` once the host can answer the message.
    void prepare(std::span<const std::byte> message, std::function<void()> then);
    // False: the handshake has ended, successfully or not.
    bool handle(std::span<const std::byte> message);
    bool handle_open(const protocol::OpenRequest& request);
    bool handle_attach(const protocol::AttachRequest& request);
    void handle_explain(const protocol::ExplainRequest& request);
    Result<void> open(const protocol::OpenRequest& request);
    Result<void> check_limits(const protocol::AttachRequest& request) const;
    enum class Sent : std::uint8_t { yes, no, too_many_fds };
    Sent send(std::span<const std::byte> message, std::span<const int> fds);

    std::shared_ptr<HandshakeShared> shared_;
    PeerCredentials peer_;
    boost::asio::posix::stream_descriptor socket_;
    boost::asio::steady_timer deadline_;
    std::shared_ptr<const DatasetVersion> version_;
    std::string dataset_;
    std::string job_;
};

}  // namespace larder::cache
