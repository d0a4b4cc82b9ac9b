#pragma once

// Ctrl-C, and on request the key q, as an event to wait for. While an InterruptWatch lives, SIGINT and SIGTERM do
// nothing but wake `pressed_within`, whichever thread the kernel gives them to (libraries start threads of their own);
// at its end they do again what they did before. One at a time.

#include <csignal>
#include <cstdint>
#include <optional>

#include "base/file.h"
#include "tools/cli/terminal.h"

namespace larder::cli {

class InterruptWatch {
public:
    enum class Keys : std::uint8_t { none, q };

    explicit InterruptWatch(Keys keys = Keys::none);
    ~InterruptWatch();
    InterruptWatch(const InterruptWatch&) = delete;
    InterruptWatch& operator=(const InterruptWatch&) = delete;

    // Waits so long, or until Ctrl-C or q: then true, from then on. Any thread; with q one at a time.
    bool pressed_within(std::int64_t wait_ms) const;

private:
    bool q_was_pressed() const;

    FileDescriptor event_;
    mutable std::optional<KeyWatch> keys_;
    struct sigaction interrupt_before_{};
    struct sigaction terminate_before_{};
};

}  // namespace larder::cli
