#include "scheduler/live/storage_view.h"

#include <gtest/gtest.h>

namespace larder::scheduler {
namespace {

// Two nodes of one peer group, or without one. Each has cached 300 of the dataset's 1000 bytes.
StorageView view_of_two_nodes(const std::string& group) {
    allocator::Cluster cluster{{.remote_bytes_per_second = 1e6}};
    for (const std::string node : {"a", "b"}) {
        allocator::NodeReport report{.node = node,
                                     .instance = 1,
                                     .memory_bytes = 1000,
                                     .peer_group = group,
                                     .peer_endpoint = group.empty() ? "" : "http://" + node + ":1"};
        report.datasets = {{.name = "images", .size_bytes = 1000, .cached_memory_bytes = 300}};
        const auto taken = cluster.report(report, 0);
        EXPECT_TRUE(taken) << taken.error().message;
    }
    return storage_view(cluster, 0);
}

TEST(StorageViews, SayWhetherNodesReadEachOthersCaches) {
    EXPECT_TRUE(view_of_two_nodes("").storage.own_caches);
    EXPECT_FALSE(view_of_two_nodes("rack").storage.own_caches);
}

TEST(StorageViews, CountTheCachedBytesThatAJobCanReach) {
    EXPECT_EQ(view_of_two_nodes("rack").datasets.at(0).cached_bytes, 600);
    EXPECT_EQ(view_of_two_nodes("").datasets.at(0).cached_bytes, 300);
}

}  // namespace
}  // namespace larder::scheduler
