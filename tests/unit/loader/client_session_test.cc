// The handshake with a broken daemon: every reply is checked, and the error says what is wrong.

#include "loader/client_session.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder::detail {
namespace {

using protocol::AttachReply;
using protocol::MessageKind;
using protocol::OpenReply;

class SessionTest : public testing::Test {
protected:
    SessionTest() {
        test::make_tree(directory.path() / "data");
        manifest = test::make_manifest(directory.path() / "data", directory / "manifest");
        manifest_fd = std::move(*open_file(directory / "manifest", O_RDONLY));
        listener = FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        path.copy(address.sun_path, sizeof address.sun_path - 1);
        EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        EXPECT_EQ(::listen(listener.get(), 4), 0);
    }
    ~SessionTest() override {
        if (server.joinable()) server.join();
    }

    struct Answer {
        std::string bytes;
        std::vector<int> descriptors;
    };
    // Accepts one client, replies to its messages with the answers in order, then hangs up.
    void serve(std::vector<Answer> answers) {
        server = std::thread([this, answers = std::move(answers)] {
            const FileDescriptor client(::accept(listener.get(), nullptr, nullptr));
            for (const Answer& answer : answers) {
                char request[4096];
                if (::recv(client.get(), request, sizeof request, 0) <= 0) return;
                iovec part{const_cast<char*>(answer.bytes.data()), answer.bytes.size()};
                alignas(cmsghdr) char ancillary[CMSG_SPACE(8 * sizeof(int))] = {};
                msghdr header{};
                header.msg_iov = &part;
                header.msg_iovlen = 1;
                if (!answer.descriptors.empty()) {
                    const std::size_t length = answer.descriptors.size() * sizeof(int);
                    header.msg_control = ancillary;
                    header.msg_controllen = CMSG_SPACE(length);
                    cmsghdr* rights = CMSG_FIRSTHDR(&header);
                    rights->cmsg_level = SOL_SOCKET;
                    rights->cmsg_type = SCM_RIGHTS;
                    rights->cmsg_len = CMSG_LEN(length);
                    std::memcpy(CMSG_DATA(rights), answer.descriptors.data(), length);
                }
                ::sendmsg(client.get(), &header, MSG_NOSIGNAL);
            }
        });
    }
    template <typename T>
    static std::string bytes_of(const T& message) {
        return std::string(reinterpret_cast<const char*>(&message), sizeof message);
    }
    OpenReply good_open() const {
        OpenReply reply{};
        reply.magic = protocol::kMagic;
        reply.version = protocol::kVersion;
        reply.kind = MessageKind::open;
        reply.manifest_version = manifest.header().version;
        return reply;
    }
    // Opens a session with a daemon that gives this answer. Returns the error.
    Error open_error(Answer answer) {
        serve({std::move(answer)});
        auto session = ClientSession::open({.socket = path, .dataset = "d", .job = "j"});
        server.join();
        EXPECT_FALSE(session.has_value());
        return session ? Error{} : session.error();
    }

    test::TempDirectory directory;
    std::string path = directory / "s.sock";
    protocol::Manifest manifest;
    FileDescriptor manifest_fd;
    FileDescriptor listener;
    std::thread server;
};

TEST_F(SessionTest, RefusalKeepsTheDaemonsCodeAndMessage) {
    OpenReply reply = good_open();
    reply.status = 1 + static_cast<std::uint32_t>(ErrorCode::permission_denied);
    std::string("dataset \"d\" is not yours").copy(reply.error, sizeof reply.error - 1);
    const Error error = open_error({bytes_of(reply), {}});
    EXPECT_EQ(error.code, ErrorCode::permission_denied);
    EXPECT_EQ(error.message, "dataset \"d\" is not yours");
}

TEST_F(SessionTest, BrokenRepliesToOpenAreProtocolErrors) {
    OpenReply other_version = good_open();
    other_version.version = 99;
    OpenReply wrong_magic = good_open();
    wrong_magic.magic = 1;
    OpenReply other_manifest = good_open();
    other_manifest.manifest_version = 42;
    const int fd = manifest_fd.get();
    const std::vector<Answer> answers{
        {"hello", {}},
        {bytes_of(good_open()) + "x", {fd}},
        {bytes_of(good_open()), {}},
        {bytes_of(good_open()), {fd, fd}},
        {bytes_of(other_version), {fd}},
        {bytes_of(wrong_magic), {fd}},
        {bytes_of(other_manifest), {fd}},
    };
    for (std::size_t i = 0; i < answers.size(); ++i) {
        EXPECT_EQ(open_error(answers[i]).code, ErrorCode::protocol) << "answer " << i;
    }
}

TEST_F(SessionTest, InvalidManifestErrorNamesTheDataset) {
    const FileDescriptor empty(::memfd_create("empty", MFD_CLOEXEC));
    const Error error = open_error({bytes_of(good_open()), {empty.get()}});
    EXPECT_NE(error.message.find("manifest of dataset \"d\""), std::string::npos) << error.message;
}

TEST_F(SessionTest, HangUpDuringTheHandshakeIsUnavailable) {
    serve({});
    auto session = ClientSession::open({.socket = path, .dataset = "d", .job = "j"});
    ASSERT_FALSE(session.has_value());
    EXPECT_EQ(session.error().code, ErrorCode::unavailable);
}

TEST_F(SessionTest, AttachRefusesBrokenReplies) {
    AttachReply attached{};
    attached.magic = protocol::kMagic;
    attached.kind = MessageKind::attach;
    const FileDescriptor event(::eventfd(0, EFD_CLOEXEC));
    const std::vector<Answer> answers{
        {bytes_of(attached), {}}, {bytes_of(attached), {event.get()}}, {"", {}}, {bytes_of(good_open()), {}}};
    for (const Answer& answer : answers) {
        serve({{bytes_of(good_open()), {manifest_fd.get()}}, answer});
        auto session = ClientSession::open({.socket = path, .dataset = "d", .job = "j"});
        ASSERT_TRUE(session.has_value()) << session.error().message;
        auto result = (*session)->attach(1024, 1 << 20, protocol::ReadOrder::random, 1);
        server.join();
        ASSERT_FALSE(result.has_value());
        EXPECT_TRUE(result.error().code == ErrorCode::protocol || result.error().code == ErrorCode::unavailable);
    }
}

}  // namespace
}  // namespace larder::detail
