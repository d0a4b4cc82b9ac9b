#pragma once

// Huge pages for shared memory. A memfd gets small pages unless the system is set up otherwise, yet the kernel
// collapses them into a huge page when asked (MADV_COLLAPSE, Linux 6.1 on), for any user. It is worth asking: a block
// then is one piece of physical memory, which disks and page tables handle far faster than thirty-two, and backing 2
// MiB at once costs less than 512 page faults.

#include <cstddef>

namespace larder {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// Backs the kHugePageBytes at `at`, a multiple of kHugePageBytes in memory and in the file, of a writable shared
// mapping with one huge page; what is written there stays. False where the kernel refuses: then they are as they were.
// Blocks while the kernel finds and clears the page. Any thread.
bool back_with_huge_page(std::byte* at);

}  // namespace larder
