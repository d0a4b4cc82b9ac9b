#include "scheduler/live/storage_view.h"

#include <gtest/gtest.h>

namespace larder::scheduler {
namespace {

TEST(StorageViews, SayWhetherNodesReadEachOthersCaches) {
    allocator::Cluster cluster{{.remote_bytes_per_second = 1e6}};
    const auto own_caches = [&](const std::string& group) {
        for (const std::string node : {"a", "b"}) {
            const allocator::NodeReport report{.node = node,
                                               .instance = 1,
                                               .memory_bytes = 1000,
                                               .peer_group = group,
                                               .peer_endpoint = group.empty() ? "" : "http://" + node + ":1"};
            const auto taken = cluster.report(report, 0);
            EXPECT_TRUE(taken) << taken.error().message;
        }
        return storage_view(cluster, 0).storage.own_caches;
    };
    EXPECT_TRUE(own_caches(""));
    EXPECT_FALSE(own_caches("rack"));
}

}  // namespace
}  // namespace larder::scheduler
