#pragma once

// A TCP socket whose close() waits up to `linger_s` for a peer that never reads, and a function to send its descriptor.

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/file.h"

namespace larder::test {

inline void close_without_wait(FileDescriptor socket) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    EXPECT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
}

class LingeringSocket {
public:
    explicit LingeringSocket(int linger_s) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof address;
        auto* const generic = reinterpret_cast<sockaddr*>(&address);
        const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::bind(listener.get(), generic, sizeof address), 0);
        EXPECT_EQ(::listen(listener.get(), 1), 0);
        EXPECT_EQ(::getsockname(listener.get(), generic, &length), 0);
        socket_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::connect(socket_.get(), generic, sizeof address), 0);
        peer_ = FileDescriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        std::array<char, 65536> bytes{};
        while (::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
        }
        const linger wait{.l_onoff = 1, .l_linger = linger_s};
        EXPECT_EQ(::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &wait, sizeof wait), 0);
    }
    ~LingeringSocket() {
        if (socket_) close_without_wait(std::move(socket_));
    }
    LingeringSocket(const LingeringSocket&) = delete;
    LingeringSocket& operator=(const LingeringSocket&) = delete;

    FileDescriptor release() { return std::move(socket_); }

private:
    FileDescriptor socket_;
    FileDescriptor peer_;
};

// Sends a socket's descriptor over another socket, in a message of one byte. Afterwards only the message holds
// the descriptor. Returns 0 or an errno.
inline int send_descriptor(int via, FileDescriptor descriptor) {
    char byte = 0;
    iovec part{&byte, sizeof byte};
    const int fd = descriptor.get();
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof fd)> ancillary{};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = ancillary.data();
    header.msg_controllen = ancillary.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    if (::sendmsg(via, &header, MSG_NOSIGNAL) == 1) return 0;
    const int error = errno;
    close_without_wait(std::move(descriptor));
    return error;
}

}  // namespace larder::test
