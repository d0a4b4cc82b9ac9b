#include "cache/control/handshake.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <random>
#include <thread>

#include "cache/protocol/wire.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using protocol::AttachReply;
using protocol::AttachRequest;
using protocol::MessageKind;
using protocol::OpenReply;
using protocol::OpenRequest;
using testing::HasSubstr;

// A session host with one dataset. Keeps each attached session until the test takes it.
class OneDataset final : public SessionHost {
public:
    explicit OneDataset(const test::TempDirectory& directory) {
        test::make_tree(directory / "tree", {.class_count = 1, .files_per_class = 3});
        const std::string path = directory / "manifest";
        auto opened = std::make_shared<DatasetVersion>();
        opened->manifest = std::make_shared<const protocol::Manifest>(test::make_manifest(directory / "tree", path));
        opened->manifest_fd = std::move(*open_file(path, 0));
        version = opened;
    }

    // Gets ready for the dataset "slow" only when the test calls `preparing`.
    void prepare(const std::string& dataset, const PeerCredentials&, std::function<void()> done) override {
        if (dataset != "slow") return done();
        const std::lock_guard lock(mutex);
        preparing.push_back(std::move(done));
        changed.notify_all();
    }
    Result<std::shared_ptr<const DatasetVersion>> open(const std::string& dataset, std::uint64_t,
                                                       const PeerCredentials& peer) override {
        EXPECT_EQ(peer.uid, ::getuid());
        EXPECT_EQ(peer.pid, ::getpid());
        if (dataset == "here" || dataset == "slow") return version;
        return fail(ErrorCode::not_found, "dataset \"" + dataset + "\" is unknown");
    }
    Result<std::shared_ptr<TokenBucket>> bucket(const std::string& job, JobUser) override {
        if (job == "one-too-many") return fail(ErrorCode::unavailable, "no more jobs");
        return std::make_shared<TokenBucket>();
    }
    Result<std::string> explain(const std::string& dataset, std::uint64_t, std::uint32_t block,
                                const PeerCredentials&) override {
        if (dataset == "here") return "block " + std::to_string(block) + ": HTTP 403";
        return fail(ErrorCode::permission_denied, "not for you");
    }
    void attach(SessionSetup setup) override {
        const std::lock_guard lock(mutex);
        sessions.push_back(std::move(setup));
        changed.notify_all();
    }
    void slots_populated(std::uint64_t, std::uint64_t session_id, std::uint64_t, bool) override {
        const std::lock_guard lock(mutex);
        populated.push_back(session_id);
        changed.notify_all();
    }
    SessionSetup take_session() {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return !sessions.empty(); });
        SessionSetup setup = std::move(sessions.front());
        sessions.pop_front();
        return setup;
    }

    std::shared_ptr<const DatasetVersion> version;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<SessionSetup> sessions;
    std::vector<std::uint64_t> populated;
    std::deque<std::function<void()>> preparing;
};

class Client {
public:
    explicit Client(const std::string& path) : socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path, path.data(), path.size());
        EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    }

    void send(const void* message, std::size_t bytes) { ::send(socket.get(), message, bytes, MSG_NOSIGNAL); }
    template <typename Message>
    void send(const Message& message) {
        send(&message, sizeof message);
    }

    // Returns the bytes received, 0 if the daemon has hung up.
    template <typename Message>
    std::size_t receive(Message& into) {
        iovec content{&into, sizeof into};
        alignas(cmsghdr) std::array<std::byte, 256> control;
        msghdr header{};
        header.msg_iov = &content;
        header.msg_iovlen = 1;
        header.msg_control = control.data();
        header.msg_controllen = control.size();
        const ssize_t got = ::recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC);
        fds.clear();
        if (got <= 0) return 0;
        for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
            const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (std::size_t i = 0; i < count; ++i) {
                int fd = -1;
                std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
                fds.emplace_back(fd);
            }
        }
        return static_cast<std::size_t>(got);
    }
    bool hung_up() {
        char byte = 0;
        return receive(byte) == 0;
    }

    OpenReply open(const char* dataset = "here", const char* job = "job") {
        send(open_request(dataset, job));
        OpenReply reply{};
        EXPECT_EQ(receive(reply), sizeof reply);
        return reply;
    }
    AttachReply attach(const AttachRequest& request) {
        send(request);
        AttachReply reply{};
        EXPECT_EQ(receive(reply), sizeof reply);
        return reply;
    }

    static OpenRequest open_request(const char* dataset, const char* job) {
        OpenRequest request{.magic = protocol::kMagic, .version = protocol::kVersion, .kind = MessageKind::open};
        std::strncpy(request.dataset, dataset, sizeof request.dataset - 1);
        std::strncpy(request.job, job, sizeof request.job - 1);
        return request;
    }
    static AttachRequest attach_request(std::uint64_t slot_bytes = 1 << 20) {
        return {.magic = protocol::kMagic, .kind = MessageKind::attach, .ring_entries = 64, .slot_bytes = slot_bytes};
    }

    FileDescriptor socket;
    std::vector<FileDescriptor> fds;
};

class HandshakeTest : public testing::Test {
protected:
    ~HandshakeTest() override { stop(); }

    void serve(HandshakeLimits limits = {}) {
        server = std::make_unique<HandshakeServer>(context, host, limits);
        const auto listening = server->listen(path, 0600);
        ASSERT_TRUE(listening.has_value()) << listening.error().message;
        thread = std::thread([this] { context.run(); });
    }
    void stop() {
        if (!thread.joinable()) return;
        std::promise<void> stopped;
        boost::asio::post(context, [&] {
            server->stop();
            stopped.set_value();
        });
        stopped.get_future().wait();
        context.stop();
        thread.join();
        host.sessions.clear();
        server.reset();
    }
    // Begins the handshakes of both clients, and expects a further client to be hung up on.
    void expect_no_third_handshake(Client& first, Client& second) const {
        EXPECT_EQ(first.open().status, 0u);
        EXPECT_EQ(second.open().status, 0u);
        Client third(path);
        EXPECT_TRUE(third.hung_up());
    }

    test::TempDirectory directory;
    std::string path = directory / "larderd.sock";
    OneDataset host{directory};
    boost::asio::io_context context{1};
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> working{context.get_executor()};
    std::unique_ptr<HandshakeServer> server;
    std::thread thread;
};

// Holds so many descriptors in messages that nobody reads that the kernel lets an unprivileged sender of this user send
// no more (ETOOMANYREFS), and lowers the process's limit of open files to get there sooner.
class DescriptorsInFlight {
public:
    DescriptorsInFlight() {
        ::getrlimit(RLIMIT_NOFILE, &before_);
        const rlimit lowered{.rlim_cur = 512, .rlim_max = before_.rlim_max};
        EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &lowered), 0);
        int ends[2];
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        from_ = FileDescriptor(ends[0]);
        to_ = FileDescriptor(ends[1]);
        std::array<int, 250> fds;
        fds.fill(from_file_.get());
        alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof fds)> control{};
        for (int message = 0; message < 3; ++message) {
            char byte = 0;
            iovec content{&byte, 1};
            msghdr header{};
            header.msg_iov = &content;
            header.msg_iovlen = 1;
            header.msg_control = control.data();
            header.msg_controllen = control.size();
            cmsghdr* rights = CMSG_FIRSTHDR(&header);
            rights->cmsg_level = SOL_SOCKET;
            rights->cmsg_type = SCM_RIGHTS;
            rights->cmsg_len = CMSG_LEN(sizeof fds);
            std::memcpy(CMSG_DATA(rights), fds.data(), sizeof fds);
            EXPECT_EQ(::sendmsg(from_.get(), &header, MSG_NOSIGNAL), 1);
        }
    }
    ~DescriptorsInFlight() { ::setrlimit(RLIMIT_NOFILE, &before_); }

private:
    rlimit before_{};
    FileDescriptor from_file_{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
    FileDescriptor from_;
    FileDescriptor to_;
};

// The limit does not hold for privileged threads.
void drop_privileges_of_thread() {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    std::array<__user_cap_data_struct, 2> none{};
    ASSERT_EQ(::syscall(SYS_capset, &header, none.data()), 0);
}

TEST_F(HandshakeTest, ClientIsToldToTryAgainWhileTooManyDescriptorsAreInFlight) {
    serve();
    std::promise<void> dropped;
    boost::asio::post(context, [&] {
        drop_privileges_of_thread();
        dropped.set_value();
    });
    dropped.get_future().wait();
    Client opened(path);
    ASSERT_EQ(opened.open().status, 0u);
    {
        const DescriptorsInFlight in_flight;
        Client client(path);
        const OpenReply refused = client.open();
        EXPECT_EQ(refused.status, 1 + static_cast<std::uint32_t>(ErrorCode::unavailable));
        EXPECT_THAT(refused.error, HasSubstr("try again"));
        EXPECT_TRUE(client.hung_up());
        const AttachReply not_attached = opened.attach(Client::attach_request());
        EXPECT_EQ(not_attached.status, 1 + static_cast<std::uint32_t>(ErrorCode::unavailable));
        EXPECT_TRUE(opened.fds.empty());
    }
    Client again(path);
    EXPECT_EQ(again.open().status, 0u);
    EXPECT_EQ(again.attach(Client::attach_request()).status, 0u);
    EXPECT_EQ(again.fds.size(), 3u);
}

TEST_F(HandshakeTest, FailedReadIsExplainedOnlyToPermittedReaders) {
    serve();
    const auto explained = [&](const char* dataset) {
        Client client(path);
        protocol::ExplainRequest request{
            .magic = protocol::kMagic, .version = protocol::kVersion, .kind = MessageKind::explain, .block = 7};
        std::strncpy(request.dataset, dataset, sizeof request.dataset - 1);
        client.send(request);
        protocol::ExplainReply reply{};
        EXPECT_EQ(client.receive(reply), sizeof reply);
        EXPECT_EQ(reply.kind, MessageKind::explain);
        EXPECT_TRUE(client.hung_up());
        return std::string(reply.reason);
    };
    EXPECT_EQ(explained("here"), "block 7: HTTP 403");
    EXPECT_EQ(explained("elsewhere"), "");
}

TEST_F(HandshakeTest, OthersAreServedWhileAClientsGroupsAreLookedUp) {
    serve();
    Client slow(path);
    slow.send(Client::open_request("slow", "job"));
    Client gone(path);
    gone.send(Client::open_request("slow", "job"));
    {
        std::unique_lock lock(host.mutex);
        host.changed.wait(lock, [this] { return host.preparing.size() == 2; });
    }
    gone.socket.reset();
    Client other(path);
    EXPECT_EQ(other.open().status, 0u);
    for (const auto& done : host.preparing) boost::asio::post(context, done);
    host.preparing.clear();
    OpenReply reply{};
    ASSERT_EQ(slow.receive(reply), sizeof reply);
    EXPECT_EQ(reply.status, 0u) << reply.error;
    EXPECT_EQ(slow.attach(Client::attach_request()).status, 0u);
}

TEST_F(HandshakeTest, ClientOpensDatasetAndAttachesSession) {
    serve();
    Client client(path);
    const OpenReply opened = client.open();
    ASSERT_EQ(opened.status, 0u) << opened.error;
    EXPECT_EQ(opened.manifest_version, 1u);
    ASSERT_EQ(client.fds.size(), 1u);
    const auto manifest = protocol::Manifest::open(client.fds[0].get());
    ASSERT_TRUE(manifest.has_value());
    EXPECT_EQ(manifest->sample_count(), 3u);
    EXPECT_EQ(opened.manifest_bytes, manifest->header().file_bytes);
    EXPECT_EQ(::write(client.fds[0].get(), "x", 1), -1) << "the manifest is read-only";

    const AttachReply attached = client.attach(Client::attach_request());
    ASSERT_EQ(attached.status, 0u) << attached.error;
    ASSERT_EQ(client.fds.size(), 3u);
    SessionSetup setup = host.take_session();
    EXPECT_EQ(setup.session_id, attached.session_id);
    EXPECT_EQ(setup.job, "job");
    EXPECT_EQ(setup.pid, ::getpid());
    EXPECT_EQ(setup.uid, ::geteuid());
    EXPECT_EQ(setup.dataset_id, host.version->dataset_id());
    EXPECT_EQ(setup.ring_entries, 64u);
    EXPECT_EQ(setup.order, protocol::ReadOrder::random);
    EXPECT_EQ(setup.slots->size(), 1u << 20);
    EXPECT_EQ(server->sessions(), 1u);
    EXPECT_EQ(server->slot_bytes(), 1u << 20);

    // Both sides share the ring, the slots, the event and the socket.
    const auto ring = Mapping::of(client.fds[0].get(), setup.ring.size(), Mapping::Access::read_write);
    const auto slots = Mapping::of(client.fds[1].get(), setup.slots->size(), Mapping::Access::read_only);
    ASSERT_TRUE(ring && slots);
    setup.ring.data()[100] = std::byte{1};
    setup.slots->data()[100] = std::byte{2};
    EXPECT_EQ(ring->data()[100], std::byte{1});
    EXPECT_EQ(slots->data()[100], std::byte{2});
    const std::uint64_t three = 3;
    std::uint64_t got = 0;
    EXPECT_EQ(::write(client.fds[2].get(), &three, sizeof three), 8);
    EXPECT_EQ(::read(setup.request_event.get(), &got, sizeof got), 8);
    EXPECT_EQ(::send(setup.socket.get(), "hello", 5, 0), 5);
    std::array<char, 16> hello{};
    EXPECT_EQ(client.receive(hello), 5u);

    EXPECT_TRUE(host.populated.empty()) << "nothing is populated before it is requested";
    setup.populate_slots(4096);
    std::unique_lock lock(host.mutex);
    host.changed.wait(lock, [&] { return !host.populated.empty(); });
    EXPECT_EQ(host.populated[0], attached.session_id);
}

TEST_F(HandshakeTest, SessionCountsAgainstLimitsUntilItEnds) {
    serve({.slot_bytes_max = 3 << 20, .sessions_max = 2});
    Client first(path);
    first.open();
    ASSERT_EQ(first.attach(Client::attach_request(2 << 20)).status, 0u);
    Client second(path);
    second.open();
    const AttachReply too_large = second.attach(Client::attach_request(2 << 20));
    EXPECT_NE(too_large.status, 0u);
    EXPECT_THAT(too_large.error, HasSubstr("2.00 MiB"));
    Client third(path);
    third.open();
    ASSERT_EQ(third.attach(Client::attach_request(1 << 20)).status, 0u);
    Client fourth(path);
    fourth.open();
    EXPECT_THAT(fourth.attach(Client::attach_request(4096)).error, HasSubstr("3.00 MiB"));

    host.take_session();  // ends the first session
    Client keeps(path);
    keeps.open();
    EXPECT_THAT(keeps.attach(Client::attach_request(2 << 20)).error, HasSubstr("still mapped"));
    first.fds.clear();
    while (server->slot_bytes() != 1u << 20) std::this_thread::yield();
    EXPECT_EQ(server->sessions(), 1u);
    Client fifth(path);
    fifth.open();
    EXPECT_EQ(fifth.attach(Client::attach_request(2 << 20)).status, 0u);
    Client sixth(path);
    sixth.open();
    EXPECT_NE(sixth.attach(Client::attach_request(4096)).status, 0u);
}

TEST_F(HandshakeTest, SessionsOfAllUsersTogetherAreLimited) {
    serve({.sessions_max = 2});
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 3; ++i) {
        clients.push_back(std::make_unique<Client>(path));
        clients.back()->open();
        const AttachReply reply = clients.back()->attach(Client::attach_request(4096));
        EXPECT_EQ(reply.status == 0, i < 2) << reply.error;
        EXPECT_THAT(reply.error, HasSubstr(i < 2 ? "" : "the daemon has 2 sessions"));
    }
}

TEST_F(HandshakeTest, OneUserGetsAPartOfSessionsAndBuffers) {
    serve({.slot_bytes_max = 4 << 20, .sessions_max = 4, .is_unlimited = [](uid_t) { return false; }});
    Client large(path);
    large.open();
    EXPECT_THAT(large.attach(Client::attach_request(3 << 20)).error,
                HasSubstr("your sessions together may have 2.00 MiB"));
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 3; ++i) {
        clients.push_back(std::make_unique<Client>(path));
        clients.back()->open();
        const AttachReply reply = clients.back()->attach(Client::attach_request(4096));
        EXPECT_EQ(reply.status == 0, i < 2) << reply.error;
        EXPECT_THAT(reply.error, HasSubstr(i < 2 ? "" : "you have 2 sessions on this node"));
    }
}

TEST_F(HandshakeTest, UserWhoOnlyConnectsDoesNotLockOutOthers) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    serve({.handshakes_max = 3});
    ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
    ASSERT_EQ(::chmod(directory.path().c_str(), 0755), 0);
    int connected[2];
    ASSERT_EQ(::pipe(connected), 0);
    const pid_t other = ::fork();
    if (other == 0) {
        if (::setuid(65534) != 0) ::_exit(1);
        std::deque<Client> idle;
        for (int i = 0; i < 5; ++i) idle.emplace_back(path);
        static_cast<void>(::write(connected[1], "x", 1));
        ::pause();
    }
    char byte = 0;
    ASSERT_EQ(::read(connected[0], &byte, 1), 1);
    Client client(path);
    EXPECT_EQ(client.open().status, 0u);
    EXPECT_EQ(client.attach(Client::attach_request()).status, 0u);
    ::kill(other, SIGKILL);
    ::waitpid(other, nullptr, 0);
}

TEST_F(HandshakeTest, FailedOpenSaysWhy) {
    serve();
    Client client(path);
    const OpenReply reply = client.open("nowhere");
    EXPECT_EQ(reply.status, 1 + static_cast<std::uint32_t>(ErrorCode::not_found));
    EXPECT_THAT(reply.error, HasSubstr("nowhere"));
    EXPECT_TRUE(client.fds.empty());
    EXPECT_TRUE(client.hung_up());

    Client old(path);
    OpenRequest request = Client::open_request("here", "job");
    request.version = protocol::kVersion + 1;
    old.send(request);
    OpenReply refused{};
    ASSERT_EQ(old.receive(refused), sizeof refused);
    EXPECT_EQ(refused.status, 1 + static_cast<std::uint32_t>(ErrorCode::unsupported));

    Client scan(path);
    EXPECT_THAT(scan.open("here", "(scan)").error, HasSubstr("job name"));
}

TEST_F(HandshakeTest, JobOverTheLimitIsRefusedWithReason) {
    serve();
    Client client(path);
    client.open("here", "one-too-many");
    const AttachReply reply = client.attach(Client::attach_request());
    EXPECT_EQ(reply.status, 1 + static_cast<std::uint32_t>(ErrorCode::unavailable));
    EXPECT_THAT(reply.error, HasSubstr("no more jobs"));
    EXPECT_TRUE(client.hung_up());
    EXPECT_EQ(server->sessions(), 0u);
}

TEST_F(HandshakeTest, InvalidAttachRequestsAreRefused) {
    serve({.session_slot_bytes_max = 1 << 20});
    const auto changed = [](auto change) {
        AttachRequest request = Client::attach_request();
        change(request);
        return request;
    };
    const std::pair<AttachRequest, const char*> cases[] = {
        {changed([](auto& request) { request.ring_entries = 0; }), "ring_entries"},
        {changed([](auto& request) { request.ring_entries = 63; }), "ring_entries"},
        {changed([](auto& request) { request.ring_entries = 2 * protocol::kRingEntriesMax; }), "ring_entries"},
        {changed([](auto& request) { request.slot_bytes = 0; }), "slot_bytes"},
        {changed([](auto& request) { request.slot_bytes = 4097; }), "slot_bytes"},
        {changed([](auto& request) { request.slot_bytes = (1 << 20) + 4096; }), "1.00 MiB"},
        {changed([](auto& request) { request.slot_bytes = ~std::uint64_t{4095}; }), "1.00 MiB"},
        {changed([](auto& request) { request.order = protocol::ReadOrder{3}; }), "order"},
    };
    for (const auto& [request, named] : cases) {
        Client client(path);
        ASSERT_EQ(client.open().status, 0u);
        const AttachReply reply = client.attach(request);
        EXPECT_NE(reply.status, 0u) << named;
        EXPECT_THAT(reply.error, HasSubstr(named));
        EXPECT_TRUE(client.fds.empty());
        EXPECT_TRUE(client.hung_up());
    }
    EXPECT_EQ(server->sessions(), 0u);
}

TEST_F(HandshakeTest, ClientThatSendsGarbageIsDisconnected) {
    serve();
    std::mt19937_64 random(1);
    const OpenRequest good = Client::open_request("here", "job");
    for (int round = 0; round < 64; ++round) {
        std::string message(1 + random() % (sizeof(OpenRequest) + 64), '\0');
        for (char& byte : message) byte = static_cast<char>(random());
        Client client(path);
        client.send(message.data(), message.size());
        EXPECT_TRUE(client.hung_up());
    }
    const auto closes = [&](const void* message, std::size_t bytes, bool opened) {
        Client client(path);
        if (opened) client.open();
        client.send(message, bytes);
        return client.hung_up();
    };
    EXPECT_TRUE(closes(&good, sizeof good - 1, false));
    EXPECT_TRUE(closes(&good, sizeof good, true)) << "a second open";
    const AttachRequest attach = Client::attach_request();
    EXPECT_TRUE(closes(&attach, sizeof attach, false)) << "attach before open";
    OpenRequest wrong = good;
    wrong.magic ^= 1;
    EXPECT_TRUE(closes(&wrong, sizeof wrong, false));
    wrong = good;
    wrong.kind = MessageKind::segment_added;
    EXPECT_TRUE(closes(&wrong, sizeof wrong, false));

    Client endless(path);
    wrong = good;
    std::memset(wrong.dataset, 'x', sizeof wrong.dataset);
    endless.send(wrong);
    OpenReply reply{};
    ASSERT_EQ(endless.receive(reply), sizeof reply);
    EXPECT_NE(reply.status, 0u);

    Client last(path);
    EXPECT_EQ(last.open().status, 0u) << "other clients are still served";
}

TEST_F(HandshakeTest, StalledClientIsDisconnected) {
    serve({.stall_ms = 1});
    Client silent(path);
    EXPECT_TRUE(silent.hung_up());
    Client half(path);
    half.send(Client::open_request("here", "job"));
    OpenReply reply{};
    const bool answered = half.receive(reply) != 0;
    EXPECT_TRUE(!answered || half.hung_up());
    EXPECT_EQ(server->sessions(), 0u);
}

TEST_F(HandshakeTest, ConcurrentHandshakesAreLimited) {
    serve({.handshakes_max = 2});
    Client first(path);
    Client second(path);
    expect_no_third_handshake(first, second);
    first.socket.reset();
    for (;;) {
        Client again(path);
        again.send(Client::open_request("here", "job"));
        OpenReply reply{};
        if (again.receive(reply) == sizeof reply) break;
    }
}

// Only a user who has more handshakes than others loses some.
TEST_F(HandshakeTest, FurtherClientOfAUserTakesNoHandshakeOfTheirs) {
    serve({.handshakes_max = 2});
    Client first(path);
    Client second(path);
    expect_no_third_handshake(first, second);
    EXPECT_EQ(first.attach(Client::attach_request()).status, 0u);
    EXPECT_EQ(second.attach(Client::attach_request()).status, 0u);
}

TEST_F(HandshakeTest, StopRemovesTheSocket) {
    serve();
    Client client(path);
    ASSERT_EQ(client.open().status, 0u);
    stop();
    EXPECT_TRUE(client.hung_up());
    EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace larder::cache
