#include "cache/control/handshake_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/server/logging.h"
#include "base/units.h"
#include "cache/control/job_limits.h"

namespace larder::cache {
namespace {

using protocol::AttachReply;
using protocol::AttachRequest;
using protocol::ExplainReply;
using protocol::ExplainRequest;
using protocol::MessageKind;
using protocol::OpenReply;
using protocol::OpenRequest;

constexpr std::size_t kFdsMax = 3;

std::uint32_t status_of(const Error& error) {
    return 1 + static_cast<std::uint32_t>(error.code);
}

template <std::size_t Bytes>
void copy_text(const std::string& text, char (&target)[Bytes]) {
    const std::size_t length = std::min(text.size(), Bytes - 1);
    std::memcpy(target, text.data(), length);
    target[length] = '\0';
}

// Fails if the text has no NUL within its array.
template <std::size_t Bytes>
Result<std::string> read_text(const char (&source)[Bytes], const char* what) {
    const char* end = std::find(source, source + Bytes, '\0');
    if (end == source + Bytes) return fail(ErrorCode::protocol, std::string(what) + " is not terminated");
    return std::string(source, end);
}

template <typename Message>
std::span<const std::byte> bytes_of(const Message& message) {
    return std::as_bytes(std::span(&message, 1));
}

// The kernel lets a user without CAP_SYS_RESOURCE have as many descriptors in messages that nobody has read as one
// process may have open. Clients that do not read their messages use these up.
Error too_many_fds() {
    return {ErrorCode::unavailable,
            "too many descriptors are on their way to clients that do not read them: try again, or raise the daemon's "
            "limit of open files"};
}

template <typename Message>
bool read_message(std::span<const std::byte> bytes, Message& message) {
    if (bytes.size() != sizeof message) return false;
    std::memcpy(&message, bytes.data(), sizeof message);
    return true;
}

}  // namespace

HandshakeConnection::HandshakeConnection(boost::asio::io_context& context, std::shared_ptr<HandshakeShared> shared,
                                         ClientSocket socket, const PeerCredentials& peer)
    : shared_(std::move(shared)), peer_(peer), socket_(context, socket.release()), deadline_(context) {
    ++shared_->handshakes;
    ++shared_->handshakes_of_user[peer_.uid];
}

HandshakeConnection::~HandshakeConnection() {
    close();
    --shared_->handshakes;
    const auto own = shared_->handshakes_of_user.find(peer_.uid);
    if (--own->second == 0) shared_->handshakes_of_user.erase(own);
}

void HandshakeConnection::close() {
    if (socket_.is_open()) ClientSocket(FileDescriptor(socket_.release())).reset();
    deadline_.cancel();
}

void HandshakeConnection::wait() {
    deadline_.expires_after(std::chrono::milliseconds(shared_->limits.stall_ms));
    deadline_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
        if (!error) self->close();
    });
    socket_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                           if (!error && self->socket_.is_open()) self->receive();
                       });
}

void HandshakeConnection::receive() {
    std::array<std::byte, sizeof(OpenRequest) + 1> buffer;  // one byte more, to detect messages that are too long
    const ssize_t received_bytes = ClientSocket::receive(socket_.native_handle(), buffer);
    if (received_bytes < 0 && (errno == EAGAIN || errno == EINTR)) {
        wait();
        return;
    }
    deadline_.cancel();
    if (received_bytes <= 0) return close();
    const auto message = std::make_shared<std::vector<std::byte>>(buffer.begin(), buffer.begin() + received_bytes);
    prepare(*message, [self = shared_from_this(), message] {
        if (!self->socket_.is_open()) return;
        if (!self->handle(*message)) return self->close();
        self->wait();
    });
}

void HandshakeConnection::prepare(std::span<const std::byte> message, std::function<void()> then) {
    OpenRequest open;
    ExplainRequest explain;
    Result<std::string> dataset;
    if (version_ == nullptr && read_message(message, explain)) {
        dataset = read_text(explain.dataset, "dataset name");
    } else if (version_ == nullptr && read_message(message, open)) {
        dataset = read_text(open.dataset, "dataset name");
    }
    if (!dataset || dataset->empty()) return then();
    shared_->host.prepare(*dataset, peer_, std::move(then));
}

bool HandshakeConnection::handle(std::span<const std::byte> message) {
    OpenRequest open;
    AttachRequest attach;
    ExplainRequest explain;
    if (version_ == nullptr && read_message(message, explain) && explain.magic == protocol::kMagic &&
        explain.kind == MessageKind::explain) {
        handle_explain(explain);
        return false;
    }
    if (version_ == nullptr && read_message(message, open)) {
        return open.magic == protocol::kMagic && open.kind == MessageKind::open && handle_open(open);
    }
    if (version_ != nullptr && read_message(message, attach)) {
        return attach.magic == protocol::kMagic && attach.kind == MessageKind::attach && handle_attach(attach);
    }
    log_debug("closed the connection of a client that sent an invalid message",
              {{"pid", peer_.pid}, {"uid", peer_.uid}});
    return false;
}

Result<void> HandshakeConnection::open(const OpenRequest& request) {
    if (request.version != protocol::kVersion) {
        return fail(ErrorCode::unsupported, "the client speaks protocol " + std::to_string(request.version) +
                                                ", the daemon " + std::to_string(protocol::kVersion) +
                                                ": install the same version of both");
    }
    auto dataset = read_text(request.dataset, "dataset name");
    if (!dataset) return std::unexpected(dataset.error());
    auto job = read_text(request.job, "job name");
    if (!job) return std::unexpected(job.error());
    if (auto checked = check_job_name(*job); !checked) return checked;
    auto version = shared_->host.open(*dataset, request.manifest_version, peer_);
    if (!version) return std::unexpected(version.error());
    version_ = std::move(*version);
    dataset_ = std::move(*dataset);
    job_ = std::move(*job);
    return {};
}

bool HandshakeConnection::handle_open(const OpenRequest& request) {
    OpenReply reply{};
    reply.magic = protocol::kMagic;
    reply.version = protocol::kVersion;
    reply.kind = MessageKind::open;
    const auto opened = open(request);
    if (!opened) {
        reply.status = status_of(opened.error());
        copy_text(opened.error().message, reply.error);
        send(bytes_of(reply), {});
        return false;
    }
    reply.manifest_version = version_->version();
    reply.manifest_bytes = version_->manifest->header().file_bytes;
    const std::array fds{version_->manifest_fd.get()};
    const Sent sent = send(bytes_of(reply), fds);
    if (sent == Sent::too_many_fds) {
        reply.status = status_of(too_many_fds());
        copy_text(too_many_fds().message, reply.error);
        send(bytes_of(reply), {});
    }
    return sent == Sent::yes;
}

void HandshakeConnection::handle_explain(const ExplainRequest& request) {
    ExplainReply reply{};
    reply.magic = protocol::kMagic;
    reply.kind = MessageKind::explain;
    if (const auto dataset = read_text(request.dataset, "dataset name")) {
        const auto reason = shared_->host.explain(*dataset, request.manifest_version, request.block, peer_);
        if (reason) copy_text(*reason, reply.reason);
    }
    send(bytes_of(reply), {});
}

Result<void> HandshakeConnection::check_limits(const AttachRequest& request) const {
    const HandshakeLimits& limits = shared_->limits;
    if (!std::has_single_bit(request.ring_entries) || request.ring_entries > protocol::kRingEntriesMax) {
        return fail(ErrorCode::invalid_argument, "ring_entries is " + std::to_string(request.ring_entries) +
                                                     ": give a power of two up to " +
                                                     std::to_string(protocol::kRingEntriesMax));
    }
    if (request.order > protocol::ReadOrder::shared)
        return fail(ErrorCode::invalid_argument, "the order is none of 0, 1 and 2");
    if (request.slot_bytes == 0 || request.slot_bytes % protocol::kPageBytes != 0) {
        return fail(ErrorCode::invalid_argument,
                    "slot_bytes is " + std::to_string(request.slot_bytes) + ": give whole pages, at least one");
    }
    const std::uint64_t session_max = std::min(limits.session_slot_bytes_max, protocol::kSlotBytesMax);
    if (request.slot_bytes > session_max) {
        return fail(ErrorCode::no_space, "the session asks for " + format_bytes(request.slot_bytes) +
                                             " of buffers, but one session may have " + format_bytes(session_max) +
                                             ": lower the loader's memory budget or raise session.slot_memory_max");
    }
    const auto check_bytes = [&](const std::string& who, std::uint64_t used, std::uint64_t most) -> Result<void> {
        if (request.slot_bytes <= most - std::min(used, most)) return {};
        return fail(ErrorCode::no_space, "the session asks for " + format_bytes(request.slot_bytes) +
                                             " of buffers, but " + who + " together may have " + format_bytes(most) +
                                             ", of which " + format_bytes(used) +
                                             " are used, or were used by ended sessions and are still mapped");
    };
    const UserSessions all = shared_->all_sessions();
    if (auto fits = check_bytes("all sessions", all.slot_bytes, limits.slot_bytes_max); !fits) return fits;
    if (all.sessions >= limits.sessions_max) {
        return fail(ErrorCode::unavailable, "the daemon has " + std::to_string(limits.sessions_max) +
                                                " sessions, its limit: close one, or raise session.count_max");
    }
    if (limits.is_unlimited(peer_.uid)) return {};
    const UserSessions own = shared_->sessions_of(peer_.uid);
    const auto part_of = [&](std::uint64_t all_users) {
        return static_cast<std::uint64_t>(static_cast<double>(all_users) * limits.user_part);
    };
    if (auto fits = check_bytes("your sessions", own.slot_bytes, part_of(limits.slot_bytes_max)); !fits) return fits;
    if (own.sessions >= std::max<std::uint64_t>(1, part_of(limits.sessions_max))) {
        return fail(ErrorCode::unavailable,
                    "you have " + std::to_string(own.sessions) +
                        " sessions on this node, the most that one user may have: close one, or raise "
                        "session.user_part");
    }
    return {};
}

UserSessions HandshakeShared::all_sessions() const {
    const std::lock_guard lock(mutex_);
    return all_;
}

UserSessions HandshakeShared::sessions_of(uid_t user) const {
    const std::lock_guard lock(mutex_);
    const auto found = users_.find(user);
    return found == users_.end() ? UserSessions{} : found->second;
}

void HandshakeShared::count_session(uid_t user, std::uint64_t slot_bytes) {
    const std::lock_guard lock(mutex_);
    for (UserSessions* counted : {&all_, &users_[user]}) {
        ++counted->sessions;
        counted->slot_bytes += slot_bytes;
    }
}

void HandshakeShared::uncount_session(uid_t user, std::uint64_t slot_bytes) {
    const std::lock_guard lock(mutex_);
    const auto own = users_.find(user);
    for (UserSessions* counted : {&all_, &own->second}) {
        --counted->sessions;
        counted->slot_bytes -= slot_bytes;
    }
    if (own->second.sessions == 0) users_.erase(own);
}

bool HandshakeConnection::handle_attach(const AttachRequest& request) {
    AttachReply reply{};
    reply.magic = protocol::kMagic;
    reply.kind = MessageKind::attach;
    const JobUser user{.uid = peer_.uid, .is_unlimited = shared_->limits.is_unlimited(peer_.uid)};
    const auto allowed = check_limits(request);
    const std::uint32_t share_blocks =
        request.order == protocol::ReadOrder::shared ? version_->manifest->block_count() : 0;
    auto memory = allowed ? make_session_memory(request.ring_entries, request.slot_bytes, share_blocks)
                          : std::unexpected(allowed.error());
    auto bucket = memory ? shared_->host.bucket(job_, user) : std::unexpected(memory.error());
    if (!bucket) {
        reply.status = status_of(bucket.error());
        copy_text(bucket.error().message, reply.error);
        send(bytes_of(reply), {});
        return false;
    }
    const std::uint64_t session_id = shared_->next_session_id++;
    reply.session_id = session_id;
    const std::array fds{memory->client_ring_fd.get(), memory->client_slot_fd.get(), memory->request_event.get()};
    // Send the reply before handing over the session: afterwards the data plane may send at any time.
    if (const Sent sent = send(bytes_of(reply), fds); sent != Sent::yes) {
        if (sent == Sent::too_many_fds) {
            reply.status = status_of(too_many_fds());
            copy_text(too_many_fds().message, reply.error);
            send(bytes_of(reply), {});
        }
        return false;
    }

    ++shared_->open_sessions;
    shared_->count_session(peer_.uid, request.slot_bytes);
    const auto slots = shared_->slot_keeper->keep(
        std::move(memory->slots), std::move(memory->slot_fd), std::move(memory->ring_fd),
        [&shared = *shared_] { --shared.open_sessions; },
        [&shared = *shared_, user = peer_.uid, bytes = request.slot_bytes] { shared.uncount_session(user, bytes); });
    const std::uint64_t dataset_id = version_->dataset_id();
    auto populate_slots = shared_->slot_keeper->populator(
        slots, [&host = shared_->host, dataset_id, session_id](std::uint64_t bytes, bool settled) {
            host.slots_populated(dataset_id, session_id, bytes, settled);
        });
    shared_->host.attach(SessionSetup{.session_id = session_id,
                                      .dataset_id = dataset_id,
                                      .job = job_,
                                      .pid = peer_.pid,
                                      .uid = peer_.uid,
                                      .bucket = std::move(*bucket),
                                      .manifest = version_->manifest,
                                      .socket = ClientSocket(FileDescriptor(socket_.release())),
                                      .request_event = std::move(memory->request_event),
                                      .ring = std::move(memory->ring),
                                      .slots = std::shared_ptr<const Mapping>(slots, &slots->mapping),
                                      .populate_slots = std::move(populate_slots),
                                      .ring_entries = request.ring_entries,
                                      .order = request.order});
    log_debug("session opened", {{"session", session_id},
                                 {"dataset", dataset_},
                                 {"job", job_},
                                 {"pid", peer_.pid},
                                 {"uid", peer_.uid},
                                 {"slot_bytes", request.slot_bytes}});
    return false;
}

HandshakeConnection::Sent HandshakeConnection::send(std::span<const std::byte> message, std::span<const int> fds) {
    iovec content{const_cast<std::byte*>(message.data()), message.size()};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kFdsMax * sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &content;
    header.msg_iovlen = 1;
    if (!fds.empty()) {
        header.msg_control = control.data();
        header.msg_controllen = CMSG_SPACE(fds.size_bytes());
        cmsghdr* rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(fds.size_bytes());
        std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
    }
    // The socket has room for the reply unless the client broke the protocol, so any other failure is final.
    const ssize_t sent = ::sendmsg(socket_.native_handle(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(message.size())) return Sent::yes;
    return sent < 0 && errno == ETOOMANYREFS ? Sent::too_many_fds : Sent::no;
}

}  // namespace larder::cache
