#pragma once

// Ctrl-C as an event to wait for. While an InterruptWatch lives, SIGINT and SIGTERM do nothing but wake
// `pressed_within`, whichever thread the kernel gives them to (libraries start threads of their own); at its end they
// do again what they did before. One at a time.

#include <csignal>
#include <cstdint>

#include "base/file.h"

namespace larder::cli {

class InterruptWatch {
public:
    InterruptWatch();
    ~InterruptWatch();
    InterruptWatch(const InterruptWatch&) = delete;
    InterruptWatch& operator=(const InterruptWatch&) = delete;

    // Waits so long, or until Ctrl-C: then true. Any thread.
    bool pressed_within(std::int64_t wait_ms) const;

private:
    FileDescriptor event_;
    struct sigaction interrupt_before_{};
    struct sigaction terminate_before_{};
};

}  // namespace larder::cli
