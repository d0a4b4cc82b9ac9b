#pragma once

// The Device on a small pool of threads that make ordinary system calls. It serves hosts that refuse io_uring, and
// shows that the Device interface does not depend on io_uring. Completions are handed over under a lock and run inside
// `wait`, on the thread that owns the device, which also polls watches. The device aims at correctness and is slower
// than the ring.

#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "cache/device.h"

namespace larder::cache {

struct ThreadOptions {
    unsigned threads = 8;  // number of operations that can run at once
};

Result<std::unique_ptr<Device>> make_thread_device(const Clock& clock, const ThreadOptions& options = {});

}  // namespace larder::cache
