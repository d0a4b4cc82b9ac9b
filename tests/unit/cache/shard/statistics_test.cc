#include "cache/shard/statistics.h"

#include <gtest/gtest.h>

namespace larder::cache {
namespace {

constexpr std::int64_t kMicrosecond_ns = 1000;

TEST(LatencyHistogram, LatencyIsCountedInTheBucketOfItsPowerOfTwo) {
    LatencyHistogram histogram;
    histogram.add(kMicrosecond_ns - 1);
    histogram.add(kMicrosecond_ns);
    histogram.add(3 * kMicrosecond_ns, 5);
    histogram.add(4 * kMicrosecond_ns);
    EXPECT_EQ(histogram.buckets[0], 1u);
    EXPECT_EQ(histogram.buckets[1], 1u);
    EXPECT_EQ(histogram.buckets[2], 5u);
    EXPECT_EQ(histogram.buckets[3], 1u);
    EXPECT_EQ(histogram.count, 8u);
    EXPECT_EQ(histogram.sum_ns, 21 * kMicrosecond_ns - 1);
}

TEST(LatencyHistogram, LatencyBeyondTheBucketsIsCountedInTheLast) {
    LatencyHistogram histogram;
    histogram.add((std::int64_t{1} << 31) * kMicrosecond_ns);
    histogram.add((std::int64_t{1} << 40) * kMicrosecond_ns, 2);
    EXPECT_EQ(histogram.buckets.back(), 3u);
    EXPECT_EQ(histogram.count, 3u);
}

TEST(LatencyHistogram, NegativeLatencyIsCountedInTheFirstBucket) {
    LatencyHistogram histogram;
    histogram.add(-5);
    EXPECT_EQ(histogram.buckets[0], 1u);
}

}  // namespace
}  // namespace larder::cache
