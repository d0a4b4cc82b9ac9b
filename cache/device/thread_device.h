#pragma once

// The Device on a small pool of threads that make ordinary system calls: for hosts that refuse io_uring, and to keep
// the seam honest. Completions are handed over under a lock and run inside `wait`, on the thread that owns the device;
// watches are polled there too. Slower than the ring, for correctness.

#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "cache/device.h"

namespace larder::cache {

struct ThreadOptions {
    unsigned threads = 8;  // operations that can run at once
};

Result<std::unique_ptr<Device>> make_thread_device(const Clock& clock, const ThreadOptions& options = {});

}  // namespace larder::cache
