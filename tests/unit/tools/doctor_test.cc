// The checks of `larder doctor` that read what the kernel prints.

#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "tools/doctor/machine.h"

namespace larder::doctor {
namespace {

TEST(LockedMemoryLimit, IsTheSoftLimitOfTheProcess) {
    constexpr const char* kLimits =
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max processes             95886                95886                processes \n"
        "Max locked memory         8388608              16777216             bytes     \n";
    EXPECT_EQ(locked_memory_limit(kLimits), 8u << 20);
    EXPECT_EQ(locked_memory_limit("Max locked memory         unlimited            unlimited            bytes\n"),
              std::numeric_limits<std::uint64_t>::max());
    EXPECT_EQ(locked_memory_limit("Max processes 1 1 processes\n"), std::nullopt);
    EXPECT_EQ(locked_memory_limit("Max locked memory"), std::nullopt);
}

}  // namespace
}  // namespace larder::doctor
