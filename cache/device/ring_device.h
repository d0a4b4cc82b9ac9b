#pragma once

// The Device on io_uring: one ring, made on the thread that uses it, no lock and no allocation per operation. Starting
// an operation fills a submission entry; `wait` submits them all, and waits, in one system call. What the kernel can
// do is probed, never guessed from its version. Memory given to add_buffer is registered with the kernel, and reads
// and writes that lie in it use the registered form by themselves.

#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "cache/device.h"

namespace larder::cache {

struct RingOptions {
    unsigned entries = 1024;      // of the submission queue; more operations than that queue up in user memory
    bool defer_task_work = true;  // false: as on kernels before 6.1, which cannot
};

// The error's system_errno is io_uring_setup's (EPERM, ENOSYS, ENOMEM, ...), or 0 when an operation is missing.
Result<std::unique_ptr<Device>> make_ring_device(const Clock& clock, const RingOptions& options = {});

}  // namespace larder::cache
