#pragma once

// Brings blocks from the node's daemon into this process and keeps them until they are let go. It owns the session, the
// slots and the table of blocks; callers acquire blocks in the order they will need them, call `progress` until
// those they wait for are ready or failed, and release them.
//
// A session that breaks (daemon restarted, process forked) is replaced: blocks already here stay readable in the old
// session's memory, everything awaited is asked for again, in order. Blocks held by batches keep the client alive, not
// its session. One thread at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cache/protocol/decompressor.h"
#include "loader/block_table.h"
#include "loader/formats/sample_format.h"
#include "loader/larder.h"
#include "loader/loop_wait.h"
#include "loader/session.h"
#include "loader/slot_slabs.h"

namespace larder::detail {

struct AttachOptions {
    std::uint32_t ring_entries = 1024;
    std::uint64_t slot_bytes = 0;
    std::uint64_t slab_bytes = 0;  // of whole pages; at least the largest block's run
    bool sequential = false;
};

class BlockClient {
public:
    // Connects and opens the dataset (`version` 0: the newest).
    static Result<std::shared_ptr<BlockClient>> open(const ConnectOptions& options, std::uint64_t version);
    ~BlockClient();

    const protocol::Manifest& manifest() const { return manifest_; }
    SampleFormat& format() { return *format_; }
    // Once, before the first block.
    Result<void> attach(const AttachOptions& options);
    // Ends the session; blocks here stay readable.
    void close();

    // Statistics count each block that is delivered once a pass, also one that is still here from an earlier pass.
    void begin_pass() { ++pass_; }
    // A pass over this epoch begins. Requests made from now on carry the epoch.
    void set_epoch(std::uint64_t epoch) {
        epoch_ = static_cast<std::uint32_t>(epoch);
        begin_pass();
    }

    // Blocks that are acquired one after the other with the same `bundle` share a slab of slot memory
    // (loader/slot_slabs.h), so they should be released together. kNoBundle: the block is a bundle of its own.
    BlockTable::Acquired acquire(std::uint32_t block, std::uint64_t bundle);
    void release(std::uint32_t tag);
    // A failed block is asked for once more, before all others.
    void retry(std::uint32_t tag);
    // Blocks acquired from now on are fetched again, even if a batch of an earlier epoch still holds them: each epoch
    // fetches each of its blocks once, and a batch never keeps two slabs.
    void forget_blocks();
    // Takes blocks that nobody refers to any more out of the queue.
    void drop_unwanted();
    // For the next batch, where no slab has room for it: spreads its blocks over the gaps that there are, then copies
    // blocks that no batch hands out from slots to memory of this process, the one needed last first, until there is
    // room for what is wanted. False if nothing helped, or if a caller that holds several batches has as much in such
    // copies as slot memory has.
    bool make_room();
    // For a batch that is about to be handed out: copies blocks, where they lie in every slab, so that one slab has
    // none of them. The next batch then has room, at least in parts, while this one is held.
    void leave_a_slab(std::span<const std::uint32_t> tags);
    // A block that is here is damaged by what stands in it: it is asked for anew, from the remote, before all others,
    // with one reference. Others go on with what they have of it. Nothing where it came anew already.
    std::optional<std::uint32_t> ask_anew(std::uint32_t tag, std::string damage);
    const BlockEntry& block(std::uint32_t tag) const { return table_[tag]; }
    // Asks the daemon why a failed block could not be read; empty if it knows no more than the entry says.
    std::string failure_reason_of(const BlockEntry& entry) const;

    enum class Progress : std::uint8_t {
        moved,    // something may have become ready
        starved,  // nothing is under way and no room is left to ask for more
    };
    // Takes what came and sends what is wanted, without waiting, not even for a daemon that is away.
    Result<void> tick();
    // The same; when nothing came, waits for something, and for the daemon.
    Result<Progress> progress();

    // How long a block lately took from request to arrival: the slowest, forgotten slowly.
    std::int64_t latency_ns() const { return latency_ns_; }
    std::uint64_t slot_bytes() const { return attach_options_.slot_bytes; }
    // Of slabs in which a block lies.
    std::uint64_t slot_bytes_occupied() const;

    void set_training_loop(std::shared_ptr<const TrainingLoopWait> loop);
    // The caller waits for data, from now until `end_wait`, which counts it as stall.
    void begin_wait();
    void end_wait();
    LoaderStatistics& statistics() { return statistics_; }
    const LoaderStatistics& statistics() const { return statistics_; }
    std::int64_t now_ns() const { return clock_.now_ns(); }

    std::shared_ptr<BatchState> take_batch_state();
    // The batch leaves for the caller: its blocks stay where they are until `give_back`.
    void hand_out(BatchState& state);
    void give_back(std::shared_ptr<BatchState> state);

private:
    struct SlotRelease {
        std::uint32_t page;
        std::uint32_t run;
    };
    struct SlabUse {
        std::uint64_t bytes = 0;
        bool held = false;  // some of them by another batch
    };

    explicit BlockClient(ConnectOptions options);

    Result<void> connect();
    Result<void> reconnect();
    Result<void> check_interrupted() const;
    Error gave_up(const Error& cause) const;
    // The session is of no more use; an error when another would fail the same way.
    Result<void> lose_session(Error cause);
    void drop_session();
    void reset_slots();
    Result<void> exchange();
    void send_wanted();
    std::optional<SlotSlabs::Run> allocate_slot(const BlockEntry& entry);
    void copy_aside(BlockEntry& entry);
    bool send_releases();
    Result<std::size_t> take_completions();
    Result<void> take(const protocol::Completion& completion, std::int64_t now_ns);
    void decompress(std::uint32_t tag, std::span<const std::byte> bytes, std::uint32_t raw_bytes);
    void want_first(std::uint32_t tag);
    Result<void> mind_segments(std::int64_t now_ns);
    void let_go(BlockEntry& entry);
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

    std::unique_ptr<Session> session_;
    int session_pid_ = 0;
    SlotSlabs slots_{0, 0};
    std::uint64_t open_bundle_ = kNoBundle;  // the one that slots_ has room for
    bool spread_ = false;                    // bundles over gaps, until the next batch is handed out
    std::uint64_t copied_bytes_ = 0;         // in blocks that were copied out of slots
    std::uint64_t batches_out_ = 0;          // that the caller has
    std::vector<SlabUse> slab_use_;          // what `leave_a_slab` works on
    BlockTable table_;
    std::vector<std::uint32_t> wanted_;  // tags, from wanted_begin_ on, in the order to ask
    std::size_t wanted_begin_ = 0;
    std::vector<SlotRelease> releases_;  // slots let go, not yet told to the daemon
    std::vector<std::unique_ptr<SessionMemory>> old_memory_;
    std::uint32_t epoch_ = 0;
    std::uint64_t pass_ = 0;

    std::int64_t latency_ns_ = 0;
    std::int64_t messages_read_ns_ = 0;
    std::int64_t next_attempt_ns_ = 0;    // to connect
    std::uint32_t sessions_in_vain_ = 0;  // lost in a row without having brought a block
    std::int64_t in_vain_since_ns_ = 0;
    bool lost_ = false;     // the last session broke, other than by a fork
    bool no_room_ = false;  // for the next wanted block
    bool arrived_ = false;  // completions, since the present call began
    Error last_error_;      // why there is no session
    LoaderStatistics statistics_;
    LoaderStatistics reported_before_;  // by earlier sessions
    LoopWait loop_wait_;
    std::vector<std::shared_ptr<BatchState>> idle_states_;
};

}  // namespace larder::detail
