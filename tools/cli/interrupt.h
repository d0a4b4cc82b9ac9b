#pragma once

// Ctrl-C as an event to wait for. While an InterruptWatch lives, SIGINT and SIGTERM are blocked in its thread and those
// made from it, and `pressed_within` takes them; at its end they do again what they did before.

#include <csignal>
#include <cstdint>

namespace larder::cli {

class InterruptWatch {
public:
    InterruptWatch();
    ~InterruptWatch();
    InterruptWatch(const InterruptWatch&) = delete;

    // Waits so long, or until Ctrl-C: then true.
    bool pressed_within(std::int64_t wait_ms) const;

private:
    sigset_t signals_{};
    sigset_t before_{};
};

}  // namespace larder::cli
