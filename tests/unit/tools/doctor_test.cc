// The checks of `larder doctor` that read what the kernel prints.

#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "tools/doctor/file_system.h"
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

constexpr const char* kMountinfo =
    "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
    "40 22 0:41 / /data rw,relatime shared:7 master:2 - nfs4 store:/exports/data rw,vers=4.2\n"
    "41 22 0:42 / /w\\040x rw - cifs //server/share rw\n"
    "42 22 0:43 / /far rw,nosuid - fuse.sshfs ada@far:/home rw,user_id=1000\n"
    "43 22 0:44 / /scratch rw - xfs /dev/nvme0n1 rw\n";

TEST(FileSystem, IsFoundByTheNumberOfItsMount) {
    EXPECT_EQ(find_file_system(kMountinfo, 22).type, "ext4");
    EXPECT_EQ(find_file_system(kMountinfo, 40).type, "nfs4");
    EXPECT_EQ(find_file_system(kMountinfo, 40).source, "store:/exports/data");
    EXPECT_EQ(find_file_system(kMountinfo, 41).type, "cifs");
    EXPECT_EQ(find_file_system(kMountinfo, 4).type, "");
    EXPECT_EQ(find_file_system("40\n", 40).type, "");
}

TEST(FileSystem, OfAnotherMachineOrAProgramIsNoDisk) {
    for (const std::uint64_t id : {40U, 41U, 42U}) {
        const FileSystem file_system = find_file_system(kMountinfo, id);
        const FileSystemAdvice advice = advice_on(file_system);
        EXPECT_TRUE(advice.is_no_disk) << file_system.type;
        EXPECT_TRUE(advice.found.contains(file_system.type + " (" + file_system.source + ")")) << advice.found;
        EXPECT_TRUE(advice.advice.contains("--state")) << advice.advice;
    }
}

TEST(FileSystem, OfALocalDiskOrNotKnownHasNothingWrong) {
    for (const std::uint64_t id : {22U, 43U, 4U}) {
        const FileSystemAdvice advice = advice_on(find_file_system(kMountinfo, id));
        EXPECT_FALSE(advice.is_no_disk) << id;
        EXPECT_EQ(advice.found + advice.advice, "") << id;
    }
}

}  // namespace
}  // namespace larder::doctor
