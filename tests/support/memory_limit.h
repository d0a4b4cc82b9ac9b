#pragma once

// Limits the memory of this process, for tests that a hostile file cannot make a parser allocate what the file claims.
// Call it in the child of an EXPECT_EXIT. An allocation beyond the limit throws std::bad_alloc, which ends the child.

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace larder::test {

// Sanitizers reserve address space as they run, so that no limit fits them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kMemoryCanBeLimited = false;
#elif defined(__has_feature)
inline constexpr bool kMemoryCanBeLimited = !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer);
#else
inline constexpr bool kMemoryCanBeLimited = true;
#endif

// Allows `bytes` bytes of address space besides what the process has now. False if that failed. Does nothing under a
// sanitizer.
inline bool limit_memory(std::uint64_t bytes) {
    if (!kMemoryCanBeLimited) return true;
    // Each further arena of malloc would reserve 64 MiB of address space.
    if (::mallopt(M_ARENA_MAX, 1) != 1) return false;
    std::uint64_t pages = 0;
    if (!(std::ifstream("/proc/self/statm") >> pages)) return false;
    const rlim_t most = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + bytes;
    const rlimit limit{.rlim_cur = most, .rlim_max = most};
    return ::setrlimit(RLIMIT_AS, &limit) == 0;
}

}  // namespace larder::test
