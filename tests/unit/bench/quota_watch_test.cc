#include "bench/quota_watch.h"

#include <gtest/gtest.h>

namespace larder::test {
namespace {

using bench::QuotaWatch;
using bench::TierQuota;

constexpr std::uint64_t kMiB = 1 << 20;

std::map<std::string, TierQuota> disk_quota(std::uint64_t planned_bytes, std::uint64_t in_force_bytes) {
    return {{"node-0 images disk", {.planned_bytes = planned_bytes, .in_force_bytes = in_force_bytes}}};
}

TEST(QuotaWatch, QuotasCountAsStableOnceInForce) {
    QuotaWatch watch;
    watch.add_sample(disk_quota(100 * kMiB, 0), 10);
    EXPECT_EQ(watch.stable_ns(), 0);
    watch.add_sample(disk_quota(100 * kMiB, 50 * kMiB), 20);
    EXPECT_EQ(watch.stable_ns(), 0);
    watch.add_sample(disk_quota(100 * kMiB, 100 * kMiB), 30);
    EXPECT_EQ(watch.stable_ns(), 0);
    watch.add_sample(disk_quota(100 * kMiB, 100 * kMiB), 45);
    EXPECT_EQ(watch.stable_ns(), 15);
}

TEST(QuotaWatch, QuotaThatChangesAndChangesBackIsNotStable) {
    QuotaWatch watch;
    watch.add_sample(disk_quota(100 * kMiB, 100 * kMiB), 10);
    watch.add_sample(disk_quota(200 * kMiB, 200 * kMiB), 20);
    watch.add_sample(disk_quota(100 * kMiB, 100 * kMiB), 30);
    EXPECT_EQ(watch.stable_ns(), 0);
    watch.add_sample(disk_quota(100 * kMiB, 100 * kMiB), 31);
    EXPECT_EQ(watch.stable_ns(), 1);
}

TEST(QuotaWatch, QuotaLostForAWhileIsNotStable) {
    QuotaWatch watch;
    watch.add_sample(disk_quota(100 * kMiB, 100 * kMiB), 10);
    watch.add_sample(disk_quota(100 * kMiB, 0), 20);
    EXPECT_EQ(watch.stable_ns(), 0);
    watch.add_sample(disk_quota(100 * kMiB, 100 * kMiB), 30);
    EXPECT_EQ(watch.stable_ns(), 0);
}

TEST(QuotaWatch, QuotaThatDriftsSlowlyIsNotStable) {
    QuotaWatch watch;
    std::int64_t longest_ns = 0;
    for (std::int64_t now_ns = 0; now_ns < 20; ++now_ns) {
        const std::uint64_t bytes = 1000 * kMiB + static_cast<std::uint64_t>(now_ns) * 6 * kMiB;
        watch.add_sample(disk_quota(bytes, bytes), now_ns);
        longest_ns = std::max(longest_ns, watch.stable_ns());
    }
    EXPECT_EQ(longest_ns, 1);
}

TEST(QuotaWatch, EstimatesMayVaryByOnePercentOrOneMebibyte) {
    QuotaWatch watch;
    watch.add_sample(disk_quota(1000 * kMiB, 1000 * kMiB), 10);
    watch.add_sample(disk_quota(1009 * kMiB, 1000 * kMiB), 20);
    EXPECT_EQ(watch.stable_ns(), 10);
    watch.add_sample(disk_quota(1015 * kMiB, 1015 * kMiB), 30);
    EXPECT_EQ(watch.stable_ns(), 0);
    watch.add_sample({{"node-0 images disk", {1015 * kMiB, 1015 * kMiB}}, {"node-1 images disk", {kMiB, 0}}}, 40);
    EXPECT_EQ(watch.stable_ns(), 10);
}

TEST(QuotaWatch, AddedOrRemovedDatasetIsAChange) {
    QuotaWatch watch;
    watch.add_sample(disk_quota(100 * kMiB, 100 * kMiB), 10);
    watch.add_sample({{"node-0 images disk", {100 * kMiB, 100 * kMiB}}, {"node-0 text disk", {9 * kMiB, 9 * kMiB}}},
                     20);
    EXPECT_EQ(watch.stable_ns(), 0);
    watch.add_sample(disk_quota(100 * kMiB, 100 * kMiB), 30);
    EXPECT_EQ(watch.stable_ns(), 0);
}

}  // namespace
}  // namespace larder::test
