#pragma once

// A bare client of a shard, in the same process. It makes both ends of a session as the handshake would, and writes the
// structures of wire.h itself, valid or not. The loader's own session is loader/client_session.h; this client is for
// tests that misbehave or look at single completions.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/shard/shard.h"

namespace larder::test {

struct RingClientOptions {
    std::uint64_t session_id = 1;
    std::string job = "job";
    std::int32_t pid = 0;
    std::uint32_t uid = 0;
    std::shared_ptr<cache::TokenBucket> bucket = std::make_shared<cache::TokenBucket>();
    std::uint32_t ring_entries = 256;
    std::uint64_t slot_bytes = std::uint64_t{4} << 20;
    protocol::ReadOrder order = protocol::ReadOrder::random;
    int socket_buffer_bytes = 0;  // at the daemon's end; 0: the system's default
    std::function<void(std::uint64_t)> populate_slots = {};
};

class RingClient {
public:
    RingClient(std::shared_ptr<const protocol::Manifest> manifest, const RingClientOptions& options);
    ~RingClient();

    // Returns the daemon's ends. Call once.
    cache::SessionSetup take_setup() { return std::move(setup_); }

    void fetch(std::uint32_t block, std::uint32_t slot_page, std::uint32_t tag = 0, std::uint32_t epoch = 1);
    void refetch(std::uint32_t block, std::uint32_t slot_page, std::uint32_t tag, std::uint32_t epoch,
                 std::uint32_t damaged_crc);
    void release(std::uint32_t slot_page);
    void submit(const protocol::Request& request);

    // Returns the next published completion, if any.
    std::optional<protocol::Completion> next_completion();
    // Returns a copy of the block's bytes. Call it while the protocol keeps them valid.
    std::string payload(const protocol::Completion& completion);

    // Reads the daemon's messages; maps added segments.
    void read_messages();
    std::vector<std::uint32_t> dropped_segments;
    void unmap(std::uint32_t segment);

    protocol::RingControl& control() { return *reinterpret_cast<protocol::RingControl*>(ring_.data()); }
    int socket() const { return socket_.get(); }
    // The other ends that a client has: all of its ring, and the eventfd that it shares with the daemon.
    std::span<std::byte> ring() { return {ring_.data(), ring_.size()}; }
    int request_event() const { return request_event_.get(); }
    bool hung_up();
    void close_socket() { socket_.reset(); }
    std::uint32_t ring_entries() const { return ring_entries_; }

private:
    std::uint32_t ring_entries_;
    cache::SessionSetup setup_;
    FileDescriptor socket_;
    FileDescriptor request_event_;
    Mapping ring_;
    Mapping slots_;
    std::map<std::uint32_t, Mapping> segments_;
    std::uint32_t request_tail_ = 0;
    std::uint32_t completion_head_ = 0;
};

}  // namespace larder::test
