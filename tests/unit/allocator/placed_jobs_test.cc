// Jobs that another scheduler starts: the cache that they reserve, and where they run before their first read.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "allocator/cluster.h"
#include "tests/support/test_units.h"

namespace larder::test {
namespace {

using namespace allocator;

constexpr std::uint64_t kGB = 1'000'000'000;

class PlacedJobs : public testing::Test {
protected:
    Cluster cluster{{.remote_bytes_per_second = 1e9}};
    std::int64_t now_ns = 20 * kSecond_ns;
    std::vector<JobReport> reads;  // on node "a"

    // Nodes "a" and "b" of 50 GB each. Both have "images" of 80 GB and "texts" of 60 GB.
    void report(std::uint64_t images_on_a = 0, std::vector<std::string> warmed = {}) {
        for (const char* node : {"a", "b"}) {
            const bool is_a = std::string(node) == "a";
            NodeReport sent{
                .node = node,
                .instance = 1,
                .gpus = 8,
                .memory_bytes = 50 * kGB,
                .datasets = {{.name = "images", .size_bytes = 80 * kGB}, {.name = "texts", .size_bytes = 60 * kGB}}};
            for (DatasetReport& dataset : sent.datasets) dataset.quota_memory_bytes = quota(dataset.name, node);
            if (is_a) sent.datasets[0].cached_memory_bytes = images_on_a;
            sent.peer_group = "default";
            sent.peer_endpoint = std::string("http://") + node + ":1";
            sent.warmed = warmed;
            if (is_a) sent.jobs = reads;
            ASSERT_TRUE(cluster.report(sent, now_ns));
        }
        ASSERT_TRUE(cluster.replan(now_ns));
    }
    std::uint64_t quota(const std::string& dataset, const std::string& node) const {
        for (std::size_t i = 0; i < cluster.plan().datasets.size(); ++i) {
            if (cluster.planned_state().datasets[i].name != dataset) continue;
            for (const NodeCache& part : cluster.plan().datasets[i].quotas) {
                if (cluster.planned_state().nodes[part.node].name == node) return part.bytes();
            }
        }
        return 0;
    }
    std::uint64_t quota(const std::string& dataset) const { return quota(dataset, "a") + quota(dataset, "b"); }
    Result<void> add(const std::string& name, const std::string& dataset, std::uint64_t cache_bytes) {
        const JobRegistration spec{.name = name, .dataset = dataset, .cache_bytes = cache_bytes};
        if (auto free = cluster.check_reservation(spec, now_ns); !free) return free;
        return cluster.register_job(spec);
    }
    std::set<std::string> jobs_on(const std::string& node) const {
        const std::uint32_t index = *cluster.planned_index(node);
        std::set<std::string> names;
        for (const ClusterJob& job : cluster.planned_state().jobs) {
            if (std::ranges::find(job.placement, index, &GpuShare::node) != job.placement.end()) names.insert(job.name);
        }
        return names;
    }
    std::vector<std::string> warm(const std::string& node) const {
        auto plan = const_cast<Cluster&>(cluster).plan_for(node, now_ns);
        return plan ? plan->warm : std::vector<std::string>{"no plan"};
    }
};

TEST_F(PlacedJobs, JobCountsWhereItsSchedulerRunsItBeforeItsFirstRead) {
    report();
    ASSERT_TRUE(add("slurm-1", "images", 0));
    report();
    EXPECT_TRUE(cluster.planned_state().jobs.empty());
    ASSERT_TRUE(cluster.place_job("slurm-1", "a", 2));
    ASSERT_TRUE(cluster.place_job("slurm-1", "b", 6));
    report();
    ASSERT_EQ(cluster.planned_state().jobs.size(), 1u);
    const ClusterJob& job = cluster.planned_state().jobs[0];
    EXPECT_EQ(job.gpus, 8u);
    EXPECT_EQ(job.placement, (GpuShares{{0, 2}, {1, 6}}));
    EXPECT_GT(quota("images"), 0u) << "the plan gives its dataset cache";
    const auto part = cluster.plan_for("a", now_ns);
    ASSERT_TRUE(part);
    ASSERT_EQ(part->lease.rates.size(), 1u);
    EXPECT_EQ(part->lease.rates[0].job, "slurm-1") << "its rate is leased before it connects";
    ASSERT_TRUE(cluster.place_job("slurm-1", "a", std::nullopt));
    ASSERT_TRUE(cluster.place_job("slurm-1", "b", std::nullopt));
    report();
    EXPECT_TRUE(cluster.planned_state().jobs.empty());
}

TEST_F(PlacedJobs, GpusOfTheSchedulerCountInsteadOfReportedLoaders) {
    report();
    ASSERT_TRUE(add("slurm-1", "images", 0));
    ASSERT_TRUE(cluster.place_job("slurm-1", "a", 12));
    NodeReport reading{.node = "a", .instance = 1, .gpus = 8, .memory_bytes = 50 * kGB};
    reading.datasets = {{.name = "images", .size_bytes = 80 * kGB}};
    reading.jobs = {{.name = "slurm-1", .dataset = "images", .ranks = 1}};
    ASSERT_TRUE(cluster.report(reading, now_ns));
    ASSERT_TRUE(cluster.replan(now_ns)) << "a node may have fewer GPUs than its scheduler gives";
    ASSERT_EQ(cluster.planned_state().jobs.size(), 1u);
    EXPECT_EQ(cluster.planned_state().jobs[0].gpus, 12u);
    EXPECT_EQ(cluster.planned_state().jobs[0].placement, (GpuShares{{0, 12}}));
}

TEST_F(PlacedJobs, ReservationIsAFloorOfTheQuotaWhileTheJobIsRegistered) {
    report();
    ASSERT_TRUE(add("reads", "texts", 0));
    ASSERT_TRUE(cluster.place_job("reads", "a", 1));
    report();
    const std::uint64_t before = quota("images");
    ASSERT_TRUE(add("slurm-1", "images", 70 * kGB));
    ASSERT_TRUE(add("slurm-2", "images", 60 * kGB)) << "jobs of one dataset share its cache";
    report();
    EXPECT_GE(quota("images"), 70 * kGB - 1);
    EXPECT_LT(before, 70 * kGB);
    EXPECT_GE(quota("texts"), 29 * kGB) << "what is left goes to the other dataset";
    ASSERT_TRUE(cluster.remove_job("slurm-1"));
    ASSERT_TRUE(cluster.remove_job("slurm-2"));
    report();
    EXPECT_EQ(quota("images"), before);
}

TEST_F(PlacedJobs, ReservationThatIsNotFreeIsRefused) {
    report();
    ASSERT_TRUE(add("slurm-1", "images", 70 * kGB));
    report();
    const auto refused = add("slurm-2", "texts", 40 * kGB);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::no_space);
    EXPECT_EQ(refused.error().message,
              "job \"slurm-2\" cannot reserve 40.00 GB of cache for dataset \"texts\": 30.00 GB is free now");
    EXPECT_TRUE(add("slurm-3", "texts", 30 * kGB));
    EXPECT_EQ(add("slurm-4", "image", 1).error().code, ErrorCode::not_found);
    EXPECT_EQ(cluster.pin_quota("texts", 31 * kGB, now_ns).error().code, ErrorCode::no_space);
    ASSERT_TRUE(cluster.remove_job("slurm-3"));
    EXPECT_TRUE(add("slurm-5", "images", 500 * kGB)) << "a dataset needs no more than all of it";
}

TEST_F(PlacedJobs, ReservationChangesAndIsKeptIfTheChangeIsRefused) {
    report();
    ASSERT_TRUE(add("slurm-1", "images", 40 * kGB));
    ASSERT_TRUE(cluster.reserve_for_job("slurm-1", 20 * kGB, 5e8, now_ns));
    EXPECT_EQ(cluster.registered("slurm-1")->cache_bytes, 20 * kGB);
    EXPECT_EQ(cluster.reserve_for_job("slurm-1", 10 * kGB, 2e9, now_ns).error().code, ErrorCode::no_space);
    EXPECT_EQ(cluster.registered("slurm-1")->cache_bytes, 20 * kGB);
    EXPECT_EQ(cluster.registered("slurm-1")->bandwidth_floor_bytes_per_second, 5e8);
    ASSERT_TRUE(cluster.reserve_for_job("slurm-1", 0, 9e8, now_ns)) << "its own floor does not count against it";
    EXPECT_EQ(cluster.reserve_for_job("slurm-2", kGB, 0, now_ns).error().code, ErrorCode::not_found);
}

TEST_F(PlacedJobs, ReservationMayBeTriedAgainOnceTheNodesAreBack) {
    report();
    ASSERT_TRUE(add("slurm-1", "images", 0));
    now_ns += std::int64_t{3600} * 1'000'000'000;
    EXPECT_EQ(cluster.reserve_for_job("slurm-1", kGB, 0, now_ns).error().code, ErrorCode::unavailable);
    EXPECT_TRUE(cluster.reserve_for_job("slurm-1", 0, 0, now_ns)) << "the job keeps what it has";
    report();
    EXPECT_TRUE(cluster.reserve_for_job("slurm-1", kGB, 0, now_ns));
}

TEST_F(PlacedJobs, ReservedDatasetIsWarmedUntilTheJobStarts) {
    report();
    EXPECT_EQ(warm("a"), std::vector<std::string>{});
    ASSERT_TRUE(add("slurm-1", "images", 40 * kGB));
    const JobRegistration& job = *cluster.registered("slurm-1");
    report();
    EXPECT_FALSE(cluster.is_staged(job));
    EXPECT_EQ(warm("a").size() + warm("b").size(), (quota("images", "a") > 0) + (quota("images", "b") > 0));
    EXPECT_TRUE(warm("a") == std::vector<std::string>{"images"} || warm("b") == std::vector<std::string>{"images"});
    report(39 * kGB);
    EXPECT_FALSE(cluster.is_staged(job));
    report(39 * kGB, {"images"});
    EXPECT_TRUE(cluster.is_staged(job)) << "no further block fits";
    report(40 * kGB);
    EXPECT_TRUE(cluster.is_staged(job));
    EXPECT_EQ(warm("a"), std::vector<std::string>{}) << "no more than was asked";
    report(10 * kGB);
    ASSERT_TRUE(cluster.place_job("slurm-1", "a", 1));
    EXPECT_EQ(warm("a"), std::vector<std::string>{}) << "the job itself reads now";
}

// The cluster keeps sums over jobs instead of looking at all of them. This compares them with a look at all of them.
TEST_F(PlacedJobs, ReservationsAndWarmingFollowEveryChangeOfManyJobs) {
    struct Known {
        std::string dataset;
        std::uint64_t cache_bytes = 0;
        std::set<std::string> placed;
        bool reads = false;  // on node "a"
        std::set<std::string> expected;
    };
    std::map<std::string, Known> jobs;
    std::mt19937_64 random(7);
    const auto any_job = [&] { return std::next(jobs.begin(), static_cast<std::ptrdiff_t>(random() % jobs.size())); };
    for (int step = 0; step < 600; ++step) {
        const auto cache_bytes = [&] { return random() % 4 * 8 * kGB; };
        const std::string node = random() % 2 == 0 ? "a" : "b";
        if (jobs.empty() || (jobs.size() < 12 && random() % 4 == 0)) {
            const Known job{.dataset = random() % 2 == 0 ? "images" : "texts", .cache_bytes = cache_bytes()};
            const std::string name = "slurm-" + std::to_string(step);
            ASSERT_TRUE(cluster.register_job({.name = name, .dataset = job.dataset, .cache_bytes = job.cache_bytes}));
            jobs[name] = job;
        } else if (const auto changed = any_job(); random() % 8 == 0) {
            ASSERT_TRUE(cluster.remove_job(changed->first));
            jobs.erase(changed);
        } else if (random() % 3 == 0) {
            const std::uint64_t bytes = cache_bytes();
            std::set<std::string> expected;
            for (const char* where : {"a", "b", "gone"}) {
                if (random() % 3 == 0) expected.insert(where);
            }
            const std::vector<std::string> sent(expected.rbegin(), expected.rend());
            if (cluster.reserve_for_job(changed->first, bytes, 0, now_ns, sent)) {
                changed->second.cache_bytes = bytes;
                changed->second.expected = expected;
            }
        } else if (random() % 3 == 0) {
            changed->second.reads = !changed->second.reads;
        } else if (random() % 2 == 0) {
            ASSERT_TRUE(cluster.place_job(changed->first, node, 1));
            changed->second.placed.insert(node);
        } else {
            ASSERT_TRUE(cluster.place_job(changed->first, node, std::nullopt));
            changed->second.placed.erase(node);
        }
        reads.clear();
        for (const auto& [name, job] : jobs) {
            if (job.reads) reads.push_back({.name = name, .dataset = job.dataset, .ranks = 1});
        }
        report(10 * kGB);
        for (const std::string dataset : {"images", "texts"}) {
            std::uint64_t reserved = 0;
            std::uint64_t waited_for = 0;
            std::set<std::uint32_t> expected;
            for (const auto& [name, job] : jobs) {
                if (job.dataset != dataset) continue;
                reserved = std::max(reserved, job.cache_bytes);
                if (!job.placed.empty() || job.reads) continue;
                waited_for = std::max(waited_for, job.cache_bytes);
                for (const std::string& where : job.expected) {
                    if (job.cache_bytes > 0 && where != "gone") expected.insert(*cluster.planned_index(where));
                }
            }
            const auto planned = std::ranges::find(cluster.planned_state().datasets, dataset, &ClusterDataset::name);
            ASSERT_EQ(planned->quota_floor_bytes, reserved) << dataset << " in step " << step;
            ASSERT_EQ(planned->expected_on, std::vector(expected.begin(), expected.end()))
                << dataset << " in step " << step;
            std::vector<std::string> warmed = warm("a");
            for (const std::string& name : warm("b")) warmed.push_back(name);
            const std::uint64_t cached = dataset == "images" ? 10 * kGB : 0;
            ASSERT_EQ(std::ranges::count(warmed, dataset) > 0, waited_for > cached) << dataset << " in step " << step;
        }
        for (const char* where : {"a", "b"}) {
            std::set<std::string> expected;
            for (const auto& [name, job] : jobs) {
                if (job.placed.contains(where) || (job.reads && where == std::string("a"))) expected.insert(name);
            }
            ASSERT_EQ(jobs_on(where), expected) << where << " in step " << step;
        }
    }
}

TEST_F(PlacedJobs, ReservedDatasetIsWarmedFirstWhereTheJobIsExpected) {
    report();
    ASSERT_TRUE(add("slurm-1", "images", 0));
    for (const std::string where : {"b", "a"}) {
        ASSERT_TRUE(cluster.reserve_for_job("slurm-1", 30 * kGB, 0, now_ns, {where, "unknown", where}));
        report();
        EXPECT_GE(quota("images", where), 30 * kGB);
        EXPECT_EQ(warm(where), std::vector<std::string>{"images"});
        EXPECT_EQ(warm(where == "a" ? "b" : "a"), std::vector<std::string>{});
    }
    ASSERT_TRUE(cluster.place_job("slurm-1", "b", 1));
    report();
    EXPECT_EQ(cluster.planned_state().datasets[0].expected_on, std::vector<std::uint32_t>{}) << "the job runs";
    ASSERT_TRUE(cluster.place_job("slurm-1", "b", std::nullopt));
    report();
    EXPECT_EQ(cluster.planned_state().datasets[0].expected_on, std::vector<std::uint32_t>{0});
}

TEST_F(PlacedJobs, OtherNodesWarmWhatFindsNoRoomWhereTheJobIsExpected) {
    report();
    ASSERT_TRUE(add("slurm-1", "images", 0));
    ASSERT_TRUE(cluster.reserve_for_job("slurm-1", 70 * kGB, 0, now_ns, {"a"}));
    report();
    report(40 * kGB);
    EXPECT_EQ(quota("images", "a"), 50 * kGB);
    EXPECT_GE(quota("images", "b"), 20 * kGB - 1);
    EXPECT_EQ(warm("a"), std::vector<std::string>{"images"});
    EXPECT_EQ(warm("b"), std::vector<std::string>{}) << "its turn comes once node a is full";
    report(49 * kGB, {"images"});
    EXPECT_EQ(warm("b"), std::vector<std::string>{"images"});
}

TEST_F(PlacedJobs, ExpectedNodesOfAReservedJobChangeWithoutItsDataset) {
    report();
    ASSERT_TRUE(add("slurm-1", "images", 0));
    ASSERT_TRUE(cluster.reserve_for_job("slurm-1", kGB, 0, now_ns, {"b", "a"}));
    EXPECT_EQ(cluster.registered("slurm-1")->expected_on, (std::vector<std::string>{"a", "b"}));
    int saves = 0;
    cluster.set_save([&](const ClusterRecord&) -> Result<void> {
        ++saves;
        return {};
    });
    ASSERT_TRUE(cluster.reserve_for_job("slurm-1", kGB, 0, now_ns, {"a", "b"}));
    EXPECT_EQ(saves, 0) << "nothing changes";
    now_ns += std::int64_t{3600} * 1'000'000'000;
    ASSERT_TRUE(cluster.reserve_for_job("slurm-1", kGB, 0, now_ns, {"a"})) << "no node has the dataset now";
    EXPECT_EQ(saves, 1);
    EXPECT_EQ(cluster.registered("slurm-1")->expected_on, std::vector<std::string>{"a"});
    EXPECT_EQ(cluster.reserve_for_job("slurm-1", 2 * kGB, 0, now_ns, {"b"}).error().code, ErrorCode::unavailable);
    EXPECT_EQ(cluster.registered("slurm-1")->expected_on, std::vector<std::string>{"a"}) << "it keeps what it had";
}

TEST_F(PlacedJobs, PlacementSurvivesARestart) {
    ClusterRecord record;
    cluster.set_save([&](const ClusterRecord& change) -> Result<void> {
        for (const auto& [name, spec] : change.jobs) record.jobs[name] = spec;
        return {};
    });
    report();
    ASSERT_TRUE(add("slurm-1", "images", kGB));
    ASSERT_TRUE(cluster.reserve_for_job("slurm-1", kGB, 0, now_ns, {"b"}));
    ASSERT_TRUE(cluster.place_job("slurm-1", "a", 3));
    Cluster restarted({.remote_bytes_per_second = 1e9});
    ASSERT_TRUE(restarted.restore(record, now_ns));
    ASSERT_NE(restarted.registered("slurm-1"), nullptr);
    EXPECT_EQ(restarted.registered("slurm-1")->runs_on.at("a"), 3u);
    EXPECT_EQ(restarted.registered("slurm-1")->cache_bytes, kGB);
    EXPECT_EQ(restarted.registered("slurm-1")->expected_on, std::vector<std::string>{"b"});
    EXPECT_EQ(restarted.place_job("slurm-2", "a", 1).error().code, ErrorCode::not_found);
}

}  // namespace
}  // namespace larder::test
