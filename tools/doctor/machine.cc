#include "tools/doctor/machine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <limits>

#include "base/clock.h"
#include "base/file.h"
#include "base/huge_pages.h"
#include "base/machine_memory.h"
#include "base/units.h"
#include "cache/device.h"

namespace larder::doctor {
namespace {

using cache::Device;
using cache::DeviceKind;
using cache::Operation;

constexpr std::int64_t kProbeTimeout_ns = 5'000'000'000;
// A loader's session has at least this much memory by default.
constexpr std::size_t kSessionBytes = std::size_t{256} << 20;
// The probe takes no more than this part of the machine's memory.
constexpr std::uint64_t kMachineDivisor = 8;

struct AwaitedOperation : Operation {
    AwaitedOperation() {
        done = [](Operation& operation, std::int32_t ended) noexcept {
            static_cast<AwaitedOperation&>(operation).result = ended;
        };
    }
    std::optional<std::int32_t> result;
};

// Returns an error if the operation has not ended within the time limit.
Result<std::int32_t> wait_for(Device& device, const AwaitedOperation& operation, const char* what) {
    const SteadyClock clock;
    const std::int64_t deadline_ns = clock.now_ns() + kProbeTimeout_ns;
    while (!operation.result) {
        if (clock.now_ns() >= deadline_ns) return fail(ErrorCode::timeout, std::string(what) + " did not end");
        device.wait(deadline_ns);
    }
    if (*operation.result < 0) return fail_errno(-*operation.result, what);
    return *operation.result;
}

Result<void> read_through(Device& device) {
    const auto file = open_file("/proc/self/exe", O_RDONLY);
    if (!file) return std::unexpected(file.error());
    std::array<std::byte, 4096> bytes;
    AwaitedOperation operation;
    device.read(file->get(), bytes, 0, operation);
    const auto read = wait_for(device, operation, "a read through io_uring");
    if (!read) device.stop();
    return read ? Result<void>{} : std::unexpected(read.error());
}

// Returns whether a ring accepts `bytes` of registered memory.
Result<bool> registers(std::size_t bytes) {
    const SteadyClock clock;
    auto made = cache::make_device(DeviceKind::ring, clock);
    if (!made) return std::unexpected(made.error());
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) return fail_errno(errno, "map " + format_bytes(bytes));
    const std::span span(static_cast<std::byte*>(memory), bytes);
    const bool accepted = made->device->add_buffer(span);
    if (accepted) made->device->remove_buffer(span);
    made->device.reset();
    ::munmap(memory, bytes);
    return accepted;
}

// True if the process may lock memory beyond its limit: it has CAP_IPC_LOCK.
bool may_lock_any(const std::string& status) {
    constexpr std::string_view kField = "CapEff:\t";
    constexpr unsigned kCapIpcLock = 14;
    const std::size_t at = status.find(kField);
    if (at == std::string::npos) return false;
    std::uint64_t capabilities = 0;
    std::from_chars(status.data() + at + kField.size(), status.data() + status.size(), capabilities, 16);
    return (capabilities >> kCapIpcLock & 1) != 0;
}

std::string limit_text(std::uint64_t bytes) {
    return bytes == std::numeric_limits<std::uint64_t>::max() ? "no limit" : format_bytes(bytes);
}

}  // namespace

std::optional<std::uint64_t> locked_memory_limit(std::string_view limits) {
    constexpr std::string_view kName = "Max locked memory";
    std::size_t at = limits.find(kName);
    if (at == std::string_view::npos) return std::nullopt;
    at = limits.find_first_not_of(' ', at + kName.size());
    if (at == std::string_view::npos) return std::nullopt;
    if (limits.substr(at).starts_with("unlimited")) return std::numeric_limits<std::uint64_t>::max();
    std::uint64_t bytes = 0;
    const auto [end, error] = std::from_chars(limits.data() + at, limits.data() + limits.size(), bytes);
    return error == std::errc{} ? std::optional(bytes) : std::nullopt;
}

Finding check_kernel() {
    utsname names{};
    ::uname(&names);
    return {.check = "kernel",
            .subject = {},
            .found = std::string(names.sysname) + " " + names.release + " on " + names.machine +
                     "; the next lines say what works",
            .advice = {},
            .values = {{"release", names.release}, {"machine", names.machine}}};
}

Finding check_io_uring(std::string_view daemon_io, std::string_view daemon_reason) {
    Finding finding{.check = "io_uring", .subject = {}, .found = {}, .advice = {}};
    const SteadyClock clock;
    auto made = cache::make_device(DeviceKind::ring, clock);
    finding.values["works"] = false;
    if (!daemon_io.empty()) finding.values["daemon_io"] = daemon_io;
    if (!made) return to_do(finding, "the kernel refuses a ring to this process", made.error().message);
    if (const auto read = read_through(*made->device); !read) {
        return to_do(finding, read.error().message, "run larderd with io = \"threads\", and report the kernel's bug");
    }
    finding.values["works"] = true;
    if (!daemon_io.empty() && daemon_io != "io_uring") {
        return to_do(
            std::move(finding), "works here, but the daemon uses " + std::string(daemon_io),
            daemon_reason.empty() ? "take io = \"threads\" out of the daemon's config" : std::string(daemon_reason));
    }
    finding.found = "works";
    if (!daemon_io.empty()) finding.found += ", and the daemon uses it";
    return finding;
}

Finding check_memlock(int daemon_pid) {
    Finding finding{.check = "memlock", .subject = {}, .found = {}, .advice = {}};
    const std::string advice =
        "raise RLIMIT_MEMLOCK of the daemon to 256 MiB a session or more, best unlimited "
        "(systemd: LimitMEMLOCK=infinity; containers: --ulimit memlock=-1); "
        "reads are a little slower without";
    if (daemon_pid > 0) {
        const std::string process = "/proc/" + std::to_string(daemon_pid);
        const auto limits = read_file(process + "/limits");
        const auto status = read_file(process + "/status");
        const auto limit_bytes = limits ? locked_memory_limit(*limits) : std::nullopt;
        if (limit_bytes && status) {
            const bool any = may_lock_any(*status);
            finding.values["daemon_limit_bytes"] = any ? std::numeric_limits<std::uint64_t>::max() : *limit_bytes;
            finding.found = "the daemon may register " + (any ? "any amount (it has CAP_IPC_LOCK)"
                                                              : limit_text(*limit_bytes) + " of memory with io_uring");
            if (!any && *limit_bytes < kSessionBytes) return to_do(finding, finding.found, advice);
            return finding;
        }
    }
    const std::uint64_t wanted_bytes = std::min<std::uint64_t>(
        kSessionBytes, machine_memory().bytes / kMachineDivisor / kHugePageBytes * kHugePageBytes);
    const auto accepted = registers(wanted_bytes);
    finding.values["tried_bytes"] = wanted_bytes;
    finding.values["works"] = accepted && *accepted;
    if (!accepted) {
        finding.verdict = Verdict::not_checked;
        finding.found = accepted.error().message;
        return finding;
    }
    const std::string size = format_bytes(wanted_bytes);
    if (!*accepted) {
        const auto limits = read_file("/proc/self/limits");
        const auto limit_bytes = limits ? locked_memory_limit(*limits) : std::nullopt;
        return to_do(finding,
                     "io_uring may not register " + size + " of memory here" +
                         (limit_bytes ? "; the limit is " + limit_text(*limit_bytes) : ""),
                     advice);
    }
    finding.found = "io_uring may register " + size + " of memory here";
    return finding;
}

Finding check_huge_pages() {
    constexpr std::size_t kPages = 8;
    Finding finding{.check = "huge pages", .subject = {}, .found = {}, .advice = {}};
    const FileDescriptor memory(::memfd_create("larder-doctor", MFD_CLOEXEC));
    std::size_t backed = 0;
    if (memory && ::ftruncate(memory.get(), kPages * kHugePageBytes) == 0) {
        const auto mapping = Mapping::of(memory.get(), kPages * kHugePageBytes, Mapping::Access::read_write);
        for (std::size_t page = 0; mapping && page < kPages; ++page) {
            if (back_with_huge_page(mapping->data() + page * kHugePageBytes)) ++backed;
        }
    }
    finding.values = {{"tried", kPages}, {"backed", backed}};
    finding.found = "the kernel backs " + std::to_string(backed) + " of " + std::to_string(kPages) +
                    " pieces of shared memory with a huge page";
    if (backed == kPages) return finding;
    std::error_code error;
    if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage", error)) {
        return to_do(finding, finding.found,
                     "use a kernel built with CONFIG_TRANSPARENT_HUGEPAGE; reads from memory are slower without");
    }
    return to_do(finding, finding.found,
                 backed > 0
                     ? "memory is fragmented: as root, echo 1 > /proc/sys/vm/compact_memory, then restart larderd"
                     : "use a kernel with MADV_COLLAPSE for shared memory (Linux has it since 6.1); reads from "
                       "memory are slower without");
}

}  // namespace larder::doctor
