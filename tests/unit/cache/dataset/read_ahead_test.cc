#include "cache/dataset/read_ahead.h"

#include <gtest/gtest.h>

#include <vector>

namespace larder::cache {
namespace {

constexpr std::size_t kBytes = std::size_t{64} << 20;
constexpr std::size_t kReadBytesMax = std::size_t{4} << 20;

// A source of kBytes bytes that counts reads.
class CountingSource final : public protocol::ByteSource {
public:
    std::uint64_t size_bytes() const override { return kBytes; }
    Result<std::span<const std::byte>> read(std::uint64_t, std::size_t bytes) override {
        ++reads;
        bytes_read += bytes;
        memory_.resize(bytes);
        return std::span<const std::byte>(memory_);
    }
    std::uint64_t reads = 0;
    std::uint64_t bytes_read = 0;

private:
    std::vector<std::byte> memory_;
};

void step_through(CountingSource& source, std::size_t step_bytes) {
    ReadAhead ahead(source, 16384, kReadBytesMax);
    for (std::uint64_t at = 0; at + 12 <= kBytes; at += step_bytes) {
        const auto read = ahead.read(at, 12);
        ASSERT_TRUE(read);
        ASSERT_EQ(read->size(), 12u);
    }
}

TEST(ReadAhead, CloseReadsGrowTheReadAhead) {
    CountingSource source;
    ASSERT_NO_FATAL_FAILURE(step_through(source, 200));
    EXPECT_LE(source.reads, kBytes / kReadBytesMax + 8);
    EXPECT_LE(source.bytes_read, kBytes + kBytes / 100);
}

TEST(ReadAhead, DistantReadsSkipTheGaps) {
    CountingSource source;
    ASSERT_NO_FATAL_FAILURE(step_through(source, 100'000));
    EXPECT_LE(source.bytes_read, kBytes / 100);
}

}  // namespace
}  // namespace larder::cache
