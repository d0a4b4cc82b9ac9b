#include "loader/client_session.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <type_traits>

#include "base/assert.h"
#include "cache/protocol/futex.h"

namespace larder::detail {

using protocol::Completion;
using protocol::MessageKind;
using protocol::Request;
using protocol::RequestOperation;

namespace {

constexpr int kHandshakeTimeout_ms = 10'000;
// A sleeping client notices after this time at the latest that its daemon was killed.
constexpr std::int64_t kSleepMax_ns = 20'000'000;
constexpr std::int64_t kSpinMin_ns = 2'000;
constexpr std::int64_t kSpinMax_ns = 30'000;

std::unexpected<Error> protocol_error(const std::string& what) {
    return fail(ErrorCode::protocol, "protocol error between the Larder daemon and this client: " + what);
}

template <std::size_t N>
Result<void> put_name(char (&field)[N], const std::string& value, const char* what) {
    if (value.empty() || value.size() >= N || value.find('\0') != std::string::npos) {
        return fail(ErrorCode::invalid_argument,
                    std::string(what) + " name must have 1 to " + std::to_string(N - 1) + " bytes");
    }
    std::memcpy(field, value.data(), value.size());
    return {};
}

template <typename T>
std::span<const std::byte> bytes_of(const T& message) {
    return std::as_bytes(std::span(&message, 1));
}

// Returns the daemon's own error; `status` is 1 + ErrorCode.
template <std::size_t N>
std::unexpected<Error> refusal(std::uint32_t status, const char (&text)[N]) {
    const std::uint32_t code = status - 1;
    const auto known =
        code <= static_cast<std::uint32_t>(ErrorCode::internal) ? static_cast<ErrorCode>(code) : ErrorCode::internal;
    return fail(known, std::string(text, ::strnlen(text, N)));
}

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

ClientSession::~ClientSession() = default;

Result<void> ClientSession::take_reply(std::span<std::byte> reply, std::size_t descriptors,
                                       DaemonSocket::Message& message) {
    auto received = socket_.receive(reply, kHandshakeTimeout_ms);
    if (!received) return std::unexpected(received.error());
    if (received->bytes != reply.size())
        return protocol_error("a reply of " + std::to_string(received->bytes) + " bytes");
    if (received->descriptor_count != 0 && received->descriptor_count != descriptors) {
        return protocol_error("a reply with " + std::to_string(received->descriptor_count) + " descriptors");
    }
    message = std::move(*received);
    return {};
}

Result<std::unique_ptr<ClientSession>> ClientSession::open(const SessionTarget& target) {
    protocol::OpenRequest request{};
    request.magic = protocol::kMagic;
    request.version = protocol::kVersion;
    request.kind = MessageKind::open;
    request.manifest_version = target.manifest_version;
    if (auto put = put_name(request.dataset, target.dataset, "dataset"); !put) return std::unexpected(put.error());
    if (auto put = put_name(request.job, target.job, "job"); !put) return std::unexpected(put.error());

    auto socket = DaemonSocket::connect(target.socket);
    if (!socket) return std::unexpected(socket.error());
    std::unique_ptr<ClientSession> session(new ClientSession(std::move(*socket)));
    if (auto sent = session->socket_.send(bytes_of(request)); !sent) return std::unexpected(sent.error());

    protocol::OpenReply reply{};
    DaemonSocket::Message message;
    auto taken = session->take_reply(std::as_writable_bytes(std::span(&reply, 1)), 1, message);
    if (!taken) return std::unexpected(taken.error());
    if (reply.magic != protocol::kMagic || reply.kind != MessageKind::open) return protocol_error("no reply to open");
    if (reply.status != 0) return refusal(reply.status, reply.error);
    if (reply.version != protocol::kVersion) {
        return protocol_error("it speaks version " + std::to_string(reply.version) + ", but this client version " +
                              std::to_string(protocol::kVersion));
    }
    if (message.descriptor_count != 1) return protocol_error("a reply to open without a manifest");
    auto manifest = protocol::Manifest::open(message.descriptors[0].get());
    if (!manifest) return std::unexpected(manifest.error().within("manifest of dataset \"" + target.dataset + "\""));
    if (manifest->header().version != reply.manifest_version)
        return protocol_error("a manifest other than the announced one");
    session->manifest_ = std::move(*manifest);
    return session;
}

Result<void> ClientSession::attach(std::uint32_t ring_entries, std::uint64_t slot_bytes, protocol::ReadOrder order,
                                   std::uint32_t block_count) {
    LARDER_ASSERT(control_ == nullptr && ring_entries <= protocol::kRingEntriesMax);
    LARDER_ASSERT((ring_entries & (ring_entries - 1)) == 0 && slot_bytes % protocol::kPageBytes == 0);
    const protocol::AttachRequest request{.magic = protocol::kMagic,
                                          .kind = MessageKind::attach,
                                          .ring_entries = ring_entries,
                                          .order = order,
                                          .slot_bytes = slot_bytes};
    if (auto sent = socket_.send(bytes_of(request)); !sent) return sent;
    protocol::AttachReply reply{};
    DaemonSocket::Message message;
    if (auto taken = take_reply(std::as_writable_bytes(std::span(&reply, 1)), 3, message); !taken) return taken;
    if (reply.magic != protocol::kMagic || reply.kind != MessageKind::attach)
        return protocol_error("no reply to attach");
    if (reply.status != 0) return refusal(reply.status, reply.error);
    if (message.descriptor_count != 3) return protocol_error("a reply to attach without its descriptors");

    const std::uint32_t share_blocks = order == protocol::ReadOrder::shared ? block_count : 0;
    auto ring = Mapping::of(message.descriptors[0].get(), protocol::ring_bytes(ring_entries, share_blocks),
                            Mapping::Access::read_write);
    if (!ring) return std::unexpected(ring.error().within("rings"));
    auto slots = Mapping::of(message.descriptors[1].get(), slot_bytes, Mapping::Access::read_only);
    if (!slots) return std::unexpected(slots.error().within("slots"));
    ring_ = std::move(*ring);
    memory_->slots = std::move(*slots);
    request_event_ = std::move(message.descriptors[2]);

    control_ = reinterpret_cast<protocol::RingControl*>(ring_.data());
    requests_ = reinterpret_cast<Request*>(ring_.data() + protocol::requests_offset());
    completions_ = reinterpret_cast<const Completion*>(ring_.data() + protocol::completions_offset(ring_entries));
    entries_ = ring_entries;
    share_ = {reinterpret_cast<std::uint64_t*>(ring_.data() + protocol::share_offset(ring_entries)),
              protocol::share_words(share_blocks)};
    // On a single core, spinning would take the core from the daemon.
    spin_ns_ = ::sysconf(_SC_NPROCESSORS_ONLN) > 1 ? kSpinMax_ns : 0;
    return {};
}

// --- requests

bool ClientSession::queue(const Request& request) {
    if (request_tail_ - request_head_ >= entries_) {
        request_head_ = control_->request_head.load(std::memory_order_acquire);
        if (request_tail_ - request_head_ >= entries_) return false;
    }
    requests_[request_tail_ & (entries_ - 1)] = request;
    ++request_tail_;
    return true;
}

bool ClientSession::queue_fetch(std::uint32_t tag, std::uint32_t block, std::uint32_t slot_page, std::uint32_t epoch,
                                std::optional<std::uint32_t> damaged_crc) {
    if (in_flight_ >= entries_) return false;
    const Request request{.operation = damaged_crc ? RequestOperation::refetch : RequestOperation::fetch,
                          .reserved = {},
                          .tag = tag,
                          .block = block,
                          .slot_page = slot_page,
                          .epoch = epoch,
                          .damaged_crc = damaged_crc.value_or(0),
                          .reserved2 = {}};
    if (!queue(request)) return false;
    ++in_flight_;
    return true;
}

bool ClientSession::queue_release(std::uint32_t slot_page) {
    return queue({.operation = RequestOperation::release,
                  .reserved = {},
                  .tag = 0,
                  .block = 0,
                  .slot_page = slot_page,
                  .epoch = 0,
                  .damaged_crc = 0,
                  .reserved2 = {}});
}

bool ClientSession::queue_choose(std::uint32_t tag, std::uint32_t pass) {
    if (in_flight_ >= entries_) return false;
    const Request request{.operation = RequestOperation::choose,
                          .reserved = {},
                          .tag = tag,
                          .block = pass,
                          .slot_page = 0,
                          .epoch = 0,
                          .damaged_crc = 0,
                          .reserved2 = {}};
    if (!queue(request)) return false;
    ++in_flight_;
    return true;
}

void ClientSession::set_share(std::span<const std::uint64_t> share) {
    LARDER_ASSERT(share.size() == share_.size());
    for (std::size_t i = 0; i < share.size(); ++i) {
        std::atomic_ref(share_[i]).store(share[i], std::memory_order_relaxed);
    }
}

void ClientSession::publish() {
    if (published_tail_ == request_tail_) return;
    published_tail_ = request_tail_;
    control_->request_tail.store(request_tail_, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (control_->daemon_sleeping.load(std::memory_order_relaxed) != 0 &&
        control_->daemon_sleeping.exchange(0, std::memory_order_relaxed) != 0) {
        const std::uint64_t one = 1;
        // A full counter wakes the daemon too.
        [[maybe_unused]] const ssize_t written = ::write(request_event_.get(), &one, sizeof one);
    }
}

// --- completions

bool ClientSession::completions_waiting() const {
    return control_->completion_tail.load(std::memory_order_acquire) != completion_head_;
}

Result<std::size_t> ClientSession::poll(std::span<Completion> into, std::int64_t deadline_ns) {
    if (deadline_ns > 0) {
        if (auto waited = wait(deadline_ns); !waited) return std::unexpected(waited.error());
    }
    const std::uint32_t waiting = control_->completion_tail.load(std::memory_order_acquire) - completion_head_;
    if (waiting > in_flight_) return protocol_error("more completions than requests");
    const std::size_t count = std::min<std::size_t>(waiting, into.size());
    for (std::size_t i = 0; i < count; ++i) into[i] = completions_[completion_head_++ & (entries_ - 1)];
    in_flight_ -= static_cast<std::uint32_t>(count);
    control_->completion_head.store(completion_head_, std::memory_order_release);
    return count;
}

// Polls the ring for spin_ns_. A completion meanwhile doubles the time of the next spin; otherwise it is halved.
bool ClientSession::spin() {
    if (spin_ns_ == 0) return false;
    const std::int64_t until_ns = clock_.now_ns() + spin_ns_;
    do {
        for (int i = 0; i < 64; ++i) {
            if (completions_waiting()) {
                spin_ns_ = std::min(spin_ns_ * 2, kSpinMax_ns);
                return true;
            }
            relax();
        }
    } while (clock_.now_ns() < until_ns);
    spin_ns_ = std::max(spin_ns_ / 2, kSpinMin_ns);
    return false;
}

// Waits until a completion is there or the deadline has passed.
Result<void> ClientSession::wait(std::int64_t deadline_ns) {
    publish();
    if (completions_waiting() || spin()) return {};
    while (!completions_waiting() && clock_.now_ns() < deadline_ns) {
        if (auto waited = block_until(deadline_ns); !waited) return waited;
    }
    return {};
}

Result<void> ClientSession::block_until(std::int64_t deadline_ns) {
    control_->client_sleeping.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!completions_waiting()) {
        const std::int64_t left_ns = std::max<std::int64_t>(0, deadline_ns - clock_.now_ns());
        protocol::futex_wait(control_->client_sleeping, 1, std::min(left_ns, kSleepMax_ns));
    }
    control_->client_sleeping.store(0, std::memory_order_relaxed);
    if (completions_waiting()) return {};
    return read_messages();
}

// --- segments

Result<void> ClientSession::read_messages() {
    for (;;) {
        protocol::SegmentMessage message{};
        auto received = socket_.receive(std::as_writable_bytes(std::span(&message, 1)), 0);
        if (!received) return std::unexpected(received.error());
        if (received->bytes == 0) return {};
        if (received->bytes != sizeof message || message.magic != protocol::kMagic)
            return protocol_error("a broken message");
        if (message.kind == MessageKind::segment_added) {
            if (received->descriptor_count != 1) return protocol_error("a segment without a descriptor");
            if (find_segment(message.segment) != nullptr) return protocol_error("a segment that was already sent");
            auto segment = std::make_unique<MappedSegment>();
            segment->id = message.segment;
            segment->bytes = message.segment_bytes;
            segment->fd = std::move(received->descriptors[0]);
            const auto place =
                std::ranges::upper_bound(memory_->segments, message.segment, {}, [](const auto& s) { return s->id; });
            memory_->segments.insert(place, std::move(segment));
        } else if (message.kind == MessageKind::segment_dropped) {
            MappedSegment* segment = find_segment(message.segment);
            if (segment == nullptr) return protocol_error("an unknown segment was dropped");
            segment->dropped = true;
            any_dropped_ = true;
        } else {
            return protocol_error("an unknown message");
        }
    }
}

MappedSegment* ClientSession::find_segment(std::uint32_t id) {
    if (last_segment_ != nullptr && last_segment_->id == id) return last_segment_;
    const auto& segments = memory_->segments;
    const auto found = std::ranges::lower_bound(segments, id, {}, [](const auto& s) { return s->id; });
    if (found == segments.end() || (*found)->id != id) return nullptr;
    return last_segment_ = found->get();
}

Result<MappedSegment*> ClientSession::segment(std::uint32_t id) {
    MappedSegment* segment = find_segment(id);
    if (segment == nullptr) {
        if (auto read = read_messages(); !read) return std::unexpected(read.error());
        segment = find_segment(id);
        if (segment == nullptr)
            return protocol_error("a block in segment " + std::to_string(id) + ", which was never sent");
    }
    if (!segment->mapping) {
        auto mapping = Mapping::of(segment->fd.get(), segment->bytes, Mapping::Access::read_only);
        if (!mapping) return std::unexpected(mapping.error().within("memory segment"));
        segment->mapping = std::move(*mapping);
        segment->fd.reset();
    }
    return segment;
}

Result<void> ClientSession::unmap_dropped() {
    if (!any_dropped_) return {};
    bool has_dropped_left = false;
    last_segment_ = nullptr;
    auto& segments = memory_->segments;
    for (auto segment = segments.begin(); segment != segments.end();) {
        if (!(*segment)->dropped || (*segment)->blocks > 0) {
            has_dropped_left = has_dropped_left || (*segment)->dropped;
            ++segment;
            continue;
        }
        const protocol::SegmentMessage message{.magic = protocol::kMagic,
                                               .kind = MessageKind::segment_unmapped,
                                               .segment = (*segment)->id,
                                               .reserved = 0,
                                               .segment_bytes = (*segment)->bytes};
        segment = segments.erase(segment);
        if (auto sent = socket_.send(bytes_of(message)); !sent) return sent;
    }
    any_dropped_ = has_dropped_left;
    return {};
}

void ClientSession::report(const Reported& reported) {
    control_->stall_ns.store(static_cast<std::uint64_t>(reported.stall_ns), std::memory_order_relaxed);
    control_->busy_ns.store(static_cast<std::uint64_t>(reported.busy_ns), std::memory_order_relaxed);
    control_->training_loops.store(reported.training_loops, std::memory_order_relaxed);
    control_->samples_delivered.store(reported.samples, std::memory_order_relaxed);
    control_->bytes_delivered.store(reported.bytes, std::memory_order_relaxed);
    control_->world_size.store(reported.world_size, std::memory_order_relaxed);
    control_->loop_is_elsewhere.store(reported.loop_is_elsewhere ? 1 : 0, std::memory_order_relaxed);
    control_->waiting_since_ns.store(reported.waiting_since_ns, std::memory_order_release);
    control_->reported_ns.store(reported.reported_ns, std::memory_order_release);
}

void ClientSession::report_taken(std::int64_t begin_ns, std::int64_t end_ns, std::int64_t stall_ns) {
    control_->takes.add(begin_ns, end_ns);
    control_->stall_ns.store(static_cast<std::uint64_t>(stall_ns), std::memory_order_relaxed);
    control_->waiting_since_ns.store(0, std::memory_order_release);
}

}  // namespace larder::detail
