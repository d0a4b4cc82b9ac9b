#pragma once

// A session that speaks wire.h by hand over a real daemon's socket, until it breaks the rules. Tests and campaigns
// misuse what the daemon handed to it. Links base and cache/protocol only.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cache/protocol/wire.h"

namespace larder::test {

struct HostileClientOptions {
    std::string dataset;
    std::string job = "hostile";
    std::uint32_t ring_entries = 64;
    std::uint64_t slot_bytes = std::uint64_t{1} << 20;
};

// Connects to a daemon's socket. A receive on it fails after ten seconds.
inline Result<FileDescriptor> connect_to_daemon(const std::string& path) {
    FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!socket) return fail_errno(errno, "make a socket");
    const timeval most{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        return fail_errno(errno, "connect to " + path);
    }
    return socket;
}

// Receives a message and the descriptors in it. Returns the message's bytes, or -1 with errno.
inline ssize_t receive_with_descriptors(int socket, void* message, std::size_t bytes, int flags,
                                        std::vector<FileDescriptor>& descriptors) {
    iovec content{message, bytes};
    alignas(cmsghdr) std::array<std::byte, 256> ancillary;
    msghdr header{};
    header.msg_iov = &content;
    header.msg_iovlen = 1;
    header.msg_control = ancillary.data();
    header.msg_controllen = ancillary.size();
    const ssize_t got = ::recvmsg(socket, &header, flags | MSG_CMSG_CLOEXEC);
    const cmsghdr* rights = got < 0 ? nullptr : CMSG_FIRSTHDR(&header);
    for (std::size_t at = CMSG_LEN(0); rights != nullptr && at < rights->cmsg_len; at += sizeof(int)) {
        int fd = -1;
        std::memcpy(&fd, reinterpret_cast<const std::byte*>(rights) + at, sizeof fd);
        descriptors.emplace_back(fd);
    }
    return got;
}

class HostileClient {
public:
    // The daemon's refusal is an error.
    static Result<HostileClient> open(const std::string& path, const HostileClientOptions& options) {
        HostileClient client;
        client.entries_ = options.ring_entries;
        auto socket = connect_to_daemon(path);
        if (!socket) return std::unexpected(socket.error());
        client.socket_ = std::move(*socket);
        protocol::OpenRequest open{
            .magic = protocol::kMagic, .version = protocol::kVersion, .kind = protocol::MessageKind::open};
        std::strncpy(open.dataset, options.dataset.c_str(), sizeof open.dataset - 1);
        std::strncpy(open.job, options.job.c_str(), sizeof open.job - 1);
        protocol::OpenReply opened{};
        if (auto asked = client.exchange(open, opened); !asked) return std::unexpected(asked.error());
        const protocol::AttachRequest attach{.magic = protocol::kMagic,
                                             .kind = protocol::MessageKind::attach,
                                             .ring_entries = options.ring_entries,
                                             .slot_bytes = options.slot_bytes};
        protocol::AttachReply attached{};
        if (auto asked = client.exchange(attach, attached); !asked) return std::unexpected(asked.error());
        if (client.handed_.size() != 4) return fail(ErrorCode::protocol, "the daemon did not hand over descriptors");
        // Descriptor 0 is the manifest, 1 is the ring.
        auto ring = Mapping::of(client.handed_[1].get(), protocol::ring_bytes(options.ring_entries),
                                Mapping::Access::read_write);
        if (!ring) return std::unexpected(ring.error());
        client.ring_ = std::move(*ring);
        return client;
    }

    // The manifest, the ring, the slots and the event that wakes the daemon; then whatever else was received.
    const std::vector<FileDescriptor>& handed() const { return handed_; }
    std::vector<FileDescriptor>& handed() { return handed_; }
    int slots() const { return handed_[2].get(); }
    int request_event() const { return handed_[3].get(); }
    int socket() const { return socket_.get(); }
    std::uint32_t entries() const { return entries_; }
    std::span<std::byte> ring() const { return ring_.span(); }
    protocol::RingControl& control() { return *reinterpret_cast<protocol::RingControl*>(ring_.data()); }

    void put(const protocol::Request& request) {
        auto* requests = reinterpret_cast<protocol::Request*>(ring_.data() + protocol::requests_offset());
        requests[tail_ % entries_] = request;
        control().request_tail.store(++tail_);
    }
    // False if the event is full.
    bool wake() {
        const std::uint64_t one = 1;
        return ::write(request_event(), &one, sizeof one) == ssize_t{sizeof one};
    }
    bool fetch(std::uint32_t block) {
        protocol::Request request{};
        request.operation = protocol::RequestOperation::fetch;
        request.block = block;
        put(request);
        return wake();
    }
    bool answered() { return control().completion_tail.load() == tail_; }
    // Takes all completions that are there.
    std::vector<protocol::Completion> take_completions() {
        std::vector<protocol::Completion> taken;
        const auto* completions =
            reinterpret_cast<const protocol::Completion*>(ring_.data() + protocol::completions_offset(entries_));
        std::uint32_t head = control().completion_head.load();
        // A client that overwrote its own ring gets no more than the ring has.
        for (; head != control().completion_tail.load() && taken.size() < entries_; ++head) {
            taken.push_back(completions[head % entries_]);
        }
        control().completion_head.store(head);
        return taken;
    }
    // Takes segments that the daemon added, without waiting.
    void take_segments() {
        protocol::SegmentMessage message;
        while (receive_with_descriptors(socket_.get(), &message, sizeof message, MSG_DONTWAIT, handed_) > 0) {
        }
    }

private:
    HostileClient() = default;

    template <typename Ask, typename Answer>
    Result<void> exchange(const Ask& ask, Answer& answer) {
        if (::send(socket_.get(), &ask, sizeof ask, MSG_NOSIGNAL) != ssize_t{sizeof ask}) {
            return fail_errno(errno, "send to the daemon");
        }
        const ssize_t got = receive_with_descriptors(socket_.get(), &answer, sizeof answer, 0, handed_);
        if (got < 0) return fail_errno(errno, "receive from the daemon");
        if (got != ssize_t{sizeof answer}) return fail(ErrorCode::protocol, "the daemon closed the connection");
        if (answer.status != 0) return fail(ErrorCode::permission_denied, answer.error);
        return {};
    }

    FileDescriptor socket_;
    std::vector<FileDescriptor> handed_;
    Mapping ring_;
    std::uint32_t entries_ = 0;
    std::uint32_t tail_ = 0;
};

}  // namespace larder::test
