// The cache systems that Larder is compared with, and the rules that are the same for all of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "scheduler/simulator/cache_system.h"
#include "scheduler/simulator/summary.h"
#include "tests/unit/scheduler/simulator/simulated_cluster.h"

namespace larder::scheduler {
namespace {

double remote_bytes_all(const SimulationOutcome& outcome) {
    double bytes = 0;
    for (const JobOutcome& job : outcome.jobs) bytes += job.remote_bytes;
    return bytes;
}

// Stores of one dataset each, with readers of these f*, for one call of CacheSystem::plan.
class PlannedReaders {
public:
    SimulatedReader& add(std::uint32_t dataset, double ideal) {
        while (stores_.size() <= dataset) {
            stores_.push_back(std::make_unique<Store>());
            stores_.back()->dataset = stores_.back()->index = static_cast<std::uint32_t>(stores_.size() - 1);
            stores_.back()->size_bytes = kSize;
        }
        SimulatedReader& reader = *readers_.emplace_back(std::make_unique<SimulatedReader>());
        reader.job = static_cast<std::uint32_t>(readers_.size() - 1);
        reader.started = reader.job;
        reader.store = dataset;
        reader.ideal = ideal;
        reader.unread_bytes = kSize;
        reader.remaining_bytes = 5 * kSize;
        stores_[dataset]->readers.push_back(&reader);
        return reader;
    }
    void plan(std::string_view cache, Storage storage, bool epochs_known = true) {
        std::vector<SimulatedReader*> readers;
        for (const auto& reader : readers_) readers.push_back(reader.get());
        std::vector<Store*> stores;
        for (const auto& store : stores_) stores.push_back(store.get());
        const std::vector<std::uint32_t> gpus(readers.size(), 1);
        const auto system = make_cache_system(*parse_cache(cache, ""));
        const std::vector<double> time_shares(readers.size(), 1);
        const ReadersState state{.readers = readers,
                                 .stores = stores,
                                 .gpus = gpus,
                                 .gpus_all = 8,
                                 .storage = storage,
                                 .nodes = {},
                                 .placements = {},
                                 .time_shares = time_shares,
                                 .epochs_known = epochs_known};
        EXPECT_TRUE(system->plan(state));
    }
    double quota(std::uint32_t dataset) const { return stores_[dataset]->quota_bytes; }
    SimulatedReader& reader(std::size_t index) { return *readers_[index]; }
    Store& store(std::uint32_t dataset) { return *stores_[dataset]; }

private:
    std::vector<std::unique_ptr<Store>> stores_;
    std::vector<std::unique_ptr<SimulatedReader>> readers_;
};

TEST(Quiver, CachesWholeChunksOfADataset) {
    SimulatedCluster cluster(8);
    cluster.add(0, 1, 5);
    const double first_s = kSize / 20e6;
    // Five chunks of a tenth fit into room for 0.57 of the dataset.
    EXPECT_NEAR(cluster.run("fifo", 0.57 * kSize, 20e6, "quiver").jobs[0].finish_s, first_s * (1 + 4 * 0.5), 1);
}

TEST(Quiver, JobReadsCachedSamplesFirst) {
    SimulatedReader reader{
        .ideal = 100, .unread_bytes = 1000, .unread_cached_bytes = 500, .bandwidth = 20, .hit_ratio = 0.5};
    set_rate(reader);
    EXPECT_DOUBLE_EQ(reader.rate, 40);
    reader.substitutes_above_bytes = 10;
    set_rate(reader);
    EXPECT_DOUBLE_EQ(reader.rate, 100);
    EXPECT_DOUBLE_EQ(reader.hit_ratio, 0.8);
    reader.unread_cached_bytes = 10;
    reader.hit_ratio = 0.01;
    set_rate(reader);
    EXPECT_DOUBLE_EQ(reader.rate, 20 / 0.99);
}

TEST(Quiver, EpochsBeginAtFullSpeedAndEndAtThatOfTheRemote) {
    SimulatedCluster cluster(8);
    cluster.add(0, 1, 2);
    cluster.options.samples = 1000;
    const double remote = 20e6;
    const SimulationOutcome outcome = cluster.run("fifo", 0.5 * kSize, remote, "quiver");
    const double first_s = kSize / remote;
    const double hits_s = 0.49 * kSize / (kIdeal - remote);
    for (const TimelineSample& sample : outcome.timeline) {
        if (sample.at_s < first_s + 1 || sample.at_s > outcome.jobs[0].finish_s - 1) continue;
        const bool hits = sample.at_s < first_s + hits_s - 1;
        if (!hits && sample.at_s < first_s + hits_s + 1) continue;
        EXPECT_NEAR(sample.gpus_useful, hits ? 1 : remote / kIdeal, 0.02) << "at " << sample.at_s;
    }
    EXPECT_NEAR(outcome.jobs[0].finish_s, 1.5 * first_s, 1);
}

TEST(Quiver, PreemptedJobDoesNotReadItsHitsTwice) {
    for (const bool stops : {false, true}) {
        SimulatedCluster cluster(8);
        cluster.add(0, 8, 2);
        // A shorter job takes all GPUs when the first has read its hits of the second epoch.
        if (stops) cluster.add(kSize / 20e6 + 2000, 8, 0.001).dataset = kNoDataset;
        const SimulationOutcome outcome = cluster.run("srtf", 0.5 * kSize, 20e6, "quiver");
        EXPECT_NEAR(outcome.jobs[0].remote_bytes, 1.5 * kSize, 0.01 * kSize) << stops;
    }
}

TEST(Quiver, ChunksGoWhereEachByteGainsMost) {
    PlannedReaders readers;
    readers.add(0, 1 * kIdeal);
    readers.add(1, 3 * kIdeal);
    readers.add(2, 2 * kIdeal);
    readers.plan("quiver", {.cache_bytes = 1.35 * kSize, .remote_bytes_per_second = 1.5 * kIdeal});
    EXPECT_NEAR(readers.quota(1), kSize, 1);
    EXPECT_NEAR(readers.quota(2), 0.3 * kSize, 1);
    EXPECT_NEAR(readers.quota(0), 0, 1);
}

TEST(Quiver, JobsOfADatasetFetchOnceIfTwoOfItsChunksFit) {
    const auto remote_bytes = [](std::string_view cache, double cached) {
        SimulatedCluster cluster(8);
        cluster.add(0, 4, 3);
        cluster.add(0, 4, 3);
        return remote_bytes_all(cluster.run("fifo", cached * kSize, 1e12, cache));
    };
    EXPECT_NEAR(remote_bytes("quiver", 0.2), (1 + 2 * 0.8) * kSize, 0.2 * kSize);
    EXPECT_NEAR(remote_bytes("quiver", 0.1), 2 * (1 + 2 * 0.9) * kSize, 0.2 * kSize);
    EXPECT_NEAR(remote_bytes("whole-dataset", 0.2), 6 * kSize, 1e3);
}

TEST(Quiver, HitsThatOthersAddCostNoEventsEach) {
    SimulatedCluster cluster(16);
    for (int job = 0; job < 16; ++job) cluster.add(100 * job, 1, 4);
    EXPECT_LT(cluster.run("fifo", 0.9 * kSize, 90e6, "quiver").events, 16 * 4 * 16);
}

TEST(CoorDl, JobsOfADatasetOnANodeShareCacheAndFetches) {
    const auto remote_bytes = [](std::string_view cache, std::uint32_t gpus) {
        SimulatedCluster cluster(2 * gpus);
        cluster.add(0, gpus, 3);
        cluster.add(0, gpus, 3);
        return remote_bytes_all(cluster.run("fifo", 0.5 * kSize, 1e12, cache));
    };
    EXPECT_NEAR(remote_bytes("coordl", 4), (1 + 2 * 0.5) * kSize, 0.3 * kSize);
    EXPECT_NEAR(remote_bytes("static-per-job", 4), 2 * (1 + 2 * 0.75) * kSize, 1e4);
    // Nodes have eight GPUs: each of these jobs has one.
    EXPECT_NEAR(remote_bytes("coordl", 8), 2 * (1 + 2 * 0.75) * kSize, 1e4);
}

TEST(CoorDl, FirstJobsFillTheCacheOfTheirNode) {
    SimulatedCluster cluster(8);
    cluster.add(0, 1, 5, 0);
    cluster.add(2000, 1, 3, 1);  // finds the cache full
    cluster.add(100000, 7, 3, 2);
    const SimulationOutcome outcome = cluster.run("fifo", 0.5 * kSize, 1e12, "coordl");
    EXPECT_NEAR(outcome.jobs[0].remote_bytes, (1 + 4 * 0.5) * kSize, 1e4);
    EXPECT_NEAR(outcome.jobs[1].remote_bytes, 3 * kSize, 1e4);
    EXPECT_NEAR(outcome.jobs[2].remote_bytes, (1 + 2 * 0.5) * kSize, 1e4);
    EXPECT_NEAR(cluster.run("fifo", 0.5 * kSize, 1e12, "static-per-job").jobs[0].remote_bytes,
                (1 + 4 * (1 - 0.5 / 8)) * kSize, 1e4);
}

TEST(CoorDl, LastJobOfANodeLeavesNoCacheBehind) {
    SimulatedCluster cluster(8);
    cluster.add(0, 4, 2);
    cluster.add(0, 4, 4);
    cluster.add(20000, 4, 2);
    const SimulationOutcome outcome = cluster.run("fifo", 2 * kSize, 1e12, "coordl");
    EXPECT_EQ(outcome.jobs[2].end, JobEnd::finished);
    EXPECT_NEAR(outcome.jobs[2].remote_bytes, kSize, 1e4);
}

TEST(SharedFetches, GroupHasTheSharesOfAllItsReaders) {
    std::array<SimulatedReader, 3> all;
    for (std::size_t i = 0; i < all.size(); ++i) {
        all[i].started = i;
        all[i].store = i < 2 ? 0 : 1;
        all[i].ideal = 100;
        all[i].shares_fetches = i < 2;
    }
    const std::array<SimulatedReader*, 3> readers{&all[0], &all[1], &all[2]};
    share_bandwidth(BandwidthKind::fair, readers, 90);
    EXPECT_DOUBLE_EQ(all[0].rate, 60);
    EXPECT_DOUBLE_EQ(all[1].rate, 60);
    EXPECT_DOUBLE_EQ(all[2].rate, 30);
    EXPECT_DOUBLE_EQ(remote_rate(all[0]) + remote_rate(all[1]), 60);
    all[1].ideal = 150;  // the faster reader fetches for both
    share_bandwidth(BandwidthKind::first_come, readers, 200);
    EXPECT_DOUBLE_EQ(all[0].fetch_part, 0);
    EXPECT_DOUBLE_EQ(all[1].fetch_part, 1);
    EXPECT_DOUBLE_EQ(all[0].rate, 100);
    EXPECT_DOUBLE_EQ(all[1].rate, 150);
    EXPECT_DOUBLE_EQ(all[2].rate, 50);
}

TEST(EpochsKnown, LastEpochTakesNoCacheFromJobsThatReadOn) {
    for (const std::string_view cache : {"uniform+joint", "whole-dataset", "quiver"}) {
        for (const bool known : {false, true}) {
            PlannedReaders readers;
            readers.add(0, 2 * kIdeal).remaining_bytes = kSize;
            readers.add(1, kIdeal);
            readers.plan(cache, {.cache_bytes = kSize, .remote_bytes_per_second = kIdeal}, known);
            EXPECT_NEAR(readers.quota(known ? 1 : 0), kSize, 0.01 * kSize) << cache << known;
            EXPECT_NEAR(readers.quota(known ? 0 : 1), 0, 0.01 * kSize) << cache << known;
        }
    }
}

TEST(EpochsKnown, LastEpochKeepsWhatIsCachedForIt) {
    for (const std::string_view cache : {"whole-dataset", "quiver"}) {
        PlannedReaders readers;
        readers.add(0, 4 * kIdeal).remaining_bytes = kSize;
        readers.add(1, kIdeal);
        readers.store(0).cached_bytes = 0.5 * kSize;
        readers.plan(cache, {.cache_bytes = 1.5 * kSize, .remote_bytes_per_second = kIdeal});
        EXPECT_NEAR(readers.quota(0), 0.5 * kSize, 1) << cache;
        EXPECT_NEAR(readers.quota(1), kSize, 1) << cache;
    }
}

TEST(RateError, MisleadsPlansAndPoliciesButNotTheJobs) {
    const auto mean_s = [](std::string_view policy, std::string_view cache, double error, std::uint64_t seed) {
        SimulatedCluster cluster(8);
        for (std::uint32_t j = 0; j < 20; ++j) cluster.add(0, 4, 1 + 0.05 * j, j);
        cluster.options.rate_error = error;
        cluster.options.seed = seed;
        const SimulationOutcome outcome = cluster.run(policy, 2 * kSize, 1e9, cache);
        return summarise(cluster.workload, outcome, 8).jct_s.mean;
    };
    // Under fifo, and without a plan, nobody is told rates.
    EXPECT_DOUBLE_EQ(mean_s("fifo", "none", 0.3, 1), mean_s("fifo", "none", 0, 1));
    EXPECT_GT(mean_s("srtf", "none", 0.3, 1), mean_s("srtf", "none", 0, 1));
    EXPECT_NE(mean_s("srtf", "none", 0.3, 1), mean_s("srtf", "none", 0.3, 2));
}

TEST(RateError, PlanThatIsToldTooLittleGrantsTooLittle) {
    for (const double told : {0.7, 1.0}) {
        PlannedReaders readers;
        readers.add(0, kIdeal).told_part = told;
        readers.add(1, 5 * kIdeal);
        readers.plan("uniform+joint", {.cache_bytes = 0, .remote_bytes_per_second = 3 * kIdeal});
        EXPECT_EQ(readers.reader(0).rate < 0.99 * kIdeal, told < 1) << told;
    }
}

constexpr std::array<std::string_view, 8> kAllCaches{"uniform+joint", "uniform+fair",  "lru",    "static-per-job",
                                                     "coordl",        "whole-dataset", "quiver", "none"};

TEST(EqualShares, SystemsHaveTheSameForTheSameJobs) {
    for (const std::string_view cache : kAllCaches) {
        SimulatedCluster cluster(8);
        cluster.add(0, 2, 50, 0);
        cluster.add(0, 2, 50, 0);
        cluster.add(0, 4, 1, 1).total_bytes = kSize / 100;  // in its last epoch
        const SimulationOutcome outcome = cluster.run("fifo", 0.9 * kSize, 90e6, cache);
        const JobOutcome& job = outcome.jobs[2];
        EXPECT_NEAR(job.equal_bytes / job.ran_s, 30e6 / (1 - 0.3), 10) << cache;
    }
}

TEST(EqualShares, JobsOfADatasetHaveTheSharesOfAllOfThem) {
    for (const std::string_view cache : kAllCaches) {
        SimulatedCluster cluster(8);
        cluster.add(0, 4, 5, 0);
        cluster.add(0, 4, 5, 0);
        const SimulationOutcome outcome = cluster.run("fifo", 0.5 * kSize, 90e6, cache);
        const JobOutcome& job = *std::ranges::min_element(outcome.jobs, {}, &JobOutcome::finish_s);
        EXPECT_NEAR(job.equal_bytes / job.ran_s, 45e6 / (1 - 0.5), 10) << cache;
    }
}

TEST(EqualShares, CountDisksAndNetworksOfNodes) {
    for (const std::string_view cache : {"uniform+joint", "none"}) {
        for (const bool own : {false, true}) {
            SimulatedCluster cluster(16);
            cluster.options.storage = {.cache_bytes = 4 * kSize, .remote_bytes_per_second = 1e12};
            cluster.options.cache = *parse_cache(cache, "");
            cluster.options.cache.own_caches = own;
            cluster.options.node_nic_bytes_per_second = 300e6;
            cluster.add(0, 4, 3, 0);
            const auto policy = make_policy("fifo", cluster.options.policy);
            const JobOutcome job = cluster.run(**policy).jobs[0];
            EXPECT_NEAR(job.equal_bytes / job.ran_s, 300e6, 1) << cache << own;
        }
    }
}

TEST(SharedRemote, CheckpointsAndDataTakeTurnsAtIt) {
    for (const bool shared : {false, true}) {
        SimulatedCluster cluster(8);
        cluster.add(0, 1, 1).checkpoint_bytes = 0.1 * kSize;
        cluster.options.checkpoint_interval_s = 1800;
        cluster.options.checkpoint_bytes_per_second = 20e6;
        cluster.options.checkpoints_share_remote = shared;
        const SimulationOutcome outcome = cluster.run("fifo", 0, 20e6);
        // Three checkpoints are written in this time, each of half a thousand seconds of the remote.
        EXPECT_NEAR(outcome.jobs[0].finish_s, kSize / 20e6 + (shared ? 1500 : 0), 1) << shared;
        for (const TimelineSample& sample : outcome.timeline) {
            if (sample.at_s < 1801 || sample.at_s > 2799) continue;
            EXPECT_NEAR(sample.remote_bytes_per_second, shared ? 10e6 : 20e6, 1) << shared << " at " << sample.at_s;
        }
    }
}

TEST(SharedRemote, CheckpointsHaveWhatJobsLeave) {
    SimulatedCluster cluster(8);
    cluster.add(0, 1, 3).checkpoint_bytes = 0.1 * kSize;  // reads from its cache after the first epoch
    cluster.add(0, 1, 1).dataset = kNoDataset;
    cluster.options.checkpoint_interval_s = 1500;
    cluster.options.checkpoints_share_remote = true;
    const SimulationOutcome outcome = cluster.run("fifo", kSize, 2 * kIdeal);
    EXPECT_NEAR(outcome.jobs[0].finish_s, 3 * kSize / kIdeal, 1);
    EXPECT_NEAR(outcome.jobs[1].finish_s, kSize / kIdeal, 1);
}

TEST(Spread, OfOneFigureOverSeeds) {
    const std::array<double, 4> values{2, 4, 4, 6};
    const Spread found = spread(values);
    EXPECT_DOUBLE_EQ(found.mean, 4);
    EXPECT_NEAR(found.deviation, 1.632993, 1e-6);
    EXPECT_DOUBLE_EQ(found.least, 2);
    EXPECT_DOUBLE_EQ(found.most, 6);
    EXPECT_DOUBLE_EQ(spread(std::span(values).first(1)).deviation, 0);
}

TEST(Summary, OfferedLoadIsWhatJobsAskForOverWhatThereIs) {
    SimulatedCluster cluster(8);
    cluster.add(0, 4, 1).dataset = kNoDataset;
    cluster.add(100, 16, 1).dataset = kNoDataset;  // rejected: too large
    cluster.add(1000, 2, 1).dataset = kNoDataset;
    const Summary summary = summarise(cluster.workload, cluster.run("fifo", 0, 1e12), 8);
    EXPECT_NEAR(summary.offered_load, 2 * (kSize / kIdeal) / (8 * 1000), 1e-9);
}

}  // namespace
}  // namespace larder::scheduler
