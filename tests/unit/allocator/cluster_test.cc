// The allocator's view of the cluster: nodes that report, vanish, restart and lie, and jobs that come and go.

#include "allocator/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/test_units.h"

namespace larder::allocator {

using test::kGB;
using test::kSecond_ns;
namespace {

constexpr double kRemote = 1e9;

NodeReport node_report(const std::string& node, std::uint64_t instance = 1) {
    return {.node = node,
            .instance = instance,
            .memory_bytes = 10 * kGB,
            .disk_bytes = 90 * kGB,
            .datasets = {{.name = "images", .size_bytes = 200 * kGB}, {.name = "text", .size_bytes = 50 * kGB}}};
}

JobReport job_report(const std::string& job, const std::string& dataset) {
    return {.name = job, .dataset = dataset, .demand_bytes_per_second = 1e9};
}

class ClusterTest : public testing::Test {
protected:
    Cluster cluster{{.remote_bytes_per_second = kRemote}};
    std::int64_t now_ns = 0;

    void report(const NodeReport& report) {
        const auto taken = cluster.report(report, now_ns);
        ASSERT_TRUE(taken.has_value()) << taken.error().message;
    }
    std::uint64_t replan() {
        const auto number = cluster.replan(now_ns);
        EXPECT_TRUE(number.has_value()) << number.error().message;
        return number.value_or(0);
    }
    const JobPlan& job_plan(const std::string& job) const {
        const auto& jobs = cluster.planned_state().jobs;
        const auto found = std::ranges::find(jobs, job, &ClusterJob::name);
        EXPECT_NE(found, jobs.end()) << job;
        return cluster.plan().jobs[static_cast<std::size_t>(found - jobs.begin())];
    }
    std::uint64_t quota(const std::string& dataset) const {
        const auto& datasets = cluster.planned_state().datasets;
        const auto found = std::ranges::find(datasets, dataset, &ClusterDataset::name);
        EXPECT_NE(found, datasets.end()) << dataset;
        return cluster.plan().datasets[static_cast<std::size_t>(found - datasets.begin())].quota_bytes;
    }
    static std::string message(const Result<void>& result) { return result ? "" : result.error().message; }
};

TEST_F(ClusterTest, ReportingNodeGetsQuotasAndRatesForItsJobs) {
    NodeReport a = node_report("a");
    a.jobs = {job_report("vision", "images"), job_report("language", "text")};
    report(a);
    EXPECT_EQ(replan(), 1u);
    const auto part = cluster.plan_for("a", now_ns);
    ASSERT_TRUE(part.has_value()) << part.error().message;
    EXPECT_EQ(part->plan, 1u);
    EXPECT_EQ(part->quotas.size(), 2u);
    EXPECT_EQ(part->lease.rates.size(), 2u);
    EXPECT_NEAR(part->lease.sum(), kRemote, 1);
    EXPECT_EQ(replan(), 1u) << "nothing changed";
}

// A job that needs no remote still has its floor of it, so the plan must not promise that floor to another job.
TEST_F(ClusterTest, PlanPromisesNoFloorToAnotherJob) {
    const double floor = ClusterOptions{}.floor_bytes_per_second;
    ASSERT_TRUE(cluster.register_job({.name = "language", .ideal_bytes_per_second = 5e8}));
    ASSERT_TRUE(cluster.register_job({.name = "vision", .ideal_bytes_per_second = 9e9}));
    NodeReport a = node_report("a");
    a.jobs = {job_report("language", "text"), job_report("vision", "images")};
    for (DatasetReport& dataset : a.datasets) dataset.cached_disk_bytes = dataset.name == "text" ? 50 * kGB : 0;
    a.jobs[0].unread_bytes = a.jobs[0].unread_cached_bytes = 50 * kGB;
    a.jobs[1].unread_bytes = 200 * kGB;
    report(a);
    replan();
    const auto part = cluster.plan_for("a", now_ns);
    ASSERT_TRUE(part.has_value()) << part.error().message;
    EXPECT_NEAR(part->lease.sum(), kRemote, 1);
    for (const LeasedRate& rate : part->lease.rates) {
        EXPECT_NEAR(rate.bytes_per_second, rate.job == "vision" ? kRemote - floor : floor, 1) << rate.job;
        EXPECT_NEAR(job_plan(rate.job).bandwidth_bytes_per_second, rate.bytes_per_second, 1) << rate.job;
    }
}

TEST_F(ClusterTest, FloorsThatFillTheRemoteStillGiveAPlan) {
    ASSERT_TRUE(cluster.set_remote(1e6 / 3));  // less than one floor
    NodeReport a = node_report("a");
    for (int count = 1; count <= 200; ++count) {
        a.jobs.push_back(job_report("job-" + std::to_string(count), "images"));
        report(a);
        const auto number = cluster.replan(now_ns);
        ASSERT_TRUE(number.has_value()) << count << " jobs: " << number.error().message;
    }
}

TEST_F(ClusterTest, NodesOfOneGroupKnowTheirPeersAndArePlannedAsOne) {
    for (const char* name : {"a", "b", "c"}) {
        NodeReport node = node_report(name);
        if (std::string_view(name) != "c") {
            node.peer_group = "rack";
            node.peer_endpoint = std::string("http://") + name + ":7474";
        }
        // One job reads on the first node only.
        if (std::string_view(name) == "a") node.jobs = {job_report("vision", "images")};
        report(node);
    }
    replan();
    EXPECT_EQ(cluster.plan_for("a", now_ns)->peers,
              (std::vector<PeerNode>{{.node = "b", .endpoint = "http://b:7474"}}));
    EXPECT_EQ(cluster.plan_for("b", now_ns)->peers,
              (std::vector<PeerNode>{{.node = "a", .endpoint = "http://a:7474"}}));
    EXPECT_TRUE(cluster.plan_for("c", now_ns)->peers->empty());
    for (const char* endpoint : {"http://", "b:7474", "unix:/b", "http://b:7474/x", "http://b:7474\n", "garbage"}) {
        NodeReport garbage = node_report("d");
        garbage.peer_group = "rack";
        garbage.peer_endpoint = endpoint;
        const auto refused = cluster.report(garbage, now_ns);
        ASSERT_FALSE(refused) << endpoint;
        EXPECT_NE(refused.error().message.find("is not an endpoint"), std::string::npos) << refused.error().message;
    }
    // The caches of both nodes of the group serve the job. The third node's cache cannot.
    EXPECT_NEAR(job_plan("vision").steady_hit_ratio, 1.0, 1e-6);
    EXPECT_GE(quota("images"), 199 * kGB);

    now_ns += 11 * kSecond_ns;
    NodeReport again = node_report("a");
    again.peer_group = "rack";
    again.peer_endpoint = "http://a:7474";
    report(again);
    replan();
    EXPECT_TRUE(cluster.plan_for("a", now_ns)->peers->empty()) << "the other node is silent";

    again.peer_group.clear();
    EXPECT_NE(message(cluster.report(again, now_ns)).find("peer_endpoint"), std::string::npos);
}

TEST_F(ClusterTest, ListOfPeersIsLeftOutIfTheNodeKnowsIt) {
    const auto peer = [](const std::string& name, const std::string& port) {
        NodeReport node = node_report(name);
        node.peer_group = "rack";
        node.peer_endpoint = "http://" + name + ":" + port;
        return node;
    };
    const auto endpoints = [&](std::optional<std::uint64_t> known) {
        std::string listed;
        const auto part = cluster.plan_for("a", now_ns, known);
        if (!part->peers) return std::string("as known");
        for (const PeerNode& node : *part->peers) listed += node.endpoint + " ";
        return listed;
    };
    for (const char* name : {"a", "b", "c"}) report(peer(name, "7474"));
    replan();
    const std::uint64_t etag = cluster.plan_for("a", now_ns)->peers_etag;
    EXPECT_EQ(endpoints(std::nullopt), "http://b:7474 http://c:7474 ");
    EXPECT_EQ(endpoints(etag), "as known");
    EXPECT_EQ(endpoints(etag + 1), "http://b:7474 http://c:7474 ");
    report(peer("c", "7475"));
    EXPECT_EQ(endpoints(etag), "http://b:7474 http://c:7475 ");
    report(peer("c", "7474"));
    EXPECT_EQ(endpoints(etag), "http://b:7474 http://c:7474 ");
    now_ns += 9 * kSecond_ns;
    report(peer("a", "7474"));
    report(peer("b", "7474"));
    now_ns += 2 * kSecond_ns;
    EXPECT_EQ(endpoints(etag), "http://b:7474 ") << "c is silent";
    NodeReport d = peer("d", "7474");
    report(d);
    EXPECT_EQ(endpoints(etag), "http://b:7474 http://d:7474 ");
    d.peer_group = "other";
    report(d);
    EXPECT_EQ(endpoints(std::nullopt), "http://b:7474 ");
    replan();
    const std::uint64_t alone = cluster.plan_for("d", now_ns)->peers_etag;
    report(d);
    EXPECT_EQ(cluster.plan_for("d", now_ns, alone)->peers, std::nullopt) << "a node alone in its group";
}

// A node's report is on record for an allocator that is started anew: its counters are read again from the next report.
TEST_F(ClusterTest, ReportIsSavedIfMoreThanCountersChangesOrAfterAWhile) {
    std::vector<std::string> saved;
    cluster.set_save([&](const ClusterRecord& change) -> Result<void> {
        for (const auto& [node, as_reported] : change.nodes) saved.push_back(node);
        return {};
    });
    NodeReport a = node_report("a");
    a.jobs = {job_report("vision", "images")};
    const auto is_saved = [&] {
        report(a);
        saved.clear();
        EXPECT_TRUE(cluster.plan_for("a", now_ns));
        return saved == std::vector<std::string>{"a"};
    };
    report(a);
    replan();
    now_ns += kSecond_ns;
    a.jobs[0].bytes += 100;
    a.jobs[0].busy_s += 0.5;
    a.datasets[0].cached_disk_bytes += 100;
    EXPECT_FALSE(is_saved()) << "only counters have changed";
    a.datasets[0].quota_disk_bytes += 100;
    EXPECT_TRUE(is_saved());
    EXPECT_FALSE(is_saved());
    a.jobs[0].epoch = 1;
    EXPECT_TRUE(is_saved());
    a.jobs.push_back(job_report("language", "text"));
    EXPECT_TRUE(is_saved());
    a.nic_bytes_per_second = 1e9;
    EXPECT_TRUE(is_saved());
    now_ns += 9 * kSecond_ns;
    EXPECT_FALSE(is_saved());
    now_ns += kSecond_ns;
    EXPECT_TRUE(is_saved()) << "its counters on record are ten seconds old";
}

TEST_F(ClusterTest, SecondDaemonWithTakenNameIsRefused) {
    report(node_report("a", 1));
    now_ns += kSecond_ns;
    const auto other = cluster.report(node_report("a", 2), now_ns);
    ASSERT_FALSE(other.has_value());
    EXPECT_EQ(other.error().code, ErrorCode::already_exists);
    report(node_report("a", 1));
    now_ns += 3 * kSecond_ns;
    report(node_report("a", 2));  // a restart: the old one has fallen silent
}

// The daemon that is replaced may be cut off from the allocator only, and reads on under its lease.
TEST_F(ClusterTest, AnotherDaemonTakesNameOnceLeasesOfTheFirstHaveExpired) {
    NodeReport a = node_report("a", 1);
    a.jobs = {job_report("vision", "images")};
    report(a);
    replan();
    const Lease lease = cluster.plan_for("a", now_ns)->lease;
    ASSERT_NEAR(lease.sum(), kRemote, 1);
    NodeReport other = a;
    other.instance = 2;
    now_ns = lease.expires_ns - 1;
    const auto refused = cluster.report(other, now_ns);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::already_exists);
    now_ns = lease.expires_ns;
    report(other);
}

TEST_F(ClusterTest, RestartedDaemonOnSameStateDirectoryIsTakenAtOnce) {
    NodeReport a = node_report("a", 1);
    a.state_directory = 77;
    report(a);
    NodeReport again = node_report("a", 2);
    EXPECT_FALSE(cluster.report(again, now_ns)) << "the report does not name its state directory";
    again.state_directory = 78;
    EXPECT_FALSE(cluster.report(again, now_ns)) << "the state directory differs";
    again.state_directory = 77;
    EXPECT_TRUE(cluster.report(again, now_ns));
    EXPECT_EQ(cluster.report(a, now_ns).error().code, ErrorCode::already_exists)
        << "the daemon that was replaced still runs, on a copy of the directory";
    EXPECT_TRUE(cluster.report(again, now_ns));
    again.instance = 3;
    EXPECT_TRUE(cluster.report(again, now_ns)) << "every restart is accepted";
}

TEST_F(ClusterTest, InvalidReportIsRefusedWholeAndNamesItsField) {
    const auto refused = [&](auto&& spoil) {
        NodeReport spoiled = node_report("a");
        spoiled.jobs = {job_report("vision", "images")};
        spoil(spoiled);
        const auto taken = cluster.report(spoiled, now_ns);
        EXPECT_FALSE(taken.has_value());
        return message(taken);
    };
    const double nan = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(refused([](auto& changed) { changed.node = ""; }), "node: must have 1 to 255 bytes");
    EXPECT_EQ(refused([](auto& changed) { changed.memory_bytes = ~0ull; }), "memory_bytes: is too large");
    EXPECT_EQ(refused([&](auto& changed) { changed.nic_bytes_per_second = nan; }),
              "nic_bytes_per_second: is not finite");
    EXPECT_EQ(refused([](auto& changed) { changed.disk_read_bytes_per_second = -1; }),
              "disk_read_bytes_per_second: is negative");
    EXPECT_EQ(refused([](auto& changed) { changed.datasets[1].name = "images"; }), "datasets[1].name: appears twice");
    EXPECT_EQ(refused([](auto& changed) { changed.datasets[0].size_bytes = 0; }),
              "datasets[0].size_bytes: must be above 0");
    EXPECT_EQ(refused([](auto& changed) { changed.jobs[0].dataset = "lost"; }),
              "jobs[0].dataset: \"lost\" is not among the report's datasets");
    EXPECT_EQ(refused([&](auto& changed) { changed.jobs[0].busy_s = nan; }), "jobs[0].busy_s: is not finite");
    const auto refused_waits = [&](const WaitsReport& waits) {
        return refused([&](auto& changed) { changed.jobs[0].waits = waits; });
    };
    constexpr std::uint64_t kFar_us = std::uint64_t{1} << 50;
    EXPECT_EQ(refused([&](auto& changed) { changed.clock_us = kFar_us; }), "clock_us: is too large");
    EXPECT_EQ(refused_waits({.until_us = kFar_us}), "jobs[0].waits.until_us: is too large");
    EXPECT_EQ(refused_waits({.since_us = 2, .until_us = 1}), "jobs[0].waits.since_us: is after until_us");
    EXPECT_EQ(refused_waits({.until_us = 1, .counted_us = 2}), "jobs[0].waits.counted_us: is after until_us");
    EXPECT_EQ(refused_waits({.shortest_us = kFar_us}), "jobs[0].waits.shortest_us: is too large");
    EXPECT_EQ(refused_waits({.lengths_us = {1, kFar_us}}), "jobs[0].waits.lengths_us: has a value that is too large");
    for (const std::size_t wrong : {1u, 513u, 514u}) {
        EXPECT_EQ(refused_waits({.lengths_us = std::vector<std::uint64_t>(wrong)}),
                  "jobs[0].waits.lengths_us: must have pairs of values, 512 values at most");
    }
    EXPECT_EQ(refused([](auto& changed) { changed.jobs[0].unread_cached_bytes = 5; }),
              "jobs[0].unread_cached_bytes: 5 is above unread_bytes 0");
    EXPECT_EQ(refused([](auto& changed) { changed.jobs.push_back(changed.jobs[0]); }), "jobs[1].name: appears twice");
    EXPECT_TRUE(cluster.state(now_ns).nodes.empty()) << "a refused report changes nothing";
    EXPECT_EQ(cluster.plan_for("a", now_ns).error().code, ErrorCode::not_found);
}

TEST_F(ClusterTest, MeasuredRateOverridesDeclaredRate) {
    ASSERT_TRUE(cluster.register_job({.name = "vision", .ideal_bytes_per_second = 5e8}));
    NodeReport a = node_report("a");
    a.jobs = {job_report("vision", "images")};
    report(a);
    EXPECT_DOUBLE_EQ(cluster.state(now_ns).jobs[0].ideal_bytes_per_second, 5e8);
    EXPECT_FALSE(cluster.measured_ideal("vision").has_value());
    for (int second = 0; second < 20; ++second) {
        now_ns += kSecond_ns;
        // The job waits half of the time.
        a.jobs[0].busy_s += 0.5;
        a.jobs[0].bytes += 100'000'000;
        report(a);
    }
    ASSERT_TRUE(cluster.measured_ideal("vision").has_value());
    EXPECT_NEAR(*cluster.measured_ideal("vision"), 2e8, 1e6);
    EXPECT_NEAR(cluster.state(now_ns).jobs[0].ideal_bytes_per_second, 2e8, 1e6);
}

TEST_F(ClusterTest, RateIsAGuessUntilItIsMeasuredOrAMinuteIsOver) {
    ASSERT_TRUE(cluster.register_job({.name = "declared", .ideal_bytes_per_second = 5e8}));
    NodeReport a = node_report("a");
    a.jobs = {job_report("declared", "images"), job_report("read", "images"), job_report("silent", "images")};
    const auto is_guess = [&](const std::string& name) {
        const ClusterState state = cluster.state(now_ns);
        return std::ranges::find(state.jobs, name, &ClusterJob::name)->ideal_is_guess;
    };
    report(a);
    EXPECT_FALSE(is_guess("declared"));
    EXPECT_TRUE(is_guess("read"));
    EXPECT_TRUE(is_guess("silent"));
    for (int second = 0; second < 59; ++second) {
        now_ns += kSecond_ns;
        a.jobs[1].busy_s += 0.5;
        a.jobs[1].bytes += 100'000'000;
        report(a);
    }
    EXPECT_FALSE(is_guess("read"));
    EXPECT_TRUE(is_guess("silent"));
    now_ns += kSecond_ns;
    report(a);
    EXPECT_FALSE(is_guess("silent"));
    // More ranks: the measurements are void.
    a.jobs[1].ranks = 2;
    for (int second = 0; second < 5; ++second) {
        now_ns += kSecond_ns;
        a.jobs[1].busy_s += 0.01;
        a.jobs[1].bytes += 1'000'000;
        report(a);
    }
    ASSERT_FALSE(cluster.measured_ideal("read").has_value());
    EXPECT_TRUE(is_guess("read"));
}

TEST_F(ClusterTest, JobOnSeveralNodesIsMeasuredAsOne) {
    NodeReport a = node_report("a");
    NodeReport b = node_report("b");
    a.jobs = b.jobs = {job_report("vision", "images")};
    a.jobs[0].ranks = 3;
    for (int second = 0; second < 20; ++second) {
        now_ns += kSecond_ns;
        a.jobs[0].busy_s += 3 * 0.5;
        a.jobs[0].bytes += 3 * 100'000'000;
        b.jobs[0].busy_s += 0.5;
        b.jobs[0].bytes += 100'000'000;
        report(a);
        report(b);
    }
    ASSERT_TRUE(cluster.measured_ideal("vision").has_value());
    EXPECT_NEAR(*cluster.measured_ideal("vision"), 4 * 2e8, 1e7);
    EXPECT_EQ(cluster.state(now_ns).jobs[0].gpus, 4u);
}

TEST_F(ClusterTest, LateReportLeavesTheMeasuredRateAsItIs) {
    NodeReport a = node_report("a");
    NodeReport b = node_report("b");
    a.jobs = b.jobs = {job_report("vision", "images")};
    std::optional<NodeReport> late;  // it comes after the next one of the other node
    for (int second = 0; second < 40; ++second) {
        now_ns += kSecond_ns;
        for (NodeReport* node : {&a, &b}) {
            node->jobs[0].busy_s += 0.5;
            node->jobs[0].bytes += 100'000'000;
        }
        const auto& [other, slow] = second / 4 % 2 == 0 ? std::tie(a, b) : std::tie(b, a);
        report(other);
        if (late) report(*std::exchange(late, std::nullopt));
        if (second % 4 == 2) {
            late = slow;
        } else {
            report(slow);
        }
        if (second < 12) continue;
        ASSERT_TRUE(cluster.measured_ideal("vision")) << second;
        EXPECT_NEAR(*cluster.measured_ideal("vision"), 2 * 2e8, 1e7) << second;
    }
    for (int second = 0; second < 20; ++second) {
        now_ns += kSecond_ns;
        a.jobs[0].busy_s += 0.5;
        a.jobs[0].bytes += 100'000'000;
        report(a);
    }
    EXPECT_NEAR(*cluster.measured_ideal("vision"), 2e8, 1e7) << "b is silent";
}

// Two nodes take turns to wait for half a second of each second, so that each is idle while the other one waits.
TEST_F(ClusterTest, WaitForAnotherNodeIsNotBusy) {
    NodeReport a = node_report("a");
    NodeReport b = node_report("b");
    a.jobs = b.jobs = {job_report("vision", "images")};
    for (int second = 1; second < 40; ++second) {
        now_ns += kSecond_ns;
        for (NodeReport* node : {&a, &b}) {
            const bool waits = (second % 2 == 0) == (node == &a);
            node->clock_us = static_cast<std::uint64_t>(second) * 1'000'000 + (node == &a ? 0 : 5'000'000);
            node->jobs[0].busy_s += waits ? 0.5 : 1;
            node->jobs[0].bytes += 100'000'000;
            WaitsReport waited{.since_us = *node->clock_us - 1'000'000,
                               .until_us = *node->clock_us,
                               .counted_us = *node->clock_us,
                               .batches = static_cast<std::uint64_t>(second),
                               .shortest_us = 500'000};
            if (waits) waited.lengths_us = {0, 500'000};
            node->jobs[0].waits = waited;
            report(*node);
        }
    }
    ASSERT_TRUE(cluster.measured_ideal("vision"));
    EXPECT_NEAR(*cluster.measured_ideal("vision"), 2 * 2e8, 1e7);
    EXPECT_FALSE(cluster.nodes().at("a").last.jobs[0].waits) << "they are not kept";
}

TEST_F(ClusterTest, RestartedDaemonsCountersChangeNoMeasuredRate) {
    NodeReport a = node_report("a");
    a.jobs = {job_report("vision", "images")};
    for (int second = 0; second < 20; ++second) {
        now_ns += kSecond_ns;
        a.jobs[0].busy_s += 1;
        a.jobs[0].bytes += 100'000'000;
        report(a);
    }
    const double before = *cluster.measured_ideal("vision");
    now_ns += 5 * kSecond_ns;
    a.instance = 2;
    a.jobs[0].bytes = 90'000'000'000;
    a.jobs[0].busy_s = 100;
    report(a);
    a.instance = 3;
    a.jobs[0].bytes = 1;
    a.jobs[0].busy_s = 0.1;
    now_ns += 5 * kSecond_ns;
    report(a);
    EXPECT_DOUBLE_EQ(*cluster.measured_ideal("vision"), before);
}

TEST_F(ClusterTest, RegistrationsAreValidatedAndUnique) {
    EXPECT_TRUE(cluster.register_job({.name = "vision"}).has_value());
    EXPECT_EQ(cluster.register_job({.name = "vision"}).error().code, ErrorCode::already_exists);
    EXPECT_EQ(message(cluster.register_job({.name = "x", .weight = 0})), "weight: must be above 0");
    EXPECT_EQ(message(cluster.register_job({.name = "x", .ideal_bytes_per_second = -1.0})),
              "ideal_bytes_per_second: is negative");
    EXPECT_EQ(message(cluster.register_job({.name = "x", .bandwidth_floor_bytes_per_second = 2 * kRemote})),
              "bandwidth_floor_bytes_per_second: the floors of all jobs do not fit the remote's bandwidth");
    EXPECT_EQ(cluster.remove_job("lost").error().code, ErrorCode::not_found);
    EXPECT_TRUE(cluster.remove_job("vision").has_value());
    EXPECT_TRUE(cluster.register_job({.name = "vision"}).has_value());
}

TEST_F(ClusterTest, ValuesThatAllowNoPlanAreRefused) {
    report(node_report("a"));
    EXPECT_EQ(message(cluster.register_job({.name = "x", .weight = 1e7})), "weight: is not from 1e-6 to 1e6");
    EXPECT_EQ(message(cluster.register_job({.name = "x", .weight = 1e-7})), "weight: is not from 1e-6 to 1e6");
    EXPECT_EQ(message(cluster.register_job({.name = "x", .ideal_bytes_per_second = 1e19})),
              "ideal_bytes_per_second: is too large");
    EXPECT_EQ(message(cluster.set_remote(1e19)), "remote_bytes_per_second: is too large");
    ASSERT_TRUE(cluster.register_job({.name = "x", .bandwidth_floor_bytes_per_second = kRemote / 2}));
    EXPECT_EQ(message(cluster.set_remote(kRemote / 3)),
              "remote_bytes_per_second: is below the floors of all jobs together");
    EXPECT_EQ(cluster.state(now_ns).remote_bytes_per_second, kRemote);
    NodeReport fast = node_report("a");
    fast.nic_bytes_per_second = 1e19;
    EXPECT_EQ(message(cluster.report(fast, now_ns)), "nic_bytes_per_second: is too large");
    NodeReport wide = node_report("a");
    wide.jobs = {job_report("vision", "images"), job_report("language", "text")};
    wide.jobs[0].ranks = wide.jobs[1].ranks = 1U << 31;  // their sum is 0 in 32 bits
    EXPECT_EQ(message(cluster.report(wide, now_ns)), "jobs[0].ranks: the node's jobs have more than 65536 ranks");
    wide.jobs[0].ranks = wide.jobs[1].ranks = 40'000;
    EXPECT_EQ(message(cluster.report(wide, now_ns)), "jobs[1].ranks: the node's jobs have more than 65536 ranks");
    wide.jobs[0].ranks = wide.jobs[1].ranks = 30'000;
    report(wide);
    replan();
}

TEST_F(ClusterTest, RunningJobStaysMeasuredAfterItsRegistrationIsRemoved) {
    ASSERT_TRUE(cluster.register_job({.name = "vision", .weight = 3}));
    NodeReport a = node_report("a");
    a.jobs = {job_report("vision", "images")};
    for (int second = 0; second < 20; ++second) {
        now_ns += kSecond_ns;
        a.jobs[0].busy_s += 1;
        a.jobs[0].bytes += 100'000'000;
        report(a);
    }
    const double before = *cluster.measured_ideal("vision");
    ASSERT_TRUE(cluster.remove_job("vision"));
    EXPECT_EQ(cluster.measured_ideal("vision"), before);
    EXPECT_EQ(cluster.state(now_ns).jobs[0].weight, 1);
    EXPECT_EQ(cluster.remove_job("vision").error().code, ErrorCode::not_found);
    EXPECT_TRUE(cluster.registered_jobs().empty());
}

TEST_F(ClusterTest, EndedJobThatNodesStillReportGetsNothingUnlessItReads) {
    ASSERT_TRUE(cluster.register_job({.name = "vision", .ideal_bytes_per_second = 4e8}));
    ASSERT_TRUE(cluster.register_job({.name = "language", .ideal_bytes_per_second = 4e9}));
    NodeReport a = node_report("a");
    NodeReport b = node_report("b");
    a.jobs = {job_report("vision", "images")};
    b.jobs = {job_report("language", "text")};
    const auto is_planned = [&] {
        now_ns += kSecond_ns;
        report(a);
        report(b);
        replan();
        const auto& jobs = cluster.planned_state().jobs;
        return std::ranges::find(jobs, "vision", &ClusterJob::name) != jobs.end();
    };
    a.jobs[0].bytes = 100;
    EXPECT_TRUE(is_planned());
    ASSERT_TRUE(cluster.remove_ended_job("vision"));
    a.jobs[0].bytes = 200;  // before its end
    EXPECT_FALSE(is_planned());
    EXPECT_FALSE(is_planned());
    EXPECT_NEAR(job_plan("language").bandwidth_bytes_per_second, kRemote, 2e7);
    a.jobs[0].bytes = 300;
    EXPECT_TRUE(is_planned()) << "somebody reads under its name";
    ASSERT_TRUE(cluster.register_job({.name = "vision"}));
    ASSERT_TRUE(cluster.remove_ended_job("vision"));
    EXPECT_FALSE(is_planned());
    ASSERT_TRUE(cluster.register_job({.name = "vision"}));
    EXPECT_TRUE(is_planned()) << "it runs again";
    EXPECT_FALSE(cluster.remove_ended_job("lost"));
}

TEST_F(ClusterTest, EpochsAreCountedDownFromRegistration) {
    NodeReport a = node_report("a");
    NodeReport b = node_report("b");
    a.jobs = b.jobs = {job_report("vision", "images")};
    a.jobs.push_back(job_report("language", "text"));
    a.jobs[1].epoch = 4;
    report(a);
    ASSERT_TRUE(cluster.register_job({.name = "vision", .epochs = 3}));
    ASSERT_TRUE(cluster.register_job({.name = "language", .epochs = 3}));
    const auto remaining = [&](std::uint32_t vision_on_a, std::uint32_t vision_on_b, std::uint32_t language) {
        a.jobs[0].epoch = vision_on_a;
        b.jobs[0].epoch = vision_on_b;
        a.jobs[1].epoch = language;
        report(a);
        report(b);
        std::vector<double> epochs;
        for (const ClusterJob& job : cluster.state(now_ns).jobs) epochs.push_back(job.remaining_epochs);
        return epochs;
    };
    EXPECT_EQ(remaining(7, 7, 4), (std::vector<double>{3, 3})) << "vision was resumed in its eighth epoch";
    EXPECT_EQ(remaining(7, 8, 5), (std::vector<double>{2, 2})) << "ranks on one node are ahead";
    EXPECT_EQ(remaining(8, 8, 5), (std::vector<double>{2, 2}));
    replan();
    EXPECT_GT(quota("images"), 0u);
    EXPECT_EQ(remaining(9, 9, 5), (std::vector<double>{1, 2}));
    replan();
    EXPECT_EQ(quota("text"), 50 * kGB) << "a job in its last epoch gives its cache away";
    EXPECT_EQ(remaining(10, 10, 5), (std::vector<double>{1, 2})) << "the job reads more epochs than were registered";
    EXPECT_EQ(remaining(6, 6, 5), (std::vector<double>{4, 2})) << "the job was restarted from an older checkpoint";
}

TEST_F(ClusterTest, ThousandRegistrationsAreKept) {
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(cluster.register_job({.name = "job-" + std::to_string(i)}).has_value());
    NodeReport a = node_report("a");
    for (int i = 0; i < 1000; ++i) a.jobs.push_back(job_report("job-" + std::to_string(i), "images"));
    report(a);
    replan();
    EXPECT_EQ(cluster.plan_for("a", now_ns)->lease.rates.size(), 1000u);
    EXPECT_LE(cluster.in_force(now_ns), kRemote * (1 + 1e-9));
}

TEST_F(ClusterTest, SumOfFloorsMatchesRegisteredJobs) {
    std::mt19937_64 random(5);
    for (int i = 0; i < 2000; ++i) {
        const std::string name = "job-" + std::to_string(random() % 50);
        const double floor = random() % 4 == 0 ? 0 : static_cast<double>(random() % 1'000'000'000) / 29;
        // Some calls are refused: the job exists already, does not exist, or its floor exceeds the remote.
        if (random() % 2 == 0) {
            static_cast<void>(cluster.register_job({.name = name, .bandwidth_floor_bytes_per_second = floor}));
        } else {
            static_cast<void>(cluster.remove_job(name));
        }
        double sum = 0;
        for (const std::string& job : cluster.registered_jobs()) {
            sum += cluster.registered(job)->bandwidth_floor_bytes_per_second;
        }
        ASSERT_NEAR(cluster.floors_bytes_per_second(), sum, 1e-9 * kRemote) << "after " << i;
    }
    for (const std::string& job : cluster.registered_jobs()) ASSERT_TRUE(cluster.remove_job(job));
    EXPECT_EQ(cluster.floors_bytes_per_second(), 0);
}

TEST_F(ClusterTest, PinHoldsUntilReleased) {
    NodeReport a = node_report("a");
    a.jobs = {job_report("vision", "images"), job_report("language", "text")};
    report(a);
    replan();
    const std::uint64_t free = quota("images");
    ASSERT_TRUE(cluster.pin_quota("images", 7 * kGB, now_ns).has_value());
    replan();
    EXPECT_NE(free, 7 * kGB);
    EXPECT_NEAR(static_cast<double>(quota("images")), 7e9, 2);
    EXPECT_NE(message(cluster.pin_quota("text", 94 * kGB, now_ns)).find("at most 93.00 GB is free"), std::string::npos);
    EXPECT_TRUE(cluster.pin_quota("text", 93 * kGB, now_ns)) << "a pin counts up to the dataset's size";
    EXPECT_EQ(cluster.pin_quota("images", 60 * kGB, now_ns).error().code, ErrorCode::no_space);
    EXPECT_EQ(cluster.pin_quota("lost", 1, now_ns).error().code, ErrorCode::not_found);
    EXPECT_EQ(message(cluster.pin_quota("image", 1, now_ns)),
              "no node has a dataset \"image\"; did you mean \"images\"?");
    EXPECT_EQ(message(cluster.pin_quota("lost", 1, now_ns)),
              "no node has a dataset \"lost\": `larder dataset ls` lists the datasets");
    ASSERT_TRUE(cluster.pin_quota("images", std::nullopt, now_ns).has_value());
    ASSERT_TRUE(cluster.pin_quota("text", std::nullopt, now_ns).has_value());
    replan();
    EXPECT_EQ(quota("images"), free);
}

TEST_F(ClusterTest, PinIsSplitOverNodesThatDoNotReadEachOther) {
    NodeReport a = node_report("a");
    NodeReport b = node_report("b");
    NodeReport idle = node_report("c");
    a.jobs = {job_report("vision", "images")};
    b.jobs = {job_report("segmentation", "images"), job_report("detection", "images")};
    report(a);
    report(b);
    report(idle);
    const auto on_nodes = [&](std::uint64_t pin) {
        EXPECT_TRUE(cluster.pin_quota("images", pin, now_ns));
        replan();
        std::vector<double> gb;
        for (const char* node : {"a", "b", "c"}) {
            const auto part = cluster.plan_for(node, now_ns);
            const DatasetQuota& images = part->quotas.at(0);
            EXPECT_EQ(images.name, "images");
            gb.push_back(std::round(static_cast<double>(images.memory_bytes + images.disk_bytes) / 1e7) / 100);
        }
        return gb;
    };
    EXPECT_EQ(on_nodes(60 * kGB), (std::vector<double>{20, 40, 0})) << "split by the number of jobs that read it";
    EXPECT_EQ(on_nodes(240 * kGB), (std::vector<double>{100, 100, 40}))
        << "the rest goes to the node that does not read it";
    EXPECT_EQ(on_nodes(0), (std::vector<double>{0, 0, 0}));
    EXPECT_EQ(cluster.pin_quota("images", 301 * kGB, now_ns).error().code, ErrorCode::no_space);
    EXPECT_TRUE(cluster.pin_quota("text", 300 * kGB, now_ns)) << "three nodes can use 150 GB of it";
    EXPECT_EQ(cluster.pin_quota("images", 151 * kGB, now_ns).error().code, ErrorCode::no_space);
}

TEST_F(ClusterTest, QuotasFollowCapacityLoweredBelowUse) {
    NodeReport a = node_report("a");
    a.jobs = {job_report("vision", "images")};
    a.datasets[0].quota_disk_bytes = a.datasets[0].cached_disk_bytes = 90 * kGB;
    report(a);
    replan();
    a.disk_bytes = 20 * kGB;
    a.memory_bytes = 0;
    report(a);
    replan();
    const auto part = cluster.plan_for("a", now_ns);
    std::uint64_t disk_bytes = 0;
    for (const DatasetQuota& quota : part->quotas) disk_bytes += quota.disk_bytes;
    EXPECT_LE(disk_bytes, 20 * kGB);
}

TEST_F(ClusterTest, SilentNodeIsLeftOutOnceItsLeaseExpires) {
    NodeReport a = node_report("a");
    NodeReport b = node_report("b");
    a.jobs = {job_report("vision", "images")};
    b.jobs = {job_report("language", "text")};
    report(a);
    report(b);
    replan();
    const Lease lease_of_a = cluster.plan_for("a", now_ns)->lease;
    const Lease lease_of_b = cluster.plan_for("b", now_ns)->lease;
    EXPECT_NEAR(lease_of_a.sum() + lease_of_b.sum(), kRemote, 1);
    now_ns += 9 * kSecond_ns;
    report(b);
    replan();
    EXPECT_EQ(cluster.planned_state().nodes.size(), 2u);
    now_ns += 2 * kSecond_ns;
    b.lease_applied = lease_of_b.number;
    report(b);
    replan();
    EXPECT_EQ(cluster.planned_state().nodes.size(), 1u);
    const Lease more = cluster.plan_for("b", now_ns)->lease;
    EXPECT_NEAR(more.sum(), kRemote - lease_of_a.floor_bytes_per_second, 1) << "a may still take its floor";
    EXPECT_EQ(cluster.plan_for("a", now_ns).error().code, ErrorCode::not_found);
}

// Nodes come and go, and their clocks are never compared. Their rates in force never add up to more than the remote
// has.
TEST_F(ClusterTest, RatesInForceStayWithinRemoteAsNodesComeAndGo) {
    std::mt19937_64 random(7);
    std::vector<NodeReport> nodes;
    for (int i = 0; i < 5; ++i) {
        NodeReport node = node_report("node-" + std::to_string(i));
        node.jobs = {job_report("shared", "images"), job_report("own-" + std::to_string(i), "text")};
        nodes.push_back(node);
    }
    for (int step = 0; step < 3000; ++step) {
        now_ns += static_cast<std::int64_t>(random() % kSecond_ns);
        NodeReport& node = nodes[random() % nodes.size()];
        if (random() % 50 == 0) {
            if (node.jobs.size() > 1) {
                node.jobs.pop_back();
            } else {
                node.jobs.push_back(job_report("late-" + node.node, "images"));
            }
        }
        if (random() % 20 == 0) now_ns += 11 * kSecond_ns;
        for (JobReport& job : node.jobs) {
            job.busy_s += 0.3;
            job.bytes += random() % 100'000'000;
            job.demand_bytes_per_second = static_cast<double>(random() % 1'000'000'000);
        }
        report(node);
        replan();
        const auto part = cluster.plan_for(node.node, now_ns);
        ASSERT_TRUE(part.has_value());
        if (random() % 3 != 0) node.lease_applied = part->lease.number;
        ASSERT_LE(cluster.in_force(now_ns), kRemote * (1 + 1e-9)) << "step " << step;
    }
}

// --- names of jobs belong to users

JobReport job_of_user(const std::string& job, std::uint32_t user) {
    JobReport report = job_report(job, "images");
    report.user = user;
    return report;
}

TEST_F(ClusterTest, JobOfAnotherUserUnderTheSameNameIsAnotherJob) {
    NodeReport real = node_report("a");
    real.jobs = {job_of_user("vision", 1001)};
    NodeReport forged = node_report("b");
    forged.jobs = {job_of_user("vision", 1002)};
    for (int second = 0; second < 20; ++second) {
        report(real);
        report(forged);
        real.jobs[0].bytes += 100'000'000;
        real.jobs[0].busy_s += 1;
        forged.jobs[0].bytes += 1'000'000;  // as if the job were slow, so that it gets little
        forged.jobs[0].busy_s += 1;
        now_ns += kSecond_ns;
    }
    replan();
    ASSERT_TRUE(cluster.measured_ideal("vision"));
    EXPECT_NEAR(*cluster.measured_ideal("vision"), 1e8, 1);
    EXPECT_NEAR(*cluster.measured_ideal("vision (user 1002)"), 1e6, 1);
    EXPECT_EQ(cluster.planned_state().jobs.size(), 2u);
    EXPECT_EQ(cluster.user_of("vision"), 1001u);
    const NodePlan part = *cluster.plan_for("b", now_ns);
    ASSERT_EQ(part.lease.rates.size(), 1u);
    EXPECT_EQ(part.lease.rates[0].job, "vision") << "its node knows it by its own name";
}

TEST_F(ClusterTest, RegistrationForAUserTakesTheNameFromWhoUsedItFirst) {
    NodeReport first = node_report("a");
    first.jobs = {job_of_user("vision", 1002)};
    NodeReport registered = node_report("b");
    registered.jobs = {job_of_user("vision", 1001)};
    for (int second = 0; second < 20; ++second) {
        report(first);
        report(registered);
        first.jobs[0].bytes += 1'000'000;
        first.jobs[0].busy_s += 1;
        now_ns += kSecond_ns;
    }
    ASSERT_TRUE(cluster.measured_ideal("vision"));
    ASSERT_TRUE(cluster.register_job({.name = "vision", .weight = 4, .user = 1001}));
    EXPECT_EQ(cluster.user_of("vision"), 1001u);
    EXPECT_FALSE(cluster.measured_ideal("vision")) << "what was measured is the other user's";
    replan();
    const ClusterState& state = cluster.planned_state();
    ASSERT_EQ(state.jobs.size(), 2u);
    for (const ClusterJob& job : state.jobs) {
        EXPECT_EQ(job.weight, job.name == "vision" ? 4 : 1) << job.name;
        EXPECT_EQ(state.nodes[job.placement[0].node].name, job.name == "vision" ? "b" : "a") << job.name;
    }
    report(first);
    report(registered);
    replan();
    EXPECT_EQ(cluster.planned_state().jobs.size(), 2u);
    ASSERT_TRUE(cluster.remove_job("vision"));
    EXPECT_EQ(cluster.user_of("vision"), 1001u) << "it still runs";
    registered.jobs.clear();
    report(registered);
    EXPECT_EQ(cluster.user_of("vision"), std::nullopt);
    report(first);
    EXPECT_EQ(cluster.user_of("vision"), 1002u);
}

TEST_F(ClusterTest, RegistrationWithAnOwnerTakesNoNameInUse) {
    NodeReport node = node_report("a");
    node.jobs = {job_of_user("vision", 1002)};
    report(node);
    const RegistrationOwner other{.uid = 1001, .token = {}};
    const RegistrationOwner token{.uid = {}, .token = "ci"};
    const auto refused = cluster.register_job({.name = "vision", .user = 1001, .owner = other});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::permission_denied);
    EXPECT_NE(refused.error().message.find("uid 1002"), std::string::npos) << refused.error().message;
    EXPECT_FALSE(cluster.register_job({.name = "vision", .owner = token}));
    EXPECT_EQ(cluster.user_of("vision"), 1002u);
    const RegistrationOwner own{.uid = 1002, .token = {}};
    ASSERT_TRUE(cluster.register_job({.name = "vision", .user = 1002, .owner = own}));
    EXPECT_EQ(cluster.register_job({.name = "vision", .user = 1001, .owner = other}).error().code,
              ErrorCode::permission_denied);
    EXPECT_EQ(cluster.register_job({.name = "vision", .user = 1002, .owner = own}).error().code,
              ErrorCode::already_exists);
    ASSERT_TRUE(cluster.register_job({.name = "later", .user = 1002, .owner = own}));
    EXPECT_EQ(cluster.register_job({.name = "later", .user = 1001, .owner = other}).error().code,
              ErrorCode::permission_denied)
        << "it is registered, but does not run";
}

TEST_F(ClusterTest, OwnerMayRegisterSoManyJobsAndOperatorsMore) {
    ClusterOptions few{.remote_bytes_per_second = kRemote, .jobs_per_owner_max = 2};
    Cluster limited(few);
    const RegistrationOwner first{.uid = 1001, .token = {}};
    const RegistrationOwner second{.uid = {}, .token = "1001"};
    const auto add = [&](const std::string& name, std::optional<RegistrationOwner> owner) {
        return limited.register_job({.name = name, .owner = std::move(owner)});
    };
    ASSERT_TRUE(add("a", first));
    ASSERT_TRUE(add("b", first));
    const auto refused = add("c", first);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::no_space);
    EXPECT_NE(refused.error().message.find("limit for one user or token"), std::string::npos);
    EXPECT_EQ(add("a", first).error().code, ErrorCode::already_exists);
    EXPECT_TRUE(add("c", second)) << "a token is not the user of that name";
    for (const char* name : {"d", "e", "f"}) EXPECT_TRUE(add(name, std::nullopt));
    ASSERT_TRUE(limited.remove_job("a"));
    EXPECT_TRUE(add("g", first));
    EXPECT_FALSE(add("h", first));
}

TEST_F(ClusterTest, NameWithoutUserCountsForTheJobOfThatName) {
    NodeReport old = node_report("a");  // its daemon reports no users
    old.jobs = {job_report("vision", "images")};
    NodeReport now = node_report("b");
    now.jobs = {job_of_user("vision", 1001)};
    report(old);
    report(now);
    replan();
    EXPECT_EQ(cluster.planned_state().jobs.size(), 1u);
    EXPECT_EQ(cluster.user_of("vision"), 1001u);
}

// Nobody may take the others' share of a lease by many names or forged rates.
TEST_F(ClusterTest, UserWithManyJobsLeavesOthersTheirShareOfTheLease) {
    for (const bool on_one_node : {true, false}) {
        SCOPED_TRACE(on_one_node ? "one node" : "two nodes");
        Cluster shared{{.remote_bytes_per_second = kRemote}};
        NodeReport a = node_report("a");
        a.jobs = {job_of_user("victim", 1001)};
        NodeReport b = node_report("b", 2);
        NodeReport& hostile = on_one_node ? a : b;
        for (int name = 0; name < 512; ++name) {
            hostile.jobs.push_back(job_of_user("hostile" + std::to_string(name), 1002));
            hostile.jobs.back().demand_bytes_per_second = 1e15;
        }
        std::optional<NodePlan> part;
        for (int second = 0; second < 40; ++second) {
            for (NodeReport* node : {&a, &b}) {
                if (on_one_node && node == &b) continue;
                ASSERT_TRUE(shared.report(*node, now_ns));
                ASSERT_TRUE(shared.replan(now_ns));
                const auto answer = shared.plan_for(node->node, now_ns);
                ASSERT_TRUE(answer) << answer.error().message;
                node->lease_applied = answer->lease.number;
                if (node == &a) part = *answer;
                for (JobReport& job : node->jobs) {
                    job.bytes += job.name == "victim" ? 400'000'000 : 100'000'000;
                    job.busy_s += job.name == "victim" ? 0.5 : 1e-6;  // so that the hostile user's f* is 1e14
                }
            }
            ASSERT_LE(shared.in_force(now_ns), kRemote * (1 + 1e-9));
            now_ns += kSecond_ns;
        }
        const auto victim = std::ranges::find(part->lease.rates, "victim", &LeasedRate::job);
        ASSERT_NE(victim, part->lease.rates.end());
        EXPECT_GE(victim->bytes_per_second, 0.95 * kRemote / 2);
    }
}

TEST_F(ClusterTest, NamesWithParenthesesAreRefused) {
    NodeReport forged = node_report("a");
    forged.jobs = {job_of_user("vision (user 1001)", 1002)};
    EXPECT_NE(message(cluster.report(forged, now_ns)).find("parenthesis"), std::string::npos);
    EXPECT_NE(message(cluster.register_job({.name = "vision (user 1001)"})).find("parenthesis"), std::string::npos);
}

}  // namespace
}  // namespace larder::allocator
