#pragma once

// The daemon's end of one loader process: its rings, its slot memory and the memory segments it has been given. Nothing
// a client writes is believed: entries are copied before they are read, indices are checked against the ring's size,
// pages against what the client holds. A breach closes the session and touches no other.

#include <cstdint>
#include <string>
#include <vector>

#include "cache/protocol/manifest.h"
#include "cache/protocol/wire.h"
#include "cache/shard/fetch.h"
#include "cache/shard/shard.h"

namespace larder::cache {

class BlockServer;

// How long a client's training loop has waited by now, in a wait that is not over. A client may write anything for when
// it began, and one in a time namespace has another clock: what cannot be, or is above a minute, counts for nothing.
std::int64_t open_wait_ns(std::int64_t since_ns, std::int64_t now_ns);

class Session;

// A device watch that finds its session and the shard's state again.
struct SessionWatch {
    Operation operation;
    Session* session = nullptr;
    void* state = nullptr;
};

class Session final : public Consumer {
public:
    // What became of taking requests.
    enum class Take : std::uint8_t { nothing, some, violation };

    Session(SessionSetup setup, BlockServer& server, Job& job);
    ~Session() override;

    std::uint64_t id() const { return setup_.session_id; }
    std::int32_t pid() const { return setup_.pid; }
    std::uint32_t uid() const { return setup_.uid; }
    BlockServer& server() const { return server_; }
    const protocol::Manifest& manifest() const override { return *setup_.manifest; }
    int socket() const { return setup_.socket.get(); }
    int request_event() const { return setup_.request_event.get(); }
    std::span<std::byte> slots() const { return setup_.slots->span(); }

    // Takes up to `count_max` requests from the ring and serves them.
    Take take_requests(std::uint32_t count_max);
    bool requests_waiting() const;

    // The first `bytes` of the slots have memory behind them: fetches into them go on.
    void slots_populated(std::uint64_t bytes);

    // The client will ring the request eventfd for its next request.
    void set_daemon_sleeping(bool sleeping);
    // Empties the request eventfd, or finds it empty already.
    void take_request_event();

    std::byte* slot(const Fetch& fetch) override;
    void deliver(const Fetch& fetch, const Delivery& delivery) override;
    void pin(const Fetch& fetch) override;
    void unpin(std::uint32_t slot_page, std::uint32_t slot_pages) override;

    // Makes delivered completions visible and wakes the client if it sleeps. True when there were any.
    bool publish();

    // Tells the client that a segment is gone; it has until `deadline_ns` to unmap it.
    void drop_segment(const Segment& segment, std::int64_t deadline_ns);
    // Reads what the client sent on the socket; false when it hung up or wrote garbage.
    bool read_socket();
    // The earliest time at which a dropped segment is overdue.
    std::int64_t unmap_deadline_ns() const;

    void close(std::int64_t now_ns);
    // Why it is to be closed, for the log; empty for a client that keeps to the protocol or left.
    const std::string& breach() const { return breach_; }

    // The wait that is under way is in it; `now_ns` is the steady clock's.
    std::int64_t stall_ns(std::int64_t now_ns) const;
    std::int64_t busy_ns() const;
    std::uint64_t samples_delivered() const;
    std::uint64_t bytes_delivered() const;
    std::uint32_t training_loops() const;

    // Where the shard stands with it.
    bool hot = false;                // its ring is looked at every turn
    bool buffer_added = false;       // some of the slots are registered with the device
    std::uint64_t buffer_bytes = 0;  // of the slots, that were offered to the device
    SessionWatch request_watch;      // on request_event
    SessionWatch socket_watch;

private:
    static constexpr std::uint32_t kInService = 1u << 31;

    struct PendingUnmap {
        const Segment* segment;
        std::int64_t deadline_ns;
    };

    protocol::RingControl& control() const;
    void wake_client();
    Take fail(std::string breach);
    bool serve(const protocol::Request& request);
    bool fetch(const protocol::Request& request);
    // False: the fetch must wait until its pages may be written.
    bool pass_on(const protocol::Request& request, std::uint32_t pages);
    // Asks for memory behind the slots up to `end_page`, and for some more, so that it asks seldom.
    void populate_slots(std::uint32_t end_page);
    // The client gives back a slot whose fetch is complete.
    bool release(std::uint32_t slot_page);
    void free_slot(std::uint32_t slot_page);
    bool is_given(const Segment& segment) const;
    enum class Given : std::uint8_t { yes, busy, broken };
    Given give_segment(const Segment& segment);
    bool any_page(const std::vector<std::uint64_t>& pages, std::uint32_t first, std::uint32_t count) const;
    void set_pages(std::vector<std::uint64_t>& pages, std::uint32_t first, std::uint32_t count, bool value);
    void retry_deferred();

    SessionSetup setup_;
    BlockServer& server_;
    std::uint32_t slot_page_count_;
    std::uint32_t request_head_ = 0;
    std::uint32_t completion_tail_ = 0;
    std::uint32_t published_tail_ = 0;
    std::uint32_t in_service_ = 0;              // fetches taken and not yet completed
    std::vector<std::uint64_t> held_pages_;     // by the client
    std::vector<std::uint64_t> written_pages_;  // being written to disk by us
    std::vector<std::uint32_t> run_pages_;      // length of the held run that begins at this page (0: none), with
                                                // kInService while its fetch is not complete
    std::uint32_t populated_pages_;             // the first so many have memory behind them
    std::uint32_t wanted_pages_;                // so many were asked for
    std::vector<protocol::Request> deferred_;   // fetches into pages that are being written, or have no memory yet
    std::vector<const Segment*> segments_;      // given to the client
    std::vector<std::uint64_t> given_;          // the same as bits by segment id
    std::vector<PendingUnmap> unmapping_;
    std::string breach_;
};

}  // namespace larder::cache
