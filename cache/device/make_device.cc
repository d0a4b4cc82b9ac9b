#include <cerrno>

#include "base/file.h"
#include "cache/device/ring_device.h"
#include "cache/device/thread_device.h"

namespace larder::cache {

namespace {

// Explains to the user why the kernel refused a ring, and how to allow one.
std::string explain(const Error& error) {
    switch (error.system_errno) {
        case EPERM: {
            const auto sysctl = read_file("/proc/sys/kernel/io_uring_disabled");
            if (sysctl && sysctl->starts_with('2'))
                return "io_uring is switched off for everyone on this host (kernel.io_uring_disabled = 2). "
                       "Allow it with: sysctl kernel.io_uring_disabled=0";
            if (sysctl && sysctl->starts_with('1'))
                return "io_uring is allowed to one group only on this host (kernel.io_uring_disabled = 1). "
                       "Run the daemon in the group of kernel.io_uring_group, or: sysctl kernel.io_uring_disabled=0";
            return "io_uring_setup is denied by a seccomp profile or a security module. Run the daemon under a profile "
                   "that allows io_uring_setup, io_uring_enter and io_uring_register (Docker and Podman: "
                   "--security-opt seccomp=PROFILE.json), or outside the container.";
        }
        case EACCES:
            return "io_uring_setup is denied by a security module. Allow io_uring to the daemon in its policy.";
        case ENOSYS:
            return "this kernel has no io_uring, or a seccomp profile hides it. Use a kernel built with "
                   "CONFIG_IO_URING, or a profile that allows io_uring_setup.";
        case ENOMEM:
            return "the kernel has no memory left for an io_uring within the limits of this process. Raise "
                   "RLIMIT_MEMLOCK (systemd: LimitMEMLOCK=) or the memory limit of its control group.";
        case EMFILE:
        case ENFILE: return "no file descriptor is left for an io_uring. Raise RLIMIT_NOFILE (systemd: LimitNOFILE=).";
        default: return error.message + ". Use Linux 5.11 or newer for io_uring.";
    }
}

}  // namespace

Result<MadeDevice> make_device(DeviceKind kind, const Clock& clock) {
    std::string why_not_ring;
    if (kind != DeviceKind::threads) {
        auto ring = make_ring_device(clock);
        if (ring) return MadeDevice{std::move(*ring), {}};
        why_not_ring = explain(ring.error());
        if (kind == DeviceKind::ring)
            return std::unexpected(Error{ring.error().code, std::move(why_not_ring), ring.error().system_errno});
    }
    auto threads = make_thread_device(clock);
    if (!threads) return std::unexpected(threads.error());
    return MadeDevice{std::move(*threads), std::move(why_not_ring)};
}

}  // namespace larder::cache
