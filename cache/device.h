#pragma once

// All access to disks and files, and all waiting for file descriptors, goes through a Device. A Device belongs to one
// thread: operations are started on it and their completions run on it, inside `wait`. The caller owns the Operation
// and the memory it names until `done` has run. Nothing here blocks except `wait`, and nothing allocates per operation
// once warm.
//
// Implementations: io_uring (cache/device/ring_device.h), a thread pool for hosts that refuse io_uring
// (cache/device/thread_device.h), and a deterministic one for tests (tests/support/fake_device.h). All pass
// tests/unit/cache/device/device_contract_test.cc.
//
// To shut down, call `stop` (the destructor does too). Operations and their memory may then be freed in any order.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/open_beneath.h"

struct statx;

namespace larder::cache {

// One asynchronous operation. Embed it in the structure that describes the work and recover that structure in `done`.
// `result` is the system call's: a count, an fd, or -errno. Completion is never delivered from inside a start call.
struct Operation {
    void (*done)(Operation& operation, std::int32_t result) noexcept = nullptr;
    void* device_state = nullptr;  // used by the device while the operation runs
};

class Device {
public:
    virtual ~Device() = default;

    // The path must stay valid until completion. O_CLOEXEC is added. Fails with -ESPIPE on a FIFO or a terminal, which
    // could block: whoever may write a dataset's directory can replace a file by one.
    virtual void open(const char* path, int flags, unsigned mode, Operation& operation) = 0;
    // Opens a file or directory whose path other users can change (base/open_beneath.h). The path, relative to
    // `directory`, must stay valid until completion. Otherwise as `open`; O_PATH is allowed.
    virtual void open_at(int directory, const char* path, LinkRule rule, int flags, Operation& operation) = 0;
    // Size, mtime, type and direct-I/O alignment of an open file.
    virtual void stat(int fd, struct statx& status, Operation& operation) = 0;
    // `read` and `write` may complete short, as pread and pwrite may.
    virtual void read(int fd, std::span<std::byte> target, std::uint64_t offset, Operation& operation) = 0;
    virtual void write(int fd, std::span<const std::byte> source, std::uint64_t offset, Operation& operation) = 0;
    // Reserves [0, bytes) of a file, as fallocate does.
    virtual void allocate(int fd, std::uint64_t bytes, Operation& operation) = 0;
    virtual void unlink(const char* path, Operation& operation) = 0;
    // Closes without a completion.
    virtual void close(int fd) = 0;

    // Completes once, when fd is readable or hung up; call it again to keep watching. Result >= 0, or -errno.
    virtual void watch(int fd, Operation& operation) = 0;
    // Ends a running operation early. The operation completes with -ECANCELED, or with its own result if that came
    // first.
    virtual void cancel(Operation& operation) = 0;

    // Announces frequent I/O to and from this memory (page-aligned, already populated), so that the device may register
    // the memory with the kernel. Best effort: false means refused, which costs only speed.
    virtual bool add_buffer(std::span<std::byte> memory) = 0;
    // If add_buffer returned true, call remove_buffer before the memory is freed.
    virtual void remove_buffer(std::span<std::byte> memory) = 0;

    // Operations that block, on a disk or a network, hold a worker each. Whoever starts many gets workers of its own
    // for them, so that it takes none from others when they hang. Best effort. After `stop` both do nothing.
    virtual void add_workers(unsigned count) = 0;
    virtual void remove_workers(unsigned count) = 0;

    // Submits the started operations, waits for at least one completion or until `deadline_ns` of the device's clock (a
    // past deadline: does not wait), and runs `done` of every completed operation. May return early, for example on a
    // signal. Makes at most one system call, and none if there is nothing to submit or to wait for.
    virtual void wait(std::int64_t deadline_ns) = 0;

    // Ends all running operations and waits for them, without running `done`. Afterwards only `close`, `remove_buffer`
    // and `cancel` (which then does nothing) may be called. Cancels the operations that can be cancelled, and abandons
    // those of a disk that does not answer for several seconds. Returns false if there were any: if the disk answers
    // after all, they may still write to their memory; and the kernel may keep the device's thread from ending.
    virtual bool stop() = 0;

    // "io_uring", "threads", "fake".
    virtual const char* kind() const = 0;
};

// The time that `stop` waits for a disk.
inline constexpr std::int64_t kDeviceStopTimeout_ns = 5'000'000'000;

enum class DeviceKind : std::uint8_t { automatic, ring, threads };

// Call make_device on the thread that will use the device. `automatic` takes io_uring. If the kernel or a seccomp
// profile refuses io_uring, it takes the thread pool, and `why_not_ring` says why and how to allow io_uring (else
// empty).
struct MadeDevice {
    std::unique_ptr<Device> device;
    std::string why_not_ring;
};
Result<MadeDevice> make_device(DeviceKind kind, const Clock& clock);

}  // namespace larder::cache
