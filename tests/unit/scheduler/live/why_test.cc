#include "scheduler/live/why.h"

#include <gtest/gtest.h>

#include "tests/unit/scheduler/live/live_fixture.h"

namespace larder::scheduler {
namespace {

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

TEST_F(Live, WhyNamesPlaceAndEarliestStart) {
    report("", 0);
    const JobId first = submit_and_start(job_reading_images("first", 1));
    for (int i = 0; i < 2; ++i) report("first", 0);
    const JobId second = submit(job_with_gpus(4, "second"));
    Submission urgent = job_with_gpus(8, "urgent");
    urgent.priority = 1;
    const JobId third = submit(urgent);
    tick();
    const auto why_of = [&](JobId id) { return live->why(job(id), now()); };
    EXPECT_EQ(why_of(second).place, 2u) << "the one of higher priority goes first";
    EXPECT_EQ(why_of(third).place, 1u);
    EXPECT_EQ(why_of(first).place, std::nullopt) << "it runs";
    // 1 MB is left to read, and the plan predicts the rate.
    const double rate = cluster.plan().jobs.at(0).predicted_bytes_per_second;
    ASSERT_TRUE(why_of(second).starts_unix_s.has_value());
    EXPECT_NEAR(*why_of(second).starts_unix_s, now_s + job(first).remaining_bytes() / rate, 0.01);
}

TEST_F(Live, WhyNamesNoStartWithoutKnownEnds) {
    submit_and_start(job_with_gpus(8, "endless"));
    const JobId waiting = submit(job_with_gpus(1, "next"));
    tick();
    EXPECT_EQ(live->why(job(waiting), now()).starts_unix_s, std::nullopt);
}

}  // namespace
}  // namespace larder::scheduler
