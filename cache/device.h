#pragma once

// The only door to disks, files and file descriptors that become ready. A Device belongs to one thread: operations are
// started on it and their completions run on it, inside `wait`. The caller owns the Operation and the memory it names
// until `done` has run. Nothing here blocks except `wait`, and nothing allocates per operation once warm.
//
// Implementations: io_uring (cache/device/ring_device.h), a thread pool for hosts that refuse io_uring
// (cache/device/thread_device.h), and a deterministic one for tests (tests/support/fake_device.h). All pass
// tests/unit/cache/device/device_contract_test.cc.
//
// Shutting down: call `stop` (the destructor does too), then Operations and their memory may go in any order.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/error.h"

struct statx;

namespace larder::cache {

// One asynchronous operation. Embed it in the structure that describes the work and recover that structure in `done`.
// `result` is as the system call's: a count or fd, or -errno. Completion is never delivered from inside a start call.
struct Operation {
    void (*done)(Operation& operation, std::int32_t result) noexcept = nullptr;
    void* device_state = nullptr;  // the device's own while the operation runs
};

class Device {
public:
    virtual ~Device() = default;

    // The path must stay valid until completion. O_CLOEXEC is added. -ESPIPE: it is a FIFO or a terminal, which would
    // be waited for. Whoever may write a dataset's directory can put one in a file's place.
    virtual void open(const char* path, int flags, unsigned mode, Operation& operation) = 0;
    // Size, mtime, type and direct-I/O alignment of an open file.
    virtual void stat(int fd, struct statx& into, Operation& operation) = 0;
    // May complete short, as pread and pwrite may.
    virtual void read(int fd, std::span<std::byte> into, std::uint64_t offset, Operation& operation) = 0;
    virtual void write(int fd, std::span<const std::byte> from, std::uint64_t offset, Operation& operation) = 0;
    // Reserves [0, bytes) of a file, as fallocate does.
    virtual void allocate(int fd, std::uint64_t bytes, Operation& operation) = 0;
    virtual void unlink(const char* path, Operation& operation) = 0;
    // Closes without a completion.
    virtual void close(int fd) = 0;

    // Completes once when fd is readable (or hung up); start it again to watch on. Result >= 0, or -errno.
    virtual void watch(int fd, Operation& operation) = 0;
    // Ends a running operation early: it completes with -ECANCELED (or its own result, if that came first).
    virtual void cancel(Operation& operation) = 0;

    // Tells the device that much I/O will go to and from this memory (page-aligned, already populated), so that it may
    // register it with the kernel. Best effort: false when it was refused, which costs speed only.
    virtual bool add_buffer(std::span<std::byte> memory) = 0;
    // Must be called before the memory goes away, when add_buffer gave true.
    virtual void remove_buffer(std::span<std::byte> memory) = 0;

    // Submits what was started, waits for at least one completion or until `deadline_ns` of the device's clock
    // (a past deadline: does not wait), and runs `done` of all that have completed. May return early, as when a signal
    // comes. At most one system call when there is something to submit or to wait for; none when there is neither.
    virtual void wait(std::int64_t deadline_ns) = 0;

    // Ends all that runs and waits for it, without running `done`; afterwards only `close`, `remove_buffer` and
    // `cancel` (of what is gone: nothing) may be called. Cancels what can be cancelled; a disk that does not answer for
    // several seconds is left behind.
    virtual void stop() = 0;

    // "io_uring", "threads", "fake".
    virtual const char* kind() const = 0;
};

enum class DeviceKind : std::uint8_t { automatic, ring, threads };

// Makes the device on the thread that will use it. `automatic` takes io_uring and, where the kernel or a seccomp
// profile refuses it, the thread pool, with `why_not_ring` saying why and how to allow it (empty otherwise).
struct MadeDevice {
    std::unique_ptr<Device> device;
    std::string why_not_ring;
};
Result<MadeDevice> make_device(DeviceKind kind, const Clock& clock);

}  // namespace larder::cache
