#include "loader/prefetch_depth.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/unit/loader/loader_fixture.h"

namespace larder::test {
namespace {

using detail::prefetch_batches;

constexpr std::int64_t kMs = 1'000'000;

TEST(PrefetchDepth, CoversOneAndAHalfTimesTheLatency) {
    EXPECT_EQ(prefetch_batches(100 * kMs, 10 * kMs, 64), 15u + 2);
    EXPECT_EQ(prefetch_batches(20 * kMs, 10 * kMs, 64), 3u + 2);
    EXPECT_EQ(prefetch_batches(1 * kMs, 10 * kMs, 64), 2u);
}

TEST(PrefetchDepth, GrowsWithLatencyAndConsumerSpeed) {
    std::uint64_t before = 0;
    for (const std::int64_t latency_ms : {1, 5, 20, 80, 320}) {
        const std::uint64_t batches = prefetch_batches(latency_ms * kMs, 5 * kMs, 64);
        EXPECT_GE(batches, before);
        EXPECT_GE(prefetch_batches(latency_ms * kMs, 1 * kMs, 64), batches);
        before = batches;
    }
}

TEST(PrefetchDepth, StaysWithinItsBounds) {
    EXPECT_EQ(prefetch_batches(0, 0, 1), 64u) << "small batches are requested together";
    EXPECT_EQ(prefetch_batches(1000 * kMs, 1, 1), 8192u);
    EXPECT_EQ(prefetch_batches(1000 * kMs, 1, 256), 32u);
    EXPECT_EQ(prefetch_batches(1000 * kMs, 1, 100'000), 2u);
    EXPECT_EQ(prefetch_batches(1000 * kMs, 0, 32), 2u) << "the period is not measured";
}

// The loader prefetches further ahead once it has measured that the daemon is slow.
TEST_F(LoaderTest, PrefetchesFurtherAheadIfTheDaemonIsSlow) {
    make_raw(800, 2000);
    daemon->behaviour.delay_us = 100'000;
    auto settings = options();
    settings.batch_size = 32;
    Loader loader = open(settings);
    const auto ahead_after = [&](std::uint64_t batches) {
        for (std::uint64_t i = 0; i < batches; ++i) {
            const auto batch = loader.next();
            EXPECT_TRUE(batch.has_value() && *batch);
        }
        return daemon->fetches - loader.statistics().samples;
    };
    const std::uint64_t at_first = ahead_after(1);
    EXPECT_LE(at_first, 2 * 32u);
    ahead_after(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the daemon receives what was requested
    EXPECT_LE(ahead_after(0), 2 * 32u) << "one batch tells no period";
    EXPECT_GT(ahead_after(4), 2 * at_first);
}

}  // namespace
}  // namespace larder::test
