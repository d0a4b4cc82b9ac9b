#include "scheduler/simulator/simulation.h"

#include <gmock/gmock.h>

#include <cmath>
#include <stdexcept>

#include "base/hash.h"
#include "scheduler/simulator/scenario.h"
#include "scheduler/simulator/summary.h"
#include "tests/unit/scheduler/simulator/simulated_cluster.h"

namespace larder::scheduler {
namespace {

using Cluster = SimulatedCluster;

TEST(Simulation, OneJobMatchesTheModel) {
    Cluster cluster(8);
    cluster.add(10, 1, 4);
    const double remote = 20e6;
    const SimulationOutcome outcome = cluster.run("fifo", 0.6 * kSize, remote);
    // The first epoch misses everything. Then h = 0.6 and f = b / 0.4 = 50 MB/s.
    EXPECT_NEAR(outcome.jobs[0].finish_s, 10 + kSize / remote + 3 * kSize / (remote / 0.4), 1e-3);
    EXPECT_NEAR(outcome.jobs[0].remote_bytes, kSize * (1 + 3 * 0.4), 1e3);
    EXPECT_NEAR(outcome.jobs[0].read_bytes, 4 * kSize, 1);
    EXPECT_NEAR(outcome.jobs[0].useful_gpu_s, 4 * kSize / kIdeal, 1e-3);
}

TEST(Simulation, LastEpochMayBePartial) {
    Cluster cluster(8);
    cluster.add(0, 1, 1.5);
    const SimulationOutcome outcome = cluster.run("fifo", kSize, 20e6);
    EXPECT_NEAR(outcome.jobs[0].finish_s, kSize / 20e6 + 0.5 * kSize / kIdeal, 1e-3);
}

TEST(Simulation, EveryCacheSystemMatchesItsClosedForm) {
    const double remote = 20e6;
    const auto finish_s = [&](std::string_view cache) {
        Cluster cluster(8);
        cluster.add(0, 1, 5);
        return cluster.run("fifo", 0.5 * kSize, remote, cache).jobs[0].finish_s;
    };
    const double first_s = kSize / remote;
    EXPECT_NEAR(finish_s("none"), 5 * first_s, 1e-3);
    EXPECT_NEAR(finish_s("whole-dataset"), 5 * first_s, 1e-3);  // the dataset does not fit
    EXPECT_NEAR(finish_s("uniform"), first_s * (1 + 4 * 0.5), 1e-3);
    EXPECT_NEAR(finish_s("static-per-job"), first_s * (1 + 4 * (1 - 0.5 / 8)), 1);  // the job has one of eight GPUs
    const double lru = 0.5 + 0.5 * std::log(0.5);
    EXPECT_NEAR(finish_s("lru"), first_s * (1 + 4 * (1 - lru)), 1);
}

TEST(Simulation, JobsQueueForGpus) {
    Cluster cluster(8);
    cluster.add(0, 8, 1).dataset = kNoDataset;
    cluster.add(5, 8, 1).dataset = kNoDataset;
    const SimulationOutcome outcome = cluster.run("fifo", 0, 1e12);
    const double each_s = kSize / (8 * kIdeal);
    EXPECT_NEAR(outcome.jobs[0].finish_s, each_s, 1e-6);
    EXPECT_NEAR(outcome.jobs[1].start_s, each_s, 1e-6);
    EXPECT_NEAR(outcome.jobs[1].finish_s, 2 * each_s, 1e-6);
    const Summary summary = summarise(cluster.workload, outcome, 8);
    EXPECT_NEAR(summary.queueing_s.most, each_s - 5, 1e-6);
    EXPECT_NEAR(summary.makespan_s, 2 * each_s, 1e-6);
    EXPECT_NEAR(summary.gpu_allocation, 1, 1e-9);
    EXPECT_EQ(summary.measured, 2u);
    const Summary second = summarise(cluster.workload, outcome, 8, {.begin = 1, .end = 2});
    EXPECT_EQ(second.measured, 1u);
    EXPECT_NEAR(second.jct_s.mean, 2 * each_s - 5, 1e-6);
    EXPECT_NEAR(second.makespan_s, 2 * each_s, 1e-6) << "the makespan counts all jobs, measured or not";
}

class ThrowingPolicy final : public Policy {
public:
    std::string_view name() const override { return "throws"; }
    bool preempts() const override { return false; }
    Result<Decision> decide(const Snapshot&) override { throw std::runtime_error("a bug"); }
};

TEST(Simulation, PolicyThatThrowsIsAnErrorWithItsTime) {
    Workload workload;
    workload.tenants.push_back({.name = "one"});
    JobSpec& job = workload.jobs.emplace_back();
    job.name = "j";
    job.submit_s = 7;
    job.total_bytes = 1e9;
    job.ideal_bytes_per_second = {1e8};
    const GpuGroup group{.type = "a", .gpus = 8};
    const GpuCluster cluster = make_cluster(std::span(&group, 1), 8);
    FreePool pool(cluster);
    ThrowingPolicy policy;
    const auto outcome = simulate(workload, cluster, policy, pool, {.cache = *parse_cache("none", "")});
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().message, "at 7.000000 s: policy throws: a bug");
}

TEST(Simulation, JobLargerThanClusterIsRejectedAndOthersRun) {
    Cluster cluster(8);
    cluster.add(0, 9, 1);
    cluster.add(1, 8, 1);
    const SimulationOutcome outcome = cluster.run("fifo", 0, 1e9);
    EXPECT_EQ(outcome.jobs[0].end, JobEnd::rejected);
    EXPECT_TRUE(outcome.jobs[0].larger_than_cluster);
    EXPECT_EQ(outcome.jobs[1].end, JobEnd::finished);
}

// One of the late jobs that may be stopped runs on spare GPUs before its deadline has passed.
TEST(Simulation, UnpromisedStrictDeadlineExpires) {
    for (const bool preemptible : {true, false}) {
        Cluster cluster(8);
        for (int j = 0; j < 3; ++j) {
            JobSpec& job = cluster.add(j, 8, 10);
            job.dataset = kNoDataset;
            job.service = ServiceClass::strict_deadline;
            job.preemptible = preemptible;
            job.deadline_s = j + 1.5 * job.total_bytes / job.ideal_bytes_per_second[0];
        }
        const SimulationOutcome outcome = cluster.run("chronus", 0, 1e12);
        const Summary summary = summarise(cluster.workload, outcome, 8);
        EXPECT_EQ(summary.finished, preemptible ? 2 : 1);
        EXPECT_EQ(summary.expired, preemptible ? 1 : 2);
        EXPECT_EQ(summary.deadlines_missed, 2);
        EXPECT_EQ(summary.strict_deadlines, 3);
        EXPECT_EQ(summary.strict_missed, 2);
        EXPECT_DOUBLE_EQ(summary.deadline_value, 1.0 / 3);
    }
}

TEST(Simulation, SummaryCountsTheValueOfLateResults) {
    Workload workload;
    SimulationOutcome outcome;
    for (const double end_s : {90.0, 110.0, 300.0, kNever}) {
        JobSpec& job = workload.jobs.emplace_back();
        job.service = ServiceClass::soft_deadline;
        job.deadline_s = 100;
        job.values = {{.until_s = 100, .value = 10}, {.until_s = 120, .value = 8}};
        job.ideal_bytes_per_second = {1};
        outcome.jobs.push_back({.end = JobEnd::finished, .finish_s = end_s});
    }
    const Summary summary = summarise(workload, outcome, 8);
    EXPECT_EQ(summary.deadlines_missed, 3);
    EXPECT_EQ(summary.strict_deadlines, 0);
    EXPECT_DOUBLE_EQ(summary.deadline_value, 18.0 / 40);
}

// Four jobs: two datasets are worth caching, one for one job and one for two, and the remote is too slow for all.
Cluster contended_cluster() {
    Cluster cluster(8);
    cluster.add(0, 1, 6, 0);
    cluster.add(100, 1, 6, 1);
    cluster.add(200, 2, 6, 1);
    cluster.add(300, 1, 6, 2);
    return cluster;
}

TEST(Simulation, RemoteAndCacheLimitsAlwaysHold) {
    for (const std::string_view cache :
         {"uniform+joint", "uniform", "lru", "static-per-job", "coordl", "whole-dataset", "quiver", "none"}) {
        Cluster cluster = contended_cluster();
        const SimulationOutcome outcome = cluster.run("fifo", 1.2 * kSize, 90e6, cache);
        for (const TimelineSample& sample : outcome.timeline) {
            EXPECT_LE(sample.remote_bytes_per_second, 90e6 * (1 + 1e-6)) << cache << " at " << sample.at_s;
            double cached = 0;
            for (const double bytes : sample.cached_bytes) cached += bytes;
            EXPECT_LE(cached, 1.2 * kSize * (1 + 1e-6)) << cache << " at " << sample.at_s;
        }
        for (const JobOutcome& job : outcome.jobs) {
            EXPECT_EQ(job.end, JobEnd::finished) << cache;
            EXPECT_NEAR(job.read_bytes, 6 * kSize, 1e3) << cache;
            EXPECT_LE(job.remote_bytes, job.read_bytes * (1 + 1e-9)) << cache;
        }
    }
}

TEST(Simulation, JointPlanBeatsOtherSystems) {
    const auto mean_s = [](std::string_view cache) {
        Cluster cluster = contended_cluster();
        const SimulationOutcome outcome = cluster.run("fifo", 1.2 * kSize, 90e6, cache);
        return summarise(cluster.workload, outcome, 8).jct_s.mean;
    };
    const double joint_s = mean_s("uniform+joint");
    for (const std::string_view cache : {"lru", "static-per-job", "none"}) EXPECT_LT(joint_s, mean_s(cache)) << cache;
}

TEST(Simulation, LargestDatasetsAreSampledAndOthersSummed) {
    Cluster cluster(16);
    for (std::uint32_t d = 0; d < 12; ++d) {
        cluster.add(0, 1, 4, d);
        cluster.workload.datasets.back().size_bytes = (d + 1) * 0.1 * kSize;
    }
    const SimulationOutcome outcome = cluster.run("fifo", 3 * kSize, 400e6);
    EXPECT_EQ(outcome.sampled_datasets, (std::vector<std::uint32_t>{11, 10, 9, 8, 7, 6, 5}));
    EXPECT_TRUE(outcome.others_sampled);
    double others = 0;
    for (const TimelineSample& sample : outcome.timeline) {
        ASSERT_EQ(sample.cached_bytes.size(), 8u);
        ASSERT_EQ(sample.dataset_bytes_per_second.size(), 8u);
        double cached = 0;
        double rate = 0;
        for (const double bytes : sample.cached_bytes) cached += bytes;
        for (const double each : sample.dataset_bytes_per_second) rate += each;
        EXPECT_NEAR(cached, sample.cached_bytes_all, 1);
        EXPECT_NEAR(rate, sample.remote_bytes_per_second, 1);
        others += sample.cached_bytes.back();
    }
    EXPECT_GT(others, 0);
}

TEST(Simulation, TenantAtQuotaWaits) {
    Cluster cluster(8);
    cluster.workload.tenants[0].gpu_quota = 4;
    for (int j = 0; j < 2; ++j) cluster.add(0, 4, 1).dataset = kNoDataset;
    const SimulationOutcome outcome = cluster.run("fifo", 0, 1e12);
    EXPECT_NEAR(outcome.jobs[1].start_s, outcome.jobs[0].finish_s, 1e-6);
}

// When the first job has only a few bytes left to read, another job starts and causes a new plan.
TEST(Simulation, JobDoesNotStallOnItsLastBytes) {
    for (int bytes = 1; bytes < 20; ++bytes) {
        Cluster cluster(8);
        cluster.add(0, 1, 3, 0);
        const double end_s = kSize / 50e6 + kSize / kIdeal + kSize / kIdeal;
        cluster.add(end_s - bytes / kIdeal, 4, 3, 1);
        const SimulationOutcome outcome = cluster.run("fifo", 0.9 * kSize, 50e6);
        EXPECT_NEAR(outcome.jobs[0].finish_s, end_s, 1) << bytes;
    }
}

TEST(Simulation, MaxMinKeepsEveryJobAtItsEqualShare) {
    Cluster cluster = contended_cluster();
    cluster.options.cache = *parse_cache("uniform+joint", "");
    const GpuGroup group{.type = "a", .gpus = 8};
    const GpuCluster gpus = make_cluster(std::span(&group, 1), 8);
    FreePool pool(gpus);
    const auto policy = make_policy("fifo", {});
    cluster.options.storage = {.cache_bytes = 1.2 * kSize, .remote_bytes_per_second = 90e6};
    cluster.options.cache.objective = allocator::ObjectiveKind::max_min;
    const auto outcome = simulate(cluster.workload, gpus, **policy, pool, cluster.options);
    ASSERT_TRUE(outcome);
    // The equal rate e counts the cache as full, but it is empty when the jobs start. So jobs get a little less over
    // their lives.
    for (const JobOutcome& job : outcome->jobs) EXPECT_GE(job.read_bytes / job.equal_bytes, 0.8);
}

// Two jobs take turns on one GPU.
TEST(Simulation, JobWaitingForItsTurnFindsItsDataCached) {
    for (const char* policy : {"max-min", "las", "gandiva", "astraea", "finish-time-fairness"}) {
        Cluster cluster(1);
        cluster.options.policy.round_s = 300;
        cluster.options.policy.lease_s = 300;
        cluster.options.policy.queue_gpu_s = {300, 600, 900, 1200};
        cluster.add(0, 1, 6, 0);
        cluster.add(1, 1, 6, 1);
        // Half of the data that both jobs read fits. Each job keeps its part of the cache, whichever job runs.
        const SimulationOutcome outcome = cluster.run(policy, kSize, 80e6);
        EXPECT_GT(outcome.jobs[0].preemptions + outcome.jobs[1].preemptions, 0u) << policy;
        const double remote_bytes = outcome.jobs[0].remote_bytes + outcome.jobs[1].remote_bytes;
        // Two cold epochs, then half of ten epochs misses, with a tolerance of 20 %.
        EXPECT_LT(remote_bytes, (2 + 10 * 0.5 * 1.2) * kSize) << policy;
    }
}

TEST(Simulation, LruDropsDataOfWaitingJob) {
    Cluster cluster(1);
    cluster.options.policy.round_s = 3600;  // several epochs
    cluster.add(0, 1, 40, 0);
    cluster.add(1, 1, 40, 1);
    const SimulationOutcome lru = cluster.run("max-min", kSize, 80e6, "lru");
    ASSERT_GT(lru.jobs[0].preemptions, 3u);
    EXPECT_GT(lru.jobs[0].remote_bytes, kSize * (1 + 0.5 * lru.jobs[0].preemptions))
        << "the data is fetched again each time";
    const SimulationOutcome both_fit = cluster.run("max-min", 2 * kSize, 80e6, "lru");
    EXPECT_NEAR(both_fit.jobs[0].remote_bytes, kSize, 0.01 * kSize);
}

ScenarioReport run_poisson_trace(std::string policy) {
    ScenarioOptions options;
    options.trace = "poisson:30,300";
    options.gpus = {{.type = "v100", .gpus = 24}};
    options.policy = std::move(policy);
    options.simulation.storage = {.cache_bytes = 5e11, .remote_bytes_per_second = 3e8};
    options.simulation.node_lifetime_s = 5e5;
    auto scenario = make_scenario(options);
    EXPECT_TRUE(scenario);
    auto report = run_scenario(std::move(*scenario), options);
    EXPECT_TRUE(report) << report.error().message;
    return std::move(*report);
}

// Two nodes of 8 GPUs. The first job has both, gives one up for the second job, and gets it back.
TEST(Simulation, ResizableJobDoesNotRestartForOtherNodes) {
    const auto run = [](bool is_resizable) {
        SimulatedCluster cluster(16);
        for (const double epochs : {100.0, 5.0}) {
            JobSpec& job = cluster.add(epochs == 5 ? 1000 : 0, 8, epochs);
            job.dataset = kNoDataset;
            job.restart_s = 100;
        }
        cluster.workload.jobs[0].gpus_max = 16;
        cluster.workload.jobs[0].resizable = is_resizable;
        return cluster.run("las", 0, 1e12);
    };
    const SimulationOutcome restarts = run(false);
    const SimulationOutcome goes_on = run(true);
    EXPECT_EQ(restarts.jobs[0].preemptions, 2U);
    EXPECT_EQ(goes_on.jobs[0].preemptions, 0U);
    EXPECT_EQ(goes_on.jobs[1].finish_s, restarts.jobs[1].finish_s);
    // 100 s on 8 GPUs, and 100 s on 16, are lost by restarts.
    EXPECT_NEAR(restarts.jobs[0].finish_s - goes_on.jobs[0].finish_s, 150, 1);
}

// A change of the simulation's results must update these numbers.
TEST(Simulation, ResultsAreTheSameOnEveryMachine) {
    const auto hash = [](const ScenarioReport& report) {
        std::uint32_t checksum = 0;
        for (const JobOutcome& job : report.outcome.jobs) {
            for (const double value : {job.start_s, job.finish_s, job.read_bytes, job.remote_bytes}) {
                checksum = crc32c(std::as_bytes(std::span(&value, 1)), checksum);
            }
        }
        return checksum;
    };
    EXPECT_EQ(hash(run_poisson_trace("fifo")), 3187028216u);
    EXPECT_EQ(hash(run_poisson_trace("max-min")), 1686700842u);
}

TEST(Simulation, SameSeedGivesSameOutcome) {
    const ScenarioReport one = run_poisson_trace("srtf");
    const ScenarioReport two = run_poisson_trace("srtf");
    ASSERT_EQ(one.outcome.jobs.size(), two.outcome.jobs.size());
    EXPECT_EQ(one.outcome.events, two.outcome.events);
    for (std::size_t j = 0; j < one.outcome.jobs.size(); ++j) {
        EXPECT_EQ(one.outcome.jobs[j].finish_s, two.outcome.jobs[j].finish_s);
        EXPECT_EQ(one.outcome.jobs[j].remote_bytes, two.outcome.jobs[j].remote_bytes);
    }
    EXPECT_EQ(one.summary.finished, 300);
}

TEST(ParseCache, NameSetsCacheAndMaySetBandwidth) {
    const auto parsed = parse_cache("lru+first-come", "");
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->cache, CacheKind::lru);
    EXPECT_EQ(parsed->bandwidth, BandwidthKind::first_come);
    EXPECT_EQ(name(*parse_cache("uniform+fair", "fair")), "uniform+fair");
    EXPECT_EQ(name(*parse_cache("uniform", "")), "uniform+joint");
    EXPECT_EQ(name(*parse_cache("lru", "")), "lru+fair");
    EXPECT_EQ(name(*parse_cache("uniform", "first-come")), "uniform+first-come");
}

TEST(ParseCache, RefusesInvalidCombinations) {
    EXPECT_FALSE(parse_cache("lru+fair", "first-come"));
    EXPECT_FALSE(parse_cache("lru+joint", ""));
    EXPECT_FALSE(parse_cache("lru+", ""));
    EXPECT_THAT(parse_cache("lru", "joint").error().message, testing::HasSubstr("comes from the plan"));
    EXPECT_THAT(parse_cache("lfu", "").error().message, testing::HasSubstr("known: uniform+joint, uniform, lru"));
    EXPECT_THAT(parse_cache("lru", "slow").error().message, testing::HasSubstr("joint, fair, first-come"));
    EXPECT_THAT(parse_cache("uniform+joint", "fair").error().message, testing::HasSubstr("contradicts"));
}

TEST(Bandwidth, FairGivesUnneededRateToOthers) {
    SimulatedReader small{.ideal = 10, .started = 0};
    SimulatedReader large{.ideal = 100, .started = 1};
    SimulatedReader hits{.ideal = 100, .started = 2, .hit_ratio = 0.9};
    SimulatedReader* const all[] = {&large, &small, &hits};
    share_bandwidth(BandwidthKind::fair, all, 60);
    EXPECT_DOUBLE_EQ(small.bandwidth, 10);
    EXPECT_DOUBLE_EQ(hits.bandwidth, 10);
    EXPECT_DOUBLE_EQ(hits.rate, 100);
    EXPECT_DOUBLE_EQ(large.bandwidth, 40);
    share_bandwidth(BandwidthKind::first_come, all, 60);
    EXPECT_DOUBLE_EQ(small.bandwidth, 10);
    EXPECT_DOUBLE_EQ(large.bandwidth, 50);
    EXPECT_DOUBLE_EQ(hits.rate, 0);
}

TEST(Quantiles, AreActualValues) {
    const Quantiles values = quantiles({5, 1, 2, 4, 3});
    EXPECT_DOUBLE_EQ(values.mean, 3);
    EXPECT_DOUBLE_EQ(values.p50, 3);
    EXPECT_DOUBLE_EQ(values.p99, 5);
    EXPECT_DOUBLE_EQ(values.least, 1);
    EXPECT_DOUBLE_EQ(quantiles({}).mean, 0);
}

}  // namespace
}  // namespace larder::scheduler
