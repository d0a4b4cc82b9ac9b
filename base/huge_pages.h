#pragma once

// Huge pages for shared memory. A memfd gets small pages unless the system is set up otherwise, but the kernel
// collapses the pages into a huge page when asked (MADV_COLLAPSE, since Linux 6.1), for any user. A block is then one
// piece of physical memory, which disks and page tables handle far faster than thirty-two pieces, and backing 2 MiB at
// once costs less than 512 page faults.

#include <cstddef>

namespace larder {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// Backs kHugePageBytes at `address` of a writable shared mapping with one huge page and keeps the bytes there.
// `address` is a multiple of kHugePageBytes in memory and in the file. Returns false, with the pages unchanged, if the
// kernel refuses. Blocks while the kernel finds and clears the page. Any thread.
bool back_with_huge_page(std::byte* address);

}  // namespace larder
