#include "tests/campaign/seeds/client.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/assert.h"

namespace larder::campaign {

using protocol::Completion;
using protocol::Request;
using protocol::RequestOperation;
using protocol::SegmentMessage;

Client::Client(std::shared_ptr<const protocol::Manifest> manifest, const std::string& job, std::uint32_t uid,
               std::shared_ptr<cache::TokenBucket> bucket, std::uint64_t session_id, std::uint32_t slot_pages,
               std::function<void(int)> wakes)
    : session_id_(session_id), wakes_(std::move(wakes)) {
    const std::size_t ring_bytes = protocol::ring_bytes(kRingEntries);
    const std::size_t slot_bytes = std::size_t{slot_pages} * protocol::kPageBytes;
    const FileDescriptor ring_memory(::memfd_create("ring", MFD_CLOEXEC));
    const FileDescriptor slot_memory(::memfd_create("slots", MFD_CLOEXEC));
    LARDER_ASSERT(::ftruncate(ring_memory.get(), static_cast<off_t>(ring_bytes)) == 0);
    LARDER_ASSERT(::ftruncate(slot_memory.get(), static_cast<off_t>(slot_bytes)) == 0);
    int pair[2];
    LARDER_ASSERT(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    socket_ = FileDescriptor(pair[0]);
    daemon_socket_ = pair[1];
    daemon_event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ring_ = *Mapping::of(ring_memory.get(), ring_bytes, Mapping::Access::read_write);
    slots_ = std::make_shared<const Mapping>(*Mapping::of(slot_memory.get(), slot_bytes, Mapping::Access::read_write));
    setup_.session_id = session_id;
    setup_.dataset_id = manifest->header().dataset_id;
    setup_.job = job;
    setup_.uid = uid;
    setup_.bucket = std::move(bucket);
    setup_.manifest = std::move(manifest);
    setup_.socket = cache::ClientSocket(FileDescriptor(pair[1]));
    setup_.request_event = FileDescriptor(daemon_event_);
    setup_.ring = *Mapping::of(ring_memory.get(), ring_bytes, Mapping::Access::read_write);
    setup_.slots = slots_;
    setup_.ring_entries = kRingEntries;
}

Client::~Client() {
    socket_.reset();
    wakes_(daemon_socket_);
}

void Client::submit(const Request& request) {
    auto* requests = reinterpret_cast<Request*>(ring_.data() + protocol::requests_offset());
    requests[request_tail_ & (kRingEntries - 1)] = request;
    control().request_tail.store(++request_tail_, std::memory_order_release);
    if (control().daemon_sleeping.exchange(0) != 0) wakes_(daemon_event_);
}

void Client::fetch(std::uint32_t block, std::uint32_t slot_page, std::uint32_t tag, std::uint32_t epoch) {
    Request request{};
    request.operation = RequestOperation::fetch;
    request.tag = tag;
    request.block = block;
    request.slot_page = slot_page;
    request.epoch = epoch;
    submit(request);
}

void Client::release(std::uint32_t slot_page) {
    Request request{};
    request.operation = RequestOperation::release;
    request.slot_page = slot_page;
    submit(request);
}

std::optional<Completion> Client::next_completion() {
    if (control().completion_tail.load(std::memory_order_acquire) == completion_head_) return std::nullopt;
    const auto* completions =
        reinterpret_cast<const Completion*>(ring_.data() + protocol::completions_offset(kRingEntries));
    const Completion completion = completions[completion_head_ & (kRingEntries - 1)];
    control().completion_head.store(++completion_head_, std::memory_order_release);
    return completion;
}

std::span<const std::byte> Client::payload(const Completion& completion) {
    if (completion.segment == 0) {
        const bool inside = completion.offset + completion.length <= slots_->size();
        return inside ? std::span<const std::byte>(slots_->data() + completion.offset, completion.length)
                      : std::span<const std::byte>();
    }
    if (!segments_.contains(completion.segment)) read_messages();
    const auto found = segments_.find(completion.segment);
    if (found == segments_.end() || completion.offset + completion.length > found->second.size()) return {};
    return {found->second.data() + completion.offset, completion.length};
}

void Client::read_messages() {
    for (;;) {
        SegmentMessage message;
        iovec part{&message, sizeof message};
        alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))];
        msghdr header{};
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        header.msg_control = ancillary;
        header.msg_controllen = sizeof ancillary;
        if (::recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != ssize_t{sizeof message}) return;
        if (message.kind == protocol::MessageKind::segment_dropped) {
            dropped_.push_back(message.segment);
            continue;
        }
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof fd);
        const FileDescriptor segment(fd);
        if (auto mapping = Mapping::of(fd, message.segment_bytes, Mapping::Access::read_only))
            segments_[message.segment] = std::move(*mapping);
    }
}

void Client::unmap_dropped() {
    if (segments_.empty()) return;
    read_messages();
    for (const std::uint32_t segment : dropped_) {
        segments_.erase(segment);
        const SegmentMessage message{.magic = protocol::kMagic,
                                     .kind = protocol::MessageKind::segment_unmapped,
                                     .segment = segment,
                                     .reserved = 0,
                                     .segment_bytes = 0};
        [[maybe_unused]] const ssize_t sent =
            ::send(socket_.get(), &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
        wakes_(daemon_socket_);
    }
    dropped_.clear();
}

bool Client::hung_up() const {
    char byte;
    const ssize_t got = ::recv(socket_.get(), &byte, sizeof byte, MSG_DONTWAIT | MSG_PEEK);
    return got == 0 || (got < 0 && errno != EAGAIN);
}

}  // namespace larder::campaign
