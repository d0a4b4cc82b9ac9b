#include "scheduler/placement/free_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "scheduler/placement/gang_rate.h"

namespace larder::scheduler::tests {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

GpuCluster cluster_with(const std::vector<std::uint32_t>& gpus) {
    GpuCluster cluster{.gpu_types = {"a", "b"}, .nodes = {}};
    for (const std::uint32_t count : gpus) {
        cluster.nodes.push_back(
            {.name = "n" + std::to_string(cluster.nodes.size()), .gpu_type = 0, .gpus = count, .usable = true});
    }
    return cluster;
}

PlaceRequest request(JobId job, std::uint32_t gpus) {
    return {.job = job, .tenant = 0, .gpus = gpus, .gpu_type = 0, .near = {}};
}

std::vector<std::uint32_t> nodes_of(const std::optional<Placed>& placed) {
    std::vector<std::uint32_t> nodes;
    if (!placed) return nodes;
    for (const NodeGpus& share : placed->placement) nodes.push_back(share.node);
    return nodes;
}

TEST(FreePool, JobGoesWhereFewestGpusAreLeftOver) {
    FreePool pool(cluster_with({8, 4, 8, 2}));
    EXPECT_THAT(nodes_of(pool.place(request(0, 3))), ElementsAre(1));
    EXPECT_THAT(nodes_of(pool.place(request(1, 1))), ElementsAre(1));
    EXPECT_THAT(nodes_of(pool.place(request(2, 2))), ElementsAre(3));
    EXPECT_THAT(nodes_of(pool.place(request(3, 2))), ElementsAre(0));
    EXPECT_EQ(pool.free_gpus(0), 14U);
    EXPECT_EQ(pool.free_gpus(1), 0U);
}

TEST(FreePool, GangTakesLargestNodesAndPutsItsRestWhereItFitsBest) {
    FreePool pool(cluster_with({8, 4, 8, 3}));
    EXPECT_THAT(nodes_of(pool.place(request(0, 19))), ElementsAre(0, 2, 3));
    EXPECT_FALSE(pool.place(request(1, 5)));
    EXPECT_TRUE(pool.place(request(1, 4)));
    EXPECT_FALSE(pool.place(request(2, 1)));
    EXPECT_FALSE(pool.place(request(3, 0)));
}

TEST(FreePool, EachPodLiesOnOneNode) {
    FreePool pool(cluster_with({8, 4, 8}));
    const GangShape unequal{.pods = {7, 5}};
    PlaceRequest asked = request(0, 12);
    asked.shape = &unequal;
    EXPECT_THAT(nodes_of(pool.place(asked)), ElementsAre(0, 2));
    asked.job = 1;
    EXPECT_FALSE(pool.place(asked));
    const GangShape small{.pods = {2, 2}};
    PlaceRequest pair = request(2, 4);
    pair.shape = &small;
    EXPECT_THAT(nodes_of(pool.place(pair)), ElementsAre(1));
}

TEST(FreePool, OpportunisticJobsStopUntilPodsFit) {
    FreePool pool(cluster_with({8, 8}));
    PlaceRequest guest = request(0, 2);
    guest.opportunistic = true;
    ASSERT_TRUE(pool.place_at(guest, {{0, 0b11}}));
    guest.job = 1;
    ASSERT_TRUE(pool.place_at(guest, {{1, 0b11}}));
    const GangShape pods{.pods = {7, 5}};
    PlaceRequest asked = request(2, 12);  // 12 GPUs are free, but not 7 on one node
    asked.shape = &pods;
    const auto placed = pool.place(asked);
    ASSERT_TRUE(placed);
    EXPECT_THAT(placed->evicted, ElementsAre(1));
}

TEST(FreePool, PlaceThatNoNodeHasIsNamed) {
    FreePool pool(cluster_with({8, 4}));
    ASSERT_TRUE(pool.place(request(0, 8)));
    const auto error = [&](const GangShape& shape, std::uint32_t gpus) {
        PlaceRequest asked = request(1, gpus);
        asked.shape = &shape;
        const auto checked = pool.check(asked);
        return checked ? std::string() : checked.error().message;
    };
    EXPECT_EQ(error({.pods = {7, 4}}, 11), "") << "another job is no obstacle";
    EXPECT_THAT(error({.pods = {7, 5}}, 12), testing::HasSubstr("large enough for the gang's pods"));
    EXPECT_THAT(error({.together = "rack"}, 1), testing::HasSubstr("scheduler.cells"));
}

TEST(FreePool, ReleasedGpusAreFreeAgain) {
    FreePool pool(cluster_with({4}));
    ASSERT_TRUE(pool.place(request(0, 4)));
    pool.release(0);
    EXPECT_EQ(pool.free_gpus(0), 4U);
    ASSERT_TRUE(pool.place(request(1, 2)));
}

TEST(FreePool, PlaceAtTakesExactlyTheGivenGpus) {
    FreePool pool(cluster_with({4, 4}));
    EXPECT_TRUE(pool.place_at(request(0, 2), {{0, 0b0110}}));
    EXPECT_FALSE(pool.place_at(request(1, 2), {{0, 0b0011}}));
    EXPECT_FALSE(pool.place_at(request(1, 2), {{1, 0b0011}, {0, 0b0010}}));
    EXPECT_FALSE(pool.place_at(request(1, 1), {{0, 0b10000}}));
    EXPECT_EQ(pool.free_gpus(0), 6U);
    pool.set_usable(1, false);
    EXPECT_FALSE(pool.place_at(request(1, 1), {{1, 1}}));
}

PlaceRequest opportunistic(JobId job, std::uint32_t gpus) {
    PlaceRequest asked = request(job, gpus);
    asked.opportunistic = true;
    return asked;
}

TEST(FreePool, ClaimsEvictOpportunisticJobsLatestFirst) {
    FreePool pool(cluster_with({4, 4}));
    ASSERT_TRUE(pool.place(opportunistic(1, 2)));
    ASSERT_TRUE(pool.place(opportunistic(2, 2)));
    ASSERT_TRUE(pool.place(opportunistic(3, 3)));
    const auto fits = pool.place(request(4, 1));
    ASSERT_TRUE(fits);
    EXPECT_THAT(fits->evicted, IsEmpty());
    EXPECT_FALSE(pool.place(opportunistic(5, 1))) << "an opportunistic job evicts no other job";
    const auto claims = pool.place(request(6, 4));
    ASSERT_TRUE(claims);
    EXPECT_THAT(claims->evicted, ElementsAre(2, 3));
    EXPECT_EQ(pool.free_gpus(0), 1U);
    EXPECT_FALSE(pool.place(request(7, 4))) << "too few GPUs even if every opportunistic job stops";
    EXPECT_TRUE(pool.place(request(8, 3)));
    EXPECT_EQ(pool.free_gpus(0), 0U);
}

TEST(FreePool, OpportunisticJobStaysIfItsGpusAreNotNeeded) {
    FreePool pool(cluster_with({4, 4}));
    ASSERT_TRUE(pool.place(opportunistic(1, 4)));
    ASSERT_TRUE(pool.place(opportunistic(2, 1)));
    const auto claims = pool.place(request(3, 4));
    ASSERT_TRUE(claims);
    // Job 2 came last, but evicting it alone would not free 4 GPUs on one node. Evicting either job does, with the free
    // GPUs of its node.
    EXPECT_EQ(claims->placement.size(), 1U);
    EXPECT_EQ(claims->evicted.size(), 1U);
}

TEST(FreePool, ClaimIsTakenButNeverGivenUp) {
    FreePool pool(cluster_with({4}));
    ASSERT_TRUE(pool.place(opportunistic(1, 4)));
    EXPECT_TRUE(pool.set_opportunistic(1, false));
    EXPECT_FALSE(pool.set_opportunistic(1, true));
    EXPECT_FALSE(pool.place(request(2, 1)));
}

TEST(FreePool, UnusableNodesAreSkipped) {
    FreePool pool(cluster_with({4, 4}));
    ASSERT_TRUE(pool.place(request(0, 2)));
    pool.set_usable(0, false);
    EXPECT_EQ(pool.free_gpus(0), 4U);
    EXPECT_THAT(nodes_of(pool.place(request(1, 2))), ElementsAre(1));
    pool.release(0);
    EXPECT_FALSE(pool.place(request(2, 3)));
    pool.set_usable(0, true);
    EXPECT_THAT(nodes_of(pool.place(request(2, 3))), ElementsAre(0));
}

TEST(FreePool, NodeNearTheDataWinsTies) {
    FreePool pool(cluster_with({4, 4, 4, 2}));
    const std::vector<std::uint32_t> near{2, 1, 99};
    PlaceRequest asked = request(0, 4);
    asked.near = near;
    EXPECT_THAT(nodes_of(pool.place(asked)), ElementsAre(2));
    asked.job = 1;
    asked.gpus = 2;  // using few nodes and leaving few GPUs over come first
    EXPECT_THAT(nodes_of(pool.place(asked)), ElementsAre(3));
}

// Two nodes with the data have two free GPUs each. One node without the data has four.
class NearOrTogether : public testing::Test {
protected:
    NearOrTogether() : pool_(cluster_with({4, 4, 4})) {
        EXPECT_TRUE(pool_.place_at(request(100, 2), {{0, 0b0011}}));
        EXPECT_TRUE(pool_.place_at(request(101, 2), {{1, 0b0011}}));
        asked_ = request(0, 4);
        asked_.near = near_;
    }

    std::vector<std::uint32_t> near_{0, 1};
    std::vector<double> rate_by_nodes_;
    FreePool pool_;
    PlaceRequest asked_;
};

TEST_F(NearOrTogether, TogetherWhenNothingBinds) {
    EXPECT_THAT(nodes_of(pool_.place(asked_)), ElementsAre(2));
}

TEST_F(NearOrTogether, NearWhenDataBinds) {
    asked_.rate_far = 0.5;
    EXPECT_THAT(nodes_of(pool_.place(asked_)), ElementsAre(0, 1));
}

TEST_F(NearOrTogether, TogetherWhenCommunicationBindsHarder) {
    asked_.rate_far = 0.5;
    rate_by_nodes_ = {1, 0.4};
    asked_.rate_by_nodes = rate_by_nodes_;
    EXPECT_THAT(nodes_of(pool_.place(asked_)), ElementsAre(2));
}

TEST_F(NearOrTogether, NearWhenDataBindsHarder) {
    asked_.rate_far = 0.3;
    rate_by_nodes_ = {1, 0.4};
    asked_.rate_by_nodes = rate_by_nodes_;
    EXPECT_THAT(nodes_of(pool_.place(asked_)), ElementsAre(0, 1));
}

TEST(GangRate, IsLowerOfCommunicationAndDataRates) {
    const std::vector<double> by_nodes{1, 0.8, 0.6};
    PlaceRequest asked = request(0, 8);
    asked.rate_by_nodes = by_nodes;
    asked.rate_far = 0.25;
    EXPECT_DOUBLE_EQ(gang_rate(asked, 1, 1, 0), 0.25);
    EXPECT_DOUBLE_EQ(gang_rate(asked, 2, 1, 4), 0.5);
    EXPECT_DOUBLE_EQ(gang_rate(asked, 2, 1, 7), 0.8);
    EXPECT_DOUBLE_EQ(gang_rate(asked, 3, 1, 8), 0.6);
    EXPECT_DOUBLE_EQ(gang_rate(asked, 3, 3, 8), 1);
    EXPECT_DOUBLE_EQ(gang_rate(asked, 9, 1, 8), 0.6);
}

class Dice {  // SplitMix64 (Steele et al. '14)
public:
    explicit Dice(std::uint64_t seed) : state_(seed) {}
    std::uint32_t below(std::uint32_t end) {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return static_cast<std::uint32_t>((z ^ (z >> 31)) % end);
    }

private:
    std::uint64_t state_;
};

// Compares with bit masks of free GPUs that the test keeps: a request that fits is placed, on as few nodes as the free
// GPUs allow, never on taken or lost GPUs.
TEST(FreePool, RandomOperationsMatchModel) {
    for (std::uint32_t seed = 0; seed < 40; ++seed) {
        Dice dice(seed);
        GpuCluster cluster{.gpu_types = {"a", "b"}, .nodes = {}};
        for (std::uint32_t n = 1 + dice.below(12); n > 0; --n) {
            const std::uint32_t gpus = dice.below(5) == 0 ? 64 : dice.below(9);
            cluster.nodes.push_back(
                {.name = "n", .gpu_type = dice.below(2), .gpus = gpus, .usable = dice.below(8) > 0});
        }
        FreePool pool(cluster);
        std::vector<std::uint64_t> free;
        for (const GpuNode& node : cluster.nodes) {
            free.push_back(node.gpus == 64 ? ~0ULL : (1ULL << node.gpus) - 1);
        }
        std::map<JobId, Placement> placed;
        std::vector<std::uint32_t> near;
        for (JobId job = 0; job < 3000; ++job) {
            for (std::uint32_t type = 0; type < 2; ++type) {
                std::uint32_t gpus = 0;
                for (std::uint32_t n = 0; n < free.size(); ++n) {
                    const GpuNode& node = cluster.nodes[n];
                    if (node.usable && node.gpu_type == type)
                        gpus += static_cast<std::uint32_t>(std::popcount(free[n]));
                }
                ASSERT_EQ(pool.free_gpus(type), gpus);
            }
            const std::uint32_t operation = dice.below(10);
            if (operation < 5) {
                PlaceRequest asked = request(job, dice.below(20));
                asked.gpu_type = dice.below(2);
                near.assign({dice.below(12), dice.below(12)});
                if (dice.below(2) == 0) asked.near = near;
                if (dice.below(2) == 0) asked.rate_far = 0.5;
                std::vector<std::uint32_t> left;
                for (std::uint32_t n = 0; n < free.size(); ++n) {
                    const GpuNode& node = cluster.nodes[n];
                    if (!node.usable || node.gpu_type != asked.gpu_type) continue;
                    left.push_back(static_cast<std::uint32_t>(std::popcount(free[n])));
                }
                std::ranges::sort(left, std::ranges::greater{});
                std::uint32_t most = 0;
                std::size_t least_nodes = 0;
                while (least_nodes < left.size() && most < asked.gpus) most += left[least_nodes++];
                const auto got = pool.place(asked);
                ASSERT_EQ(got.has_value(), asked.gpus > 0 && most >= asked.gpus);
                if (!got) continue;
                ASSERT_EQ(gpu_count(got->placement), asked.gpus);
                ASSERT_TRUE(got->evicted.empty());
                if (asked.near.empty() || asked.rate_far == 1) {
                    ASSERT_EQ(got->placement.size(), least_nodes);
                }
                for (const NodeGpus& share : got->placement) {
                    ASSERT_EQ(free[share.node] & share.gpus, share.gpus);
                    ASSERT_TRUE(cluster.nodes[share.node].usable);
                    ASSERT_EQ(cluster.nodes[share.node].gpu_type, asked.gpu_type);
                    free[share.node] &= ~share.gpus;
                }
                placed[job] = got->placement;
            } else if (operation < 9 && !placed.empty()) {
                auto released = placed.begin();
                std::advance(released, dice.below(static_cast<std::uint32_t>(placed.size())));
                pool.release(released->first);
                if (operation == 8) {
                    const auto n = released->second.front().node;
                    PlaceRequest asked = request(released->first, gpu_count(released->second));
                    asked.gpu_type = cluster.nodes[n].gpu_type;
                    const bool usable = std::ranges::all_of(
                        released->second, [&](const NodeGpus& share) { return cluster.nodes[share.node].usable; });
                    ASSERT_EQ(pool.place_at(asked, released->second), usable);
                    if (usable) continue;
                }
                for (const NodeGpus& share : released->second) free[share.node] |= share.gpus;
                placed.erase(released);
            } else {
                const std::uint32_t n = dice.below(static_cast<std::uint32_t>(free.size()));
                cluster.nodes[n].usable = !cluster.nodes[n].usable;
                pool.set_usable(n, cluster.nodes[n].usable);
            }
        }
    }
}

GpuCluster open_cluster(std::uint32_t gpus) {
    return {.gpu_types = {"a"}, .nodes = {{.name = "n0", .gpus = gpus}}, .is_open = true};
}

TEST(FreePool, NodeThatShrinksKeepsItsJobsAndGivesNoMore) {
    FreePool pool(open_cluster(8));
    const auto first = pool.place(request(0, 3));
    const auto second = pool.place(request(1, 3));
    pool.set_node(0, {.name = "n0", .gpus = 4});
    EXPECT_EQ(pool.free_gpus(0), 0U);
    EXPECT_FALSE(pool.place(request(2, 1)));
    EXPECT_FALSE(pool.check(request(2, 5))) << "no longer, even if all were free";
    // A release on trial can be taken back.
    pool.release(1);
    EXPECT_EQ(pool.free_gpus(0), 1U);
    EXPECT_TRUE(pool.place_at(request(1, 3), second->placement));
    pool.release(0);
    EXPECT_EQ(pool.free_gpus(0), 1U) << "second has GPUs 3 to 5, of which the node has one";
    EXPECT_TRUE(pool.place(request(2, 1)));
    EXPECT_FALSE(pool.place_at(request(0, 3), first->placement)) << "one of them is taken";
    pool.set_node(0, {.name = "n0", .gpus = 8});
    EXPECT_EQ(pool.free_gpus(0), 4U);
}

TEST(FreePool, NodesOfAnOpenClusterComeGoAndChangeTheirType) {
    FreePool pool(open_cluster(2));
    pool.set_node(1, {.name = "n1", .gpu_type = 2, .gpus = 4});
    EXPECT_EQ(pool.free_gpus(2), 4U);
    EXPECT_EQ(pool.free_gpus(1), 0U);
    PlaceRequest asked = request(0, 4);
    asked.gpu_type = 2;
    EXPECT_THAT(nodes_of(pool.place(asked)), ElementsAre(1));
    pool.set_node(1, {.name = "n1", .gpu_type = 2, .gpus = 0, .usable = false});
    pool.release(0);
    EXPECT_EQ(pool.free_gpus(2), 0U);
    pool.set_node(1, {.name = "n2", .gpu_type = 0, .gpus = 3});
    EXPECT_EQ(pool.free_gpus(0), 5U);
    pool.set_usable(1, false);
    pool.set_node(1, {.name = "n2", .gpu_type = 0, .gpus = 6, .usable = false});
    EXPECT_EQ(pool.free_gpus(0), 2U);
    pool.set_usable(1, true);
    EXPECT_EQ(pool.free_gpus(0), 8U);
}

TEST(FreePool, EvictionOnAShrunkenNodeLeavesNoMoreJobsThanItHasGpus) {
    FreePool pool(open_cluster(8));
    for (const JobId job : {0, 1}) {
        PlaceRequest asked = request(job, 4);
        asked.opportunistic = true;
        ASSERT_TRUE(pool.place(asked));
    }
    pool.set_node(0, {.name = "n0", .gpus = 4});
    const auto placed = pool.place(request(2, 4));
    ASSERT_TRUE(placed);
    EXPECT_EQ(placed->evicted.size(), 2U) << "the node has room for one of the three";
    EXPECT_EQ(pool.free_gpus(0), 0U);
}

TEST(FreePool, JobOfAShrunkenNodeDoesNotComeBackBesideANewJob) {
    FreePool pool(open_cluster(8));
    const auto first = pool.place(request(0, 4));
    const auto second = pool.place(request(1, 4));
    pool.set_node(0, {.name = "n0", .gpus = 4});
    pool.release(0);
    pool.release(1);
    ASSERT_TRUE(pool.place(request(2, 4)));
    EXPECT_FALSE(pool.place_at(request(1, 4), second->placement)) << "the node has 4 GPUs, and the new job has them";
    pool.release(2);
    EXPECT_TRUE(pool.place_at(request(1, 4), second->placement)) << "a trial leaves no trace";
    EXPECT_TRUE(pool.place_at(request(0, 4), first->placement));
}

TEST(FreePool, OnlyAJobThatRunsIsPlacedBeyondTheGpusOfAnOpenNode) {
    FreePool pool(open_cluster(4));
    const Placement upper{{.node = 0, .gpus = 0xf0}};
    const Placement lower{{.node = 0, .gpus = 0x0f}};
    ASSERT_TRUE(pool.place_at(request(0, 4), lower));
    EXPECT_FALSE(pool.place_at(request(1, 4), upper));
    PlaceRequest runs = request(1, 4);
    runs.runs_there = true;
    EXPECT_TRUE(pool.place_at(runs, upper));
    pool.release(0);
    EXPECT_EQ(pool.free_gpus(0), 0U);
    EXPECT_TRUE(pool.place_at(request(0, 4), lower)) << "it was there, and no other job has come";
}

TEST(FreePool, GpusOfAMachineThatGetsAnotherTypeAreNotGivenTwice) {
    FreePool pool(open_cluster(4));
    ASSERT_TRUE(pool.place(request(0, 2)));
    pool.set_node(0, {.name = "n0", .gpus = 0, .usable = false});
    pool.set_node(1, {.name = "n0", .gpu_type = 1, .gpus = 4});
    EXPECT_EQ(pool.free_gpus(1), 2U);
    PlaceRequest asked = request(1, 4);
    asked.gpu_type = 1;
    EXPECT_FALSE(pool.place(asked));
    pool.release(0);
    EXPECT_EQ(pool.free_gpus(1), 4U);
    ASSERT_TRUE(pool.place(asked));
    pool.release(1);
    pool.set_node(0, {.name = "n2", .gpus = 3});
    EXPECT_EQ(pool.free_gpus(0), 3U) << "another machine now";
    EXPECT_EQ(pool.free_gpus(1), 4U);
}

}  // namespace
}  // namespace larder::scheduler::tests
