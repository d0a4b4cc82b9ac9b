#include "bench/miss_counts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder::bench {
namespace {

using ::testing::HasSubstr;

constexpr MissCounts kGood{.blocks = 512,
                           .bytes = 512 * 4096,
                           .epochs = 3,
                           .blocks_read = 3 * 512,
                           .bytes_read = 3 * 512 * 4096,
                           .misses = 3 * 512,
                           .remote_bytes = 3 * 512 * 4096,
                           .remote_bytes_read = 3 * 512 * 4096};

TEST(MissCounts, CountOffByOneIsNamed) {
    EXPECT_TRUE(check(kGood));
    const std::pair<std::uint64_t MissCounts::*, const char*> counts[] = {
        {&MissCounts::blocks_read, "blocks the loader read are 1537, not 1536"},
        {&MissCounts::blocks_hit, "from a cache are 1, not 0"},
        {&MissCounts::bytes_read, "bytes the loader read"},
        {&MissCounts::misses, "misses"},
        {&MissCounts::hits, "hits"},
        {&MissCounts::remote_bytes, "delivered"},
        {&MissCounts::remote_bytes_read, "read from the remote"},
        {&MissCounts::remote_errors, "errors of the remote"}};
    for (const auto& [count, expected] : counts) {
        MissCounts wrong = kGood;
        ++(wrong.*count);
        const auto checked = check(wrong);
        ASSERT_FALSE(checked) << expected;
        EXPECT_THAT(checked.error().message, HasSubstr(expected));
    }
}

}  // namespace
}  // namespace larder::bench
