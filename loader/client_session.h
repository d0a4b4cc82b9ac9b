#pragma once

// One connection to the node's daemon, as cache/protocol/wire.h describes it. `open` connects and maps the manifest,
// `attach` sets up the rings. Then requests are queued and made visible with `publish` (at most one system call, none
// while the daemon is awake). Completions are taken with `poll`, which may wait for them. A session belongs to the
// process that opened it and to one thread at a time; it starts no thread.
//
// Errors of `poll` and `read_messages` end the session: the caller drops it and opens another. The mapped memory may
// outlive the session (`take_memory`).

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "cache/protocol/manifest.h"
#include "cache/protocol/wire.h"
#include "loader/client_session_memory.h"
#include "loader/daemon_socket.h"

namespace larder::detail {

struct SessionTarget {
    std::string socket;
    std::string dataset;
    std::string job;
    std::uint64_t manifest_version = 0;  // 0: the newest
};

class ClientSession {
public:
    static Result<std::unique_ptr<ClientSession>> open(const SessionTarget& target);
    ~ClientSession();

    // The dataset version that the daemon opened. Can be taken once.
    protocol::Manifest take_manifest() { return std::move(manifest_); }

    Result<void> attach(std::uint32_t ring_entries, std::uint64_t slot_bytes, protocol::ReadOrder order,
                        std::uint32_t block_count);

    // False if the ring is full, or if as many fetches are in flight as the ring has room for completions: publish and
    // try again. `damaged_crc`: the block came before with this checksum, and its content was damaged.
    bool queue_fetch(std::uint32_t tag, std::uint32_t block, std::uint32_t slot_page, std::uint32_t epoch,
                     std::optional<std::uint32_t> damaged_crc = {});
    bool queue_release(std::uint32_t slot_page);
    // Asks which block of the share to read next. A new `pass` begins with the share that was set last.
    bool queue_choose(std::uint32_t tag, std::uint32_t pass);
    // Sets the blocks that the daemon may choose, in a session with the order `shared`.
    void set_share(std::span<const std::uint64_t> share);
    void publish();

    // Copies waiting completions and returns their number, which may be 0. If there are none, publishes and waits for
    // one until `deadline_ns` of SteadyClock; 0: does neither.
    Result<std::size_t> poll(std::span<protocol::Completion> into, std::int64_t deadline_ns = 0);
    bool completions_waiting() const;
    std::uint32_t fetches_in_flight() const { return in_flight_; }

    // Reads the daemon's messages on the socket: segments added and dropped. Completions of a dropped segment that are
    // still in the ring must be polled before `unmap_dropped`.
    Result<void> read_messages();
    bool any_dropped() const { return any_dropped_; }
    // Unmaps dropped segments that hold no blocks, and tells the daemon.
    Result<void> unmap_dropped();

    // Returns the segment, mapped. Fails if the daemon never sent it.
    Result<MappedSegment*> segment(std::uint32_t id);

    ClientSessionMemory& memory() { return *memory_; }
    std::unique_ptr<ClientSessionMemory> take_memory() { return std::move(memory_); }

    // Running totals for the daemon's metrics.
    struct Reported {
        std::int64_t stall_ns = 0;
        std::int64_t waiting_since_ns = 0;
        std::int64_t busy_ns = 0;
        std::uint32_t training_loops = 0;
        std::uint64_t samples = 0;
        std::uint64_t bytes = 0;
        std::int64_t reported_ns = 0;  // the time up to which these hold
        std::uint32_t world_size = 0;
        bool loop_is_elsewhere = false;
    };
    void report(const Reported& reported);
    // Reports that the training loop, which runs here, has taken a batch after a wait, perhaps of no length.
    void report_taken(std::int64_t begin_ns, std::int64_t end_ns, std::int64_t stall_ns);
    // The batches that the training loop took, which the daemon reads.
    protocol::TakeLog& takes() { return control_->takes; }

private:
    explicit ClientSession(DaemonSocket socket) : socket_(std::move(socket)) {}

    Result<void> take_reply(std::span<std::byte> reply, std::size_t descriptors, DaemonSocket::Message& message);
    bool queue(const protocol::Request& request);
    Result<void> wait(std::int64_t deadline_ns);
    bool spin();
    Result<void> block_until(std::int64_t deadline_ns);
    MappedSegment* find_segment(std::uint32_t id);

    DaemonSocket socket_;
    protocol::Manifest manifest_;
    Mapping ring_;
    FileDescriptor request_event_;
    std::unique_ptr<ClientSessionMemory> memory_ = std::make_unique<ClientSessionMemory>();
    SteadyClock clock_;

    protocol::RingControl* control_ = nullptr;
    protocol::Request* requests_ = nullptr;
    const protocol::Completion* completions_ = nullptr;
    std::uint32_t entries_ = 0;
    std::span<std::uint64_t> share_;  // in ring memory
    std::uint32_t request_tail_ = 0;  // including queued requests; the published tail is in the ring
    std::uint32_t request_head_ = 0;  // last seen
    std::uint32_t published_tail_ = 0;
    std::uint32_t completion_head_ = 0;
    std::uint32_t in_flight_ = 0;
    std::int64_t spin_ns_ = 0;
    MappedSegment* last_segment_ = nullptr;
    bool any_dropped_ = false;
};

}  // namespace larder::detail
