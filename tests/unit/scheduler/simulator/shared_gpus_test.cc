#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>

#include "tests/unit/scheduler/simulator/simulated_cluster.h"

namespace larder::scheduler {
namespace {

// Gandiva moves jobs that share their GPUs.
TEST(SharedGpus, GuestsMoveWithTheirHosts) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        ScenarioOptions options;
        options.trace = "poisson:30,80";
        options.gpus = {{.type = "v100", .gpus = 8}};
        options.gpus_per_node = 4;
        options.policy = "gandiva";
        options.workload_options.seed = seed;
        options.simulation.storage = {.cache_bytes = 5e11, .remote_bytes_per_second = 2e8};
        auto scenario = make_scenario(options);
        ASSERT_TRUE(scenario);
        const auto report = run_scenario(std::move(*scenario), options);
        ASSERT_TRUE(report) << report.error().message;
        EXPECT_EQ(report->summary.finished, 80u);
    }
}

// The second job shares the first one's GPUs.
class PacksSecondJob final : public Policy {
public:
    std::string_view name() const override { return "packs"; }
    bool preempts() const override { return true; }
    Result<Decision> decide(const Snapshot& snapshot) override {
        decided_at_s.insert(snapshot.now_s);
        Decision decision;
        std::optional<std::uint32_t> host;
        for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
            Want want{.job = j, .gpus = 1};
            const std::string& job = snapshot.jobs[j]->spec->name;
            if (job == "0") host = j;
            if (job == "1") want.packed_with = host;
            decision.wants.push_back(want);
        }
        return decision;
    }

    std::set<double> decided_at_s;
};

TEST(SharedGpus, GuestStoppedWithItsHostIsRescheduledAtOnce) {
    SimulatedCluster cluster(2);
    cluster.options.cache = *parse_cache("none", "");
    for (const double epochs : {1.0, 1.0, 0.1}) cluster.add(0, 1, epochs).dataset = kNoDataset;
    cluster.workload.jobs[0].gpus_max = 2;  // it grows when the third job ends, and its guest is stopped with it
    PacksSecondJob policy;
    const SimulationOutcome outcome = cluster.run(policy);
    const double grown_s = outcome.jobs[2].finish_s;
    ASSERT_EQ(outcome.jobs[0].preemptions, 1u);
    EXPECT_EQ(outcome.jobs[1].preemptions, 1u);
    const auto next = policy.decided_at_s.upper_bound(grown_s);
    ASSERT_NE(next, policy.decided_at_s.end());
    EXPECT_LT(*next, grown_s + 1) << "not when the next job ends";
}

TEST(SharedGpus, GuestRunsOnAfterItsHostEnds) {
    SimulatedCluster cluster(1);
    cluster.options.cache = *parse_cache("none", "");
    for (const double epochs : {1.0, 2.0}) {
        JobSpec& job = cluster.add(0, 1, epochs);
        job.dataset = kNoDataset;
        job.packed_rate = 0.5;
        job.restart_s = 100;
    }
    PacksSecondJob policy;
    const SimulationOutcome outcome = cluster.run(policy);
    const double alone_s = kSize / kIdeal;
    EXPECT_NEAR(outcome.jobs[0].finish_s, 2 * alone_s, 1e-3);
    EXPECT_NEAR(outcome.jobs[1].finish_s, 3 * alone_s, 1e-3) << "at its full rate, and without a restart";
    EXPECT_EQ(outcome.jobs[1].preemptions, 0u);
    EXPECT_NEAR(outcome.jobs[1].allocated_gpu_s, alone_s, 1e-3) << "counted from when it was alone";
}

TEST(SharedGpus, MeasuredRatesOfAPairReplaceDeclaredRates) {
    SimulatedCluster cluster(1);
    cluster.options.cache = *parse_cache("none", "");
    cluster.workload.pair_rates = PairRates(1, 2);
    cluster.workload.pair_rates.set(0, 0, 1, {.first = 0.8, .second = 0.4});
    for (const std::uint32_t model : {0U, 1U}) {
        JobSpec& job = cluster.add(0, 1, 1);
        job.dataset = kNoDataset;
        job.packed_rate = 0.1;
        job.model = model;
    }
    PacksSecondJob policy;
    const SimulationOutcome outcome = cluster.run(policy);
    const double alone_s = kSize / kIdeal;
    EXPECT_NEAR(outcome.jobs[0].finish_s, alone_s / 0.8, 1e-3);
    EXPECT_NEAR(outcome.jobs[1].finish_s, alone_s / 0.8 + alone_s / 2, 1e-3) << "alone once the first job has ended";
}

TEST(SharedGpus, MaxMinPackedEndsJobsSoonerThanMaxMin) {
    std::map<std::string, double> mean_s;
    for (const std::string policy : {"max-min", "max-min-packed"}) {
        SimulatedCluster cluster(8);
        cluster.workload.pair_rates = PairRates(1, 2);
        cluster.workload.pair_rates.set(0, 0, 0, {.first = 0.6, .second = 0.6});
        cluster.workload.pair_rates.set(0, 0, 1, {.first = 0.9, .second = 0.7});
        for (std::uint32_t j = 0; j < 60; ++j) {
            JobSpec& job = cluster.add(100.0 * j, j % 7 == 0 ? 2 : 1, 1 + j % 5);
            job.dataset = kNoDataset;
            job.model = j % 2;
        }
        const SimulationOutcome outcome = cluster.run(policy, 0, 1e12, "none");
        for (std::uint32_t j = 0; j < 60; ++j) {
            ASSERT_EQ(outcome.jobs[j].end, JobEnd::finished) << policy;
            mean_s[policy] += (outcome.jobs[j].finish_s - 100.0 * j) / 60;
        }
    }
    EXPECT_LT(mean_s["max-min-packed"], 0.9 * mean_s["max-min"]);
}

TEST(SharedGpus, GuestIsLostWithItsNode) {
    SimulatedCluster cluster(1);
    cluster.options.cache = *parse_cache("none", "");
    for (int j = 0; j < 2; ++j) {
        JobSpec& job = cluster.add(0, 1, 10);
        job.dataset = kNoDataset;
        job.packed_rate = 0.5;
    }
    cluster.options.node_lifetime_s = 3000;
    cluster.options.node_repair_s = 100;
    cluster.options.checkpoint_interval_s = 500;
    PacksSecondJob policy;
    const SimulationOutcome outcome = cluster.run(policy);
    EXPECT_GT(outcome.jobs[0].failures, 0u);
    EXPECT_EQ(outcome.jobs[1].failures, outcome.jobs[0].failures);
    EXPECT_GT(outcome.jobs[1].read_bytes, 10 * kSize) << "lost work is read again";
    EXPECT_NEAR(outcome.jobs[1].read_bytes, outcome.jobs[0].read_bytes, 1e-3 * kSize);
}

}  // namespace
}  // namespace larder::scheduler
