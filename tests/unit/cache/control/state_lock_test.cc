#include "cache/control/state_lock.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

TEST(StateDirectory, KeepsItsNumber) {
    const test::TempDirectory one, other;
    const auto number = number_of_state_directory(one.path());
    ASSERT_TRUE(number.has_value()) << number.error().message;
    EXPECT_NE(*number, 0u);
    EXPECT_EQ(number_of_state_directory(one.path()).value(), *number);
    EXPECT_NE(number_of_state_directory(other.path()).value(), *number);
}

TEST(StateDirectory, DamagedNumberIsReplaced) {
    const test::TempDirectory directory;
    std::ofstream(directory / "number") << "no number";
    const auto number = number_of_state_directory(directory.path());
    ASSERT_TRUE(number.has_value());
    EXPECT_EQ(number_of_state_directory(directory.path()).value(), *number);
}

TEST(StateDirectory, ErrorNamesTheFile) {
    const auto number = number_of_state_directory("/nowhere/at/all");
    ASSERT_FALSE(number.has_value());
    EXPECT_NE(number.error().message.find("/nowhere/at/all/number"), std::string::npos) << number.error().message;
}

}  // namespace
}  // namespace larder::cache
