#include "scheduler/live/rate_bound.h"

#include <gtest/gtest.h>

#include "allocator/assign.h"
#include "tests/unit/scheduler/live/live_fixture.h"

namespace larder::scheduler {
namespace {

// One job of up to 100 MB/s on node "a". Half of its dataset is on the disk of "a", half on the disk of its peer "b".
struct OneJob {
    allocator::ClusterState state{.remote_bytes_per_second = 1e9,
                                  .nodes = {{.name = "a", .gpus = 4, .disk_bytes = 500'000'000},
                                            {.name = "b", .gpus = 4, .disk_bytes = 500'000'000}},
                                  .datasets = {{.name = "images", .size_bytes = 1'000'000'000}},
                                  .jobs = {{.name = "resnet",
                                            .gpus = 4,
                                            .ideal_bytes_per_second = 1e8,
                                            .unread_bytes = 1'000'000'000,
                                            .placement = {{0, 4}}}}};

    void cache_all() {
        state.datasets[0].cached = {{.node = 0, .disk_bytes = 500'000'000}, {.node = 1, .disk_bytes = 500'000'000}};
        state.datasets[0].quotas = state.datasets[0].cached;
        state.jobs[0].unread_cached_bytes = 1'000'000'000;
    }
    std::string bound() const {
        const auto plan = allocator::assign(state, {.place_jobs = false});
        EXPECT_TRUE(plan);
        EXPECT_LT(plan->jobs[0].predicted_bytes_per_second, 0.9e8);
        const RateBound found = rate_bound(state, *plan, "resnet");
        if (found.kind == RateBound::Kind::remote) return "remote";
        return (found.kind == RateBound::Kind::network ? "network of " : "disk of ") + found.node;
    }
};

TEST(RateBound, IsRemoteWhenItIsUsedUp) {
    OneJob one;
    one.state.remote_bytes_per_second = 5e7;
    EXPECT_EQ(one.bound(), "remote");
}

TEST(RateBound, IsNetworkOfNodeTheJobRunsOn) {
    OneJob one;
    one.state.nodes[0].nic_bytes_per_second = 5e7;
    EXPECT_EQ(one.bound(), "network of a");
}

TEST(RateBound, IsDiskOrNetworkOfNodeTheJobReadsFrom) {
    OneJob one;
    one.cache_all();
    one.state.nodes[1].disk_read_bytes_per_second = 2e7;
    EXPECT_EQ(one.bound(), "disk of b");
    one.state.nodes[1].nic_bytes_per_second = 1e7;
    EXPECT_EQ(one.bound(), "network of b");
}

TEST_F(Live, WhyNamesBindingNetworkWhileRemoteHasRateLeft) {
    const auto report_network = [this](double nic) {
        allocator::NodeReport node{.node = "n1",
                                   .instance = 1,
                                   .memory_bytes = 1'000,
                                   .nic_bytes_per_second = nic,
                                   .datasets = {{.name = "images", .size_bytes = 1'000'000}},
                                   .jobs = {{.name = "resnet", .dataset = "images"}}};
        ASSERT_TRUE(cluster.report(node, now().steady_ns));
        ASSERT_TRUE(cluster.replan(now().steady_ns));
    };
    report_network(1e5);
    Submission asked = job_with_gpus(4, "resnet");
    asked.dataset = "images";
    asked.ideal_by_type[""] = 2e5;
    const JobId id = submit_and_start(asked);
    report_network(1e5);
    EXPECT_EQ(storage_view(cluster, now().steady_ns).storage.nic_bytes_per_second, 1e5);
    EXPECT_EQ(binding(id), "network") << why(id);
    EXPECT_NE(why(id).find("the network of node n1 limits it"), std::string::npos) << why(id);
    report_network(1e9);
    EXPECT_EQ(binding(id), "gpus") << why(id);
    ASSERT_TRUE(cluster.set_remote(1e5));
    report_network(1e9);
    EXPECT_EQ(binding(id), "remote_bandwidth") << why(id);
}

}  // namespace
}  // namespace larder::scheduler
