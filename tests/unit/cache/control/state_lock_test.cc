#include "cache/control/state_lock.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

TEST(StateDirectory, KeepsItsNumber) {
    const test::TempDirectory one, other;
    const auto number = load_or_create_directory_number(one.path());
    ASSERT_TRUE(number.has_value()) << number.error().message;
    EXPECT_NE(*number, 0u);
    EXPECT_EQ(load_or_create_directory_number(one.path()).value(), *number);
    EXPECT_NE(load_or_create_directory_number(other.path()).value(), *number);
}

TEST(StateDirectory, DamagedNumberIsReplaced) {
    const test::TempDirectory directory;
    std::ofstream(directory / "number") << "no number";
    const auto number = load_or_create_directory_number(directory.path());
    ASSERT_TRUE(number.has_value());
    EXPECT_EQ(load_or_create_directory_number(directory.path()).value(), *number);
}

// A user who can open the file can lock it, and the next daemon then does not start.
TEST(StateDirectory, OnlyTheDaemonsUserCanOpenItsLock) {
    const test::TempDirectory directory;
    const auto mode = [&] { return std::filesystem::status(directory / "larderd.lock").permissions(); };
    const auto owner_only = std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;
    ASSERT_TRUE(lock_state_directory(directory.path()).has_value());
    EXPECT_EQ(mode(), owner_only);
    std::filesystem::permissions(directory / "larderd.lock", std::filesystem::perms(0644));
    ASSERT_TRUE(lock_state_directory(directory.path()).has_value());
    EXPECT_EQ(mode(), owner_only);
}

TEST(StateDirectory, ErrorNamesTheFile) {
    const auto number = load_or_create_directory_number("/nowhere/at/all");
    ASSERT_FALSE(number.has_value());
    EXPECT_NE(number.error().message.find("/nowhere/at/all/number"), std::string::npos) << number.error().message;
}

}  // namespace
}  // namespace larder::cache
