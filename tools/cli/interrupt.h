#pragma once

// Ctrl-C, and on request typed keys, as an event to wait for. While an InterruptWatch lives, SIGINT and SIGTERM only
// wake `pressed_within`, on whichever thread the kernel delivers them (libraries start threads of their own). Its
// destructor restores the earlier handling. Only one may exist at a time.

#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "base/file.h"
#include "tools/cli/terminal.h"

namespace larder::cli {

class InterruptWatch {
public:
    // Gets typed keys, on the thread in `pressed_within`. Returns true if they mean the same as Ctrl-C.
    using OnKeys = std::function<bool(std::string_view keys)>;

    // Without `on_keys`, keys are left alone.
    explicit InterruptWatch(OnKeys on_keys = {});
    ~InterruptWatch();
    InterruptWatch(const InterruptWatch&) = delete;
    InterruptWatch& operator=(const InterruptWatch&) = delete;

    // Waits for `wait_ms`, or until Ctrl-C: then returns true, and in every later call. Any thread; with keys only one
    // thread at a time.
    bool pressed_within(std::int64_t wait_ms) const;

private:
    bool take_keys() const;

    FileDescriptor event_;
    mutable std::optional<KeyWatch> keys_;
    OnKeys on_keys_;
    struct sigaction interrupt_before_{};
    struct sigaction terminate_before_{};
};

}  // namespace larder::cli
