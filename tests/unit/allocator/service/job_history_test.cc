// Keeps what limits jobs, since when, and their rates of the last hour.

#include "allocator/service/job_history.h"

#include <gtest/gtest.h>

#include "tests/support/test_units.h"

namespace larder::allocator {

using test::kSecond_ns;
namespace {

class JobHistoryTest : public testing::Test {
protected:
    // Job "vision" reads a dataset that is not cached, at f* = 100 MB/s.
    void report(const std::string& job = "vision", std::uint64_t bytes = 0) {
        const NodeReport node{.node = "a",
                              .instance = 1,
                              .memory_bytes = 1'000,
                              .datasets = {{.name = "images", .size_bytes = 1'000'000'000}},
                              .jobs = {{.name = job, .dataset = "images", .ranks = 1, .bytes = bytes}}};
        ASSERT_TRUE(cluster.report(node, now_ns));
        observed.report(cluster.nodes().at("a").last, now_ns);
        ASSERT_TRUE(cluster.replan(now_ns));
    }
    void pass(std::int64_t seconds) {
        now_ns += seconds * kSecond_ns;
        read_bytes += static_cast<std::uint64_t>(seconds) * bytes_per_second;
        report("vision", read_bytes);
        history.update(cluster, observed, now_ns, now_ns / 1'000'000);
    }
    JobLimit limit() const {
        const JobLimit* found = history.limit_of("vision");
        return found == nullptr ? JobLimit{} : *found;
    }

    std::uint64_t bytes_per_second = 100'000'000;
    std::uint64_t read_bytes = 0;
    std::int64_t now_ns = 1'000 * kSecond_ns;
    Cluster cluster{{.remote_bytes_per_second = 1e9}};
    Observed observed;
    JobHistory history;
};

TEST_F(JobHistoryTest, LimitSaysSinceWhen) {
    ASSERT_TRUE(cluster.register_job({.name = "vision", .ideal_bytes_per_second = 1e8}));
    pass(0);
    EXPECT_EQ(limit().kind, JobLimit::Kind::compute);
    EXPECT_EQ(limit().since_unix_ms, 1'000'000);
    pass(2);
    EXPECT_EQ(limit().since_unix_ms, 1'000'000) << "the same limit goes on";
    ASSERT_TRUE(cluster.set_remote(2e7));
    pass(2);
    EXPECT_EQ(limit().kind, JobLimit::Kind::remote);
    EXPECT_EQ(limit().since_unix_ms, 1'004'000);
}

TEST_F(JobHistoryTest, JobThatReadsLessThanItCouldIsNotLimitedByCompute) {
    ASSERT_TRUE(cluster.register_job({.name = "vision", .ideal_bytes_per_second = 1e8}));
    for (int i = 0; i < 30; ++i) pass(1);
    EXPECT_EQ(limit().kind, JobLimit::Kind::compute);
    bytes_per_second = 2'000'000;
    for (int i = 0; i < 30; ++i) pass(1);
    EXPECT_EQ(limit().kind, JobLimit::Kind::unpredicted);
    EXPECT_EQ(name(limit().kind), "unpredicted");
    bytes_per_second = 95'000'000;
    for (int i = 0; i < 30; ++i) pass(1);
    EXPECT_EQ(limit().kind, JobLimit::Kind::compute) << "measured rates vary";
}

TEST_F(JobHistoryTest, LimitIsUnknownWithoutIdealRate) {
    pass(0);
    EXPECT_EQ(limit().kind, JobLimit::Kind::unknown);
}

TEST_F(JobHistoryTest, SamplesComeEveryTenSecondsForAnHour) {
    ASSERT_TRUE(cluster.register_job({.name = "vision", .ideal_bytes_per_second = 1e8}));
    for (int i = 0; i < 25; ++i) pass(1);
    ASSERT_NE(history.samples_of("vision"), nullptr);
    EXPECT_EQ(history.samples_of("vision")->size(), 3u);
    EXPECT_FLOAT_EQ(history.samples_of("vision")->back().ideal, 1e8f);
    for (int i = 0; i < 400; ++i) pass(10);
    EXPECT_EQ(history.samples_of("vision")->size(), 360u);
}

TEST_F(JobHistoryTest, ForgetsJobThatEnded) {
    pass(0);
    EXPECT_NE(history.samples_of("vision"), nullptr);
    now_ns += 2 * kSecond_ns;
    report("other");
    history.update(cluster, observed, now_ns, 0);
    EXPECT_EQ(history.samples_of("vision"), nullptr);
    EXPECT_EQ(history.limit_of("vision"), nullptr);
}

}  // namespace
}  // namespace larder::allocator
