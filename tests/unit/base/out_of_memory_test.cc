#include "base/out_of_memory.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <thread>
#include <vector>

#include "tests/support/memory_limit.h"

namespace larder {
namespace {

// More than the address space has.
constexpr std::size_t kTooMuch = std::size_t{1} << 50;

void allocate_too_much() {
    const std::vector<std::byte> bytes(kTooMuch);
    static_cast<void>(bytes.size());
}

TEST(OutOfMemory, ProgramEndsWithMessageAndExitCodeInsteadOfCrash) {
    if (!test::kMemoryCanBeLimited) return;  // a sanitizer ends the program itself
    const auto run_out = [] {
        exit_when_out_of_memory("larderd");
        // An exception in a thread would end the program by SIGABRT.
        std::thread(allocate_too_much).join();
    };
    EXPECT_EXIT(run_out(), testing::ExitedWithCode(1), "larderd: out of memory");
}

TEST(OutOfMemory, UncaughtBadAllocOfALibraryEndsTheProgramInTheSameWay) {
    const auto throw_it = [] {
        exit_when_out_of_memory("larderd");
        std::thread([] { throw std::bad_alloc(); }).join();
    };
    EXPECT_EXIT(throw_it(), testing::ExitedWithCode(1), "larderd: out of memory");
}

}  // namespace
}  // namespace larder
