#include "cache/shard/session.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/assert.h"
#include "base/hash.h"
#include "base/huge_pages.h"
#include "cache/protocol/futex.h"
#include "cache/protocol/record.h"
#include "cache/shard/block_server.h"

namespace larder::cache {
namespace {

// A longer wait counts as 0: the client more likely has another clock.
constexpr std::int64_t kWaitMax_ns = 60'000'000'000;

// Limits on the values that clients report, so that no sum overflows.
constexpr std::int64_t kReportedMax_ns = std::int64_t{30} * 24 * 3600 * 1'000'000'000;
constexpr std::int64_t kSumMax_ns = std::numeric_limits<std::int64_t>::max() / 2;

std::int64_t reported_ns(const std::atomic<std::uint64_t>& counter) {
    const std::uint64_t reported = counter.load(std::memory_order_relaxed);
    return static_cast<std::int64_t>(std::min<std::uint64_t>(reported, kReportedMax_ns));
}

}  // namespace

using protocol::BlockStatus;
using protocol::Completion;
using protocol::kPageBytes;
using protocol::Request;
using protocol::RequestOperation;

Session::Session(SessionSetup setup, BlockServer& server, ShardJob& job)
    : Consumer(job, setup.order == protocol::ReadOrder::sequential),
      setup_(std::move(setup)),
      server_(server),
      slot_page_count_(static_cast<std::uint32_t>(setup_.slots->size() / kPageBytes)) {
    held_pages_.resize((slot_page_count_ + 63) / 64);
    busy_pages_.resize(held_pages_.size());
    run_pages_.resize(slot_page_count_);
    populated_pages_ = setup_.populate_slots ? 0 : slot_page_count_;
    wanted_pages_ = populated_pages_;
    ++job.consumers;
    if (setup_.order == protocol::ReadOrder::shared) {
        group_ = &server_.group_of(setup_.manifest);
        reader_ = &server_.join_group(*group_, job, mix64(server_.dataset_id() ^ mix64(setup_.session_id)));
    }
}

Session::~Session() {
    LARDER_ASSERT(unreferenced());
    --job().consumers;
}

protocol::RingControl& Session::control() const {
    return *reinterpret_cast<protocol::RingControl*>(setup_.ring.data());
}

Session::Take Session::fail(std::string breach) {
    breach_ = std::move(breach);
    return Take::violation;
}

// --- requests

bool Session::requests_waiting() const {
    return control().request_tail.load(std::memory_order_acquire) != request_head_;
}

void Session::set_daemon_sleeping(bool sleeping) {
    control().daemon_sleeping.store(sleeping ? 1 : 0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Session::take_request_event() {
    std::uint64_t count = 0;
    const iovec into{&count, sizeof count};
    // The client shares the open file description: it may have cleared O_NONBLOCK and emptied the counter. Only a flag
    // of the call itself keeps the call from blocking.
    [[maybe_unused]] const ssize_t got = ::preadv2(setup_.request_event.get(), &into, 1, -1, RWF_NOWAIT);
}

Session::Take Session::take_requests(std::uint32_t count_max) {
    const std::uint32_t tail = control().request_tail.load(std::memory_order_acquire);
    const std::uint32_t available = tail - request_head_;
    if (available == 0) return Take::nothing;
    if (available > setup_.ring_entries) return fail("request ring overrun");
    const std::uint32_t unread_completions =
        completion_tail_ - control().completion_head.load(std::memory_order_acquire);
    if (unread_completions > setup_.ring_entries) return fail("completion ring index out of range");

    // Each fetch taken has a place in the completion ring, so publishing never waits for the client.
    const std::uint32_t room = setup_.ring_entries - std::min(setup_.ring_entries, unread_completions + in_service_);
    const auto* requests = reinterpret_cast<const Request*>(setup_.ring.data() + protocol::requests_offset());
    std::uint32_t fetches = 0;
    for (std::uint32_t i = 0; i < std::min(available, count_max); ++i) {
        Request request;
        std::memcpy(&request, &requests[request_head_ & (setup_.ring_entries - 1)], sizeof request);
        if (request.operation != RequestOperation::release && fetches++ == room) {
            return fail("more fetches in flight than the rings have entries");
        }
        ++request_head_;
        if (!serve(request)) return Take::violation;
        // The begin of a pass copies a share. A client that begins one after the other holds up others by one a turn.
        if (std::exchange(began_pass_, false)) break;
    }
    control().request_head.store(request_head_, std::memory_order_release);
    return Take::some;
}

bool Session::serve(const Request& request) {
    switch (request.operation) {
        case RequestOperation::fetch:
        case RequestOperation::refetch: return fetch(request);
        case RequestOperation::release:
            if (release(request.slot_page)) return true;
            breach_ = "release of slot page " + std::to_string(request.slot_page) + ", which is not held";
            return false;
        case RequestOperation::choose: return choose(request);
    }
    breach_ = "unknown request operation";
    return false;
}

bool Session::choose(const Request& request) {
    if (reader_ == nullptr) {
        breach_ = "choose in a session whose order is not shared";
        return false;
    }
    if (reader_->pass() != request.block) {
        // Nobody waits for choices of the pass before.
        for (const std::uint32_t tag : std::exchange(waiting_choices_, {})) post_choice(tag, {});
        share_.resize(protocol::share_words(manifest().block_count()));
        auto* words =
            reinterpret_cast<std::uint64_t*>(setup_.ring.data() + protocol::share_offset(setup_.ring_entries));
        for (std::size_t i = 0; i < share_.size(); ++i) {
            share_[i] = std::atomic_ref(words[i]).load(std::memory_order_relaxed);
        }
        group_->begin_pass(*reader_, request.block, share_);
        began_pass_ = true;
    }
    ++in_service_;
    if (!waiting_choices_.empty() || !answer_choice(request.tag)) waiting_choices_.push_back(request.tag);
    return true;
}

void Session::retry_choices() {
    if (waiting_choices_.empty()) return;
    std::size_t answered = 0;
    while (answered < waiting_choices_.size() && answer_choice(waiting_choices_[answered])) ++answered;
    waiting_choices_.erase(waiting_choices_.begin(), waiting_choices_.begin() + static_cast<std::ptrdiff_t>(answered));
}

// False if the choice must wait.
bool Session::answer_choice(std::uint32_t tag) {
    const Choice choice = server_.choose(*group_, *reader_);
    if (choice.kind == Choice::Kind::later) return false;
    post_choice(tag, choice);
    return true;
}

void Session::post_choice(std::uint32_t tag, const Choice& choice) {
    post({.tag = tag,
          .status = BlockStatus::ok,
          .source = protocol::BlockSource::none,
          .system_errno = 0,
          .segment = 0,
          .length = choice.kind == Choice::Kind::block ? 1u : 0u,
          .offset = choice.block,
          .raw_bytes = 0,
          .reserved = 0});
    --in_service_;
}

bool Session::fetch(const Request& request) {
    if (request.block >= manifest().block_count()) {
        breach_ = "fetch of block " + std::to_string(request.block) + " beyond the manifest";
        return false;
    }
    const auto pages = static_cast<std::uint32_t>(
        protocol::record_bytes(manifest().block_bytes(request.block), kPageBytes) / kPageBytes);
    if (request.slot_page >= slot_page_count_ || pages > slot_page_count_ - request.slot_page) {
        breach_ = "fetch to a slot outside slot memory";
        return false;
    }
    if (any_page(held_pages_, request.slot_page, pages)) {
        breach_ = "fetch to a slot that is still held";
        return false;
    }
    set_pages(held_pages_, request.slot_page, pages, true);
    run_pages_[request.slot_page] = pages | kInService;
    ++in_service_;
    if (!try_serve(request, pages)) {
        populate_slots(request.slot_page + pages);
        deferred_.push_back({request, server_.wait_begins_ns(job())});
    }
    return true;
}

void Session::populate_slots(std::uint32_t end_page) {
    if (end_page <= wanted_pages_) return;
    constexpr auto kStepPages = static_cast<std::uint32_t>(kHugePageBytes / kPageBytes);
    const std::uint32_t wanted = std::max(end_page, wanted_pages_ + wanted_pages_ / 4);
    wanted_pages_ = std::min((wanted + kStepPages - 1) / kStepPages * kStepPages, slot_page_count_);
    setup_.populate_slots(std::uint64_t{wanted_pages_} * kPageBytes);
}

void Session::slots_populated(std::uint64_t bytes) {
    populated_pages_ = static_cast<std::uint32_t>(bytes / kPageBytes);
    if (!deferred_.empty()) retry_deferred();
}

bool Session::try_serve(const Request& request, std::uint32_t pages, std::int64_t waiting_since_ns) {
    if (any_page(busy_pages_, request.slot_page, pages)) return false;
    Fetch& fetch = server_.new_fetch(*this, manifest(), request.block);
    fetch.tag = request.tag;
    fetch.slot_page = request.slot_page;
    fetch.slot_pages = pages;
    fetch.epoch = request.epoch;
    fetch.is_refetch = request.operation == RequestOperation::refetch;
    fetch.damaged_crc = request.damaged_crc;
    return server_.serve(fetch, request.slot_page + pages <= populated_pages_, waiting_since_ns);
}

void Session::retry_deferred() {
    std::size_t still_deferred = 0;
    for (std::size_t i = 0; i < deferred_.size(); ++i) {
        const Deferred deferred = deferred_[i];
        const std::uint32_t pages = run_pages_[deferred.request.slot_page] & ~kInService;
        if (!try_serve(deferred.request, pages, deferred.since_ns)) deferred_[still_deferred++] = deferred;
    }
    deferred_.resize(still_deferred);
}

// --- slots

bool Session::any_page(const std::vector<std::uint64_t>& pages, std::uint32_t first, std::uint32_t count) const {
    for (std::uint32_t page = first; page < first + count;) {
        const std::uint32_t bit = page % 64;
        const std::uint32_t width = std::min(64 - bit, first + count - page);
        const std::uint64_t mask = (width == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1) << bit;
        if ((pages[page / 64] & mask) != 0) return true;
        page += width;
    }
    return false;
}

void Session::set_pages(std::vector<std::uint64_t>& pages, std::uint32_t first, std::uint32_t count, bool value) {
    for (std::uint32_t page = first; page < first + count;) {
        const std::uint32_t bit = page % 64;
        const std::uint32_t width = std::min(64 - bit, first + count - page);
        const std::uint64_t mask = (width == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1) << bit;
        pages[page / 64] = value ? pages[page / 64] | mask : pages[page / 64] & ~mask;
        page += width;
    }
}

bool Session::release(std::uint32_t slot_page) {
    // A slot released early could receive two fetches at once, and mixed bytes would reach the cache.
    if (slot_page >= slot_page_count_ || run_pages_[slot_page] == 0) return false;
    if ((run_pages_[slot_page] & kInService) != 0) return false;
    free_slot(slot_page);
    return true;
}

void Session::free_slot(std::uint32_t slot_page) {
    set_pages(held_pages_, slot_page, run_pages_[slot_page] & ~kInService, false);
    run_pages_[slot_page] = 0;
}

std::byte* Session::slot(const Fetch& fetch) {
    return setup_.slots->data() + std::size_t{fetch.slot_page} * kPageBytes;
}

void Session::mark_busy(const Fetch& fetch) {
    set_pages(busy_pages_, fetch.slot_page, fetch.slot_pages, true);
}

void Session::clear_busy(std::uint32_t slot_page, std::uint32_t slot_pages) {
    set_pages(busy_pages_, slot_page, slot_pages, false);
    if (!closed() && !deferred_.empty()) retry_deferred();
}

// --- completions

void Session::deliver(const Fetch& fetch) {
    Completion completion{.tag = fetch.tag,
                          .status = fetch.status,
                          .source = fetch.source,
                          .system_errno = static_cast<std::uint16_t>(fetch.system_errno),
                          .segment = 0,
                          .length = fetch.stored_bytes,
                          .offset = std::uint64_t{fetch.slot_page} * kPageBytes + protocol::kRecordHeaderBytes,
                          .raw_bytes = fetch.is_compressed() ? fetch.payload_bytes : 0,
                          .reserved = 0};
    bool in_slot = fetch.status == BlockStatus::ok;
    if (fetch.segment != nullptr) {
        const std::uint64_t payload_offset = fetch.record_offset + protocol::kRecordHeaderBytes;
        const SendResult sent = send_segment(*fetch.segment);
        if (sent == SendResult::broken) return;
        if (sent == SendResult::yes) {
            completion.segment = fetch.segment->id();
            completion.offset = payload_offset;
            in_slot = false;
        } else {
            std::memcpy(slot(fetch) + protocol::kRecordHeaderBytes, fetch.segment->memory() + payload_offset,
                        completion.length);
        }
    }
    run_pages_[fetch.slot_page] &= ~kInService;
    if (!in_slot) free_slot(fetch.slot_page);
    post(completion);
    --in_service_;
}

void Session::post(const Completion& completion) {
    auto* completions =
        reinterpret_cast<Completion*>(setup_.ring.data() + protocol::completions_offset(setup_.ring_entries));
    completions[completion_tail_ & (setup_.ring_entries - 1)] = completion;
    ++completion_tail_;
}

bool Session::publish() {
    if (published_tail_ == completion_tail_) return false;
    published_tail_ = completion_tail_;
    control().completion_tail.store(completion_tail_, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    wake_client();
    return true;
}

void Session::wake_client() {
    if (control().client_sleeping.load(std::memory_order_relaxed) != 0 &&
        control().client_sleeping.exchange(0, std::memory_order_relaxed) != 0) {
        protocol::futex_wake(control().client_sleeping);
    }
}

// --- memory segments

bool Session::is_sent(const Segment& segment) const {
    const std::size_t word = segment.id() / 64;
    return word < sent_bits_.size() && ((sent_bits_[word] >> (segment.id() % 64)) & 1) != 0;
}

// Returns SendResult::busy if the client has not read earlier messages and the socket is full.
Session::SendResult Session::send_segment(const Segment& segment) {
    if (is_sent(segment)) return SendResult::yes;
    // Segments of the window are dropped all the time. A client that is slow to unmap them gets copies.
    if (segment.in_window() && window_segments_unmapping_ > 0) return SendResult::busy;
    protocol::SegmentMessage message{.magic = protocol::kMagic,
                                     .kind = protocol::MessageKind::segment_added,
                                     .segment = segment.id(),
                                     .reserved = 0,
                                     .segment_bytes = segment.size_bytes()};
    iovec part{&message, sizeof message};
    alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = ancillary;
    header.msg_controllen = sizeof ancillary;
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = segment.fd();
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    if (::sendmsg(setup_.socket.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        if (errno == EAGAIN || errno == ETOOMANYREFS || errno == ENOBUFS) return SendResult::busy;
        // A client that left while its blocks were read is no breach: the socket's watch ends the session.
        if (errno != EPIPE && errno != ECONNRESET) breach_ = errno_error(errno, "sendmsg to the client").message;
        return SendResult::broken;
    }
    server_.store().add_reference(segment);
    segments_.push_back(&segment);
    sent_bits_.resize(std::max<std::size_t>(sent_bits_.size(), segment.id() / 64 + 1));
    sent_bits_[segment.id() / 64] |= std::uint64_t{1} << (segment.id() % 64);
    return SendResult::yes;
}

void Session::drop_segment(const Segment& segment, std::int64_t deadline_ns) {
    if (!is_sent(segment)) return;
    publish();
    std::erase(segments_, &segment);
    sent_bits_[segment.id() / 64] &= ~(std::uint64_t{1} << (segment.id() % 64));
    // A client may hold a batch for as long as it likes: the shared window does without the segment.
    unmapping_.push_back({&segment, segment.in_window() ? kNever_ns : deadline_ns});
    window_segments_unmapping_ += segment.in_window();
    const protocol::SegmentMessage message{.magic = protocol::kMagic,
                                           .kind = protocol::MessageKind::segment_dropped,
                                           .segment = segment.id(),
                                           .reserved = 0,
                                           .segment_bytes = segment.size_bytes()};
    // If the send fails, the session is closed at the deadline, like that of a client that does not answer.
    [[maybe_unused]] const ssize_t sent =
        ::send(setup_.socket.get(), &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool Session::read_socket() {
    for (;;) {
        protocol::SegmentMessage message;
        const ssize_t got = ClientSocket::receive(setup_.socket.get(), std::as_writable_bytes(std::span(&message, 1)));
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
        if (got < 0 && errno == EBADMSG) breach_ = "descriptors on the session socket";
        if (got <= 0) return false;
        const auto pending = std::find_if(unmapping_.begin(), unmapping_.end(), [&](const PendingUnmap& unmap) {
            return unmap.segment->id() == message.segment;
        });
        if (got != sizeof message || message.magic != protocol::kMagic ||
            message.kind != protocol::MessageKind::segment_unmapped || pending == unmapping_.end()) {
            breach_ = "unexpected message on the session socket";
            return false;
        }
        window_segments_unmapping_ -= pending->segment->in_window();
        server_.store().drop_reference(*pending->segment);
        unmapping_.erase(pending);
    }
}

std::int64_t Session::unmap_deadline_ns() const {
    std::int64_t earliest = kNever_ns;
    for (const PendingUnmap& unmap : unmapping_) earliest = std::min(earliest, unmap.deadline_ns);
    return earliest;
}

void Session::close(std::int64_t now_ns) {
    if (closed_) return;
    closed_ = true;
    deferred_.clear();
    waiting_choices_.clear();
    if (reader_ != nullptr) server_.leave_group(*std::exchange(group_, nullptr), *std::exchange(reader_, nullptr));
    for (const Segment* segment : segments_) server_.store().drop_reference(*segment);
    for (const PendingUnmap& unmap : unmapping_) server_.store().drop_reference(*unmap.segment);
    segments_.clear();
    unmapping_.clear();
    job().ended_stall_ns = std::min(job().ended_stall_ns + stall_ns(0), kSumMax_ns);
    rank_time_.end();
    job().ended_busy_ns = std::min(job().ended_busy_ns + busy_ns(), kSumMax_ns);
    job().ended_samples += samples_delivered();
    job().ended_bytes += bytes_delivered();
    job().leave(now_ns);
    ::shutdown(setup_.socket.get(), SHUT_RDWR);
    // The woken client reads its socket and sees that the session is over.
    wake_client();
}

std::int64_t open_wait_ns(std::int64_t since_ns, std::int64_t now_ns) {
    if (since_ns <= 0 || since_ns >= now_ns) return 0;
    return now_ns - since_ns > kWaitMax_ns ? 0 : now_ns - since_ns;
}

std::int64_t Session::stall_ns(std::int64_t now_ns) const {
    // A wait that ends meanwhile is then in one of the two.
    const std::int64_t since_ns = control().waiting_since_ns.load(std::memory_order_acquire);
    return reported_ns(control().stall_ns) + open_wait_ns(since_ns, now_ns);
}

std::int64_t Session::busy_ns() const {
    return rank_time_.has_begun() ? std::min(rank_time_.busy_ns(), kReportedMax_ns) : reported_ns(control().busy_ns);
}

bool Session::is_in_step() const {
    return training_loops() > 0 && world_size() > 1;
}

std::uint32_t Session::world_size() const {
    return control().world_size.load(std::memory_order_relaxed);
}

StepTime::Rank Session::rank() {
    const protocol::RingControl& ring = control();
    // The client writes these values in the other order.
    const std::int64_t at_ns = ring.reported_ns.load(std::memory_order_acquire);
    const std::int64_t since_ns = ring.waiting_since_ns.load(std::memory_order_acquire);
    return {.time = &rank_time_,
            .report = {.takes = &ring.takes,
                       .reported_ns = std::min(at_ns, kSumMax_ns),
                       .busy_ns = reported_ns(ring.busy_ns),
                       .stall_ns = reported_ns(ring.stall_ns),
                       .waiting_since_ns = std::max<std::int64_t>(since_ns, 0),
                       .knows_waits_at_report = ring.loop_is_elsewhere.load(std::memory_order_relaxed) != 0}};
}

std::uint64_t Session::samples_delivered() const {
    return control().samples_delivered.load(std::memory_order_relaxed);
}
std::uint64_t Session::bytes_delivered() const {
    return control().bytes_delivered.load(std::memory_order_relaxed);
}
std::uint32_t Session::training_loops() const {
    return control().training_loops.load(std::memory_order_relaxed) == 0 ? 0 : 1;
}

}  // namespace larder::cache
