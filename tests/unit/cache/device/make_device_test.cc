// The choice between io_uring and threads. A seccomp filter in a child process really refuses io_uring.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <seccomp.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cache/device.h"

namespace larder::cache {
namespace {

// Makes io_uring_setup fail with `with_errno` in this process, for good.
bool deny_io_uring(int with_errno) {
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (filter == nullptr) return false;
    const int number = seccomp_syscall_resolve_name("io_uring_setup");
    const bool loaded = number != __NR_SCMP_ERROR &&
                        seccomp_rule_add(filter, SCMP_ACT_ERRNO(static_cast<unsigned>(with_errno)), number, 0) == 0 &&
                        seccomp_load(filter) == 0;
    seccomp_release(filter);
    return loaded;
}

// Runs in a child: prints make_device's reason and exits with 0 if every check held.
void report_refusal(int with_errno) {
    if (!deny_io_uring(with_errno)) std::exit(2);
    const SteadyClock clock;
    auto automatic = make_device(DeviceKind::automatic, clock);
    if (!automatic || std::string(automatic->device->kind()) != "threads") std::exit(3);
    const auto ring = make_device(DeviceKind::ring, clock);
    if (ring || ring.error().system_errno != with_errno || ring.error().message != automatic->why_not_ring)
        std::exit(4);
    std::fprintf(stderr, "%s\n", automatic->why_not_ring.c_str());
    std::exit(0);
}

class RefusalTest : public testing::Test {
protected:
    // The child is a fresh process, so a sanitizer's threads cause no trouble.
    RefusalTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(RefusalTest, SeccompRefusalFallsBackToThreadsAndNamesTheRemedy) {
    EXPECT_EXIT(report_refusal(EPERM), testing::ExitedWithCode(0),
                testing::AllOf(testing::HasSubstr("seccomp"), testing::HasSubstr("io_uring_enter"),
                               testing::HasSubstr("--security-opt")));
}

TEST_F(RefusalTest, MissingSystemCallFallsBackToThreadsAndNamesTheRemedy) {
    EXPECT_EXIT(report_refusal(ENOSYS), testing::ExitedWithCode(0), testing::HasSubstr("CONFIG_IO_URING"));
}

TEST_F(RefusalTest, LackOfMemoryFallsBackToThreadsAndNamesTheRemedy) {
    EXPECT_EXIT(report_refusal(ENOMEM), testing::ExitedWithCode(0), testing::HasSubstr("RLIMIT_MEMLOCK"));
}

TEST(MakeDevice, UsesThreadsWhenRequested) {
    const SteadyClock clock;
    const auto made = make_device(DeviceKind::threads, clock);
    ASSERT_TRUE(made);
    EXPECT_STREQ(made->device->kind(), "threads");
    EXPECT_EQ(made->why_not_ring, "");
}

TEST(MakeDevice, AutomaticGivesAReasonExactlyWhenItUsesThreads) {
    const SteadyClock clock;
    const auto made = make_device(DeviceKind::automatic, clock);
    ASSERT_TRUE(made);
    EXPECT_EQ(std::string(made->device->kind()) == "threads", !made->why_not_ring.empty());
}

}  // namespace
}  // namespace larder::cache
