#include "tools/cli/interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"

namespace larder::cli {
namespace {

// Global, because a signal handler has no other way to find it.
std::atomic<int> g_event{-1};

void note_signal(int /*signal*/) {
    const int before = errno;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(g_event.load(), &one, sizeof one);
    errno = before;
}

}  // namespace

InterruptWatch::InterruptWatch(OnKeys on_keys)
    : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), on_keys_(std::move(on_keys)) {
    LARDER_ASSERT(event_.get() >= 0);
    LARDER_ASSERT(g_event.exchange(event_.get()) == -1);
    struct sigaction action{};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGINT, &action, &interrupt_before_);
    ::sigaction(SIGTERM, &action, &terminate_before_);
    if (on_keys_) keys_.emplace();
}

InterruptWatch::~InterruptWatch() {
    ::sigaction(SIGINT, &interrupt_before_, nullptr);
    ::sigaction(SIGTERM, &terminate_before_, nullptr);
    g_event = -1;
}

bool InterruptWatch::pressed_within(std::int64_t wait_ms) const {
    const SteadyClock clock;
    const std::int64_t until_ns = clock.now_ns() + wait_ms * 1'000'000;
    for (;;) {
        const std::int64_t left_ms = std::max<std::int64_t>(0, (until_ns - clock.now_ns() + 999'999) / 1'000'000);
        std::array waiting{pollfd{.fd = event_.get(), .events = POLLIN, .revents = 0},
                           pollfd{.fd = keys_ ? keys_->fd() : -1, .events = POLLIN, .revents = 0}};
        const int ready = ::poll(waiting.data(), waiting.size(), static_cast<int>(left_ms));
        if (ready > 0 && waiting[0].revents != 0) return true;
        if (ready > 0 && take_keys()) return true;
        if (ready == 0) return false;
        // The wait was cut short by a signal on this thread or by another key.
    }
}

bool InterruptWatch::take_keys() const {
    if (const std::string typed = keys_->read(); !typed.empty() && on_keys_(typed)) {
        note_signal(SIGINT);
        return true;
    }
    // The terminal has gone, and its descriptor would stay ready for ever.
    pollfd terminal{.fd = keys_->fd(), .events = POLLIN, .revents = 0};
    if (::poll(&terminal, 1, 0) > 0 && (terminal.revents & (POLLHUP | POLLERR)) != 0) keys_.reset();
    return false;
}

}  // namespace larder::cli
