// A cluster that is restored from its record after a restart has the same plan, and its rates never exceed the remote.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "allocator/cluster.h"
#include "tests/support/test_units.h"

namespace larder::allocator {

using test::kGB;
using test::kSecond_ns;
namespace {

constexpr double kSmallRemote = 1e9;

template <typename Value>
void merge(std::map<std::string, std::optional<Value>>& into, const std::map<std::string, std::optional<Value>>& from) {
    for (const auto& [key, value] : from) {
        if (value) into[key] = value;
        if (!value) into.erase(key);
    }
}

struct InMemoryStore {
    ClusterRecord kept;

    Result<void> save(const ClusterRecord& change) {
        merge(kept.jobs, change.jobs);
        merge(kept.pins, change.pins);
        merge(kept.quotas, change.quotas);
        merge(kept.nodes, change.nodes);
        merge(kept.ideals, change.ideals);
        merge(kept.epochs, change.epochs);
        merge(kept.leases, change.leases);
        merge(kept.floors, change.floors);
        if (change.remote) kept.remote = change.remote;
        if (change.plan_number) kept.plan_number = change.plan_number;
        return {};
    }
};

class ClusterMemory : public testing::Test {
protected:
    ClusterOptions options{.remote_bytes_per_second = kSmallRemote};
    InMemoryStore store;
    std::unique_ptr<Cluster> cluster = make();
    std::int64_t now_ns = 0;

    std::unique_ptr<Cluster> make() {
        auto made = std::make_unique<Cluster>(options);
        made->set_save([this](const ClusterRecord& change) { return store.save(change); });
        return made;
    }
    void restart() {
        cluster = make();
        const auto restored = cluster->restore(store.kept, now_ns);
        ASSERT_TRUE(restored) << restored.error().message;
    }
    static NodeReport node_report(const std::string& node, const std::string& job, const std::string& dataset) {
        return {.node = node,
                .instance = 1,
                .memory_bytes = 10 * kGB,
                .disk_bytes = 90 * kGB,
                .datasets = {{.name = "images", .size_bytes = 200 * kGB}, {.name = "text", .size_bytes = 50 * kGB}},
                .jobs = {{.name = job, .dataset = dataset, .demand_bytes_per_second = 1e9}}};
    }
    NodePlan exchange(NodeReport& report) {
        const auto taken = cluster->report(report, now_ns);
        EXPECT_TRUE(taken) << taken.error().message;
        EXPECT_TRUE(cluster->replan(now_ns));
        const auto part = cluster->plan_for(report.node, now_ns);
        EXPECT_TRUE(part) << part.error().message;
        return part.value_or(NodePlan());
    }
};

TEST_F(ClusterMemory, PlanIsRestoredWithoutReports) {
    NodeReport a = node_report("a", "vision", "images");
    NodeReport b = node_report("b", "language", "text");
    for (int second = 0; second < 10; ++second) {
        a.jobs[0].busy_s += 0.5;
        a.jobs[0].bytes += 123'456'789;
        exchange(a);
        exchange(b);
        now_ns += kSecond_ns;
    }
    ASSERT_TRUE(cluster->register_job({.name = "later", .weight = 3}));
    ASSERT_TRUE(cluster->pin_quota("text", 7 * kGB, now_ns));
    ASSERT_TRUE(cluster->set_remote(8e8));
    const NodePlan before = exchange(a);
    const double measured = *cluster->measured_ideal("vision");
    const Plan plan = cluster->plan();

    now_ns += kSecond_ns;
    restart();
    EXPECT_EQ(cluster->measured_ideal("vision"), measured);
    EXPECT_EQ(*cluster->replan(now_ns), before.plan) << "nothing has changed";
    const NodePlan after = *cluster->plan_for("a", now_ns);
    EXPECT_EQ(after.plan, before.plan);
    EXPECT_EQ(after.quotas, before.quotas);
    EXPECT_GT(after.lease.number, before.lease.number);
    ASSERT_EQ(cluster->plan().datasets.size(), plan.datasets.size());
    for (std::size_t i = 0; i < plan.datasets.size(); ++i) {
        EXPECT_EQ(cluster->plan().datasets[i].quotas, plan.datasets[i].quotas);
    }
    EXPECT_EQ(cluster->register_job({.name = "later"}).error().code, ErrorCode::already_exists);
    EXPECT_EQ(cluster->planned_state().remote_bytes_per_second, 8e8);
    EXPECT_EQ(exchange(b).plan, before.plan) << "a node that reports gets its part";
}

TEST_F(ClusterMemory, FinishedEpochsAreCountedAcrossRestart) {
    NodeReport a = node_report("a", "vision", "images");
    ASSERT_TRUE(cluster->register_job({.name = "vision", .epochs = 90}));
    a.jobs[0].epoch = 0;
    exchange(a);
    a.jobs[0].epoch = 30;
    exchange(a);
    restart();
    EXPECT_EQ(cluster->remaining_epochs("vision"), 60);
    a.jobs[0].epoch = 31;
    exchange(a);
    EXPECT_EQ(cluster->planned_state().jobs[0].remaining_epochs, 59);
    a.jobs.clear();
    exchange(a);
    EXPECT_EQ(cluster->remaining_epochs("vision"), 59) << "also while it does not run";
    ASSERT_TRUE(cluster->remove_job("vision"));
    EXPECT_TRUE(store.kept.epochs.empty());
    ASSERT_TRUE(cluster->register_job({.name = "vision", .epochs = 10}));
    EXPECT_EQ(cluster->remaining_epochs("vision"), 10);
}

TEST_F(ClusterMemory, NothingIsKeptOfJobNeitherRegisteredNorRunning) {
    NodeReport a = node_report("a", "vision", "images");
    NodeReport b = node_report("b", "vision", "images");
    for (int second = 0; second < 20; ++second) {
        for (NodeReport* node : {&a, &b}) {
            node->jobs[0].busy_s += 1;
            node->jobs[0].bytes += 100'000'000;
            exchange(*node);
        }
        now_ns += kSecond_ns;
    }
    ASSERT_TRUE(store.kept.ideals.contains("vision"));
    restart();
    const auto jobs_of_a = std::exchange(a.jobs, {});
    exchange(a);
    EXPECT_TRUE(cluster->measured_ideal("vision")) << "it runs on b";
    cluster->set_turns({{.job = "vision", .dataset = "images"}});
    b.jobs.clear();
    exchange(b);
    EXPECT_TRUE(cluster->measured_ideal("vision")) << "it waits for its turn";
    cluster->set_turns({});
    EXPECT_FALSE(cluster->measured_ideal("vision"));
    exchange(b);
    EXPECT_TRUE(store.kept.ideals.empty());

    a.jobs = jobs_of_a;
    exchange(a);
    now_ns += 20 * kSecond_ns;
    ASSERT_TRUE(cluster->remove_node("a", now_ns));
    exchange(b);
    EXPECT_TRUE(store.kept.ideals.empty()) << "its node was removed";
}

TEST_F(ClusterMemory, ChangedConfigOverridesBandwidthSetByOperator) {
    ASSERT_TRUE(cluster->set_remote(8e8));
    restart();
    EXPECT_EQ(cluster->state(now_ns).remote_bytes_per_second, 8e8);
    options.remote_bytes_per_second = 2e9;
    restart();
    EXPECT_EQ(cluster->state(now_ns).remote_bytes_per_second, 2e9);
}

TEST_F(ClusterMemory, NoLeaseIsGivenDuringWaitAfterRestart) {
    NodeReport a = node_report("a", "vision", "images");
    exchange(a);
    store.kept.no_lease_before_ns = now_ns + 10 * kSecond_ns;
    restart();
    now_ns += 9 * kSecond_ns;
    ASSERT_TRUE(cluster->report(a, now_ns)) << "the report is accepted during the wait";
    const auto early = cluster->plan_for("a", now_ns);
    ASSERT_FALSE(early);
    EXPECT_EQ(early.error().code, ErrorCode::unavailable);
    now_ns += kSecond_ns;
    ASSERT_TRUE(cluster->report(a, now_ns));
    EXPECT_TRUE(cluster->plan_for("a", now_ns));
}

TEST_F(ClusterMemory, ClusterIsRestoredAfterTenMinutesDown) {
    NodeReport a = node_report("a", "vision", "images");
    NodeReport b = node_report("b", "language", "text");
    exchange(a);
    const NodePlan before = exchange(b);
    now_ns += 600 * kSecond_ns;
    restart();
    EXPECT_EQ(cluster->planned_state().nodes.size(), 2u);
    EXPECT_EQ(*cluster->replan(now_ns), before.plan);
    const NodePlan part = exchange(a);
    EXPECT_EQ(part.plan, before.plan);
    // All leases have expired, and b holds its floor at most: a gets all its planned rate at once.
    EXPECT_FALSE(part.lease.cut);
    EXPECT_GT(part.lease.sum(), 1e8);
    // b never comes back. It is dropped once it has been silent for as long as a node may be.
    now_ns += 10 * kSecond_ns;
    exchange(a);
    EXPECT_EQ(cluster->planned_state().nodes.size(), 1u);
}

TEST_F(ClusterMemory, RestoredNodesHaveWholeLeaseToReport) {
    NodeReport a = node_report("a", "vision", "images");
    const NodePlan before = exchange(a);
    now_ns += 600 * kSecond_ns;
    restart();
    now_ns += options.lease_ns - 1;
    EXPECT_EQ(*cluster->replan(now_ns), before.plan);
    EXPECT_EQ(cluster->planned_state().datasets.size(), 2u);
    now_ns += 1;
    EXPECT_GT(*cluster->replan(now_ns), before.plan);
    EXPECT_TRUE(cluster->planned_state().datasets.empty()) << "the node is gone";
}

TEST_F(ClusterMemory, NameOfRestoredNodeIsFreeForNewDaemonOnceItsLeasesHaveExpired) {
    NodeReport a = node_report("a", "vision", "images");
    exchange(a);
    restart();
    NodeReport replaced = a;
    replaced.instance = 2;
    now_ns += options.lease_ns - 1;
    const auto refused = cluster->report(replaced, now_ns);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::already_exists);
    now_ns += 1;
    EXPECT_TRUE(cluster->report(replaced, now_ns));
    EXPECT_EQ(cluster->report(a, now_ns).error().code, ErrorCode::already_exists) << "the first to report has the name";
}

TEST_F(ClusterMemory, PauseOfAllocatorIsNoSilenceOfNodes) {
    NodeReport a = node_report("a", "vision", "images");
    NodeReport gone = node_report("gone", "language", "text");
    exchange(gone);
    now_ns += options.lease_ns;
    exchange(a);
    const NodePlan before = exchange(a);
    now_ns += 60 * kSecond_ns;
    cluster->excuse_silence(60 * kSecond_ns);
    EXPECT_EQ(*cluster->replan(now_ns), before.plan);
    EXPECT_EQ(cluster->planned_state().nodes.size(), 1u) << "a node that was gone before stays gone";
    EXPECT_LT(cluster->in_force(now_ns), before.lease.sum() / 10) << "leases expire all the same";
    now_ns += options.lease_ns;
    ASSERT_TRUE(cluster->replan(now_ns));
    EXPECT_TRUE(cluster->planned_state().nodes.empty());
}

// A kill may come between the saving of a report with other datasets and the saving of the plan that follows.
TEST_F(ClusterMemory, PlanThatReplacesStoredOneHasItsNumberSaved) {
    NodeReport a = node_report("a", "vision", "images");
    const NodePlan before = exchange(a);
    store.kept.nodes.at("a")->datasets.push_back({.name = "audio", .size_bytes = kGB});
    restart();
    const std::uint64_t number = *cluster->replan(now_ns);
    EXPECT_GT(number, before.plan);
    EXPECT_EQ(store.kept.plan_number, number);
    ASSERT_EQ(store.kept.quotas.at("a")->size(), 3u);
    restart();
    EXPECT_EQ(*cluster->replan(now_ns), number);
    EXPECT_EQ(cluster->planned_state().datasets.size(), 3u);
}

TEST_F(ClusterMemory, NamesKeepTheirUsersAcrossRestart) {
    NodeReport a = node_report("a", "vision", "images");
    a.jobs[0].user = 1002;
    NodeReport b = node_report("b", "vision", "images");
    b.jobs[0].user = 1001;
    exchange(b);
    exchange(a);
    ASSERT_TRUE(cluster->register_job({.name = "later", .user = 1003}));
    const NodePlan before = exchange(a);
    restart();
    EXPECT_EQ(*cluster->replan(now_ns), before.plan);
    EXPECT_EQ(cluster->user_of("vision"), 1001u) << "b was first";
    EXPECT_EQ(cluster->user_of("later"), 1003u);
    exchange(a);
    EXPECT_EQ(cluster->user_of("vision"), 1001u);
    EXPECT_EQ(cluster->planned_state().jobs.size(), 2u);
}

TEST_F(ClusterMemory, RegistrationsKeepTheirOwnersAcrossRestart) {
    options.jobs_per_owner_max = 1;
    restart();
    const RegistrationOwner owner{.uid = 1001, .token = {}};
    ASSERT_TRUE(cluster->register_job({.name = "own", .user = 1001, .owner = owner}));
    ASSERT_TRUE(cluster->register_job({.name = "operators", .user = 1001}));
    restart();
    EXPECT_EQ(cluster->registered("own")->owner, owner);
    EXPECT_TRUE(cluster->registered("operators")->registered_by_operator());
    EXPECT_EQ(cluster->register_job({.name = "more", .user = 1001, .owner = owner}).error().code, ErrorCode::no_space);
}

TEST_F(ClusterMemory, LostStateIsRebuiltFromReportsAndNumbersContinue) {
    NodeReport a = node_report("a", "vision", "images");
    const NodePlan before = exchange(a);
    for (int i = 0; i < 20; ++i) a.lease_applied = exchange(a).lease.number;
    store.kept = {};
    restart();
    EXPECT_TRUE(cluster->planned_state().nodes.empty());
    const NodePlan after = exchange(a);
    EXPECT_EQ(after.quotas, before.quotas);
    EXPECT_GT(after.lease.number, a.lease_applied) << "the node would take a lower number for an old lease";
}

// A node that is cut off keeps its lease until the lease expires, then its floors. The other node gets only the rest.
TEST_F(ClusterMemory, PartitionedNodeIsCountedAcrossRestart) {
    NodeReport a = node_report("a", "vision", "images");
    NodeReport b = node_report("b", "language", "text");
    a.lease_applied = exchange(a).lease.number;
    exchange(b);
    a.lease_applied = exchange(a).lease.number;
    const Lease lease_of_a = exchange(a).lease;
    ASSERT_GT(lease_of_a.sum(), 1e8);
    now_ns += kSecond_ns;
    restart();
    const Lease lease_of_b = exchange(b).lease;
    EXPECT_LE(lease_of_a.sum() + lease_of_b.sum(), kSmallRemote * (1 + 1e-9)) << "a's lease still counts";
    // The lease of a has expired, and a has not reported for as long as a lease lasts since the restart.
    now_ns = lease_of_a.expires_ns + kSecond_ns;
    b.lease_applied = exchange(b).lease.number;
    const Lease rest = exchange(b).lease;
    EXPECT_NEAR(rest.sum() + lease_of_a.floor_bytes_per_second, kSmallRemote, 1) << "all but a's floor";
}

// Nodes have clocks of their own, answers are lost or late, and the allocator is killed at any moment. The rates that
// nodes use never add up to more than the remote has.
TEST_F(ClusterMemory, RatesInUseStayWithinRemoteAcrossRestarts) {
    struct Node {
        NodeReport report;
        Lease lease;
        std::int64_t lease_end_own_ns = 0;
        std::int64_t clock_ahead_ns = 0;
    };
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        std::mt19937_64 random(seed);
        store = {};
        now_ns = 0;
        cluster = make();
        std::vector<Node> nodes(5);
        for (std::size_t i = 0; i < nodes.size(); ++i) {
            const std::string name(1, static_cast<char>('a' + i));
            nodes[i].report = node_report(name, "own-" + name, i % 2 == 0 ? "images" : "text");
            // Clocks are hours fast or slow: messages carry only durations.
            nodes[i].clock_ahead_ns = (static_cast<std::int64_t>(i) - 2) * 3600 * kSecond_ns;
        }
        for (int step = 0; step < 300; ++step) {
            now_ns += static_cast<std::int64_t>(random() % kSecond_ns);
            if (random() % 40 == 0) now_ns += 12 * kSecond_ns;
            if (random() % 10 == 0) restart();
            Node& node = nodes[random() % nodes.size()];
            node.report.jobs[0].demand_bytes_per_second = static_cast<double>(random() % 1'000'000'000);
            node.report.lease_applied = node.lease.number;
            const std::int64_t sent_own_ns = now_ns + node.clock_ahead_ns;
            const NodePlan part = exchange(node.report);
            if (random() % 20 == 0) restart();  // after the answer was made
            if (random() % 4 != 0) {
                // The answer says how long the lease lasts. The node counts from when it asked.
                node.lease_end_own_ns = sent_own_ns + (part.lease.expires_ns - now_ns);
                node.lease = part.lease;
            }
            double used = 0;
            for (const Node& other : nodes) {
                const double floors =
                    other.lease.floor_bytes_per_second * static_cast<double>(other.lease.rates.size());
                used += now_ns + other.clock_ahead_ns < other.lease_end_own_ns ? other.lease.sum() : floors;
            }
            ASSERT_LE(used, kSmallRemote * (1 + 1e-9)) << "seed " << seed << " step " << step;
        }
    }
}

TEST_F(ClusterMemory, JobsAndNodesBeyondLimitsAreRefused) {
    options.jobs_max = 2;
    options.nodes_max = 1;
    cluster = make();
    ASSERT_TRUE(cluster->register_job({.name = "x"}));
    ASSERT_TRUE(cluster->register_job({.name = "y"}));
    EXPECT_EQ(cluster->register_job({.name = "z"}).error().code, ErrorCode::no_space);
    ASSERT_TRUE(cluster->remove_job("x"));
    EXPECT_TRUE(cluster->register_job({.name = "z"}));
    restart();
    EXPECT_EQ(cluster->register_job({.name = "x"}).error().code, ErrorCode::no_space);
    ASSERT_TRUE(cluster->report(node_report("a", "vision", "images"), now_ns));
    EXPECT_EQ(cluster->report(node_report("b", "vision", "images"), now_ns).error().code, ErrorCode::no_space);
    EXPECT_TRUE(cluster->report(node_report("a", "vision", "images"), now_ns));
    now_ns += options.lease_ns;
    EXPECT_TRUE(cluster->report(node_report("b", "vision", "images"), now_ns)) << "a has fallen silent";
    EXPECT_EQ(cluster->nodes().size(), 1u);
}

TEST_F(ClusterMemory, RemovedNodeHoldsNothingAndIsForgotten) {
    NodeReport a = node_report("a", "vision", "images");
    NodeReport b = node_report("b", "language", "text");
    exchange(a);
    ASSERT_GT(cluster->in_force(now_ns), 1e8);
    EXPECT_EQ(cluster->remove_node("a", now_ns).error().code, ErrorCode::changed) << "the node may still use its lease";
    now_ns += 20 * kSecond_ns;
    EXPECT_GT(cluster->in_force(now_ns), 0) << "its floor still counts";
    ASSERT_TRUE(cluster->remove_node("a", now_ns));
    EXPECT_EQ(cluster->in_force(now_ns), 0);
    EXPECT_EQ(cluster->remove_node("a", now_ns).error().code, ErrorCode::not_found);
    exchange(b);
    restart();
    EXPECT_FALSE(cluster->nodes().contains("a"));
    EXPECT_NEAR(cluster->in_force(now_ns), cluster->plan_for("b", now_ns)->lease.sum(), 1);
}

TEST_F(ClusterMemory, MeasuredRateIsDroppedWithItsJob) {
    ASSERT_TRUE(cluster->register_job({.name = "vision"}));
    NodeReport a = node_report("a", "vision", "images");
    for (int second = 0; second < 10; ++second) {
        a.jobs[0].busy_s += 0.5;
        a.jobs[0].bytes += 100'000'000;
        exchange(a);
        now_ns += kSecond_ns;
    }
    ASSERT_TRUE(store.kept.ideals.contains("vision"));
    a.jobs.clear();
    exchange(a);
    ASSERT_TRUE(cluster->remove_job("vision"));
    exchange(a);
    EXPECT_FALSE(store.kept.ideals.contains("vision"));
}

// After a power cut these floors are all that is known of the nodes that are cut off.
TEST_F(ClusterMemory, FloorsAreSavedWithTheLeasesThatRaiseThem) {
    NodeReport a = node_report("a", "vision", "images");
    const auto saved_covers = [&](const NodePlan& part) {
        EXPECT_GE(*store.kept.floors.at("a"), part.lease.expired());
    };
    saved_covers(exchange(a));
    const double one = *store.kept.floors.at("a");
    for (const char* job : {"second", "third"}) {
        a.jobs.push_back({.name = job, .dataset = "text", .demand_bytes_per_second = 1e9});
    }
    saved_covers(exchange(a));
    EXPECT_EQ(*store.kept.floors.at("a"), 3 * one);
    // The node may have either lease until it says so.
    a.jobs.clear();
    NodePlan none = exchange(a);
    EXPECT_EQ(*store.kept.floors.at("a"), 3 * one);
    a.lease_applied = none.lease.number;
    none = exchange(a);
    saved_covers(none);
    EXPECT_EQ(*store.kept.floors.at("a"), one) << "of jobs that start while the node is cut off";

    // A floor that is not durable after all is saved again, before the next lease.
    store.kept.floors.clear();
    cluster->withdraw_lease("a", none.lease.number, now_ns);
    saved_covers(exchange(a));
    restart();
    exchange(a);
    now_ns += 20 * kSecond_ns;
    ASSERT_TRUE(cluster->remove_node("a", now_ns));
    EXPECT_TRUE(store.kept.floors.empty());
}

// A plan that could not be saved is saved as soon as possible, because its number must not be given to another plan.
TEST_F(ClusterMemory, UnsavedPlanIsSavedLater) {
    bool is_full = false;
    cluster->set_save([&](const ClusterRecord& change) -> Result<void> {
        if (is_full) return fail(ErrorCode::no_space, "full");
        return store.save(change);
    });
    NodeReport a = node_report("a", "vision", "images");
    exchange(a);
    is_full = true;
    a.disk_bytes /= 2;
    ASSERT_TRUE(cluster->report(a, now_ns));
    EXPECT_EQ(cluster->replan(now_ns).error().code, ErrorCode::no_space);
    EXPECT_EQ(cluster->plan_for("a", now_ns).error().code, ErrorCode::no_space);
    is_full = false;
    const NodePlan part = exchange(a);
    EXPECT_EQ(part.plan, 2u);
    restart();
    EXPECT_EQ(*cluster->replan(now_ns), 2u);
    EXPECT_EQ(cluster->plan_for("a", now_ns)->quotas, part.quotas);
}

}  // namespace
}  // namespace larder::allocator
