// Quotas that operators hold on nodes: a plan contains them unchanged and distributes the rest.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "allocator/assign.h"
#include "allocator/cluster.h"
#include "tests/oracle/random_state.h"
#include "tests/support/property_cases.h"
#include "tests/support/test_units.h"

namespace larder::allocator {
namespace {

using test::kGB;

NodeCache quota_on(const Plan& plan, std::uint32_t dataset, std::uint32_t node) {
    const auto& quotas = plan.datasets[dataset].quotas;
    const auto found = std::ranges::find(quotas, node, &NodeCache::node);
    return found == quotas.end() ? NodeCache{.node = node} : *found;
}

// Gives some datasets quotas on some nodes and holds some of these quotas.
void hold_some(ClusterState& state, std::mt19937_64& random) {
    const auto part = [&](std::uint64_t bytes) { return bytes / 8 * (random() % 9); };
    for (std::uint32_t n = 0; n < state.nodes.size(); ++n) {
        NodeCache left{.node = n, .memory_bytes = state.nodes[n].memory_bytes, .disk_bytes = state.nodes[n].disk_bytes};
        for (ClusterDataset& dataset : state.datasets) {
            if (random() % 2 == 0) continue;
            dataset.quotas.push_back({.node = n});
            if (random() % 2 == 0) continue;
            const NodeCache held{n, part(left.memory_bytes), part(left.disk_bytes)};
            left.memory_bytes -= held.memory_bytes;
            left.disk_bytes -= held.disk_bytes;
            dataset.held.push_back(held);
            dataset.quotas.back() = held;
        }
    }
}

TEST(HeldQuotas, EveryPlanKeepsHeldQuotasAndFitsOthersBesideThem) {
    const std::uint64_t cases = test::property_cases(5'000);
    for (std::uint64_t seed = 0; seed < cases; ++seed) {
        ClusterState state = test::RandomState(seed, {.operator_limits = seed % 3 == 0, .turns = true}).make();
        std::mt19937_64 random(seed);
        hold_some(state, random);
        for (ClusterDataset& dataset : state.datasets) dataset.quota_floor_bytes = 0;
        const auto plan = assign(state, {.kind = static_cast<ObjectiveKind>(seed % 6),
                                         .effort = test::effort_of(seed),
                                         .spare_room = seed % 2 == 0,
                                         .place_jobs = false});
        ASSERT_TRUE(plan.has_value()) << seed << ": " << plan.error().message;
        std::vector<NodeCache> used(state.nodes.size());
        for (std::uint32_t i = 0; i < state.datasets.size(); ++i) {
            for (const NodeCache& held : state.datasets[i].held) {
                ASSERT_EQ(quota_on(*plan, i, held.node), held) << seed << " " << state.datasets[i].name;
            }
            for (const NodeCache& quota : plan->datasets[i].quotas) {
                used[quota.node].memory_bytes += quota.memory_bytes;
                used[quota.node].disk_bytes += quota.disk_bytes;
            }
        }
        for (std::size_t n = 0; n < used.size(); ++n) {
            ASSERT_LE(used[n].memory_bytes, state.nodes[n].memory_bytes) << seed;
            ASSERT_LE(used[n].disk_bytes, state.nodes[n].disk_bytes) << seed;
        }
    }
}

class HeldQuotasTest : public testing::Test {
protected:
    // A node of 10 GB of memory and 90 GB of disk that holds a quota of `images`.
    static NodeReport held_report(std::uint64_t memory_bytes, std::uint64_t disk_bytes) {
        return {.node = "a",
                .instance = 1,
                .memory_bytes = 10 * kGB,
                .disk_bytes = 90 * kGB,
                .datasets = {{.name = "images",
                              .size_bytes = 200 * kGB,
                              .quota_memory_bytes = memory_bytes,
                              .quota_disk_bytes = disk_bytes,
                              .quota_held = true},
                             {.name = "text", .size_bytes = 50 * kGB}},
                .jobs = {{.name = "language", .dataset = "text"}, {.name = "vision", .dataset = "images"}}};
    }
    NodePlan plan_of(const NodeReport& report) {
        EXPECT_TRUE(cluster.report(report, 0));
        EXPECT_TRUE(cluster.replan(0));
        const auto part = cluster.plan_for(report.node, 0);
        EXPECT_TRUE(part.has_value());
        return part.value_or(NodePlan{});
    }

    Cluster cluster{{.remote_bytes_per_second = 1e9}};
};

TEST_F(HeldQuotasTest, QuotasHeldOnNodeAreInItsPlan) {
    const NodePlan part = plan_of(held_report(4 * kGB, 20 * kGB));
    EXPECT_EQ(part.quotas.at(0), (DatasetQuota{"images", 4 * kGB, 20 * kGB}));
    const DatasetQuota& text = part.quotas.at(1);
    EXPECT_LE(text.memory_bytes, 6 * kGB);
    EXPECT_NEAR(static_cast<double>(text.memory_bytes + text.disk_bytes), 50e9, 2);
}

TEST_F(HeldQuotasTest, HeldQuotaAboveNodeCapacityIsClamped) {
    const NodePlan part = plan_of(held_report(4 * kGB, 200 * kGB));
    EXPECT_EQ(part.quotas.at(0), (DatasetQuota{"images", 4 * kGB, 90 * kGB}));
    EXPECT_LE(part.quotas.at(1).memory_bytes, 6 * kGB);
}

TEST_F(HeldQuotasTest, HeldQuotaReducesBytesThatCanBePinned) {
    (void)plan_of(held_report(4 * kGB, 56 * kGB));
    const auto pinned = cluster.pin_quota("text", 41 * kGB, 0);
    ASSERT_FALSE(pinned.has_value());
    EXPECT_EQ(pinned.error().code, ErrorCode::no_space);
    EXPECT_NE(pinned.error().message.find("at most 40.00 GB is free"), std::string::npos) << pinned.error().message;
    EXPECT_TRUE(cluster.pin_quota("text", 40 * kGB, 0));
}

// Three nodes that share nothing, of 100 GB each. `images` is on a, `text` on a and b, `audio` on all.
class PinsOfNodesTest : public testing::Test {
protected:
    PinsOfNodesTest() {
        const std::vector<std::vector<DatasetReport>> datasets = {
            {dataset("images"), dataset("text"), dataset("audio")},
            {dataset("text"), dataset("audio")},
            {dataset("audio")}};
        for (std::size_t n = 0; n < datasets.size(); ++n) {
            EXPECT_TRUE(cluster.report({.node = std::string(1, static_cast<char>('a' + n)),
                                        .instance = 1,
                                        .memory_bytes = 10 * kGB,
                                        .disk_bytes = 90 * kGB,
                                        .datasets = datasets[n]},
                                       0));
        }
    }
    static DatasetReport dataset(const char* name) { return {.name = name, .size_bytes = 1000 * kGB}; }
    std::string refusal_of(const char* name, std::uint64_t gigabytes) {
        const auto pinned = cluster.pin_quota(name, gigabytes * kGB, 0);
        return pinned ? "" : pinned.error().message;
    }

    Cluster cluster{{.remote_bytes_per_second = 1e9}};
};

TEST_F(PinsOfNodesTest, PinMustFitTheNodesThatHaveTheDataset) {
    EXPECT_EQ(refusal_of("images", 150),
              "dataset \"images\" cannot have 150.00 GB: at most 100.00 GB is free, because the caches of the nodes "
              "that have it hold 100.00 GB and other datasets' quotas that are fixed or reserved have 0 B");
    EXPECT_EQ(refusal_of("text", 200), "");
    EXPECT_NE(refusal_of("audio", 101).find("at most 100.00 GB is free"), std::string::npos);
    EXPECT_EQ(refusal_of("audio", 100), "");
    EXPECT_NE(refusal_of("images", 1).find("at most 0 B is free"), std::string::npos);
}

TEST_F(PinsOfNodesTest, OtherPinsTakeTheCacheOfNodesWithoutTheDatasetFirst) {
    EXPECT_EQ(refusal_of("audio", 150), "");
    EXPECT_EQ(refusal_of("text", 60), "");
    // The pins take 210 GB, and b and c have 200 GB.
    EXPECT_NE(refusal_of("images", 100).find("at most 90.00 GB is free"), std::string::npos)
        << refusal_of("images", 100);
    EXPECT_EQ(refusal_of("images", 90), "");
}

TEST_F(HeldQuotasTest, NoQuotaIsTooSmallForABlock) {
    std::mt19937_64 random(1);
    for (int round = 0; round < 300; ++round) {
        NodeReport report{.node = "a", .instance = 1};
        for (const char* name : {"x", "y", "z"}) {
            report.datasets.push_back({.name = name, .size_bytes = 1 + random() % kGB});
            if (std::ssize(report.jobs) < round % 4) report.jobs.push_back({.name = name, .dataset = name});
        }
        // The caches hold two datasets and a few bytes of the third.
        report.memory_bytes = report.datasets[0].size_bytes + random() % 3;
        report.disk_bytes = round % 8 < 4 ? report.datasets[1].size_bytes : 0;
        for (const DatasetQuota& quota : plan_of(report).quotas) {
            const std::uint64_t bytes = quota.memory_bytes + quota.disk_bytes;
            ASSERT_TRUE(bytes == 0 || bytes >= 4096) << round << " " << quota.name << " " << bytes;
        }
    }
}

TEST_F(HeldQuotasTest, ScansGetTheBandwidthThatJobsLeave) {
    NodeReport report = held_report(4 * kGB, 20 * kGB);
    report.jobs.clear();
    EXPECT_TRUE(plan_of(report).lease.rates.empty());
    report.scans = 1;
    const NodePlan idle = plan_of(report);
    ASSERT_EQ(idle.lease.rates.size(), 1u);
    EXPECT_EQ(idle.lease.rates[0].job, kScansJob);
    EXPECT_NEAR(idle.lease.rates[0].bytes_per_second, 1e9, 1);

    EXPECT_TRUE(cluster.register_job({.name = "language", .ideal_bytes_per_second = 3e8}));
    report.jobs = {{.name = "language", .dataset = "text", .demand_bytes_per_second = 3e8}};
    const NodePlan busy = plan_of(report);
    ASSERT_EQ(busy.lease.rates.size(), 2u);
    EXPECT_EQ(busy.lease.rates[0].job, "language");
    EXPECT_NEAR(busy.lease.rates[0].bytes_per_second, 3.3e8, 1e6) << "what it needs, and room to grow";
    EXPECT_NEAR(busy.lease.rates[1].bytes_per_second, 6.7e8, 1e7);
    report.scans = 0;
    EXPECT_NEAR(plan_of(report).lease.sum(), 1e9, 1e7) << "the job gets all bandwidth again";
}

TEST_F(HeldQuotasTest, BurstInOneReportTakesNothingFromScans) {
    EXPECT_TRUE(cluster.register_job({.name = "language", .ideal_bytes_per_second = 2e8}));
    NodeReport report = held_report(4 * kGB, 20 * kGB);
    report.scans = 1;
    report.jobs = {{.name = "language", .dataset = "text"}};
    std::int64_t now_ns = 0;
    const auto scan_rate_at = [&](double demand) {
        report.jobs[0].demand_bytes_per_second = demand;
        EXPECT_TRUE(cluster.report(report, now_ns));
        EXPECT_TRUE(cluster.replan(now_ns));
        const auto part = cluster.plan_for(report.node, now_ns);
        report.lease_applied = part ? part->lease.number : 0;
        now_ns += 1'000'000'000;
        return part && part->lease.rates.size() == 2 ? part->lease.rates[1].bytes_per_second : -1;
    };
    for (const double demand : {2e8, 9e8, 1e8, 2e8, 7e8, 0.0, 9e8, 2e8}) {
        EXPECT_NEAR(scan_rate_at(demand), 7.8e8, 1e7) << "demand " << demand;
    }
    EXPECT_NEAR(scan_rate_at(9e8), 7.8e8, 1e7);
    EXPECT_LT(scan_rate_at(9e8), 2e7) << "a demand that lasts is served by the second report";
    // Early reports show the same burst several times.
    EXPECT_NEAR(scan_rate_at(2e8), 7.8e8, 1e7);
    for (int i = 0; i < 3; ++i) {
        EXPECT_NEAR(scan_rate_at(9e8), 7.8e8, 1e7);
        now_ns -= 800'000'000;
    }
}

}  // namespace
}  // namespace larder::allocator
