#pragma once

// A Session is the daemon's end of one loader process: its rings, its slot memory and the memory segments sent to it.
// The daemon trusts nothing that a client writes. It copies entries before reading them, and checks indices against the
// ring's size and pages against those the client holds. A breach closes the session and affects no other.

#include <cstdint>
#include <string>
#include <vector>

#include "cache/protocol/manifest.h"
#include "cache/protocol/wire.h"
#include "cache/shard/fetch.h"
#include "cache/shard/reading_group.h"
#include "cache/shard/shard.h"
#include "cache/shard/step_time.h"

namespace larder::cache {

class BlockServer;

// Returns how long a client's training loop has waited so far, in a wait that has not ended. A client may write any
// start time, and a client in a time namespace has another clock. So an impossible wait, or one above a minute, counts
// as 0.
std::int64_t open_wait_ns(std::int64_t since_ns, std::int64_t now_ns);

class Session;

// A device watch, with the session and the shard's state it belongs to.
struct SessionWatch {
    Operation operation;
    Session* session = nullptr;
    void* state = nullptr;
};

class Session final : public Consumer {
public:
    // The result of taking requests.
    enum class Take : std::uint8_t { nothing, some, violation };

    Session(SessionSetup setup, BlockServer& server, ShardJob& job);
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

    // The first `bytes` of the slots are populated. Resumes the fetches that wait for them.
    void slots_populated(std::uint64_t bytes);

    // Tells the client whether to signal the request eventfd for its next request.
    void set_daemon_sleeping(bool sleeping);
    // Empties the request eventfd. Never blocks.
    void take_request_event();

    std::byte* slot(const Fetch& fetch) override;
    void deliver(const Fetch& fetch) override;
    void mark_busy(const Fetch& fetch) override;
    void clear_busy(std::uint32_t slot_page, std::uint32_t slot_pages) override;

    // Answers requests to choose that had to wait.
    void retry_choices();

    // Makes delivered completions visible and wakes the client if it sleeps. True if there were any.
    bool publish();

    // Tells the client that a segment was dropped and must be unmapped by `deadline_ns`. Does nothing if the client
    // does not have the segment.
    void drop_segment(const Segment& segment, std::int64_t deadline_ns);
    // Reads the client's messages from the socket. False if the client hung up or broke the protocol.
    bool read_socket();
    // The earliest time at which a dropped segment is overdue.
    std::int64_t unmap_deadline_ns() const;

    void close(std::int64_t now_ns);
    // The reason why the session must be closed, for the log. Empty for a client that kept to the protocol or left.
    const std::string& breach() const { return breach_; }

    // Includes the wait that has not ended. `now_ns` is of the steady clock.
    std::int64_t stall_ns(std::int64_t now_ns) const;
    // The time that the training loop was busy. If it works in step with other ranks, the time up to the last look.
    std::int64_t busy_ns() const;
    // True if the loop says that it is one of several ranks.
    bool is_in_step() const;
    StepTime::Rank rank();
    std::uint32_t world_size() const;
    std::uint64_t samples_delivered() const;
    std::uint64_t bytes_delivered() const;
    std::uint32_t training_loops() const;

    // The shard's state of this session.
    bool hot = false;                // the ring is polled every turn
    bool buffer_added = false;       // some of the slots are registered with the device
    std::uint64_t buffer_bytes = 0;  // of the slots, offered to the device so far
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
    bool choose(const protocol::Request& request);
    bool answer_choice(std::uint32_t tag);
    void post_choice(std::uint32_t tag, const Choice& choice);
    void post(const protocol::Completion& completion);
    bool fetch(const protocol::Request& request);
    // False if the fetch must wait until its pages may be written.
    bool try_serve(const protocol::Request& request, std::uint32_t pages, std::int64_t waiting_since_ns = 0);
    // Asks to populate the slots up to `end_page` and somewhat beyond, so that few requests are made.
    void populate_slots(std::uint32_t end_page);
    // Takes back a slot. False if the client does not hold the slot or its fetch is not complete.
    bool release(std::uint32_t slot_page);
    void free_slot(std::uint32_t slot_page);
    bool is_sent(const Segment& segment) const;
    enum class SendResult : std::uint8_t { yes, busy, broken };
    SendResult send_segment(const Segment& segment);
    bool any_page(const std::vector<std::uint64_t>& pages, std::uint32_t first, std::uint32_t count) const;
    void set_pages(std::vector<std::uint64_t>& pages, std::uint32_t first, std::uint32_t count, bool value);
    void retry_deferred();

    SessionSetup setup_;
    BlockServer& server_;
    std::uint32_t slot_page_count_;
    std::uint32_t request_head_ = 0;
    std::uint32_t completion_tail_ = 0;
    std::uint32_t published_tail_ = 0;
    std::uint32_t in_service_ = 0;           // fetches taken and not yet completed
    std::vector<std::uint64_t> held_pages_;  // held by the client
    std::vector<std::uint64_t> busy_pages_;  // busy: being read by the daemon
    std::vector<std::uint32_t> run_pages_;   // length of the held run that begins at this page (0: none), with
                                             // kInService while its fetch is not complete
    std::uint32_t populated_pages_;          // the number of pages populated, from the first on
    std::uint32_t wanted_pages_;             // the number of pages asked for
    struct Deferred {
        protocol::Request request;
        std::int64_t since_ns;  // see BlockServer::wait_begins_ns
    };
    std::vector<Deferred> deferred_;        // fetches into pages that are busy or not populated yet
    std::vector<const Segment*> segments_;  // sent to the client
    std::vector<std::uint64_t> sent_bits_;  // the same segments as bits by segment id
    std::vector<PendingUnmap> unmapping_;
    std::uint32_t window_segments_unmapping_ = 0;
    std::vector<std::uint64_t> share_;            // scratch space of choose()
    std::vector<std::uint32_t> waiting_choices_;  // tags of requests to choose, in order
    bool began_pass_ = false;                     // in this turn
    std::string breach_;
    RankTime rank_time_;
};

}  // namespace larder::cache
