#include "cache/device/registered_buffers.h"

#include <gtest/gtest.h>
#include <liburing.h>
#include <sys/mman.h>

#include <cstddef>
#include <span>

namespace larder::cache {
namespace {

constexpr std::size_t kPage = 4096;

class RegisteredBuffersTest : public testing::Test {
protected:
    void SetUp() override {
        ASSERT_EQ(io_uring_queue_init(4, &ring_, 0), 0);
        void* memory =
            ::mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        ASSERT_NE(memory, MAP_FAILED);
        memory_ = {static_cast<std::byte*>(memory), kPages * kPage};
    }
    void TearDown() override {
        ::munmap(memory_.data(), memory_.size());
        io_uring_queue_exit(&ring_);
    }
    std::span<std::byte> pages(std::size_t first, std::size_t count) const {
        return memory_.subspan(first * kPage, count * kPage);
    }

    static constexpr std::size_t kPages = 64;
    io_uring ring_{};
    std::span<std::byte> memory_;
};

TEST_F(RegisteredBuffersTest, FindsOnlyRangesWithinOnePiece) {
    RegisteredBuffers buffers(ring_, 4 * kPage);
    ASSERT_TRUE(buffers.add(pages(8, 10)));  // pieces [8, 12), [12, 16), [16, 18)
    const std::byte* begin = memory_.data() + 8 * kPage;
    const int first = buffers.find(begin, 4 * kPage), second = buffers.find(begin + 4 * kPage, 1);
    const int third = buffers.find(begin + 8 * kPage, 2 * kPage);
    EXPECT_GE(first, 0);
    EXPECT_GE(second, 0);
    EXPECT_GE(third, 0);
    EXPECT_NE(first, second);
    EXPECT_NE(second, third);
    EXPECT_EQ(buffers.find(begin + 4 * kPage - 1, 1), first);
    EXPECT_EQ(buffers.find(begin + 4 * kPage - 1, 2), -1) << "crosses two pieces";
    EXPECT_EQ(buffers.find(begin - 1, 2), -1);
    EXPECT_EQ(buffers.find(begin + 10 * kPage - 1, 2), -1);
    EXPECT_EQ(buffers.find(begin + 10 * kPage, 1), -1);
    EXPECT_EQ(buffers.find(memory_.data(), 1), -1);
}

TEST_F(RegisteredBuffersTest, RemovedBufferIsNotFoundButItsNeighboursAre) {
    RegisteredBuffers buffers(ring_, 4 * kPage);
    ASSERT_TRUE(buffers.add(pages(20, 8)));
    ASSERT_TRUE(buffers.add(pages(0, 8)));
    buffers.remove(pages(0, 8));
    EXPECT_EQ(buffers.find(pages(0, 1).data(), kPage), -1);
    EXPECT_GE(buffers.find(pages(24, 1).data(), kPage), 0);
    for (int round = 0; round < 5000; ++round) {  // more than the table has entries
        ASSERT_TRUE(buffers.add(pages(0, 1)));
        buffers.remove(pages(0, 1));
    }
}

TEST_F(RegisteredBuffersTest, FailedAddRegistersNothing) {
    RegisteredBuffers buffers(ring_, 4 * kPage);
    ::munmap(pages(40, 24).data(), 24 * kPage);
    EXPECT_FALSE(buffers.add(pages(32, 16)));  // its second half is unmapped
    EXPECT_EQ(buffers.find(pages(32, 1).data(), kPage), -1);
    EXPECT_TRUE(buffers.add(pages(32, 8)));
}

}  // namespace
}  // namespace larder::cache
