#include "base/machine_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_directory.h"

namespace larder {
namespace {

class CgroupMemory : public ::testing::Test {
protected:
    void write(const std::string& path, const std::string& text) {
        std::filesystem::create_directories(std::filesystem::path(root / path).parent_path());
        std::ofstream(root / path) << text;
    }
    std::optional<std::uint64_t> limit(const std::string& groups) {
        return cgroup_memory_limit(groups, root.path().string());
    }

    test::TempDirectory root;
};

TEST_F(CgroupMemory, MissingOrMaxLimitGivesNone) {
    EXPECT_FALSE(limit("0::/\n"));
    write("memory.max", "max\n");
    EXPECT_FALSE(limit("0::/\n"));
    EXPECT_FALSE(limit(""));
    EXPECT_FALSE(limit("garbage\n12\n:\n"));
}

TEST_F(CgroupMemory, SmallestLimitUpTheHierarchyCounts) {
    write("jobs.slice/memory.max", "2000000\n");
    write("jobs.slice/job7/memory.max", "max\n");
    EXPECT_EQ(limit("0::/jobs.slice/job7\n"), 2000000u);
    write("jobs.slice/job7/memory.max", "1000000\n");
    EXPECT_EQ(limit("0::/jobs.slice/job7\n"), 1000000u);
}

TEST_F(CgroupMemory, ContainerLimitIsReadAtTheMountRoot) {
    write("memory.max", "3000000\n");
    EXPECT_EQ(limit("0::/../../outside/of/it\n"), 3000000u);
}

TEST_F(CgroupMemory, VersionOneUsesItsMemoryHierarchy) {
    write("memory/job/memory.limit_in_bytes", "4000000\n");
    EXPECT_EQ(limit("9:cpu,cpuacct:/job\n4:memory:/job\n0::/\n"), 4000000u);
    EXPECT_FALSE(limit("9:cpu:/job\n"));
}

TEST(MachineMemory, DescriptionNamesMachineOrControlGroup) {
    const MachineMemory memory = machine_memory();
    EXPECT_GT(memory.bytes, std::uint64_t{1} << 26);
    EXPECT_NE(describe({.bytes = std::uint64_t{24} << 30}).find("this machine has 24.00 GiB"), std::string::npos);
    EXPECT_NE(describe({.bytes = 8, .limited_by_cgroup = true}).find("control group"), std::string::npos);
}

}  // namespace
}  // namespace larder
