#include "tools/cli/interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/assert.h"

namespace larder::cli {
namespace {

// A handler has no other way to find it.
std::atomic<int> g_event{-1};

void note_signal(int /*signal*/) {
    const int before = errno;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(g_event.load(), &one, sizeof one);
    errno = before;
}

}  // namespace

InterruptWatch::InterruptWatch() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    LARDER_ASSERT(event_.get() >= 0);
    LARDER_ASSERT(g_event.exchange(event_.get()) == -1);
    struct sigaction action{};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGINT, &action, &interrupt_before_);
    ::sigaction(SIGTERM, &action, &terminate_before_);
}

InterruptWatch::~InterruptWatch() {
    ::sigaction(SIGINT, &interrupt_before_, nullptr);
    ::sigaction(SIGTERM, &terminate_before_, nullptr);
    g_event = -1;
}

bool InterruptWatch::pressed_within(std::int64_t wait_ms) const {
    pollfd waiting{.fd = event_.get(), .events = POLLIN, .revents = 0};
    // A signal that this very thread handled cut the wait short.
    const int ready = ::poll(&waiting, 1, static_cast<int>(wait_ms));
    return ready > 0 || (ready < 0 && errno == EINTR && ::poll(&waiting, 1, 0) > 0);
}

}  // namespace larder::cli
