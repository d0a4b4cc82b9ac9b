#pragma once

// The client's end of a session, with the rings and slots of cache/protocol/wire.h. It keeps to the protocol.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>

#include "cache/shard/shard.h"

namespace larder::campaign {

class Client {
public:
    // `wakes` wakes the daemon for the descriptor of its end.
    Client(std::shared_ptr<const protocol::Manifest> manifest, const std::string& job, std::uint32_t uid,
           std::shared_ptr<cache::TokenBucket> bucket, std::uint64_t session_id, std::uint32_t slot_pages,
           std::function<void(int)> wakes);
    ~Client();
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    // The daemon's end. Call once.
    cache::SessionSetup take_setup() { return std::move(setup_); }

    void fetch(std::uint32_t block, std::uint32_t slot_page, std::uint32_t tag, std::uint32_t epoch);
    void release(std::uint32_t slot_page);
    std::optional<protocol::Completion> next_completion();
    // The block's bytes. Empty if its segment was never sent.
    std::span<const std::byte> payload(const protocol::Completion& completion);
    // Unmaps segments that the daemon dropped. Call it after all completions were taken.
    void unmap_dropped();
    bool hung_up() const;
    protocol::RingControl& control() { return *reinterpret_cast<protocol::RingControl*>(ring_.data()); }
    std::uint64_t session_id() const { return session_id_; }

private:
    static constexpr std::uint32_t kRingEntries = 256;

    void submit(const protocol::Request& request);
    void read_messages();

    std::uint64_t session_id_;
    std::function<void(int)> wakes_;
    cache::SessionSetup setup_;
    int daemon_socket_;
    int daemon_event_;
    FileDescriptor socket_;
    Mapping ring_;
    std::shared_ptr<const Mapping> slots_;
    std::map<std::uint32_t, Mapping> segments_;
    std::vector<std::uint32_t> dropped_;
    std::uint32_t request_tail_ = 0;
    std::uint32_t completion_head_ = 0;
};

}  // namespace larder::campaign
