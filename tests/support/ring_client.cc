#include "tests/support/ring_client.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cache/protocol/decompressor.h"

namespace larder::test {

using protocol::Completion;
using protocol::Request;
using protocol::RequestOperation;
using protocol::SegmentMessage;

RingClient::RingClient(std::shared_ptr<const protocol::Manifest> manifest, const RingClientOptions& options)
    : ring_entries_(options.ring_entries) {
    const std::size_t ring_bytes = protocol::ring_bytes(ring_entries_);
    const FileDescriptor ring_memory(::memfd_create("ring", MFD_CLOEXEC));
    const FileDescriptor slot_memory(::memfd_create("slots", MFD_CLOEXEC));
    EXPECT_EQ(::ftruncate(ring_memory.get(), static_cast<off_t>(ring_bytes)), 0);
    EXPECT_EQ(::ftruncate(slot_memory.get(), static_cast<off_t>(options.slot_bytes)), 0);
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    if (options.socket_buffer_bytes > 0) {
        const int bytes = options.socket_buffer_bytes;
        EXPECT_EQ(::setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
    }
    socket_ = FileDescriptor(pair[0]);
    request_event_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    ring_ = *Mapping::of(ring_memory.get(), ring_bytes, Mapping::Access::read_write);
    slots_ = *Mapping::of(slot_memory.get(), options.slot_bytes, Mapping::Access::read_only);

    setup_.session_id = options.session_id;
    setup_.dataset_id = manifest->header().dataset_id;
    setup_.job = options.job;
    setup_.pid = options.pid;
    setup_.uid = options.uid;
    setup_.bucket = options.bucket;
    setup_.manifest = std::move(manifest);
    setup_.socket = cache::ClientSocket(FileDescriptor(pair[1]));
    setup_.request_event = FileDescriptor(::dup(request_event_.get()));
    setup_.ring = *Mapping::of(ring_memory.get(), ring_bytes, Mapping::Access::read_write);
    setup_.slots = std::make_shared<const Mapping>(
        *Mapping::of(slot_memory.get(), options.slot_bytes, Mapping::Access::read_write));
    setup_.populate_slots = options.populate_slots;
    setup_.ring_entries = ring_entries_;
    setup_.order = options.order;
}

RingClient::~RingClient() = default;

void RingClient::submit(const Request& request) {
    auto* requests = reinterpret_cast<Request*>(ring_.data() + protocol::requests_offset());
    requests[request_tail_ & (ring_entries_ - 1)] = request;
    control().request_tail.store(++request_tail_, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (control().daemon_sleeping.exchange(0) != 0) {
        const std::uint64_t one = 1;
        // A full eventfd wakes the daemon as well.
        EXPECT_TRUE(::write(request_event_.get(), &one, sizeof one) == ssize_t{sizeof one} || errno == EAGAIN);
    }
}

void RingClient::fetch(std::uint32_t block, std::uint32_t slot_page, std::uint32_t tag, std::uint32_t epoch) {
    Request request{};
    request.operation = RequestOperation::fetch;
    request.tag = tag;
    request.block = block;
    request.slot_page = slot_page;
    request.epoch = epoch;
    submit(request);
}

void RingClient::refetch(std::uint32_t block, std::uint32_t slot_page, std::uint32_t tag, std::uint32_t epoch,
                         std::uint32_t damaged_crc) {
    Request request{};
    request.operation = RequestOperation::refetch;
    request.tag = tag;
    request.block = block;
    request.slot_page = slot_page;
    request.epoch = epoch;
    request.damaged_crc = damaged_crc;
    submit(request);
}

void RingClient::release(std::uint32_t slot_page) {
    Request request{};
    request.operation = RequestOperation::release;
    request.slot_page = slot_page;
    submit(request);
}

std::optional<Completion> RingClient::next_completion() {
    if (control().completion_tail.load(std::memory_order_acquire) == completion_head_) return std::nullopt;
    const auto* completions =
        reinterpret_cast<const Completion*>(ring_.data() + protocol::completions_offset(ring_entries_));
    const Completion completion = completions[completion_head_ & (ring_entries_ - 1)];
    control().completion_head.store(++completion_head_, std::memory_order_release);
    return completion;
}

namespace {

std::string block_of(const Completion& completion, const std::byte* stored) {
    if (completion.raw_bytes == 0) return {reinterpret_cast<const char*>(stored), completion.length};
    larder::protocol::Decompressor decompressor;
    const auto raw = decompressor.run({stored, completion.length}, completion.raw_bytes);
    if (!raw) {
        ADD_FAILURE() << raw.error().message;
        return {};
    }
    return {reinterpret_cast<const char*>(raw->get()), completion.raw_bytes};
}

}  // namespace

std::string RingClient::payload(const Completion& completion) {
    if (completion.segment == 0) return block_of(completion, slots_.data() + completion.offset);
    if (!segments_.contains(completion.segment)) read_messages();
    const auto found = segments_.find(completion.segment);
    if (found == segments_.end()) {
        ADD_FAILURE() << "segment " << completion.segment << " was never sent";
        return {};
    }
    return block_of(completion, found->second.data() + completion.offset);
}

void RingClient::read_messages() {
    for (;;) {
        SegmentMessage message;
        iovec part{&message, sizeof message};
        alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))];
        msghdr header{};
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        header.msg_control = ancillary;
        header.msg_controllen = sizeof ancillary;
        if (::recvmsg(socket_.get(), &header, MSG_DONTWAIT) != ssize_t{sizeof message}) return;
        if (message.kind == protocol::MessageKind::segment_dropped) {
            dropped_segments.push_back(message.segment);
            continue;
        }
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof fd);
        const FileDescriptor segment(fd);
        EXPECT_FALSE(Mapping::of(fd, message.segment_bytes, Mapping::Access::read_write).has_value());
        auto mapping = Mapping::of(fd, message.segment_bytes, Mapping::Access::read_only);
        ASSERT_TRUE(mapping.has_value());
        segments_[message.segment] = std::move(*mapping);
    }
}

void RingClient::unmap(std::uint32_t segment) {
    segments_.erase(segment);
    const SegmentMessage message{.magic = protocol::kMagic,
                                 .kind = protocol::MessageKind::segment_unmapped,
                                 .segment = segment,
                                 .reserved = 0,
                                 .segment_bytes = 0};
    EXPECT_EQ(::send(socket_.get(), &message, sizeof message, MSG_NOSIGNAL), ssize_t{sizeof message});
}

bool RingClient::hung_up() {
    char byte;
    const ssize_t got = ::recv(socket_.get(), &byte, sizeof byte, MSG_DONTWAIT | MSG_PEEK);
    // A reset means that the daemon closed the socket before it had read all messages.
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

}  // namespace larder::test
