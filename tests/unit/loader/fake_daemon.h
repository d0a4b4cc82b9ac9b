#pragma once

// A stand-in for the daemon process: a thread that speaks cache/protocol/wire.h over a real Unix socket and serves the
// blocks of one dataset from memory. It checks that a client never fetches into pages it holds or releases pages it
// does not hold. It can misbehave on demand: fail blocks, delay, hang up, send broken completions, drop segments.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "cache/protocol/futex.h"
#include "cache/protocol/manifest.h"
#include "cache/protocol/record.h"
#include "cache/protocol/wire.h"

namespace larder::test {

// Tests may change the atomic fields while the daemon runs.
struct FakeBehaviour {
    std::atomic<std::uint32_t> memory_every = 0;   // serves every n-th block from a memory segment; 0: none
    std::atomic<int> delay_us = 0;                 // before each round of answers
    std::atomic<std::int64_t> hang_up_after = -1;  // closes the session after this many fetches, once; -1: never
    std::atomic<bool> silent = false;              // reads no requests
    std::atomic<int> sessions_cut = 0;             // this many sessions end at their first fetch
    std::atomic<int> attaches_refused = 0;         // this many sessions end instead of being attached
    std::function<protocol::BlockStatus(std::uint32_t)> status;  // set before start
    std::string reason;                                          // why reads fail; set before start
    std::function<void(protocol::Completion&)> corrupt;          // set before start
};

class FakeDaemon {
public:
    // `blocks`: the bytes of each block.
    FakeDaemon(const std::string& directory, std::string manifest_path, std::vector<std::string> blocks)
        : socket_path_(directory + "/larderd.sock"),
          manifest_path_(std::move(manifest_path)),
          blocks_(std::move(blocks)) {
        auto manifest = protocol::Manifest::open(manifest_path_);
        EXPECT_TRUE(manifest.has_value());
        manifest_ = std::move(*manifest);
    }
    ~FakeDaemon() { stop(); }

    const std::string& socket_path() const { return socket_path_; }
    FakeBehaviour behaviour;
    std::atomic<std::uint64_t> fetches = 0;
    std::atomic<std::uint64_t> sessions_opened = 0;
    std::atomic<std::uint64_t> segments_unmapped = 0;
    std::atomic<std::uint64_t> samples_reported = 0;
    std::atomic<std::uint64_t> slot_bytes_attached = 0;
    std::atomic<bool> drop_segments = false;                  // tells one session that its segment is dropped
    std::map<std::uint32_t, std::uint32_t> fetches_by_block;  // read after stop()
    std::vector<std::string> jobs;                            // of each session opened; read after stop()

    void start() {
        stopping_ = false;
        ::unlink(socket_path_.c_str());
        listener_ = FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, socket_path_.c_str(), sizeof address.sun_path - 1);
        ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        ASSERT_EQ(::listen(listener_.get(), 16), 0);
        thread_ = std::thread([this] { run(); });
    }
    // Acts like a killed daemon: every session ends, and answers in flight are lost.
    void stop() {
        stopping_ = true;
        if (thread_.joinable()) thread_.join();
        sessions_.clear();
        listener_.reset();
        ::unlink(socket_path_.c_str());
    }

private:
    struct Session {
        FileDescriptor socket, request_event, segment;
        Mapping ring, slots, segment_memory;
        std::uint32_t entries = 0, head = 0, tail = 0, segment_id = 0;
        std::uint64_t segment_used = 0;
        std::map<std::uint32_t, std::uint32_t> held;  // page -> pages
        bool open = true;

        protocol::RingControl& control() { return *reinterpret_cast<protocol::RingControl*>(ring.data()); }
    };
    static constexpr std::uint64_t kSegmentBytes = std::uint64_t{64} << 20;

    void run() {
        while (!stopping_) {
            std::vector<pollfd> watched{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
            bool work = false;
            for (auto& session : sessions_) {
                watched.push_back({.fd = session->socket.get(), .events = POLLIN, .revents = 0});
                if (!session->ring) continue;
                watched.push_back({.fd = session->request_event.get(), .events = POLLIN, .revents = 0});
                session->control().daemon_sleeping.store(1);
                work = work || session->control().request_tail.load() != session->head;
            }
            ::poll(watched.data(), watched.size(), work ? 0 : 5);
            for (auto& session : sessions_) {
                if (session->ring) session->control().daemon_sleeping.store(0);
                std::uint64_t count;
                if (session->ring) (void)!::read(session->request_event.get(), &count, sizeof count);
                read_socket(*session);
                if (session->open && session->ring) serve(*session);
            }
            std::erase_if(sessions_, [](const auto& session) { return !session->open; });
            const int accepted = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (accepted < 0) continue;
            sessions_.push_back(std::make_unique<Session>());
            sessions_.back()->socket = FileDescriptor(accepted);
        }
    }

    void read_socket(Session& session) {
        std::byte message[2048];
        const ssize_t got = ::recv(session.socket.get(), message, sizeof message, MSG_DONTWAIT);
        if (got < 0) return;
        if (got == sizeof(protocol::OpenRequest)) {
            open(session, *reinterpret_cast<protocol::OpenRequest*>(message));
        } else if (got == sizeof(protocol::AttachRequest)) {
            const auto& attach_request = *reinterpret_cast<protocol::AttachRequest*>(message);
            if (attach_request.kind == protocol::MessageKind::attach) {
                if (behaviour.attaches_refused > 0) {
                    --behaviour.attaches_refused;
                    session.open = false;
                } else {
                    attach(session, attach_request);
                }
            } else {
                ++segments_unmapped;  // a SegmentMessage is as long as an AttachRequest
            }
        } else {
            if (got == sizeof(protocol::ExplainRequest)) {
                protocol::ExplainReply reply{.magic = protocol::kMagic, .kind = protocol::MessageKind::explain};
                std::strncpy(reply.reason, behaviour.reason.c_str(), sizeof reply.reason - 1);
                send(session, reply, {});
            }
            session.open = false;
        }
    }

    template <typename T>
    void send(Session& session, const T& message, const std::vector<int>& descriptors) {
        iovec part{const_cast<T*>(&message), sizeof message};
        alignas(cmsghdr) char ancillary[CMSG_SPACE(3 * sizeof(int))] = {};
        msghdr header{};
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        if (!descriptors.empty()) {
            header.msg_control = ancillary;
            header.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
            cmsghdr* rights = CMSG_FIRSTHDR(&header);
            rights->cmsg_level = SOL_SOCKET;
            rights->cmsg_type = SCM_RIGHTS;
            rights->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
            std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size() * sizeof(int));
        }
        ::sendmsg(session.socket.get(), &header, MSG_NOSIGNAL);
    }

    void open(Session& session, const protocol::OpenRequest& request) {
        ++sessions_opened;
        jobs.emplace_back(request.job);
        protocol::OpenReply reply{};
        reply.magic = protocol::kMagic;
        reply.version = protocol::kVersion;
        reply.kind = protocol::MessageKind::open;
        if (std::string(request.dataset) != "test") {
            reply.status = 1 + static_cast<std::uint32_t>(ErrorCode::not_found);
            std::string("dataset is unknown").copy(reply.error, sizeof reply.error - 1);
            return send(session, reply, {});
        }
        auto fd = open_file(manifest_path_, O_RDONLY);
        reply.manifest_version = manifest_.header().version;
        send(session, reply, {fd->get()});
    }

    void attach(Session& session, const protocol::AttachRequest& request) {
        slot_bytes_attached = request.slot_bytes;
        const FileDescriptor ring(::memfd_create("ring", MFD_CLOEXEC));
        const FileDescriptor slots(::memfd_create("slots", MFD_CLOEXEC));
        ASSERT_EQ(::ftruncate(ring.get(), static_cast<off_t>(protocol::ring_bytes(request.ring_entries))), 0);
        ASSERT_EQ(::ftruncate(slots.get(), static_cast<off_t>(request.slot_bytes)), 0);
        session.ring =
            *Mapping::of(ring.get(), protocol::ring_bytes(request.ring_entries), Mapping::Access::read_write);
        session.slots = *Mapping::of(slots.get(), request.slot_bytes, Mapping::Access::read_write);
        session.request_event = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        session.entries = request.ring_entries;
        protocol::AttachReply reply{};
        reply.magic = protocol::kMagic;
        reply.kind = protocol::MessageKind::attach;
        send(session, reply, {ring.get(), slots.get(), session.request_event.get()});
    }

    void serve(Session& session) {
        samples_reported = session.control().samples_delivered.load();
        if (drop_segments && session.segment_memory && session.segment_id != 0) {
            send(session, segment_message(session, protocol::MessageKind::segment_dropped), {});
            session.segment_id = 0;
            drop_segments = false;
        }
        const std::uint32_t tail = session.control().request_tail.load(std::memory_order_acquire);
        if (tail == session.head || behaviour.silent) return;
        if (behaviour.delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(behaviour.delay_us));
        const auto* requests =
            reinterpret_cast<const protocol::Request*>(session.ring.data() + protocol::requests_offset());
        for (; session.head != tail && session.open; ++session.head) {
            handle(session, requests[session.head & (session.entries - 1)]);
        }
        session.control().request_head.store(session.head, std::memory_order_release);
        session.control().completion_tail.store(session.tail);
        if (session.control().client_sleeping.exchange(0) == 1) {
            protocol::futex_wake(session.control().client_sleeping);
        }
    }

    void handle(Session& session, const protocol::Request& request) {
        if (request.operation == protocol::RequestOperation::release) {
            EXPECT_EQ(session.held.erase(request.slot_page), 1u) << "release of a slot that is not held";
            return;
        }
        if (behaviour.sessions_cut > 0) {
            --behaviour.sessions_cut;
            session.open = false;
            return;
        }
        if (behaviour.hang_up_after >= 0 && behaviour.hang_up_after-- == 0) {
            session.open = false;
            return;
        }
        ++fetches;
        ++fetches_by_block[request.block];
        ASSERT_LT(request.block, manifest_.block_count());
        const std::uint32_t length = manifest_.block_bytes(request.block);
        const auto pages =
            static_cast<std::uint32_t>(protocol::record_bytes(length, protocol::kPageBytes) / protocol::kPageBytes);
        ASSERT_LE((std::uint64_t{request.slot_page} + pages) * protocol::kPageBytes, session.slots.size());
        for (const auto& [page, count] : session.held) {
            ASSERT_TRUE(page + count <= request.slot_page || request.slot_page + pages <= page)
                << "fetch into a slot that is held";
        }
        ASSERT_LT(session.tail - session.control().completion_head.load(), session.entries);
        protocol::Completion completion{.tag = request.tag, .source = protocol::BlockSource::disk, .length = length};
        if (behaviour.status) completion.status = behaviour.status(request.block);
        completion.offset = std::uint64_t{request.slot_page} * protocol::kPageBytes + protocol::kRecordHeaderBytes;
        const std::uint32_t every = behaviour.memory_every;
        if (completion.status != protocol::BlockStatus::ok) {
            completion.source = protocol::BlockSource::none;
        } else if (every != 0 && request.block % every == 0 && session.segment_used + length <= kSegmentBytes) {
            add_segment_if_none(session);
            std::memcpy(session.segment_memory.data() + session.segment_used, blocks_[request.block].data(), length);
            completion.source = protocol::BlockSource::memory;
            completion.segment = session.segment_id;
            completion.offset = session.segment_used;
            session.segment_used += length;
        } else {
            std::memcpy(session.slots.data() + completion.offset, blocks_[request.block].data(), length);
            session.held[request.slot_page] = pages;
        }
        if (behaviour.corrupt) behaviour.corrupt(completion);
        auto* completions = reinterpret_cast<protocol::Completion*>(session.ring.data() +
                                                                    protocol::completions_offset(session.entries));
        completions[session.tail++ & (session.entries - 1)] = completion;
    }

    static protocol::SegmentMessage segment_message(const Session& session, protocol::MessageKind kind) {
        return {.magic = protocol::kMagic,
                .kind = kind,
                .segment = session.segment_id,
                .reserved = 0,
                .segment_bytes = kSegmentBytes};
    }

    void add_segment_if_none(Session& session) {
        if (session.segment_id != 0) return;
        session.segment_id = ++segments_made_;
        session.segment_used = 0;
        session.segment = FileDescriptor(::memfd_create("segment", MFD_CLOEXEC));
        ASSERT_EQ(::ftruncate(session.segment.get(), kSegmentBytes), 0);
        session.segment_memory = *Mapping::of(session.segment.get(), kSegmentBytes, Mapping::Access::read_write);
        send(session, segment_message(session, protocol::MessageKind::segment_added), {session.segment.get()});
    }

    std::string socket_path_;
    std::string manifest_path_;
    std::vector<std::string> blocks_;
    protocol::Manifest manifest_;
    FileDescriptor listener_;
    std::vector<std::unique_ptr<Session>> sessions_;
    std::uint32_t segments_made_ = 0;
    std::atomic<bool> stopping_ = false;
    std::thread thread_;
};

}  // namespace larder::test
