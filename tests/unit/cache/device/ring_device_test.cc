// The ring when the kernel refuses submissions or memory. Each case is a child process with a seccomp filter or a limit
// that cannot be lifted again.

#include "cache/device/ring_device.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <liburing.h>
#include <seccomp.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace larder::cache {
namespace {

constexpr std::int64_t kNever_ns = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kBytes = 512;

// Ends the child and prints the line whose condition did not hold.
void require(bool holds, int line) {
    if (!holds) {
        std::fprintf(stderr, "line %d\n", line);
        std::_Exit(1);
    }
}
#define REQUIRE(condition) require(condition, __LINE__)

struct RingOperation : Operation {
    RingOperation() {
        done = [](Operation& operation, std::int32_t given) noexcept {
            auto& self = static_cast<RingOperation&>(operation);
            self.result = given;
            ++self.completions;
        };
    }
    std::int32_t result = 0;
    int completions = 0;
};

// Makes io_uring_enter return EAGAIN if it only submits, as a kernel short of memory does. A call that waits works.
bool refuse_plain_submission() {
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    const bool loaded = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EAGAIN), seccomp_syscall_resolve_name("io_uring_enter"),
                                         1, SCMP_CMP(3, SCMP_CMP_MASKED_EQ, IORING_ENTER_GETEVENTS, 0)) == 0 &&
                        seccomp_load(filter) == 0;
    seccomp_release(filter);
    return loaded;
}

void overflow_the_queue() {
    const SteadyClock clock;
    auto made = make_ring_device(clock, {.entries = 4});
    REQUIRE(made.has_value());
    Device& device = **made;
    REQUIRE(refuse_plain_submission());

    const int file = ::memfd_create("file", 0), event = ::eventfd(0, 0);
    constexpr std::size_t kCount = 300;
    std::vector<std::byte> out(kCount * kBytes), in(kCount * kBytes);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i / kBytes * 7 + i);
    std::vector<RingOperation> writes(kCount), reads(kCount), watches(20);
    const auto finish = [&](const std::vector<RingOperation>& operations) {
        for (const RingOperation& operation : operations) {
            while (operation.completions == 0) device.wait(kNever_ns);
            REQUIRE(operation.completions == 1);
        }
    };
    for (std::size_t i = 0; i < kCount; ++i)
        device.write(file, std::span(out).subspan(i * kBytes, kBytes), i * kBytes, writes[i]);
    finish(writes);
    for (std::size_t i = 0; i < kCount; ++i)
        device.read(file, std::span(in).subspan(i * kBytes, kBytes), i * kBytes, reads[i]);
    for (RingOperation& watch : watches) device.watch(event, watch);
    for (RingOperation& watch : watches) device.cancel(watch);  // queued as well, behind its watch
    finish(reads);
    finish(watches);
    REQUIRE(in == out);
    for (const RingOperation& watch : watches) REQUIRE(watch.result == -ECANCELED);

    std::vector<RingOperation> unfinished(100);
    for (RingOperation& watch : unfinished) device.watch(event, watch);
    for (int i = 0; i < 10; ++i) device.close(::dup(event));
    device.stop();
    const int next = ::dup(event);
    REQUIRE(next == event + 1);  // all ten copies were closed
    std::_Exit(0);
}

// Runs as an ordinary user with a small RLIMIT_MEMLOCK, which since Linux 6.14 also counts the ring's own memory.
void read_without_registration() {
    const rlimit little{.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
    REQUIRE(::setrlimit(RLIMIT_MEMLOCK, &little) == 0);
    if (::geteuid() == 0) REQUIRE(::setuid(65534) == 0);
    const SteadyClock clock;
    auto made = make_ring_device(clock);
    REQUIRE(made.has_value());
    Device& device = **made;
    constexpr std::size_t kMemory = 1 << 20;
    void* mapped = ::mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    const std::span memory(static_cast<std::byte*>(mapped), kMemory);
    REQUIRE(!device.add_buffer(memory));
    const int file = ::memfd_create("file", 0);
    REQUIRE(::pwrite(file, "larder", 6, 0) == 6);
    RingOperation read;
    device.read(file, memory, 0, read);
    while (read.completions == 0) device.wait(kNever_ns);
    REQUIRE(read.result == 6 && std::memcmp(memory.data(), "larder", 6) == 0);
    std::_Exit(0);
}

class RingDeviceTest : public testing::Test {
protected:
    RingDeviceTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(RingDeviceTest, OperationsStayInOrderWhenSubmissionIsRefused) {
    EXPECT_EXIT(overflow_the_queue(), testing::ExitedWithCode(0), "");
}

TEST_F(RingDeviceTest, WorksUnregisteredWhenTheMemlockLimitIsTooLow) {
    EXPECT_EXIT(read_without_registration(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace larder::cache
