#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "allocator/cluster.h"

namespace larder::allocator {
namespace {

using Parts = std::vector<double>;

TEST(SplitGrant, SmallDemandsAreMetAndLargeOnesShareTheRest) {
    EXPECT_EQ(split_grant(100, Parts{10, 80, 200}, 0), (Parts{10, 45, 45}));
}

TEST(SplitGrant, UnclaimedRestIsSplitEqually) {
    EXPECT_EQ(split_grant(100, Parts{10, 30}, 0), (Parts{40, 60}));
}

TEST(SplitGrant, NodeWithoutDemandGetsFloor) {
    EXPECT_EQ(split_grant(100, Parts{0, 200}, 5), (Parts{5, 95}));
}

TEST(SplitGrant, FloorsAboveGrantShareTheGrant) {
    EXPECT_EQ(split_grant(6, Parts{0, 200, 1}, 5), (Parts{2, 2, 2}));
    EXPECT_TRUE(split_grant(6, {}, 5).empty());
}

TEST(SplitGrant, FloorsThatRoundAboveGrantLeaveNothing) {
    EXPECT_EQ(split_grant(0.3, Parts{9, 9, 9}, 1), (Parts(3, 0.3 / 3)));
    EXPECT_EQ(split_grant(0.3, Parts{0, 0, 0}, 1), (Parts(3, 0.3 / 3)));
}

TEST(SplitGrant, PartsSumToGrantAndMoreDemandNeverGetsLess) {
    std::mt19937_64 random(5);
    for (int round = 0; round < 20'000; ++round) {
        Parts demands(1 + random() % 8);
        for (double& demand : demands) demand = static_cast<double>(random() % 1000);
        const auto grant = static_cast<double>(random() % 2000);
        const auto floor = static_cast<double>(random() % 50);
        const Parts parts = split_grant(grant, demands, floor);
        EXPECT_NEAR(std::accumulate(parts.begin(), parts.end(), 0.0), grant, 1e-9 * (1 + grant));
        for (std::size_t a = 0; a < parts.size(); ++a) {
            EXPECT_GE(parts[a] + 1e-9, std::min(floor, grant / static_cast<double>(parts.size())));
            for (std::size_t b = 0; b < parts.size(); ++b) {
                if (demands[a] >= demands[b]) {
                    EXPECT_GE(parts[a] + 1e-9, parts[b]);
                }
            }
        }
    }
}

}  // namespace
}  // namespace larder::allocator
