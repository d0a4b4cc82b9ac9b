#include "base/file_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/temp_directory.h"

namespace larder {
namespace {

TEST(FileLock, ExcludesOthersUntilItsDescriptorCloses) {
    const test::TempDirectory directory;
    const std::string path = directory / "lock";
    {
        const auto first = lock_file(path, 0600);
        ASSERT_TRUE(first) << first.error().message;
        const auto second = lock_file(path, 0600);
        ASSERT_FALSE(second);
        EXPECT_EQ(second.error().code, ErrorCode::already_exists);
        EXPECT_THAT(second.error().message, ::testing::HasSubstr("by process " + std::to_string(::getpid())));
    }
    EXPECT_TRUE(lock_file(path, 0600));
}

// A killed process may leave behind a child, just being started, that holds the lock for a moment longer.
TEST(FileLock, IsWaitedForWhenItsOwnerIsDead) {
    const test::TempDirectory directory;
    const std::string path = directory / "lock";
    auto held = lock_file(path, 0600);
    ASSERT_TRUE(held);
    const pid_t dead_process = ::fork();
    if (dead_process == 0) ::_exit(0);
    ASSERT_EQ(::waitpid(dead_process, nullptr, 0), dead_process);
    std::ofstream(path) << dead_process << "\n";
    std::jthread child([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        *held = FileDescriptor();
    });
    EXPECT_TRUE(lock_file(path, 0600));
}

TEST(FileLock, UncreatableLockFileIsAnError) {
    const auto nowhere = lock_file("/nowhere/at-all/lock", 0600);
    ASSERT_FALSE(nowhere);
    EXPECT_NE(nowhere.error().code, ErrorCode::already_exists);
}

}  // namespace
}  // namespace larder
