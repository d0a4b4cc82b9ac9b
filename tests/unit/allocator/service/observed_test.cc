// Measured rates and stalls, from the counters that nodes report.

#include "allocator/service/observed.h"

#include <gtest/gtest.h>

#include "tests/support/test_units.h"

namespace larder::allocator {

using test::kSecond_ns;
namespace {

class ObservedTest : public testing::Test {
protected:
    Observed observed;
    std::int64_t now_ns = 0;

    // Reports that each rank of the job read `bytes` and was busy for `busy_s`.
    void report_work(NodeReport& node, std::uint64_t bytes, double busy_s) {
        for (JobReport& job : node.jobs) {
            job.bytes += bytes * job.ranks;
            job.busy_s += busy_s * job.ranks;
        }
        observed.report(node, now_ns);
    }
    static NodeReport node_with(const std::string& node, std::uint32_t ranks = 1) {
        return {.node = node, .instance = 1, .jobs = {{.name = "vision", .dataset = "images", .ranks = ranks}}};
    }
};

TEST_F(ObservedTest, RatesAndStallsCoverTheLastSeconds) {
    NodeReport a = node_with("a");
    report_work(a, 5000, 1);
    EXPECT_TRUE(observed.job_rates(now_ns).empty()) << "one report has no rate";
    for (int i = 0; i < 10; ++i) {
        now_ns += kSecond_ns;
        report_work(a, 1000, 1);
    }
    EXPECT_DOUBLE_EQ(observed.job_rates(now_ns).at("vision").bytes_per_second, 1000);
    EXPECT_DOUBLE_EQ(observed.job_rates(now_ns).at("vision").stall_ratio, 0);
    for (int i = 0; i < 5; ++i) {
        now_ns += kSecond_ns;
        report_work(a, 400, 0.25);
    }
    EXPECT_DOUBLE_EQ(observed.job_rates(now_ns).at("vision").bytes_per_second, 400);
    EXPECT_DOUBLE_EQ(observed.job_rates(now_ns).at("vision").stall_ratio, 0.75);
}

TEST_F(ObservedTest, RemoteRatesAddUpOnceAllNodesReportThem) {
    NodeReport a = node_with("a");
    NodeReport b = node_with("b");
    a.jobs[0].remote_bytes = 1'000'000;
    const auto run = [&] {
        for (int i = 0; i < 3; ++i) {
            report_work(a, 1000, 1);
            report_work(b, 1000, 1);
            now_ns += kSecond_ns;
            *a.jobs[0].remote_bytes += 30;
            if (b.jobs[0].remote_bytes) *b.jobs[0].remote_bytes += 12;
        }
        return observed.job_rates(now_ns).at("vision").remote_bytes_per_second;
    };
    EXPECT_EQ(run(), std::nullopt) << "node b reports no remote bytes";
    b.jobs[0].remote_bytes = 0;
    EXPECT_EQ(run(), 42);
}

TEST_F(ObservedTest, RatesOfOneJobAddUpOverNodes) {
    NodeReport a = node_with("a", 3);
    NodeReport b = node_with("b", 1);
    for (int i = 0; i < 4; ++i) {
        report_work(a, 100, 1);
        report_work(b, 60, 0.2);
        now_ns += kSecond_ns;
    }
    const JobRate rate = observed.job_rates(now_ns).at("vision");
    EXPECT_DOUBLE_EQ(rate.bytes_per_second, 360);
    EXPECT_NEAR(rate.stall_ratio, 0.8 / 4, 1e-9) << "of the time of all four ranks";
}

TEST_F(ObservedTest, RestartedNodeStartsNewMeasurement) {
    NodeReport a = node_with("a");
    report_work(a, 1'000'000, 1);
    now_ns += kSecond_ns;
    report_work(a, 1'000'000, 1);
    a.instance = 2;
    a.jobs[0].bytes = 5'000'000'000;  // more than before: only the instance shows the restart
    now_ns += kSecond_ns;
    report_work(a, 0, 0);
    EXPECT_TRUE(observed.job_rates(now_ns).empty());
    now_ns += kSecond_ns;
    a.jobs[0].bytes = 10;  // a counter that went back
    report_work(a, 0, 0);
    EXPECT_TRUE(observed.job_rates(now_ns).empty());
    now_ns += kSecond_ns;
    report_work(a, 70, 1);
    EXPECT_DOUBLE_EQ(observed.job_rates(now_ns).at("vision").bytes_per_second, 70);
}

TEST_F(ObservedTest, EndedJobOrSilentNodeHasNoRate) {
    NodeReport a = node_with("a");
    NodeReport b = node_with("b");
    for (int i = 0; i < 3; ++i) {
        now_ns += kSecond_ns;
        report_work(a, 100, 1);
        report_work(b, 100, 1);
    }
    b.jobs.clear();
    observed.report(b, now_ns);
    EXPECT_DOUBLE_EQ(observed.job_rates(now_ns).at("vision").bytes_per_second, 100);
    EXPECT_TRUE(observed.job_rates(now_ns + 11 * kSecond_ns).empty());
}

TEST_F(ObservedTest, ReportsFarApartStillGiveRate) {
    NodeReport a = node_with("a");
    report_work(a, 0, 0);
    now_ns += 8 * kSecond_ns;
    report_work(a, 800, 8);
    EXPECT_DOUBLE_EQ(observed.job_rates(now_ns).at("vision").bytes_per_second, 100);
    report_work(a, 800, 8);
    EXPECT_DOUBLE_EQ(observed.job_rates(now_ns).at("vision").bytes_per_second, 200) << "a second report at one time";
}

TEST_F(ObservedTest, LastLeaseIsKept) {
    EXPECT_FALSE(observed.lease_of("a").has_value());
    observed.leased("a", {.number = 4, .expires_ns = 9, .rates = {{"x", 3.0}, {"y", 4.0}}, .cut = true}, 5);
    ASSERT_TRUE(observed.lease_of("a").has_value());
    EXPECT_EQ(observed.lease_of("a")->number, 4u);
    EXPECT_EQ(observed.lease_of("a")->granted_ns, 5);
    EXPECT_EQ(observed.lease_of("a")->bytes_per_second, 7);
    EXPECT_TRUE(observed.lease_of("a")->cut);
}

TEST_F(ObservedTest, ShortLeasesKeepTimeOfFirstShortLease) {
    const auto lease = [&](double bytes_per_second, std::int64_t at_ns) {
        observed.leased("a", {.rates = {{"x", bytes_per_second}}, .cut = true, .wanted_bytes_per_second = 100}, at_ns);
        return observed.lease_of("a")->short_since_ns;
    };
    EXPECT_EQ(lease(95, 1), std::nullopt) << "a lease that is cut by 5 % is not short";
    EXPECT_EQ(lease(80, 2), 2);
    EXPECT_EQ(lease(10, 3), 2);
    EXPECT_EQ(lease(100, 4), std::nullopt);
    EXPECT_EQ(lease(89, 5), 5);
}

}  // namespace
}  // namespace larder::allocator
