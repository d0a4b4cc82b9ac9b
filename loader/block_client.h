#pragma once

// Brings blocks from the node's daemon into this process and keeps them until they are released. A BlockClient owns the
// session, the slots and the table of blocks. Callers acquire blocks in the order in which they will need them, call
// `progress` until the blocks they wait for are ready or failed, and release them.
//
// A broken session (daemon restarted, process forked) is replaced. Blocks already here stay readable in the old
// session's memory; all other blocks are requested again, in order. Blocks held by batches keep the client alive, but
// not its session. One thread at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cache/protocol/decompressor.h"
#include "loader/block_choices.h"
#include "loader/client_block_table.h"
#include "loader/client_session.h"
#include "loader/formats/sample_format.h"
#include "loader/larder.h"
#include "loader/loop_wait.h"
#include "loader/slot_slabs.h"

namespace larder::detail {

struct AttachOptions {
    std::uint32_t ring_entries = 1024;
    std::uint64_t slot_bytes = 0;
    std::uint64_t slab_bytes = 0;  // in whole pages; at least the run of the largest block
    protocol::ReadOrder order = protocol::ReadOrder::random;
    std::uint32_t world_size = 0;  // ranks that work in step; 0: unknown
};

class BlockClient {
public:
    // Connects and opens the dataset. `version` 0: the newest.
    static Result<std::shared_ptr<BlockClient>> open(const ConnectOptions& options, std::uint64_t version);
    ~BlockClient();

    const protocol::Manifest& manifest() const { return manifest_; }
    SampleFormat& format() { return *format_; }
    // Must be called once, before the first block is acquired.
    Result<void> attach(const AttachOptions& options);
    void set_reconnect_timeout_ms(std::int64_t timeout_ms) { options_.reconnect_timeout_ms = timeout_ms; }
    // Ends the session. Blocks already here stay readable.
    void close();

    // Begins a pass. Statistics count each delivered block once per pass, even if it is still here from an earlier
    // pass.
    void begin_pass() { ++pass_; }
    // Begins a pass over this epoch. Later requests carry the epoch.
    void set_epoch(std::uint64_t epoch) {
        epoch_ = static_cast<std::uint32_t>(epoch);
        begin_pass();
    }

    // Needs the order `shared`. The daemon chooses blocks of this share, a bit for each block, as they are
    // wanted. `progress` waits for choices, too.
    void begin_share(std::vector<std::uint64_t> share);
    BlockChoices& choices() { return choices_; }
    // True if acquired blocks have yet to be requested: they wait for room.
    bool any_unsent() const { return wanted_begin_ < wanted_.size(); }

    // Consecutive blocks with the same `bundle` share a slab of slot memory (loader/slot_slabs.h), so they should be
    // released together. kNoBundle: the block is a bundle of its own.
    ClientBlockTable::Acquired acquire(std::uint32_t block, std::uint64_t bundle);
    void release(std::uint32_t tag);
    // Requests a failed block once more, before all others.
    void retry(std::uint32_t tag);
    // Makes later calls of `acquire` fetch blocks again, even if a batch of an earlier epoch still holds them. So each
    // epoch fetches each of its blocks once, and a batch never keeps two slabs.
    void forget_blocks();
    // Removes blocks without references from the queue.
    void drop_unwanted();
    // Makes room for the next batch if no slab has any. First spreads the batch's blocks over the existing gaps. Then
    // copies blocks of batches that are not handed out from slots to memory of this process, beginning with the block
    // needed last. Returns false if nothing helped, or if the caller holds several batches and the copies already have
    // as many bytes as slot memory.
    bool make_room();
    // If a batch that is about to be handed out has blocks in every slab, copies the blocks of one slab. The next batch
    // then has room, at least in parts, while this one is held.
    void free_one_slab(std::span<const std::uint32_t> tags);
    // Refetches a ready block from the remote, before all others, because its content is damaged. The new entry has one
    // reference. Other holders keep the damaged block. Returns nullopt if the block was already refetched.
    std::optional<std::uint32_t> refetch_damaged(std::uint32_t tag, std::string damage);
    const BlockEntry& block(std::uint32_t tag) const { return table_[tag]; }
    // Asks the daemon why a failed block could not be read. Empty if the daemon knows no more than the entry says.
    std::string failure_reason_of(const BlockEntry& entry) const;

    enum class Progress : std::uint8_t {
        moved,    // something may have become ready
        starved,  // nothing is in flight, and no room is left to request more
    };
    // Takes completions and sends requests without waiting, not even for a daemon that is away.
    Result<void> tick();
    // Like `tick`, but waits for a completion, and for the daemon, if nothing came.
    Result<Progress> progress();

    // The longest recent time from a block's request to its arrival. Old times are forgotten slowly.
    std::int64_t latency_ns() const { return latency_ns_; }
    std::uint64_t slot_bytes() const { return attach_options_.slot_bytes; }
    // Bytes of the slabs that hold a block.
    std::uint64_t slot_bytes_occupied() const;

    void set_training_loop(std::shared_ptr<const TrainingLoopWait> loop,
                           std::shared_ptr<const protocol::TakeLog> takes);
    // The caller waits for data from now until `end_wait`, which counts the wait as stall.
    void begin_wait();
    void end_wait();
    LoaderStatistics& statistics() { return statistics_; }
    const LoaderStatistics& statistics() const { return statistics_; }
    std::int64_t now_ns() const { return clock_.now_ns(); }

    std::shared_ptr<BatchState> take_batch_state();
    // Hands the batch to the caller. The batch's blocks stay in place until `release_batch`.
    void hand_out(BatchState& state);
    void release_batch(std::shared_ptr<BatchState> state);

private:
    struct SlotRelease {
        std::uint32_t page;
        std::uint32_t run;
    };
    struct SlabUse {
        std::uint64_t bytes = 0;
        bool held = false;  // another batch holds some of the bytes
    };

    explicit BlockClient(ConnectOptions options);

    Result<void> connect();
    Result<void> reconnect();
    Result<void> check_interrupted() const;
    Error timeout_error(const Error& cause) const;
    // Drops a broken session. Fails if the next one would fail the same way.
    Result<void> lose_session(Error cause);
    void drop_session();
    void reset_slots();
    Result<void> exchange();
    void send_wanted();
    void send_choices();
    std::optional<SlotSlabs::Run> allocate_slot(const BlockEntry& entry);
    void copy_out_of_slot(BlockEntry& entry);
    bool send_releases();
    // Takes all completions that are there. If there are none, waits for one until `wait_until_ns`; 0: does not wait.
    Result<std::size_t> take_completions(std::int64_t wait_until_ns = 0);
    Result<void> take(const protocol::Completion& completion, std::int64_t now_ns);
    void take_decompressed(std::uint32_t tag, std::span<const std::byte> bytes,
                           Result<std::unique_ptr<std::byte[]>> raw, std::uint32_t raw_bytes);
    void want_first(std::uint32_t tag);
    Result<void> service_segments(std::int64_t now_ns);
    void release_memory(BlockEntry& entry);
    void forget(std::uint32_t tag);
    void count_delivered(BlockEntry& entry);
    void report(std::int64_t now_ns);

    ConnectOptions options_;
    std::string socket_path_;
    std::uint64_t version_ = 0;
    std::uint64_t dataset_id_ = 0;
    protocol::Manifest manifest_;
    std::unique_ptr<SampleFormat> format_;
    protocol::Decompressor decompressor_;
    AttachOptions attach_options_;
    SteadyClock clock_;

    std::unique_ptr<ClientSession> session_;
    int session_pid_ = 0;
    SlotSlabs slots_{0, 0};
    std::uint64_t open_bundle_ = kNoBundle;  // the bundle that slots_ has room for
    bool spreads_bundles_ = false;           // over the gaps in slabs, until the next batch is handed out
    std::uint64_t copied_bytes_ = 0;         // in blocks that were copied out of slots
    std::uint64_t batches_out_ = 0;          // batches that the caller has
    std::vector<SlabUse> slab_use_;          // scratch space of `free_one_slab`
    ClientBlockTable table_;
    std::vector<std::uint32_t> wanted_;  // tags from wanted_begin_ on, in the order of requests
    std::size_t wanted_begin_ = 0;
    BlockChoices choices_;
    std::vector<SlotRelease> releases_;  // slots released, but not yet reported to the daemon
    std::vector<std::unique_ptr<ClientSessionMemory>> old_memory_;
    std::uint32_t epoch_ = 0;
    std::uint64_t pass_ = 0;

    std::int64_t latency_ns_ = 0;
    std::int64_t messages_read_ns_ = 0;
    std::int64_t next_attempt_ns_ = 0;          // to connect
    std::uint32_t sessions_without_block_ = 0;  // lost in a row before any block arrived
    std::int64_t without_block_since_ns_ = 0;
    bool session_was_lost_ = false;  // the last session broke, and not by a fork
    bool no_room_ = false;           // for the next wanted block
    bool arrived_ = false;           // completions arrived since the current call began
    Error last_error_;               // why there is no session
    LoaderStatistics statistics_;
    LoaderStatistics reported_before_;  // what earlier sessions reported
    LoopWait loop_wait_;
    std::vector<std::shared_ptr<BatchState>> idle_states_;
};

}  // namespace larder::detail
