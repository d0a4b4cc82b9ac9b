// The allocator's metrics for Prometheus.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/allocator/service/allocator_api_fixture.h"

namespace larder::allocator {
namespace {

using testing::HasSubstr;
using testing::Not;

class AllocatorMetrics : public AllocatorApiTest {
protected:
    std::string metrics() {
        const HttpResponse response = ask("GET", {"metrics"});
        EXPECT_EQ(response.status, 200u);
        EXPECT_EQ(response.content_type, "text/plain; version=0.0.4; charset=utf-8");
        return response.body;
    }
};

TEST_F(AllocatorMetrics, EmptyClusterShowsOnlyServiceMetrics) {
    const std::string text = metrics();
    EXPECT_THAT(text, HasSubstr("larder_allocator_uptime_seconds 0\n"));
    EXPECT_THAT(text, HasSubstr("larder_allocator_leads 1\n"));
    EXPECT_THAT(text, HasSubstr("larder_remote_bytes_per_second 1000000000\n"));
    EXPECT_THAT(text, Not(HasSubstr("larder_plan_job")));
    EXPECT_THAT(text, Not(HasSubstr("larder_plan_node")));
    EXPECT_THAT(text, HasSubstr("# TYPE larder_plan_duration_seconds histogram\n"));
}

TEST_F(AllocatorMetrics, EveryEntityShowsItsPlanAndMeasurements) {
    NodeReport node = report_of("a\"b");
    node.datasets[0].cached_disk_bytes = 60'000'000'000;
    for (int i = 0; i < 10; ++i) {
        node.jobs[0].bytes += 400'000'000;
        node.jobs[0].busy_s += 4 * 0.5;
        node.jobs[0].remote_bytes = 300'000'000u * static_cast<unsigned>(i);
        node.jobs[0].unread_bytes = 0;
        node.jobs[0].unread_cached_bytes = 0;
        ASSERT_EQ(report(node).status, 200u);
        clock.advance_ns(kSecond_ns);
    }
    EXPECT_EQ(report({}).status, 400u);
    ASSERT_EQ(ask("PUT", {"v1", "datasets", "images", "pin"}, R"({"bytes":60000000000})").status, 200u);
    const std::string text = metrics();
    // f = f* = 0.8 GB/s, because 1 GB/s of remote carries more than that at h = 0.3. The job read 0.4 GB/s.
    for (const char* line : {
             "larder_reports_total{result=\"taken\"} 10\n",
             "larder_reports_total{result=\"refused\"} 1\n",
             "larder_events_total{kind=\"report_refused\"} 1\n",
             "larder_events_total{kind=\"pin_set\"} 1\n",
             "larder_plan_job_measured_bytes_per_second{dataset=\"images\",job=\"vision\"} 400000000\n",
             "larder_plan_job_remote_bytes_per_second{dataset=\"images\",job=\"vision\"} 300000000\n",
             "larder_plan_job_hit_ratio{dataset=\"images\",job=\"vision\"} 0.3\n",
             "larder_plan_job_stall_ratio{dataset=\"images\",job=\"vision\"} 0.5\n",
             "larder_plan_job_prediction_error_ratio{dataset=\"images\",job=\"vision\"} -0.",
             "larder_plan_dataset_quota_bytes{dataset=\"images\"} 60000000000\n",
             "larder_plan_dataset_pinned_bytes{dataset=\"images\"} 60000000000\n",
             "larder_plan_dataset_effective_bytes{dataset=\"images\"} 60000000000\n",
             "larder_plan_node_alive{node=\"a\\\"b\"} 1\n",
             "larder_plan_node_report_age_seconds{node=\"a\\\"b\"} 1\n",
             "larder_lease_age_seconds{node=\"a\\\"b\"} 1\n",
             "larder_plan_node_used_bytes{node=\"a\\\"b\",tier=\"disk\"} 60000000000\n",
             "larder_plan_duration_seconds_bucket{le=\"0.0001\"} ",
         }) {
        EXPECT_THAT(text, HasSubstr(line));
    }
}

TEST(ServiceCounts, PlansAreCountedByDuration) {
    ServiceCounts counts;
    counts.add_plan(0);
    counts.add_plan(100'000);    // 0.1 ms: at most the first bound
    counts.add_plan(2'000'000);  // 2 ms: below 3 ms
    counts.add_plan(9'000'000'000);
    EXPECT_EQ(counts.plans[0], 2u);
    EXPECT_EQ(counts.plans[3], 1u);
    EXPECT_EQ(counts.plans.back(), 1u);
    EXPECT_NEAR(counts.plans_s, 9.0021, 1e-9);
}

}  // namespace
}  // namespace larder::allocator
