#include "loader/block_client.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/environment.h"
#include "base/units.h"
#include "cache/protocol/decompress_block.h"
#include "cache/protocol/record.h"
#include "loader/batch.h"

namespace larder::detail {

using protocol::BlockSource;
using protocol::BlockStatus;
using protocol::Completion;

namespace {

constexpr std::int64_t kMessagesPeriod_ns = 20'000'000;
constexpr std::int64_t kWaitSlice_ns = 100'000'000;
constexpr std::int64_t kFullRingPause_ns = 50'000;
constexpr std::int64_t kAttemptPeriod_ns = 50'000'000;
constexpr std::uint32_t kBreachesMax = 20;  // give up on a daemon that keeps breaking the protocol
constexpr std::int64_t kBackoffFirst_ns = 5'000'000;
constexpr std::uint32_t kBackoffDoublingsMax = 4;  // for sessions that brought no block
constexpr std::int64_t kBackoffMax_ns = 500'000'000;

std::unexpected<Error> bad_completion(const char* why) {
    return fail(ErrorCode::protocol, std::string("the Larder daemon sent a completion with ") + why);
}

// True if the session broke against the user's wish: the daemon went away or broke the protocol.
bool is_worth_reconnecting(const Error& error) {
    return error.code == ErrorCode::unavailable || error.code == ErrorCode::protocol;
}

// True if nobody listens, or the daemon went away while it answered.
bool is_away(const Error& error) {
    return error.code == ErrorCode::unavailable;
}

// Returns early on a signal, so that an interrupted job notices.
void pause_ns(std::int64_t duration_ns) {
    const timespec timeout{.tv_sec = duration_ns / 1'000'000'000, .tv_nsec = duration_ns % 1'000'000'000};
    ::ppoll(nullptr, 0, &timeout, nullptr);
}

}  // namespace

BlockClient::BlockClient(ConnectOptions options) : options_(std::move(options)) {}
BlockClient::~BlockClient() = default;

Result<std::shared_ptr<BlockClient>> BlockClient::open(const ConnectOptions& options, std::uint64_t version) {
    auto path = socket_path(options.socket);
    if (!path) return std::unexpected(path.error());
    std::shared_ptr<BlockClient> client(new BlockClient(options));
    client->socket_path_ = std::move(*path);
    client->version_ = version;
    if (client->options_.job.empty()) client->options_.job = environment("LARDER_JOB");
    if (client->options_.job.empty()) client->options_.job = "default";
    auto connected = client->connect();
    if (!connected && is_away(connected.error())) connected = client->reconnect();
    if (!connected) return std::unexpected(connected.error());
    return client;
}

Result<void> BlockClient::attach(const AttachOptions& options) {
    attach_options_ = options;
    reset_slots();
    auto attached = session_->attach(options.ring_entries, options.slot_bytes, options.order, manifest_.block_count());
    if (attached || !is_away(attached.error())) return attached;
    drop_session();
    return reconnect();
}

// --- sessions

Result<void> BlockClient::connect() {
    auto session = ClientSession::open(
        {.socket = socket_path_, .dataset = options_.dataset, .job = options_.job, .manifest_version = version_});
    if (!session) return std::unexpected(session.error());
    protocol::Manifest manifest = (*session)->take_manifest();
    if (version_ != 0 && dataset_id_ != 0 && manifest.header().dataset_id != dataset_id_) {
        return fail(ErrorCode::changed, "dataset \"" + options_.dataset +
                                            "\" was removed and added again while this loader was reading it");
    }
    version_ = manifest.header().version;
    dataset_id_ = manifest.header().dataset_id;
    if (attach_options_.slot_bytes > 0) {
        auto attached = (*session)->attach(attach_options_.ring_entries, attach_options_.slot_bytes,
                                           attach_options_.order, manifest_.block_count());
        if (!attached) return attached;
        reset_slots();
    } else {
        auto format = make_sample_format(manifest);
        if (!format) return std::unexpected(format.error());
        format_ = std::move(*format);
        manifest_ = std::move(manifest);
    }
    session_ = std::move(*session);
    session_pid_ = ::getpid();
    if (std::exchange(session_was_lost_, false)) ++statistics_.reconnects;
    reported_before_ = statistics_;
    loop_wait_.begin_session();
    if (!choices_.share().empty()) {
        choices_.begin_session();
        session_->set_share(choices_.share());
    }
    return {};
}

void BlockClient::close() {
    if (session_ && session_pid_ == ::getpid() && attach_options_.slot_bytes > 0) report(clock_.now_ns());
    drop_session();
}

void BlockClient::drop_session() {
    if (!session_) return;
    std::unique_ptr<ClientSessionMemory> memory = session_->take_memory();
    session_.reset();
    if (memory->blocks > 0) old_memory_.push_back(std::move(memory));
    releases_.clear();
    wanted_.clear();
    wanted_begin_ = 0;
    for (std::uint32_t tag = 0; tag < table_.tag_end(); ++tag) {
        BlockEntry& entry = table_[tag];
        entry.has_slot = false;
        entry.had_slot = false;
        if (entry.state == BlockState::requested) entry.state = BlockState::wanted;
        if (entry.state != BlockState::wanted) continue;
        if (entry.references == 0) {
            table_.erase(tag);
        } else {
            wanted_.push_back(tag);
        }
    }
    std::ranges::sort(wanted_, {}, [this](std::uint32_t tag) { return table_[tag].order; });
}

Result<void> BlockClient::check_interrupted() const {
    if (options_.interrupted == nullptr || !options_.interrupted()) return {};
    return fail(ErrorCode::cancelled, "interrupted while waiting for data");
}

// The error when the time to wait for a daemon is over.
Error BlockClient::timeout_error(const Error& cause) const {
    const std::int64_t waited_ns = options_.reconnect_timeout_ms * 1'000'000;
    const std::string within = (waited_ns > 0 ? " within " + format_duration_ns(waited_ns) : " at once") + ": ";
    const bool opened = attach_options_.slot_bytes > 0;
    return {ErrorCode::unavailable,
            (opened ? "lost the Larder daemon and could not reconnect" : "no Larder daemon answered") + within +
                cause.message,
            cause.system_errno};
}

Result<void> BlockClient::lose_session(Error cause) {
    drop_session();
    session_was_lost_ = true;
    const std::int64_t now_ns = clock_.now_ns();
    if (sessions_without_block_++ == 0) without_block_since_ns_ = now_ns;
    next_attempt_ns_ = 0;
    last_error_ = cause;
    const bool is_hopeless = cause.code == ErrorCode::protocol
                                 ? sessions_without_block_ > kBreachesMax
                                 : now_ns - without_block_since_ns_ > options_.reconnect_timeout_ms * 1'000'000;
    if (is_worth_reconnecting(cause) && !is_hopeless) return {};
    sessions_without_block_ = 0;
    return std::unexpected(cause.code == ErrorCode::unavailable ? timeout_error(cause) : std::move(cause));
}

Result<void> BlockClient::reconnect() {
    const std::int64_t deadline_ns = clock_.now_ns() + options_.reconnect_timeout_ms * 1'000'000;
    std::int64_t backoff_ns = kBackoffFirst_ns << std::min(sessions_without_block_, kBackoffDoublingsMax);
    if (sessions_without_block_ > 1) pause_ns(backoff_ns);
    bool is_told = options_.daemon_away == nullptr;
    for (;; backoff_ns = std::min(backoff_ns * 2, kBackoffMax_ns)) {
        auto connected = connect();
        if (connected || !is_worth_reconnecting(connected.error())) return connected;
        last_error_ = connected.error();
        if (auto interrupted = check_interrupted(); !interrupted) return interrupted;
        const std::int64_t left_ns = deadline_ns - clock_.now_ns();
        if (left_ns <= 0) break;
        if (!std::exchange(is_told, true)) options_.daemon_away(last_error_.message);
        pause_ns(std::min(backoff_ns, left_ns));
    }
    return std::unexpected(timeout_error(last_error_));
}

// --- blocks

ClientBlockTable::Acquired BlockClient::acquire(std::uint32_t block, std::uint64_t bundle) {
    const ClientBlockTable::Acquired acquired = table_.acquire(block);
    BlockEntry& entry = table_[acquired.tag];
    if (std::exchange(entry.pass, pass_) != pass_) {
        entry.counted = false;
        if (entry.state == BlockState::ready) entry.source = BlockSource::memory;  // a batch still holds it
    }
    if (!acquired.fresh || entry.state != BlockState::wanted || entry.length != 0) return acquired;
    entry.bundle = bundle;
    entry.length = manifest_.block_bytes(block);
    if (entry.length == 0) {
        entry.state = BlockState::ready;  // an empty object: there is nothing to fetch
        entry.source = BlockSource::memory;
    } else {
        wanted_.push_back(acquired.tag);
    }
    return acquired;
}

void BlockClient::release(std::uint32_t tag) {
    BlockEntry& entry = table_[tag];
    LARDER_ASSERT(entry.references > 0);
    if (--entry.references > 0) return;
    // A wanted or requested block is forgotten when its turn comes.
    if (entry.state == BlockState::ready || entry.state == BlockState::failed) forget(tag);
}

void BlockClient::retry(std::uint32_t tag) {
    BlockEntry& entry = table_[tag];
    if (entry.state != BlockState::failed) return;
    want_first(tag);
}

void BlockClient::want_first(std::uint32_t tag) {
    table_[tag].state = BlockState::wanted;
    if (wanted_begin_ > 0) {
        wanted_[--wanted_begin_] = tag;
    } else {
        wanted_.insert(wanted_.begin(), tag);
    }
}

void BlockClient::forget(std::uint32_t tag) {
    BlockEntry& entry = table_[tag];
    release_memory(entry);
    if (entry.copied) copied_bytes_ -= entry.raw_bytes;
    table_.erase(tag);
}

void BlockClient::release_memory(BlockEntry& entry) {
    ClientSessionMemory* memory = entry.memory;
    if (memory == nullptr) return;
    entry.memory = nullptr;
    if (entry.segment != nullptr) --entry.segment->blocks;
    if (entry.has_slot) {
        entry.has_slot = false;
        releases_.push_back({.page = entry.slot_page, .run = entry.slot_run});
    }
    if (--memory->blocks == 0) {
        std::erase_if(old_memory_, [memory](const auto& old) { return old.get() == memory; });
    }
}

void BlockClient::forget_blocks() {
    table_.forget_blocks();
}

void BlockClient::drop_unwanted() {
    const auto begin = wanted_.begin() + static_cast<std::ptrdiff_t>(wanted_begin_);
    const auto end = std::remove_if(begin, wanted_.end(), [this](std::uint32_t tag) {
        if (table_[tag].references > 0) return false;
        table_.erase(tag);
        return true;
    });
    wanted_.erase(end, wanted_.end());
    open_bundle_ = kNoBundle;  // a batch that is planned again begins its bundle again
}

// --- batches

void BlockClient::count_delivered(BlockEntry& entry) {
    if (std::exchange(entry.counted, true)) return;
    switch (entry.source) {
        case BlockSource::memory: ++statistics_.memory_blocks; break;
        case BlockSource::disk: ++statistics_.disk_blocks; break;
        case BlockSource::peer: ++statistics_.peer_blocks; break;
        case BlockSource::remote:
            ++statistics_.remote_blocks;
            statistics_.remote_bytes += entry.length;
            break;
        case BlockSource::none: break;
    }
}

void BlockClient::hand_out(BatchState& state) {
    state.handed_out = true;
    ++batches_out_;
    spreads_bundles_ = false;
    for (const std::uint32_t tag : state.tags) {
        ++table_[tag].handed_out;
        count_delivered(table_[tag]);
    }
}

std::shared_ptr<BatchState> BlockClient::take_batch_state() {
    if (idle_states_.empty()) return std::make_shared<BatchState>();
    std::shared_ptr<BatchState> state = std::move(idle_states_.back());
    idle_states_.pop_back();
    return state;
}

void BlockClient::release_batch(std::shared_ptr<BatchState> state) {
    if (state->handed_out) --batches_out_;
    for (const std::uint32_t tag : state->tags) {
        if (state->handed_out) --table_[tag].handed_out;
        release(tag);
    }
    state->clear();
    idle_states_.push_back(std::move(state));
}

// --- the wire

bool BlockClient::send_releases() {
    std::size_t sent = 0;
    while (sent < releases_.size() && session_->queue_release(releases_[sent].page)) {
        slots_.release(releases_[sent++].run);
    }
    releases_.erase(releases_.begin(), releases_.begin() + static_cast<std::ptrdiff_t>(sent));
    return releases_.empty();
}

void BlockClient::begin_share(std::vector<std::uint64_t> share) {
    choices_.begin(std::move(share));
    if (session_ && session_pid_ == ::getpid()) session_->set_share(choices_.share());
}

void BlockClient::send_choices() {
    bool any = false;
    while (choices_.wanted() > 0 && session_->queue_choose(choices_.tag(), choices_.pass())) {
        choices_.note_asked();
        any = true;
    }
    if (any) session_->publish();
}

void BlockClient::send_wanted() {
    no_room_ = false;
    // Releases go with the next fetches: alone they would cost a system call and gain nothing.
    if (wanted_begin_ == wanted_.size() && releases_.size() < attach_options_.ring_entries / 4) return;
    if (send_releases() && wanted_begin_ < wanted_.size()) {
        const std::int64_t now_ns = clock_.now_ns();
        while (wanted_begin_ < wanted_.size()) {
            const std::uint32_t tag = wanted_[wanted_begin_];
            BlockEntry& entry = table_[tag];
            if (entry.references == 0) {
                table_.erase(tag);
                ++wanted_begin_;
                continue;
            }
            const auto run = allocate_slot(entry);
            if (!run) {
                no_room_ = true;
                break;
            }
            const auto damaged_crc = entry.is_refetch ? std::optional(entry.damaged_crc) : std::nullopt;
            if (!session_->queue_fetch(tag, entry.block, run->page, epoch_, damaged_crc)) {
                slots_.release(run->id);
                break;
            }
            entry.state = BlockState::requested;
            entry.slot_page = run->page;
            entry.slot_run = run->id;
            entry.has_slot = true;
            entry.had_slot = true;
            entry.requested_ns = now_ns;
            ++wanted_begin_;
        }
        if (wanted_begin_ == wanted_.size() || wanted_begin_ > 4096) {
            wanted_.erase(wanted_.begin(), wanted_.begin() + static_cast<std::ptrdiff_t>(wanted_begin_));
            wanted_begin_ = 0;
        }
    }
    session_->publish();
}

Result<std::size_t> BlockClient::take_completions(std::int64_t wait_until_ns) {
    std::array<Completion, 128> completions;
    std::size_t total = 0;
    if (wait_until_ns == 0 && !session_->completions_waiting()) return total;
    auto count = session_->poll(completions, wait_until_ns);
    const std::int64_t now_ns = clock_.now_ns();
    for (; count; count = session_->poll(completions)) {
        for (std::size_t i = 0; i < *count; ++i) {
            if (auto taken = take(completions[i], now_ns); !taken) return std::unexpected(taken.error());
        }
        total += *count;
        if (*count < completions.size()) break;
    }
    if (!count) return std::unexpected(count.error());
    if (total > 0) {
        sessions_without_block_ = 0;
        arrived_ = true;
    }
    return total;
}

Result<void> BlockClient::take(const Completion& completion, std::int64_t now_ns) {
    if (BlockChoices::is_choice(completion.tag)) {
        if (choices_.take(completion.tag, completion.length == 1, completion.offset)) return {};
        return bad_completion("a block that is not to be read");
    }
    if (!table_.contains(completion.tag) || table_[completion.tag].state != BlockState::requested) {
        return bad_completion("a tag that no request has");
    }
    BlockEntry& entry = table_[completion.tag];
    if (completion.status != BlockStatus::ok) {
        slots_.release(entry.slot_run);
        entry.has_slot = false;
        entry.state = BlockState::failed;
        entry.status = completion.status;
        entry.system_errno = completion.system_errno;
        if (entry.references == 0) forget(completion.tag);
        return {};
    }
    const bool compressed = completion.raw_bytes > 0;
    if (compressed ? completion.raw_bytes != entry.length || completion.length >= entry.length
                   : completion.length != entry.length) {
        return bad_completion("a wrong length");
    }
    if (completion.segment != 0) {
        auto segment = session_->segment(completion.segment);
        if (!segment) return std::unexpected(segment.error());
        if (completion.offset > (*segment)->bytes || completion.length > (*segment)->bytes - completion.offset) {
            return bad_completion("bytes outside their segment");
        }
        slots_.release(entry.slot_run);
        entry.has_slot = false;
        entry.segment = *segment;
        entry.data = (*segment)->mapping.data() + completion.offset;
        ++(*segment)->blocks;
    } else {
        if (completion.offset != std::uint64_t{entry.slot_page} * protocol::kPageBytes + protocol::kRecordHeaderBytes) {
            return bad_completion("bytes outside their slot");
        }
        entry.segment = nullptr;
        entry.data = session_->memory().slots.data() + completion.offset;
    }
    entry.memory = &session_->memory();
    ++entry.memory->blocks;
    entry.state = BlockState::ready;
    if (compressed) {
        take_decompressed(completion.tag, {entry.data, completion.length},
                          decompressor_.run({entry.data, completion.length}, completion.raw_bytes),
                          completion.raw_bytes);
    }
    if (manifest_.has_compressed_blocks() && entry.state == BlockState::ready) {
        if (const protocol::Block block = manifest_.block(entry.block); block.raw_bytes > 0) {
            take_decompressed(completion.tag, entry.bytes(),
                              protocol::decompress_block(manifest_, block, entry.bytes(), decompressor_),
                              block.raw_bytes);
        }
    }
    if (entry.state == BlockState::ready && !entry.found && !entry.past) table_.make_current(completion.tag);

    latency_ns_ = std::max(now_ns - entry.requested_ns, latency_ns_ - latency_ns_ / 64);
    entry.source = completion.source;
    // A block that is wanted again is forgotten when its turn comes.
    if (entry.references == 0 && entry.state != BlockState::wanted) forget(completion.tag);
    return {};
}

Result<void> BlockClient::service_segments(std::int64_t now_ns) {
    if (now_ns - messages_read_ns_ >= kMessagesPeriod_ns) {
        messages_read_ns_ = now_ns;
        if (auto read = session_->read_messages(); !read) return read;
    }
    if (!session_->any_dropped()) return {};
    if (auto taken = take_completions(); !taken) return std::unexpected(taken.error());
    return session_->unmap_dropped();
}

Result<void> BlockClient::exchange() {
    const std::int64_t now_ns = clock_.now_ns();
    report(now_ns);
    if (auto taken = take_completions(); !taken) return std::unexpected(taken.error());
    if (auto serviced = service_segments(now_ns); !serviced) return serviced;
    send_choices();
    send_wanted();
    return {};
}

Result<void> BlockClient::tick() {
    if (session_ && session_pid_ != ::getpid()) drop_session();
    if (!session_) {
        const std::int64_t now_ns = clock_.now_ns();
        if (now_ns < next_attempt_ns_) return {};
        if (auto connected = connect(); !connected) {
            if (!is_worth_reconnecting(connected.error())) return connected;
            last_error_ = connected.error();
            next_attempt_ns_ = now_ns + kAttemptPeriod_ns;
            return {};
        }
    }
    auto exchanged = exchange();
    return exchanged ? exchanged : lose_session(exchanged.error());
}

Result<BlockClient::Progress> BlockClient::progress() {
    arrived_ = false;
    if (auto ticked = tick(); !ticked) return std::unexpected(ticked.error());
    if (!session_) {
        if (auto reconnected = reconnect(); !reconnected) return std::unexpected(reconnected.error());
        return Progress::moved;
    }
    if (arrived_) return Progress::moved;
    if (session_->fetches_in_flight() == 0) {
        if (no_room_) return Progress::starved;
        if (wanted_begin_ < wanted_.size()) pause_ns(kFullRingPause_ns);
        return Progress::moved;
    }
    auto taken = take_completions(clock_.now_ns() + kWaitSlice_ns);
    if (!taken) {
        if (auto lost = lose_session(taken.error()); !lost) return std::unexpected(lost.error());
    } else if (*taken == 0) {
        if (auto interrupted = check_interrupted(); !interrupted) return std::unexpected(interrupted.error());
    }
    return Progress::moved;
}

void BlockClient::set_training_loop(std::shared_ptr<const TrainingLoopWait> loop,
                                    std::shared_ptr<const protocol::TakeLog> takes) {
    loop_wait_.follow(std::move(loop), std::move(takes));
}

void BlockClient::begin_wait() {
    loop_wait_.begin(clock_.now_ns());
}

void BlockClient::end_wait() {
    const LoopWait::Taken taken = loop_wait_.end(clock_.now_ns());
    statistics_.stall_ns += taken.end_ns - taken.begin_ns;
    if (session_ && loop_wait_.runs_here()) session_->report_taken(taken.begin_ns, taken.end_ns, loop_wait_.stall_ns());
}

void BlockClient::report(std::int64_t now_ns) {
    const LoopWait::Report loop = loop_wait_.report(now_ns);
    loop_wait_.copy_takes(session_->takes());  // after the report has read since when the loop waits
    session_->report({.stall_ns = loop.stall_ns,
                      .waiting_since_ns = loop.waiting_since_ns,
                      .busy_ns = loop.busy_ns,
                      .training_loops = loop.training_loops,
                      .samples = statistics_.samples - reported_before_.samples,
                      .bytes = statistics_.bytes - reported_before_.bytes,
                      .reported_ns = now_ns,
                      .world_size = attach_options_.world_size,
                      .loop_is_elsewhere = loop.loop_is_elsewhere});
}

}  // namespace larder::detail
