// Caches, disks and networks of single nodes, and plans made from reports.

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "scheduler/placement/free_pool.h"
#include "scheduler/simulator/scenario.h"
#include "scheduler/simulator/simulation.h"

namespace larder::scheduler {
namespace {

constexpr double kBytes = 10e9;  // of the dataset
constexpr double kRate = 100e6;  // f* of a GPU

// Jobs that read one dataset, on two nodes of 4 GPUs.
class TwoNodes {
public:
    TwoNodes() {
        workload_.tenants.push_back({.name = "one"});
        workload_.datasets.push_back({.name = "d", .size_bytes = kBytes});
        options.cache = *parse_cache("uniform+joint", "");
        options.storage = {.cache_bytes = 2 * kBytes, .remote_bytes_per_second = 1e12};
    }

    JobSpec& add(std::uint32_t gpus, double epochs, double submit_s = 0) {
        JobSpec& job = workload_.jobs.emplace_back();
        job.name = std::to_string(workload_.jobs.size());
        job.submit_s = submit_s;
        job.gpus = job.gpus_min = job.gpus_max = gpus;
        job.ideal_bytes_per_second = {kRate * gpus};
        job.dataset = 0;
        job.total_bytes = epochs * kBytes;
        workload_.models.emplace_back("m");
        return job;
    }

    Result<SimulationOutcome> try_run() {
        const GpuGroup group{.type = "a", .gpus = 8};
        const GpuCluster cluster = make_cluster(std::span(&group, 1), 4);
        FreePool pool(cluster);
        return simulate(workload_, cluster, **make_policy("fifo", options.policy), pool, options);
    }
    SimulationOutcome run() {
        auto outcome = try_run();
        EXPECT_TRUE(outcome) << outcome.error().message;
        return outcome ? std::move(*outcome) : SimulationOutcome{};
    }

    SimulationOptions options;

private:
    Workload workload_;
};

TEST(NodeStorage, JobHitsOnlyItsOwnNodesCache) {
    for (const bool own : {false, true}) {
        TwoNodes nodes;
        nodes.options.cache.own_caches = own;
        nodes.add(4, 2);
        nodes.add(4, 2, 1000);  // on either node: the first job has ended
        nodes.add(4, 2, 1000);
        const SimulationOutcome outcome = nodes.run();
        EXPECT_NEAR(outcome.jobs[0].remote_bytes, kBytes, 1e3);
        // One of the two jobs runs on the node with the first job's cache.
        EXPECT_NEAR(outcome.jobs[1].remote_bytes + outcome.jobs[2].remote_bytes, own ? kBytes : 0, 1e3) << own;
    }
}

TEST(NodeStorage, JobGoesToItsDataWhenRemoteBinds) {
    TwoNodes nodes;
    nodes.options.cache.own_caches = true;
    nodes.options.storage = {.cache_bytes = kBytes, .remote_bytes_per_second = 300e6};
    nodes.add(4, 2);  // caches half of the dataset on its node
    nodes.add(1, 20).dataset = kNoDataset;
    nodes.add(3, 1, 200);  // the other node has just enough room for it
    EXPECT_NEAR(nodes.run().jobs[2].remote_bytes, 0.5 * kBytes, 1e3);
}

TEST(NodeStorage, JobGoesToItsDataWhenRemoteBindsOnlyUncachedJobs) {
    TwoNodes nodes;
    nodes.options.cache.own_caches = true;
    nodes.options.storage.remote_bytes_per_second = 600e6;
    nodes.add(4, 2);  // caches all of the dataset on its node
    nodes.add(1, 20).dataset = kNoDataset;
    nodes.add(3, 1, 200);  // the other node has just enough room for it
    EXPECT_NEAR(nodes.run().jobs[2].remote_bytes, 0, 1e3);
}

TEST(NodeStorage, GangCachesItsPartOnEachOfItsNodes) {
    TwoNodes nodes;
    nodes.options.cache.own_caches = true;
    nodes.options.storage.cache_bytes = kBytes;  // half the dataset on each node
    nodes.options.storage.remote_bytes_per_second = 400e6;
    nodes.add(8, 3);
    const SimulationOutcome outcome = nodes.run();
    // Each node reads half an epoch, different blocks each time, and hits half of them.
    EXPECT_NEAR(outcome.jobs[0].remote_bytes, kBytes * (1 + 0.5 + 0.5), 1e4);
    EXPECT_NEAR(outcome.jobs[0].finish_s, kBytes / 400e6 + 2 * kBytes / 800e6, 0.1);
}

TEST(NodeStorage, HitsAreBoundByDiskOfNode) {
    TwoNodes nodes;
    nodes.options.places_by_plan = false;  // two disks would serve each gang
    nodes.options.cache.own_caches = true;
    nodes.options.node_disk_bytes_per_second = 150e6;
    nodes.options.storage.remote_bytes_per_second = 20e6;
    nodes.add(4, 3);
    nodes.add(4, 3);
    const SimulationOutcome outcome = nodes.run();
    // After the first epoch, the disk of each job's node gives 150 MB/s, and the jobs divide the remote's 20 MB/s in
    // any way: all of it for one of them, or half for each, gives the same sum of rates.
    const double first_epoch_s = kBytes / 10e6;
    const auto [first, last] = std::minmax(outcome.jobs[0].finish_s, outcome.jobs[1].finish_s);
    EXPECT_GE(first, first_epoch_s + 2 * kBytes / 170e6 - 1);
    EXPECT_LE(last, first_epoch_s + 2 * kBytes / 150e6 + 1);
    EXPECT_NEAR((first + last) / 2, first_epoch_s + 2 * kBytes / 160e6, 1);
}

TEST(NodeStorage, SlowDisksCacheNothingWhileTheRemoteIsFaster) {
    TwoNodes nodes;
    nodes.options.cache.own_caches = true;
    nodes.options.node_disk_bytes_per_second = 150e6;
    nodes.add(4, 3);
    nodes.add(4, 3);
    const SimulationOutcome outcome = nodes.run();
    for (const JobOutcome& job : outcome.jobs) EXPECT_NEAR(job.finish_s, 3 * kBytes / 400e6, 1);
}

TEST(NodeStorage, HitsInPoolAreBoundByAllItsDisks) {
    TwoNodes nodes;
    nodes.options.node_disk_bytes_per_second = 150e6;
    nodes.add(4, 3);
    const SimulationOutcome outcome = nodes.run();
    EXPECT_NEAR(outcome.jobs[0].finish_s, kBytes / 400e6 + 2 * kBytes / 300e6, 1);
}

TEST(NodeStorage, ReadsOverNetworkAreBoundByNetwork) {
    for (const bool own : {false, true}) {
        TwoNodes nodes;
        nodes.options.places_by_plan = false;  // a gang on both nodes would have both networks
        nodes.options.cache.own_caches = own;
        nodes.options.node_nic_bytes_per_second = 100e6;
        nodes.add(4, 3);
        const SimulationOutcome outcome = nodes.run();
        // Hits in the node's own cache do not use the network: all hits, or half of them in a pool.
        EXPECT_NEAR(outcome.jobs[0].finish_s, kBytes / 100e6 + 2 * kBytes / (own ? 400e6 : 200e6), own ? 1 : 5) << own;
    }
}

TEST(NodeStorage, GangReadsOverTheNetworksOfAllItsNodes) {
    TwoNodes nodes;
    nodes.options.node_nic_bytes_per_second = 100e6;
    nodes.add(8, 3);
    // Each node reads half of the bytes: all of them over its network at first, then the half that the other caches.
    EXPECT_NEAR(nodes.run().jobs[0].finish_s, kBytes / 200e6 + 2 * kBytes / 400e6, 5);
}

TEST(NodeStorage, DisksBindEveryCacheSystem) {
    for (const std::string_view cache :
         {"uniform+joint", "uniform+fair", "lru", "whole-dataset", "quiver", "static-per-job", "coordl"}) {
        TwoNodes nodes;
        nodes.options.cache = *parse_cache(cache, "");
        nodes.options.node_disk_bytes_per_second = 150e6;
        nodes.add(8, 3);
        EXPECT_NEAR(nodes.run().jobs[0].finish_s, kBytes / 800e6 + 2 * kBytes / 300e6, 1.5) << cache;
    }
}

TEST(NodeStorage, CachesOfOtherNodesAreReadOverTheNetwork) {
    const auto finish_s = [](std::string_view cache, std::uint32_t gpus, double nic) {
        TwoNodes nodes;
        nodes.options.cache = *parse_cache(cache, "");
        nodes.options.node_nic_bytes_per_second = nic;
        nodes.add(gpus, 3);
        return nodes.run().jobs[0].finish_s;
    };
    for (const std::string_view cache : {"uniform+joint", "uniform+fair", "lru", "whole-dataset", "quiver"}) {
        EXPECT_NEAR(finish_s(cache, 4, 100e6), kBytes / 100e6 + 2 * kBytes / 200e6, 5) << cache;
    }
    for (const std::string_view cache : {"static-per-job", "coordl"}) {
        // A job on one node has its cache there. A job on both nodes reads half of it over the network.
        EXPECT_NEAR(finish_s(cache, 4, 100e6), kBytes / 100e6 + 2 * kBytes / 400e6, 5) << cache;
        EXPECT_NEAR(finish_s(cache, 8, 100e6), kBytes / 200e6 + 2 * kBytes / 400e6, 5) << cache;
    }
}

TEST(NodeStorage, OwnCachesNeedUniformOrNone) {
    TwoNodes nodes;
    nodes.options.cache = *parse_cache("lru", "");
    nodes.options.cache.own_caches = true;
    nodes.add(4, 1);
    const auto outcome = nodes.try_run();
    ASSERT_FALSE(outcome);
    EXPECT_THAT(outcome.error().message, testing::HasSubstr("uniform or none, not lru"));
}

TEST(ReportedPlans, BandwidthMovesOnceNodesReportGivingItUp) {
    for (const bool reported : {false, true}) {
        TwoNodes nodes;
        nodes.options.cache.own_caches = true;
        nodes.options.reported_plans = reported;
        nodes.options.storage = {.cache_bytes = 0, .remote_bytes_per_second = 100e6};
        nodes.options.cache.objective = allocator::ObjectiveKind::max_min;
        nodes.add(4, 1);
        nodes.add(4, 1, 50);
        const SimulationOutcome outcome = nodes.run();
        // The jobs run alone, then with half each, then alone. Each change costs a second or two.
        const double whole_s = 2 * kBytes / 100e6;
        if (reported) {
            EXPECT_GT(outcome.jobs[1].finish_s, whole_s + 0.1);
            EXPECT_LT(outcome.jobs[1].finish_s, whole_s + 5);
        } else {
            EXPECT_NEAR(outcome.jobs[1].finish_s, whole_s, 0.01);
        }
        EXPECT_NEAR(outcome.jobs[0].finish_s, 150, 3);
    }
}

TEST(ReportedPlans, FirstReporterHasRemoteUntilItsNextReport) {
    const auto finishes_s = [](std::vector<double> report_ages_s) {
        TwoNodes nodes;
        nodes.options.cache.own_caches = true;
        nodes.options.reported_plans = true;
        nodes.options.report_ages_s = std::move(report_ages_s);
        nodes.options.storage = {.cache_bytes = 0, .remote_bytes_per_second = 100e6};
        nodes.options.cache.objective = allocator::ObjectiveKind::max_min;
        nodes.add(4, 1);
        nodes.add(4, 1);
        const SimulationOutcome outcome = nodes.run();
        return std::pair(outcome.jobs[0].finish_s, outcome.jobs[1].finish_s);
    };
    const auto [first_s, second_s] = finishes_s({0.15, 0.05});
    EXPECT_LT(first_s, second_s);
    EXPECT_EQ(finishes_s({0.05, 0.15}), std::pair(second_s, first_s));
    // The first node reports at the very moment when the jobs start.
    EXPECT_LT(finishes_s({0.2, 0.05}).first, second_s);
}

TEST(ReportedPlans, LostNodesBandwidthMovesWhenItsLeaseEnds) {
    for (const bool reported : {false, true}) {
        TwoNodes nodes;
        nodes.options.cache.own_caches = true;
        nodes.options.reported_plans = reported;
        nodes.options.storage = {.cache_bytes = 0, .remote_bytes_per_second = 100e6};
        nodes.options.cache.objective = allocator::ObjectiveKind::max_min;
        nodes.options.node_losses = {{.node = 1, .at_s = 20}};
        nodes.add(4, 1);
        nodes.add(4, 1);
        const SimulationOutcome outcome = nodes.run();
        const double lease_s = reported ? nodes.options.report_lease_s : 0;
        EXPECT_NEAR(outcome.jobs[0].finish_s, 110 + lease_s / 2, 2);
        EXPECT_EQ(outcome.jobs[0].failures, 0u);
        // The lost job reads all again, alone, on the node that is left.
        EXPECT_EQ(outcome.jobs[1].failures, 1u);
        EXPECT_NEAR(outcome.jobs[1].finish_s, outcome.jobs[0].finish_s + 100, 3);
    }
}

TEST(ReportedPlans, JobHitsWhatItsPeersCacheInPool) {
    for (const bool own : {false, true}) {
        TwoNodes nodes;
        nodes.options.cache.own_caches = own;
        nodes.options.reported_plans = true;
        nodes.options.storage = {.cache_bytes = kBytes, .remote_bytes_per_second = 100e6};
        nodes.add(4, 3);
        // Half of the dataset fits on the job's own node.
        EXPECT_NEAR(nodes.run().jobs[0].finish_s, kBytes / 100e6 + 2 * kBytes / (own ? 200e6 : 400e6), 3) << own;
    }
}

TEST(ReportedPlans, LostNodesPartOfThePoolIsGone) {
    TwoNodes nodes;
    nodes.options.reported_plans = true;
    nodes.options.storage = {.cache_bytes = kBytes, .remote_bytes_per_second = 100e6};
    nodes.options.node_losses = {{.node = 1, .at_s = 105}};
    nodes.add(4, 3);
    // Everything is cached after 100 s, and half of it from the loss on.
    const double left = 2 * kBytes - 5 * 400e6;
    EXPECT_NEAR(nodes.run().jobs[0].finish_s, 105 + left / 200e6, 8);
}

TEST(ReportedPlans, GangHasTheLeasesOfAllItsNodes) {
    for (const bool own : {false, true}) {
        TwoNodes nodes;
        nodes.options.cache.own_caches = own;
        nodes.options.reported_plans = true;
        nodes.options.storage = {.cache_bytes = 0, .remote_bytes_per_second = 100e6};
        nodes.add(8, 1);
        EXPECT_NEAR(nodes.run().jobs[0].finish_s, kBytes / 100e6, 3) << own;
    }
}

TEST(ReportedPlans, NeedJointPlans) {
    TwoNodes nodes;
    nodes.options.cache = *parse_cache("uniform+fair", "");
    nodes.options.reported_plans = true;
    nodes.add(4, 1);
    EXPECT_FALSE(nodes.try_run());
}

TEST(NodeStorage, JobGoesWhereNetworkHasRoom) {
    for (const bool by_plan : {false, true}) {
        TwoNodes nodes;
        nodes.options.places_by_plan = by_plan;
        nodes.options.node_nic_bytes_per_second = 2 * kRate;
        nodes.options.storage.cache_bytes = 0;
        nodes.add(2, 1);
        nodes.add(2, 1);  // fits on the first node beside the other, where each gets half of the network
        const SimulationOutcome outcome = nodes.run();
        const double expected_s = kBytes / (by_plan ? 2 * kRate : kRate);
        EXPECT_NEAR(outcome.jobs[0].finish_s, expected_s, 1) << by_plan;
        EXPECT_NEAR(outcome.jobs[1].finish_s, expected_s, 1) << by_plan;
    }
}

}  // namespace
}  // namespace larder::scheduler
