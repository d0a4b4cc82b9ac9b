#include "base/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

#include "base/file.h"

namespace larder {
namespace {

// KiB of shared memory this process has mapped with huge pages.
std::uint64_t huge_mapped_kib() {
    std::ifstream rollup("/proc/self/smaps_rollup");
    for (std::string line; std::getline(rollup, line);) {
        if (line.starts_with("ShmemPmdMapped:")) return std::stoull(line.substr(line.find(':') + 1));
    }
    return 0;
}

TEST(HugePages, BackingAMappingKeepsItsBytes) {
    constexpr std::size_t kBytes = 3 * kHugePageBytes;
    const FileDescriptor memory(::memfd_create("huge", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(memory.get(), kBytes), 0);
    const auto mapping = Mapping::of(memory.get(), kBytes, Mapping::Access::read_write);
    ASSERT_TRUE(mapping.has_value()) << mapping.error().message;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mapping->data()) % kHugePageBytes, 0u);
    std::byte* const middle = mapping->data() + kHugePageBytes;
    std::memset(middle + 12'345, 0x5a, 100'000);

    const std::uint64_t before_kib = huge_mapped_kib();
    const bool backed = back_with_huge_page(middle);
    for (std::size_t i = 0; i < kHugePageBytes; ++i) {
        const bool written = i >= 12'345 && i < 112'345;
        ASSERT_EQ(std::to_integer<int>(middle[i]), written ? 0x5a : 0) << i;
    }
    // Not every kernel gives huge pages. If this one claims to, the mapping uses one.
    if (backed) {
        EXPECT_EQ(huge_mapped_kib(), before_kib + kHugePageBytes / 1024);
    }
}

TEST(HugePages, MappingSmallerThanAHugePageWorks) {
    const FileDescriptor memory(::memfd_create("small", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(memory.get(), 5000), 0);
    const auto mapping = Mapping::of(memory.get(), 5000, Mapping::Access::read_write);
    ASSERT_TRUE(mapping.has_value());
    mapping->data()[4999] = std::byte{1};
    EXPECT_FALSE(Mapping::of(-1, 3 * kHugePageBytes, Mapping::Access::read_only).has_value());
}

}  // namespace
}  // namespace larder
