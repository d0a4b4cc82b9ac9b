// Leases are carried over from one leader to the next, by the rates on record. Each leader has its own clock.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "allocator/cluster.h"
#include "allocator/lease_ledger.h"
#include "allocator/service/state_rows.h"
#include "allocator/service/state_store.h"
#include "tests/support/test_units.h"

namespace larder::allocator {

using test::kGB;
using test::kSecond_ns;
namespace {

constexpr std::int64_t kLeaseLength_ns = 10 * kSecond_ns;
constexpr double kWholeRemote = 1e9;

// The rows that a real etcd would have.
struct SharedRows {
    std::map<std::string, std::string> rows;
    std::map<std::string, int> writes;  // by the part of the key before its slash
    std::size_t most_rows = 0;          // of a write
    std::atomic<bool> is_full = false;
    std::atomic<int> leader = 0;

    OpenRows open() {
        return [this](const RowStoreOptions& options) -> Result<std::unique_ptr<RowStore>> {
            ++leader;
            for (const auto& [key, text] : rows) {
                if (auto taken = options.take(key, text); !taken) return std::unexpected(taken.error());
            }
            return std::make_unique<Opened>(*this);
        };
    }

private:
    struct Opened final : RowStore {
        explicit Opened(SharedRows& given) : shared(given), leader(given.leader) {}
        bool is_new() const override { return false; }
        Result<void> write(std::span<const Row> changed) override {
            if (shared.leader != leader) return fail(ErrorCode::unavailable, "another process leads now");
            if (shared.is_full) return fail(ErrorCode::no_space, "etcd is full");
            shared.most_rows = std::max(shared.most_rows, changed.size());
            for (const Row& row : changed) {
                ++shared.writes[row.key.substr(0, row.key.find('/'))];
                if (row.text) {
                    shared.rows[row.key] = *row.text;
                } else {
                    shared.rows.erase(row.key);
                }
            }
            return {};
        }
        SharedRows& shared;
        const int leader;
    };
};

class CarryOver : public testing::Test {
protected:
    ClusterOptions options{.remote_bytes_per_second = kWholeRemote, .lease_ns = kLeaseLength_ns};
    SharedRows shared;
    std::int64_t true_ns = 0;
    std::int64_t clock_ahead_ns = 0;  // of the present leader's clock
    std::unique_ptr<StateStore> store;
    std::unique_ptr<Cluster> cluster;

    std::int64_t now_ns() const { return true_ns + clock_ahead_ns; }

    // The leader's writes that are under way are lost. Afterwards no thread writes to `shared`.
    void stop_leader() {
        ++shared.leader;
        cluster.reset();
        store.reset();
    }
    // Another leader takes over, whose clock is far from the last one's.
    void lead(std::int64_t ahead_ns) {
        clock_ahead_ns = ahead_ns;
        stop_leader();
        auto opened = StateStore::open({.lease_ns = options.lease_ns, .shared_settings = shared.open()}, now_ns());
        ASSERT_TRUE(opened) << opened.error().message;
        store = std::move(*opened);
        cluster = std::make_unique<Cluster>(options);
        ASSERT_TRUE(cluster->restore(store->found(), now_ns()));
        cluster->set_save([this](const ClusterRecord& change) { return store->save(change); }, true);
    }
    // Leads for so long that the rates on record are known to be all.
    void lead_first() {
        lead(0);
        true_ns += kLeaseLength_ns;
        NodeReport first = report_of("first", 1);
        ASSERT_TRUE(exchange(first));
        true_ns += 2 * kLeaseLength_ns;
        ASSERT_TRUE(cluster->remove_node("first", now_ns()));
        ASSERT_TRUE(durable());
    }
    static NodeReport report_of(const std::string& node, std::size_t jobs) {
        NodeReport report{.node = node,
                          .instance = 1,
                          .memory_bytes = 10 * kGB,
                          .datasets = {{.name = "images", .size_bytes = 200 * kGB}}};
        for (std::size_t i = 0; i < jobs; ++i) {
            report.jobs.push_back({.name = node + "-" + std::to_string(i),
                                   .dataset = "images",
                                   .demand_bytes_per_second = 1e9,
                                   .user = 1000});
        }
        return report;
    }
    Result<NodePlan> exchange(NodeReport& report) {
        if (auto taken = cluster->report(report, now_ns()); !taken) return std::unexpected(taken.error());
        if (auto made = cluster->replan(now_ns()); !made) return std::unexpected(made.error());
        auto part = cluster->plan_for(report.node, now_ns());
        if (!part) return part;
        // The answer waits until the promises in it are on record.
        if (!store->is_promised(report.node)) {
            std::promise<Result<void>> written;
            store->when_promised(report.node, [&](const Result<void>& result) { written.set_value(result); });
            if (const auto result = written.get_future().get(); !result) {
                cluster->withdraw_lease(report.node, part->lease.number, now_ns());
                store->withdraw_promises(report.node);
                return std::unexpected(result.error());
            }
        }
        cluster->confirm_promises(report.node);
        return part;
    }
    // Waits until all settings are on record.
    Result<void> durable() {
        std::promise<Result<void>> written;
        store->when_durable([&](const Result<void>& result) { written.set_value(result); });
        return written.get_future().get();
    }
    // Lets the allocator measure that the first node's job is a hundred times as fast as the second's.
    void measure_fast_and_slow(std::vector<NodeReport>& nodes) {
        for (int second = 0; second < 20; ++second) {
            nodes[0].jobs[0].bytes += 1'000'000'000;
            nodes[0].jobs[0].busy_s += 0.9;
            nodes[1].jobs[0].bytes += 10'000'000;
            nodes[1].jobs[0].busy_s += 0.9;
            settle(nodes, 1);
        }
    }
    // Returns the sum of each node's rates in the next leader's first answer, as a part of what it was.
    std::map<std::string, double> kept_in_first_answers(std::vector<NodeReport>& nodes) {
        std::map<std::string, double> kept;
        for (NodeReport& node : nodes) {
            const Lease lease = exchange(node).value().lease;
            kept[node.node] = lease.sum();
            node.lease_applied = lease.number;
        }
        EXPECT_TRUE(durable());
        lead(0);
        for (NodeReport& node : nodes) {
            const auto part = exchange(node);
            EXPECT_TRUE(part) << part.error().message;
            if (part) kept[node.node] = part->lease.sum() / kept[node.node];
        }
        return kept;
    }
    void settle(std::vector<NodeReport>& nodes, int seconds) {
        for (int second = 0; second < seconds; ++second) {
            for (NodeReport& node : nodes) node.lease_applied = exchange(node).value().lease.number;
            EXPECT_TRUE(durable()) << "a second is long enough for all writes";
            true_ns += kSecond_ns;
        }
    }
};

TEST_F(CarryOver, DaemonThatTakesANameWaitsForTheLeasesOfTheOneBefore) {
    lead_first();
    std::vector<NodeReport> nodes{report_of("a", 1)};
    nodes[0].state_directory = 77;
    settle(nodes, 10);
    NodeReport other = report_of("a", 1);
    other.instance = 2;
    other.state_directory = 78;
    lead(0);
    EXPECT_EQ(exchange(other).error().code, ErrorCode::already_exists);
    nodes[0].instance = 3;  // a restart
    EXPECT_TRUE(exchange(nodes[0]));
    lead(0);
    EXPECT_EQ(exchange(other).error().code, ErrorCode::already_exists);
    true_ns += kLeaseLength_ns;
    ASSERT_TRUE(exchange(other));
    ASSERT_TRUE(durable());
    lead(0);
    EXPECT_TRUE(exchange(other)) << "the record names it now";
    EXPECT_EQ(exchange(nodes[0]).error().code, ErrorCode::already_exists);
}

TEST_F(CarryOver, FirstAnswerOfNextLeaderGrantsWhatTheLastLeaderGranted) {
    lead_first();
    std::vector<NodeReport> nodes{report_of("a", 1), report_of("b", 3), report_of("c", 0)};
    ASSERT_TRUE(cluster->register_job({.name = "b-1", .bandwidth_floor_bytes_per_second = 4e8}));
    settle(nodes, 10);
    std::map<std::string, std::vector<LeasedRate>> before;
    double sum = 0;
    for (NodeReport& node : nodes) {
        const Lease lease = exchange(node).value().lease;
        before[node.node] = lease.rates;
        sum += lease.sum();
    }
    EXPECT_GT(sum, 0.9 * kWholeRemote);
    lead(-3600 * kSecond_ns);
    EXPECT_GT(cluster->in_force(now_ns()), 0.9 * kWholeRemote);
    for (NodeReport& node : nodes) {
        const auto part = exchange(node);
        ASSERT_TRUE(part) << part.error().message;
        ASSERT_EQ(part->lease.rates.size(), before[node.node].size());
        for (std::size_t i = 0; i < before[node.node].size(); ++i) {
            EXPECT_EQ(part->lease.rates[i].job, before[node.node][i].job);
            EXPECT_NEAR(part->lease.rates[i].bytes_per_second, before[node.node][i].bytes_per_second, 1)
                << node.node << i;
        }
        node.lease_applied = part->lease.number;
    }
}

TEST_F(CarryOver, NewNodeGetsOnlyWhatIsLeftUntilTheCarriedLeasesHaveExpired) {
    lead_first();
    std::vector<NodeReport> nodes{report_of("a", 1), report_of("b", 1)};
    settle(nodes, 10);
    lead(5 * kSecond_ns);
    // Neither a nor b can be reached.
    NodeReport c = report_of("c", 1);
    const Lease cut = exchange(c).value().lease;
    EXPECT_LT(cut.sum(), 0.02 * kWholeRemote);
    c.lease_applied = cut.number;
    true_ns += kLeaseLength_ns;
    EXPECT_GT(exchange(c).value().lease.sum(), 0.9 * kWholeRemote) << "a and b are at their floors";
}

TEST_F(CarryOver, MeasuredRatesOfJobsAreCarriedOver) {
    lead_first();
    std::vector<NodeReport> nodes{report_of("a", 1), report_of("b", 1)};
    measure_fast_and_slow(nodes);
    const double before = exchange(nodes[0]).value().lease.sum();
    ASSERT_GT(before, 0.8 * kWholeRemote);
    lead(0);
    settle(nodes, 3);
    EXPECT_GT(exchange(nodes[0]).value().lease.sum(), 0.9 * before) << "the plan knows that b needs little";
}

// The first user to report a job has its plain name.
TEST_F(CarryOver, MeasuredRatesOfJobsOfOneNameFollowTheirUsers) {
    lead_first();
    std::vector<NodeReport> nodes{report_of("a", 1), report_of("b", 1)};
    for (NodeReport& node : nodes) node.jobs[0].name = "same";
    nodes[1].jobs[0].user = 2000;
    measure_fast_and_slow(nodes);
    const double fast = cluster->measured_ideal("same").value();
    const double slow = cluster->measured_ideal("same (user 2000)").value();
    ASSERT_GT(fast, 50 * slow);
    std::ranges::reverse(nodes);
    for (int term = 0; term < 2; ++term) {
        lead(term);
        settle(nodes, 3);
        EXPECT_NEAR(cluster->measured_ideal("same").value_or(0), slow, 0.2 * slow) << term;
        EXPECT_NEAR(cluster->measured_ideal("same (user 1000)").value_or(0), fast, 0.2 * fast) << term;
    }
    EXPECT_FALSE(shared.rows.contains("ideal/same (user 2000)"));
}

TEST_F(CarryOver, MeasuredRateIsNotTakenByAnotherUsersJob) {
    lead_first();
    std::vector<NodeReport> nodes{report_of("a", 1), report_of("b", 1)};
    measure_fast_and_slow(nodes);
    const double fast = cluster->measured_ideal("a-0").value();
    nodes[1].jobs[0] = {.name = "a-0", .dataset = "images", .user = 2000};
    std::ranges::reverse(nodes);
    lead(0);
    ASSERT_TRUE(exchange(nodes[0]));
    EXPECT_FALSE(cluster->measured_ideal("a-0")) << "nothing of this user's job was measured";
    ASSERT_TRUE(exchange(nodes[1]));
    EXPECT_NEAR(cluster->measured_ideal("a-0 (user 1000)").value_or(0), fast, 0.2 * fast);
}

TEST_F(CarryOver, StateWithoutRatesIsWaitedForOnce) {
    lead(0);
    NodeReport a = report_of("a", 1);
    EXPECT_EQ(exchange(a).error().code, ErrorCode::unavailable);
    true_ns += kLeaseLength_ns / 2;
    lead(0);
    true_ns += kLeaseLength_ns - 1;
    EXPECT_EQ(exchange(a).error().code, ErrorCode::unavailable) << "nothing was on record yet";
    true_ns += 1;
    EXPECT_TRUE(exchange(a));
    lead(7);
    EXPECT_TRUE(exchange(a));
}

TEST_F(CarryOver, LongerLeasesOfEarlierLeaderCountInFull) {
    options.lease_ns = 6 * kLeaseLength_ns;
    lead(0);
    true_ns += options.lease_ns;
    std::vector<NodeReport> nodes{report_of("a", 1)};
    settle(nodes, 3);
    options.lease_ns = kLeaseLength_ns;
    for (int term = 0; term < 3; ++term) {
        lead(term);
        true_ns += 2 * kLeaseLength_ns - 1;
        NodeReport b = report_of("b", 1);
        EXPECT_LT(exchange(b).value().lease.sum(), 0.02 * kWholeRemote) << "term " << term;
    }
    true_ns += 6 * kLeaseLength_ns;
    NodeReport b = report_of("b", 1);
    ASSERT_GT(exchange(b).value().lease.sum(), 0.9 * kWholeRemote);
    lead(0);
    true_ns += kLeaseLength_ns;
    NodeReport c = report_of("c", 1);
    EXPECT_GT(exchange(c).value().lease.sum(), 0.9 * kWholeRemote) << "the longer leases have all expired";
}

TEST_F(CarryOver, QuietClusterWritesNothing) {
    lead_first();
    std::vector<NodeReport> nodes;
    for (int i = 0; i < 20; ++i) nodes.push_back(report_of("node-" + std::to_string(i), i % 4));
    settle(nodes, 40);
    shared.writes.clear();
    std::mt19937_64 random(1);
    for (int second = 0; second < 100; ++second) {
        // Demands are never quite the same.
        for (NodeReport& node : nodes) {
            for (JobReport& job : node.jobs)
                job.demand_bytes_per_second = 1e9 + static_cast<double>(random() % 100'000);
        }
        settle(nodes, 1);
    }
    EXPECT_THAT(shared.writes, testing::IsEmpty());
}

TEST_F(CarryOver, ChangeOfPlanWritesEachNodeFewTimes) {
    lead_first();
    constexpr int kNodes = 60;
    std::vector<NodeReport> nodes;
    for (int i = 0; i < kNodes; ++i) nodes.push_back(report_of("node-" + std::to_string(i), 1));
    settle(nodes, 15);
    shared.writes.clear();
    for (int i = 0; i < kNodes; i += 2) nodes[i].jobs.clear();
    settle(nodes, 30);
    EXPECT_GE(shared.writes["rates"], kNodes);
    EXPECT_LE(shared.writes["rates"], 4 * kNodes);
}

TEST_F(CarryOver, FailedWriteCostsOnlyTheRiseOfItsNode) {
    lead_first();
    std::vector<NodeReport> nodes{report_of("a", 2), report_of("b", 1)};
    settle(nodes, 15);
    const double before = exchange(nodes[0]).value().lease.sum();
    nodes[1].jobs.clear();
    shared.is_full = true;
    // The rates of b fall at once, and those of a rise by what is free then.
    std::vector<ErrorCode> refused;
    for (int second = 0; second < 8; ++second) {
        for (NodeReport& node : nodes) {
            const auto part = exchange(node);
            if (part) {
                node.lease_applied = part->lease.number;
            } else {
                EXPECT_EQ(node.node, "a");
                refused.push_back(part.error().code);
            }
            if (part && node.node == "a") {
                EXPECT_NEAR(part->lease.sum(), before, 0.01 * before);
            }
        }
        true_ns += kSecond_ns;
    }
    EXPECT_THAT(refused, testing::ElementsAre(ErrorCode::no_space)) << "later leases stay within the record";
    shared.is_full = false;
    true_ns += kLeaseLength_ns;
    settle(nodes, 3);
    EXPECT_GT(exchange(nodes[0]).value().lease.sum(), 1.2 * before) << "another attempt is made";
}

TEST_F(CarryOver, FloorThatCannotRiseCostsOneAnswer) {
    lead_first();
    std::vector<NodeReport> nodes{report_of("a", 2)};
    settle(nodes, 15);
    NodeReport& a = nodes[0];
    const double floor = exchange(a).value().lease.expired();
    shared.is_full = true;
    a.jobs = report_of("a", 5).jobs;
    std::vector<ErrorCode> refused;
    for (int second = 0; second < 8; ++second) {
        if (const auto part = exchange(a)) {
            EXPECT_EQ(part->lease.rates.size(), 5u);
            EXPECT_GT(part->lease.sum(), 0.9 * kWholeRemote);
            EXPECT_NEAR(part->lease.expired(), floor, 1e-6 * floor);
            a.lease_applied = part->lease.number;
        } else {
            refused.push_back(part.error().code);
        }
        true_ns += kSecond_ns;
    }
    EXPECT_THAT(refused, testing::ElementsAre(ErrorCode::no_space)) << "later leases stay within the record";
    a.jobs.resize(2);
    for (int second = 0; second < 25; ++second) {
        const auto part = exchange(a);
        ASSERT_TRUE(part) << "second " << second << ": what is on record is enough";
        EXPECT_NEAR(part->lease.expired(), floor, 1e-6 * floor);
        a.lease_applied = part->lease.number;
        true_ns += kSecond_ns;
    }
    shared.is_full = false;
    a.jobs = report_of("a", 5).jobs;
    settle(nodes, 3);
    EXPECT_GT(exchange(a).value().lease.expired(), 2 * floor) << "another attempt is made";
}

TEST_F(CarryOver, FloorThatFellWhileEtcdWasFullCostsOneAnswerToRise) {
    lead_first();
    std::vector<NodeReport> nodes{report_of("a", 4)};
    settle(nodes, 15);
    NodeReport& a = nodes[0];
    shared.is_full = true;
    int refused = 0;
    for (int second = 0; second < 38; ++second) {
        if (second == 15) a.jobs.resize(1);
        if (second == 30) a.jobs = report_of("a", 4).jobs;
        if (const auto part = exchange(a)) {
            a.lease_applied = part->lease.number;
        } else {
            ++refused;
        }
        true_ns += kSecond_ns;
    }
    EXPECT_LE(refused, 1);
}

TEST_F(CarryOver, RemovalOfNodeIsDurableOnceItsFloorIsRemoved) {
    lead_first();
    std::vector<NodeReport> nodes{report_of("a", 1)};
    settle(nodes, 3);
    ASSERT_TRUE(shared.rows.contains("floor/a"));
    true_ns += 2 * kLeaseLength_ns;
    shared.is_full = true;
    ASSERT_TRUE(cluster->remove_node("a", now_ns()));
    EXPECT_FALSE(store->all_durable());
    EXPECT_EQ(durable().error().code, ErrorCode::no_space);
    shared.is_full = false;
    EXPECT_TRUE(durable());
    EXPECT_TRUE(store->all_durable());
    EXPECT_FALSE(shared.rows.contains("floor/a"));
    settle(nodes, 1);
    EXPECT_TRUE(shared.rows.contains("floor/a"));
}

TEST_F(CarryOver, FinishedEpochsAreCountedByTheNextLeader) {
    lead_first();
    ASSERT_TRUE(cluster->register_job({.name = "a-0", .epochs = 10}));
    std::vector<NodeReport> nodes{report_of("a", 1)};
    for (const std::uint32_t epoch : {2, 3, 5}) {
        nodes[0].jobs[0].epoch = epoch;
        settle(nodes, 1);
    }
    ASSERT_EQ(cluster->remaining_epochs("a-0"), 7);
    lead(0);
    EXPECT_EQ(cluster->remaining_epochs("a-0"), 7);
    shared.is_full = true;
    nodes[0].jobs[0].epoch = 6;
    ASSERT_TRUE(exchange(nodes[0]));
    shared.is_full = false;
    settle(nodes, 2);
    lead(0);
    EXPECT_EQ(cluster->remaining_epochs("a-0"), 6) << "a failed write is made again";
    ASSERT_TRUE(cluster->remove_job("a-0"));
    ASSERT_TRUE(durable());
    lead(0);
    EXPECT_FALSE(shared.rows.contains("epochs/a-0"));
}

// etcd takes no more than 1 MiB at a time.
TEST(CarriedRecords, ChangeOfManyLargeRecordsFitsOneTransaction) {
    for (const std::size_t jobs : {36u, 200u}) {
        LeaseLedger ledger(kWholeRemote, 0, kLeaseLength_ns);
        std::int64_t now_ns = 0;
        constexpr int kNodes = 120;
        const auto lease = [&](const std::string& node, double rate) {
            std::vector<LeasedRate> rates;
            for (std::size_t i = 0; i < jobs; ++i) {
                rates.push_back({std::string(245, 'j') + std::to_string(i), rate / static_cast<double>(jobs) * 1.01});
            }
            ledger.applied(node, ledger.lease(node, std::move(rates), now_ns).number);
            LeaseLedger::Records records = ledger.to_record(node, now_ns);
            ledger.recorded(records, now_ns);
            ledger.confirm(node);
            return records;
        };
        for (const double part : {0.9, 0.8}) {
            for (int i = 0; i < kNodes; ++i) lease("node-" + std::to_string(i), part * kWholeRemote / kNodes);
            now_ns += kLeaseLength_ns / 2;
        }
        const LeaseLedger::Records records = lease("new", 0.19 * kWholeRemote);
        EXPECT_GT(records.size(), 50u);
        EXPECT_LE(bytes_of(durable_rows_of({.rates = records})), 1u << 20) << jobs << " jobs on each node";
    }
}

TEST_F(CarryOver, FirstAnswersFitSmallerRemote) {
    lead_first();
    std::vector<NodeReport> nodes;
    for (int i = 0; i < 10; ++i) nodes.push_back(report_of("node-" + std::to_string(i), 1));
    settle(nodes, 15);
    // The fall of a node's rates is too small to be recorded for its own sake.
    ASSERT_TRUE(cluster->set_remote(0.9 * kWholeRemote));
    settle(nodes, 15);
    for (const auto& [node, part] : kept_in_first_answers(nodes)) EXPECT_GT(part, 0.97) << node;
}

TEST_F(CarryOver, FirstAnswersLeaveRoomForFloorsOfNodesWithoutJobs) {
    lead_first();
    options.floor_bytes_per_second = 1e6;
    lead(0);
    std::vector<NodeReport> nodes;
    for (int i = 0; i < 25; ++i) nodes.push_back(report_of("busy-" + std::to_string(i), 1));
    for (int i = 0; i < 25; ++i) nodes.push_back(report_of("idle-" + std::to_string(i), 0));
    settle(nodes, 15);
    // Each job's rate is the highest in turn, so that the records are as high as they may be.
    for (int second = 0; second < 25; ++second) {
        for (int i = 0; i < 25; ++i) nodes[i].jobs[0].demand_bytes_per_second = i == second ? 0 : 1e9;
        settle(nodes, 3);
    }
    for (const auto& [node, part] : kept_in_first_answers(nodes)) {
        if (!node.starts_with("busy")) continue;
        EXPECT_GT(part, 0.85) << node;
    }
}

TEST_F(CarryOver, NodeWithScansKeepsRatesOfItsJobs) {
    lead_first();
    std::vector<NodeReport> nodes{report_of("a", 1), report_of("b", 1)};
    nodes[0].scans = 1;
    settle(nodes, 15);
    const std::vector<LeasedRate> before = exchange(nodes[0]).value().lease.rates;
    ASSERT_EQ(before.size(), 2u);
    lead(0);
    const std::vector<LeasedRate> after = exchange(nodes[0]).value().lease.rates;
    ASSERT_EQ(after.size(), 2u);
    for (int i = 0; i < 2; ++i) {
        EXPECT_NEAR(after[i].bytes_per_second, before[i].bytes_per_second, 0.01 * before[i].bytes_per_second)
            << after[i].job;
    }
}

TEST_F(CarryOver, RatesThatGoUpAndDownAreSeldomWritten) {
    lead_first();
    std::vector<NodeReport> nodes{report_of("a", 1), report_of("b", 1)};
    nodes[1].jobs[0].name = nodes[0].jobs[0].name;
    settle(nodes, 15);
    shared.writes.clear();
    for (int second = 0; second < 100; ++second) {
        for (int i = 0; i < 2; ++i) nodes[i].jobs[0].demand_bytes_per_second = second % 4 / 2 == i ? 6e8 : 4e8;
        settle(nodes, 1);
    }
    EXPECT_LE(shared.writes["rates"], 45);
}

TEST_F(CarryOver, OrderOfJobsIsNotWritten) {
    lead_first();
    std::vector<NodeReport> nodes{report_of("a", 3)};
    settle(nodes, 25);
    shared.writes.clear();
    std::ranges::reverse(nodes[0].jobs);
    settle(nodes, 25);
    EXPECT_THAT(shared.writes, testing::IsEmpty());
}

TEST_F(CarryOver, NodeWithVeryManyJobsIsRecordedByItsSum) {
    lead_first();
    NodeReport many = report_of("many", 400);
    for (JobReport& job : many.jobs) job.name += std::string(240, 'x');
    std::vector<NodeReport> nodes{many};
    settle(nodes, 3);
    EXPECT_LT(shared.rows.at("rates/many").size(), 1000u);
    lead(0);
    EXPECT_GT(cluster->in_force(now_ns()), 0.9 * kWholeRemote);
    EXPECT_TRUE(exchange(nodes[0]));
}

TEST_F(CarryOver, RecordsOfLostNodesAreRemoved) {
    lead_first();
    std::vector<NodeReport> nodes{report_of("a", 1), report_of("gone", 1)};
    settle(nodes, 3);
    lead(0);
    nodes.pop_back();
    settle(nodes, 11);
    EXPECT_FALSE(shared.rows.contains("rates/gone"));
    EXPECT_TRUE(shared.rows.contains("rates/a"));
    EXPECT_TRUE(shared.rows.contains("floor/gone"));
}

TEST_F(CarryOver, RiseThatNeedsRoomIsOneTransaction) {
    lead_first();
    std::vector<NodeReport> nodes;
    for (int i = 0; i < 120; ++i) nodes.push_back(report_of("node-" + std::to_string(i), 1));
    settle(nodes, 12);
    // All leases fall by 1/10, but no record does.
    NodeReport a = report_of("a", 13);
    shared.most_rows = 0;
    nodes.push_back(a);
    settle(nodes, 14);
    EXPECT_LE(shared.most_rows, 99u);
    EXPECT_GT(exchange(nodes.back()).value().lease.sum(), 0.08 * kWholeRemote);
}

TEST_F(CarryOver, LeaseNumbersOfLeadersDiffer) {
    lead_first();
    NodeReport a = report_of("a", 1);
    const std::uint64_t first = exchange(a).value().lease.number;
    a.lease_applied = first;
    lead(0);
    EXPECT_GT(exchange(a).value().lease.number, first + 1'000'000'000);
}

TEST_F(CarryOver, FailedWriteOfSettledRunIsMadeAgain) {
    lead(0);
    true_ns += kLeaseLength_ns;
    NodeReport a = report_of("a", 1);
    shared.is_full = true;
    EXPECT_EQ(exchange(a).error().code, ErrorCode::no_space);
    shared.is_full = false;
    ASSERT_TRUE(exchange(a));
    lead(0);
    EXPECT_TRUE(exchange(a)) << "all leases are on record";
}

TEST_F(CarryOver, RatesThatCannotBeReadAreWaitedOut) {
    const std::string long_name(256, 'n');
    for (const auto& [node, rates] : std::map<std::string, std::string>{
             {"a", R"({"bytes_per_second":1e30,"rates":[]})"},
             {"a", R"({"bytes_per_second":-5,"rates":[]})"},
             {"a", R"({"bytes_per_second":5,"rates":[["x",1e308]]})"},
             {"a", R"({"bytes_per_second":5})"},
             {"", R"({"bytes_per_second":5,"rates":[]})"},
             {long_name, R"({"bytes_per_second":5,"rates":[]})"},
         }) {
        lead_first();
        shared.rows["rates/" + node] = rates;
        lead(0);
        NodeReport b = report_of("b", 1);
        EXPECT_EQ(exchange(b).error().code, ErrorCode::unavailable) << rates;
        true_ns += kLeaseLength_ns;
        EXPECT_GT(exchange(b).value().lease.sum(), 0.9 * kWholeRemote) << rates;
        lead(0);
        EXPECT_TRUE(exchange(b)) << rates;
        stop_leader();
        shared.rows.clear();
    }
}

TEST_F(CarryOver, MeasuredRatesThatCannotBeReadAreLeftOut) {
    lead_first();
    shared.rows["ideal/a-0"] = R"({"bits":)" + std::to_string(std::bit_cast<std::uint64_t>(std::nan(""))) + "}";
    shared.rows["ideal/b-0"] = R"({"bits":0})";
    shared.rows["ideal/c-0"] = "{}";
    lead(0);
    std::vector<NodeReport> nodes{report_of("a", 1), report_of("b", 1), report_of("c", 1)};
    settle(nodes, 2);
}

TEST_F(CarryOver, LengthOfLeasesOutOfRangeIsRefused) {
    lead_first();
    for (const char* lease_ns : {"-1", "9223372036854775807", "3600000000001"}) {
        shared.rows["run"] = R"({"boot":"","rates_recorded":true,"lease_ns":)" + std::string(lease_ns) + "}";
        const auto opened =
            StateStore::open({.lease_ns = options.lease_ns, .shared_settings = shared.open()}, now_ns());
        ASSERT_FALSE(opened) << lease_ns;
        EXPECT_EQ(opened.error().code, ErrorCode::corrupt);
    }
}

TEST_F(CarryOver, SettingThatIsNotWrittenFailsThoughALaterWriteSucceeds) {
    lead_first();
    const auto promised = [&](const std::string& node) {
        std::promise<Result<void>> written;
        store->when_promised(node, [&](const Result<void>& result) { written.set_value(result); });
        return written.get_future().get();
    };
    shared.is_full = true;
    ASSERT_TRUE(store->save({.floors = {{"a", 1.0}}, .promised_to = "a"}));
    ASSERT_TRUE(store->save({.pins = {{"lost", 5}}}));
    EXPECT_TRUE(promised("b"));
    EXPECT_FALSE(promised("a"));
    shared.is_full = false;
    ASSERT_TRUE(store->save({.floors = {{"b", 1.0}}, .promised_to = "b"}));
    EXPECT_TRUE(promised("b"));
    EXPECT_FALSE(promised("a")) << "the floor of a is not on record";
    EXPECT_FALSE(store->is_promised("a"));
    store->withdraw_promises("a");
    EXPECT_TRUE(store->is_promised("a")) << "a has what it had before";
    EXPECT_TRUE(promised("a"));
    ASSERT_TRUE(store->save({.floors = {{"a", 2.0}}, .promised_to = "a"}));
    EXPECT_TRUE(promised("a"));
    EXPECT_FALSE(store->all_durable());
    EXPECT_TRUE(durable()) << "the pin is written after all";
    EXPECT_TRUE(store->all_durable());
    EXPECT_TRUE(shared.rows.contains("pin/lost"));
}

TEST_F(CarryOver, SettingThatWasSetBackFailsOnlyThoseWhoAskedBefore) {
    lead_first();
    shared.is_full = true;
    ASSERT_TRUE(cluster->set_remote(2 * kWholeRemote));
    std::promise<Result<void>> asked_before;
    store->when_durable([&](const Result<void>& result) { asked_before.set_value(result); });
    ASSERT_TRUE(cluster->set_remote(kWholeRemote));
    store->withdraw_setting("remote");
    EXPECT_EQ(asked_before.get_future().get().error().code, ErrorCode::no_space);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(durable()) << "the bandwidth is what it was";
    EXPECT_FALSE(store->all_durable()) << "its row is written again";
    ASSERT_TRUE(cluster->set_remote(3 * kWholeRemote));
    EXPECT_FALSE(durable());
    ASSERT_TRUE(cluster->set_remote(kWholeRemote));
    store->withdraw_setting("remote");
    shared.is_full = false;
    EXPECT_TRUE(durable());
    EXPECT_TRUE(durable());
    EXPECT_TRUE(store->all_durable());
    lead(0);
    EXPECT_EQ(cluster->options().remote_bytes_per_second, kWholeRemote);
}

// Nodes are lost and come back, answers are lost, leaders are replaced at any moment, and the bandwidth is changed. The
// rates that nodes use never add up to more than the remote has had within the length of a lease.
TEST_F(CarryOver, RatesInUseStayWithinRemoteAcrossLeaders) {
    struct Node {
        NodeReport report;
        Lease lease;
        std::int64_t lease_ends_true_ns = 0;
        bool cut_off = false;
    };
    int used_much = 0;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        std::mt19937_64 random(seed);
        stop_leader();
        shared.rows.clear();
        true_ns = 0;
        lead(0);
        true_ns += kLeaseLength_ns;
        std::vector<Node> nodes(6);
        for (std::size_t i = 0; i < nodes.size(); ++i)
            nodes[i].report = report_of(std::string(1, static_cast<char>('a' + i)), i % 3);
        std::deque<std::pair<std::int64_t, double>> remotes{{true_ns, kWholeRemote}};
        for (int step = 0; step < 300; ++step) {
            true_ns += static_cast<std::int64_t>(random() % kSecond_ns);
            if (random() % 40 == 0) true_ns += 12 * kSecond_ns;
            if (random() % 12 == 0) lead(static_cast<std::int64_t>(random() % (7200 * kSecond_ns)));
            if (random() % 30 == 0) {
                const double remote = kWholeRemote * (0.2 + 0.1 * static_cast<double>(random() % 9));
                ASSERT_TRUE(cluster->set_remote(remote));
                ASSERT_TRUE(durable());
                remotes.emplace_back(true_ns, remote);
            }
            Node& node = nodes[random() % nodes.size()];
            if (random() % 25 == 0) node.cut_off = !node.cut_off;
            if (!node.cut_off) {
                if (random() % 10 == 0) node.report.jobs = report_of(node.report.node, random() % 4).jobs;
                for (JobReport& job : node.report.jobs) {
                    job.demand_bytes_per_second = static_cast<double>(random() % 1'000'000'000);
                }
                node.report.scans = random() % 8 == 0 ? 1 : 0;
                node.report.lease_applied = node.lease.number;
                shared.is_full = random() % 8 == 0;
                const std::int64_t sent_ns = true_ns;
                if (random() % 20 == 0) {
                    // Killed before the rows are written.
                    shared.is_full = true;
                    static_cast<void>(cluster->report(node.report, now_ns()));
                    static_cast<void>(cluster->replan(now_ns()));
                    static_cast<void>(cluster->plan_for(node.report.node, now_ns()));
                    shared.is_full = false;
                    lead(static_cast<std::int64_t>(random() % (7200 * kSecond_ns)));
                } else if (const auto part = exchange(node.report)) {
                    shared.is_full = false;
                    // Killed, with the answer on its way.
                    if (random() % 20 == 0) lead(static_cast<std::int64_t>(random() % (7200 * kSecond_ns)));
                    if (random() % 4 != 0) {
                        node.lease_ends_true_ns = sent_ns + kLeaseLength_ns;
                        node.lease = part->lease;
                    }
                }
            }
            shared.is_full = false;
            while (remotes.size() > 1 && remotes[1].first + kLeaseLength_ns <= true_ns) remotes.pop_front();
            const double most = std::ranges::max(remotes, {}, &std::pair<std::int64_t, double>::second).second;
            double used = 0;
            for (const Node& each : nodes) {
                used += true_ns < each.lease_ends_true_ns ? each.lease.in_force() : each.lease.expired();
            }
            ASSERT_LE(used, most * (1 + 1e-9)) << "seed " << seed << " step " << step;
            if (used > 0.9 * most) ++used_much;
        }
    }
    EXPECT_GT(used_much, 1000) << "the bound must be reached for the test to mean anything";
}

}  // namespace
}  // namespace larder::allocator
