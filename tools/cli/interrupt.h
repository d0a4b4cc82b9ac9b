#pragma once

// Ctrl-C, and on request the key q, as an event to wait for. While an InterruptWatch lives, SIGINT and SIGTERM only
// wake `pressed_within`, on whichever thread the kernel delivers them (libraries start threads of their own). Its
// destructor restores the earlier handling. Only one may exist at a time.

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

    // Waits for `wait_ms`, or until Ctrl-C or q: then returns true, and in every later call. Any thread; with Keys::q
    // only one thread at a time.
    bool pressed_within(std::int64_t wait_ms) const;

private:
    bool q_was_pressed() const;

    FileDescriptor event_;
    mutable std::optional<KeyWatch> keys_;
    struct sigaction interrupt_before_{};
    struct sigaction terminate_before_{};
};

}  // namespace larder::cli
