#include "cache/device/client_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

#include "tests/support/lingering_socket.h"
#include "tests/support/thread_limit.h"

namespace larder::cache {
namespace {

struct Pair {
    Pair() {
        std::array<int, 2> ends{};
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
        daemon = ClientSocket(FileDescriptor(ends[0]));
        client = FileDescriptor(ends[1]);
    }
    ClientSocket daemon;
    FileDescriptor client;
};

TEST(ClientSocket, ReceivesOneMessageAtATimeWithoutWaiting) {
    const Pair pair;
    std::array<std::byte, 16> into{};
    EXPECT_EQ(ClientSocket::receive(pair.daemon.get(), into), -1);
    EXPECT_EQ(errno, EAGAIN);
    ASSERT_EQ(::send(pair.client.get(), "hello", 5, 0), 5);
    ASSERT_EQ(::send(pair.client.get(), "you", 3, 0), 3);
    EXPECT_EQ(ClientSocket::receive(pair.daemon.get(), into), 5);
    EXPECT_EQ(ClientSocket::receive(pair.daemon.get(), into), 3);
    ::shutdown(pair.client.get(), SHUT_RDWR);
    EXPECT_EQ(ClientSocket::receive(pair.daemon.get(), into), 0);
}

// A close that waited for the lingering socket would take an hour.
TEST(ClientSocket, LeavesDescriptorsUnreadAndClosesWithoutWaiting) {
    Pair pair;
    test::LingeringSocket lingering(3600);
    ASSERT_EQ(test::send_descriptor(pair.client.get(), lingering.release()), 0);
    std::array<std::byte, 16> into{};
    EXPECT_EQ(ClientSocket::receive(pair.daemon.get(), into), -1);
    EXPECT_EQ(errno, EBADMSG);
    EXPECT_EQ(ClientSocket::receive(pair.daemon.get(), into), -1);
    EXPECT_EQ(errno, EBADMSG) << "the message is still there";
    pair.daemon.reset();
    // The client sees the end of the stream, or a reset if the socket is already closed with a message unread.
    const ssize_t got = ::recv(pair.client.get(), into.data(), into.size(), 0);
    EXPECT_TRUE(got == 0 || (got < 0 && errno == ECONNRESET)) << got;
    while (ClientSocket::closing() > 0) std::this_thread::yield();
}

void close_without_threads() {
    test::forbid_threads();
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    ClientSocket(FileDescriptor(pair[0])).reset();
    char byte = 0;
    EXPECT_EQ(::recv(pair[1], &byte, sizeof byte, 0), 0) << "the client sees the end at once";
    EXPECT_EQ(ClientSocket::closing(), 1u);
    test::allow_threads();
    while (ClientSocket::closing() > 0) std::this_thread::yield();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
}

TEST(ClientSocket, IsClosedLaterWhereTheSystemHasNoThread) {
    // In a new process, where nothing has been closed before.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(close_without_threads(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace larder::cache
