#include "cache/device/client_socket.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace larder::cache {
namespace {

// The interval of the signals that interrupt close() while it waits for a lingering socket.
constexpr timespec kInterruptInterval{.tv_sec = 0, .tv_nsec = 100'000};

// Closes sockets on its own thread, which ends with the process. Sockets stay open while the system has no thread for
// it: each call tries again.
class Closer {
public:
    void close(FileDescriptor socket) {
        const std::lock_guard lock(mutex_);
        sockets_.push_back(std::move(socket));
        sockets_added_.notify_one();
        ++pending_;
        start_thread();
    }
    std::size_t pending() {
        const std::lock_guard lock(mutex_);
        if (pending_ > 0) start_thread();
        return pending_;
    }

private:
    void start_thread() {
        if (started_) return;
        try {
            std::thread([this] { run(); }).detach();
            started_ = true;
        } catch (const std::system_error&) {
            started_ = false;
        }
    }

    void run() {
        ::pthread_setname_np(::pthread_self(), "larder-closes");
        const std::optional<timer_t> interrupt_timer = make_interrupt_timer();
        for (;;) {
            std::unique_lock lock(mutex_);
            sockets_added_.wait(lock, [this] { return !sockets_.empty(); });
            auto sockets = std::exchange(sockets_, {});
            lock.unlock();
            if (interrupt_timer) set_interval(*interrupt_timer, kInterruptInterval);
            for (FileDescriptor& socket : sockets) {
                socket.reset();
                --pending_;
            }
            if (interrupt_timer) set_interval(*interrupt_timer, {});
        }
    }

    // Makes a timer that signals this thread. The signal must repeat, because one may come before close() waits.
    static std::optional<timer_t> make_interrupt_timer() {
        const int signal = SIGRTMIN;
        struct sigaction action{};
        action.sa_handler = [](int) {};
        ::sigaction(signal, &action, nullptr);
        sigset_t mask;
        sigemptyset(&mask);
        sigaddset(&mask, signal);
        ::pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
        sigevent event{};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event._sigev_un._tid = ::gettid();
        timer_t interrupt_timer{};
        if (::timer_create(CLOCK_MONOTONIC, &event, &interrupt_timer) != 0) return std::nullopt;
        return interrupt_timer;
    }
    static void set_interval(timer_t interrupt_timer, timespec interval) {
        const itimerspec times{.it_interval = interval, .it_value = interval};
        ::timer_settime(interrupt_timer, 0, &times, nullptr);
    }

    std::mutex mutex_;
    std::condition_variable sockets_added_;
    std::vector<FileDescriptor> sockets_;
    std::atomic<std::size_t> pending_ = 0;
    bool started_ = false;
};

// The Closer is never destroyed, because its thread is detached.
Closer& closer() {
    static Closer* const instance = new Closer;
    return *instance;
}

}  // namespace

ClientSocket& ClientSocket::operator=(ClientSocket&& other) noexcept {
    if (this != &other) {
        reset();
        socket_ = std::move(other.socket_);
    }
    return *this;
}

void ClientSocket::reset() {
    if (!socket_) return;
    // The client sees the end of the connection at once, and can send nothing more.
    ::shutdown(socket_.get(), SHUT_RDWR);
    closer().close(std::move(socket_));
}

std::size_t ClientSocket::closing() {
    return closer().pending();
}

ssize_t ClientSocket::receive(int socket, std::span<std::byte> target) {
    // MSG_PEEK leaves the message unread. MSG_CTRUNC: the message has descriptors, for which `header` has no room.
    msghdr header{};
    if (::recvmsg(socket, &header, MSG_PEEK | MSG_DONTWAIT) < 0) return -1;
    if ((header.msg_flags & MSG_CTRUNC) != 0) {
        errno = EBADMSG;
        return -1;
    }
    return ::recv(socket, target.data(), target.size(), MSG_DONTWAIT);
}

}  // namespace larder::cache
