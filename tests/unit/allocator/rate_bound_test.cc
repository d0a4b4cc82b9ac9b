#include "allocator/rate_bound.h"

#include <gtest/gtest.h>

#include "allocator/assign.h"

namespace larder::allocator {
namespace {

// One job of up to 100 MB/s on node "a". Half of its dataset is on the disk of "a", half on the disk of its peer "b".
struct OneJob {
    ClusterState state{.remote_bytes_per_second = 1e9,
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
        const auto plan = assign(state, {.place_jobs = false});
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

}  // namespace
}  // namespace larder::allocator
