#include "cache/control/daemon_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/control/rate_meter.h"

namespace larder::cache {
namespace {

using testing::HasSubstr;

TEST(Metrics, ExportsDataPlaneCounters) {
    ShardStatistics statistics;
    DatasetStatistics dataset{.dataset_id = 1, .name = "quo\"ted"};
    dataset.counters.memory_hits = 3;
    dataset.counters.disk_bytes = 12'345'678'901;
    dataset.latency[2].add(1'500);      // 1 us: below 2 us
    dataset.latency[2].add(3'000'000);  // 3000 us: below 4096 us
    statistics.datasets.push_back(dataset);
    JobStatistics job{.job = "resnet", .dataset = "d", .stall_ns = 2'500'000'000};
    statistics.jobs.push_back(job);
    const std::string text = metrics_text({.sessions = 4}, statistics);
    for (const char* line : {
             "# TYPE larder_dataset_blocks_total counter\n",
             "larder_dataset_blocks_total{dataset=\"quo\\\"ted\",source=\"memory\"} 3\n",
             "larder_dataset_bytes_total{dataset=\"quo\\\"ted\",source=\"disk\"} 12345678901\n",
             "# TYPE larder_dataset_block_latency_seconds histogram\n",
             "larder_dataset_block_latency_seconds_count{dataset=\"quo\\\"ted\",source=\"disk\"} 2\n",
             "larder_dataset_block_latency_seconds_bucket{dataset=\"quo\\\"ted\",source=\"disk\",le=\"2e-06\"} 1\n",
             "larder_dataset_block_latency_seconds_bucket{dataset=\"quo\\\"ted\",source=\"disk\",le=\"+Inf\"} 2\n",
             "larder_job_stall_seconds_total{dataset=\"d\",job=\"resnet\"} 2.5\n",
             "larder_node_sessions 4\n",
         }) {
        EXPECT_THAT(text, HasSubstr(line));
    }
}

TEST(Metrics, OmitsMetricsWithoutValues) {
    const std::string text = metrics_text({}, {});
    EXPECT_THAT(text, HasSubstr("larder_node_uptime_seconds 0\n"));
    EXPECT_EQ(text.find("larder_job"), std::string::npos);
    EXPECT_EQ(text.find("larder_dataset"), std::string::npos);
}

TEST(RateMeter, MeasuresOverItsWindow) {
    RateMeter meter;
    const auto sample = [&](std::uint64_t bytes, std::int64_t now_ns) {
        ShardStatistics statistics;
        statistics.jobs.push_back({.job = "j", .dataset_id = 1, .bytes_delivered = bytes});
        meter.sample(statistics, now_ns);
        return meter.bytes_per_second(1, "j");
    };
    constexpr std::int64_t kSecond_ns = 1'000'000'000;
    EXPECT_EQ(sample(1'000, kSecond_ns), 0);
    EXPECT_EQ(sample(2'000, 2 * kSecond_ns), 0) << "the window of 2 s is not over";
    EXPECT_EQ(sample(5'000, 3 * kSecond_ns), 2'000);
    EXPECT_EQ(sample(5'000, 5 * kSecond_ns), 0);
    EXPECT_EQ(sample(100, 7 * kSecond_ns), 0) << "a client may claim less than before";
    EXPECT_EQ(meter.bytes_per_second(2, "j"), 0);
}

}  // namespace
}  // namespace larder::cache
