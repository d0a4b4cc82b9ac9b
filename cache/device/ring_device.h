#pragma once

// The Device on io_uring: one ring, made on the thread that uses the device; no lock and no allocation per operation.
// Starting an operation fills a submission entry; `wait` submits all entries and waits, in one system call. The device
// probes what the kernel supports, and never guesses from its version. Memory given to add_buffer is registered with
// the kernel, and reads and writes inside that memory use the registered form.

#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "cache/device.h"

namespace larder::cache {

struct RingOptions {
    unsigned entries = 1024;      // size of the submission queue; further operations wait in user memory
    bool defer_task_work = true;  // false: like kernels before 6.1, which do not support it
};

// The error's system_errno is that of io_uring_setup (EPERM, ENOSYS, ENOMEM, ...), or 0 if the kernel lacks an
// operation.
Result<std::unique_ptr<Device>> make_ring_device(const Clock& clock, const RingOptions& options = {});

}  // namespace larder::cache
