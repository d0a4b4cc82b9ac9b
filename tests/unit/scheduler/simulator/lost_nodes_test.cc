#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "scheduler/simulator/summary.h"
#include "tests/unit/scheduler/simulator/simulated_cluster.h"

namespace larder::scheduler {
namespace {

TEST(CheckpointsOfJobs, PreemptionCostsRestartAndCheckpointTransfer) {
    SimulatedCluster cluster(8);
    JobSpec& longer = cluster.add(0, 8, 2);
    longer.dataset = kNoDataset;
    longer.restart_s = 7;
    longer.checkpoint_bytes = 1e9;
    cluster.add(10, 8, 0.1).dataset = kNoDataset;
    cluster.options.checkpoint_bytes_per_second = 1e8;
    const SimulationOutcome outcome = cluster.run("srtf", 0, 1e12);
    const double long_s = 2 * kSize / (8 * kIdeal);
    const double short_s = 0.1 * kSize / (8 * kIdeal);
    EXPECT_NEAR(outcome.jobs[1].finish_s, 10 + short_s, 1e-6);
    // The checkpoint is written while the other job runs (10 s of 12.5 s), then read, then the job restarts.
    EXPECT_NEAR(outcome.jobs[0].finish_s, long_s + short_s + 10 + 7, 1e-3);
    EXPECT_EQ(outcome.jobs[0].preemptions, 1);
}

TEST(CheckpointsOfJobs, PeriodicCheckpointsDelayOtherCheckpoints) {
    SimulatedCluster cluster(16);
    JobSpec& writer = cluster.add(0, 8, 2);
    writer.dataset = kNoDataset;
    writer.checkpoint_bytes = 1e9;
    cluster.options.checkpoint_interval_s = 100;
    cluster.options.checkpoint_bytes_per_second = 1e8;
    JobSpec& stopped = cluster.add(0, 8, 4);
    stopped.dataset = kNoDataset;
    stopped.checkpoint_bytes = 1e9;
    cluster.add(95, 8, 0.1).dataset = kNoDataset;
    const SimulationOutcome outcome = cluster.run("srtf", 0, 1e12);
    const double each_s = kSize / (8 * kIdeal);
    EXPECT_NEAR(outcome.jobs[0].finish_s, 2 * each_s, 1e-6) << "its own checkpoints do not delay its training";
    EXPECT_EQ(outcome.jobs[1].preemptions, 1);
    // Each transfer takes 10 s alone. From 100 to 120 s the other job's checkpoint is in flight too: written by 110,
    // read by 125.
    EXPECT_NEAR(outcome.jobs[1].finish_s, 4 * each_s + (125 - 95), 1e-3);
}

// Runs the job on the first GPU type until 100 s, then on the second.
class MovesAt100 final : public Policy {
public:
    std::string_view name() const override { return "moves"; }
    bool preempts() const override { return true; }
    Result<Decision> decide(const Snapshot& snapshot) override {
        Decision decision;
        const std::uint32_t type = snapshot.now_s < 100 ? 0 : 1;
        decision.wants.push_back({.job = 0, .gpus = 1, .gpu_type = type});
        if (type == 0) decision.next_s = 100;
        return decision;
    }
};

TEST(CheckpointsOfJobs, MoveWritesCheckpointAndReadsIt) {
    SimulatedCluster jobs(1);
    JobSpec& job = jobs.add(0, 1, 1);
    job.dataset = kNoDataset;
    job.ideal_bytes_per_second = {kIdeal, kIdeal};
    job.restart_s = 7;
    job.checkpoint_bytes = 1e9;
    const std::vector<GpuGroup> groups{{.type = "a", .gpus = 1}, {.type = "b", .gpus = 1}};
    const GpuCluster cluster = make_cluster(groups, 8);
    FreePool pool(cluster);
    MovesAt100 policy;
    const SimulationOptions options{.cache = *parse_cache("none", ""), .checkpoint_bytes_per_second = 1e8};
    const auto outcome = simulate(jobs.workload, cluster, policy, pool, options);
    ASSERT_TRUE(outcome) << outcome.error().message;
    EXPECT_EQ(outcome->jobs[0].preemptions, 1u);
    EXPECT_NEAR(outcome->jobs[0].finish_s, kSize / kIdeal + 10 + 10 + 7, 1e-3);
}

struct LossyRun {
    SimulationOutcome outcome;
    Summary summary;
    double lost_s = 0;  // run time beyond the jobs' own work
};

// Runs jobs on all GPUs, one after the other, while nodes fail and recover after 100 s.
LossyRun run_on_failing_nodes(std::uint32_t gpus, int jobs, double epochs, double node_lifetime_s,
                              double checkpoint_bytes = 0) {
    SimulatedCluster cluster(gpus);
    for (int j = 0; j < jobs; ++j) {
        JobSpec& job = cluster.add(0, gpus, epochs);
        job.dataset = kNoDataset;
        job.checkpoint_bytes = checkpoint_bytes;
    }
    cluster.options.node_lifetime_s = node_lifetime_s;
    cluster.options.node_repair_s = 100;
    cluster.options.checkpoint_interval_s = 60;
    cluster.options.checkpoint_bytes_per_second = 1e8;
    LossyRun run;
    run.outcome = cluster.run("fifo", 0, 1e12);
    run.summary = summarise(cluster.workload, run.outcome, gpus);
    run.lost_s = run.outcome.end_s - jobs * epochs * kSize / (gpus * kIdeal);
    EXPECT_EQ(run.summary.finished, jobs);
    EXPECT_GT(run.summary.failures, 0);
    return run;
}

TEST(LostNodes, LostNodeCostsWorkSinceCheckpoint) {
    const LossyRun run = run_on_failing_nodes(8, 40, 1, 3000);
    EXPECT_EQ(run.outcome.node_failures, run.summary.failures);  // one node, always busy
    EXPECT_GE(run.lost_s, 99 * static_cast<double>(run.summary.failures));
    EXPECT_LE(run.lost_s, 161 * static_cast<double>(run.summary.failures));
}

TEST(LostNodes, LostNodeCostsWorkSinceLastCompleteCheckpoint) {
    const auto lost_s = [](double checkpoint_bytes) {
        const LossyRun run = run_on_failing_nodes(8, 40, 8, 3000, checkpoint_bytes);
        return run.lost_s / static_cast<double>(run.summary.failures) - 100;
    };
    EXPECT_LE(lost_s(1e3), 61);
    // Each checkpoint takes 50 s to write and 50 s to read. The work since an unfinished checkpoint began is lost with
    // it.
    EXPECT_GE(lost_s(5e9), 100);
    EXPECT_LE(lost_s(5e9), 161);
}

TEST(LostNodes, GangIsLostWithOneNodeAndWaitsForAll) {
    const LossyRun run = run_on_failing_nodes(16, 20, 1, 1000);
    // The other node may be lost while the gang waits for the first.
    EXPECT_GE(run.outcome.node_failures, run.summary.failures);
    EXPECT_GE(run.lost_s, 99 * static_cast<double>(run.summary.failures));
}

TEST(LostNodes, NodeThatIsLostForGoodLeavesJobsThatNoLongerFit) {
    SimulatedCluster cluster(16);
    cluster.add(0, 8, 1).dataset = kNoDataset;
    cluster.add(0, 8, 1).dataset = kNoDataset;
    cluster.add(0, 16, 1).dataset = kNoDataset;
    cluster.options.node_losses = {{.node = 1, .at_s = 50}, {.node = 1, .at_s = 60}};
    const SimulationOutcome outcome = cluster.run("fifo", 0, 1e12);
    const double alone_s = kSize / (8 * kIdeal);
    EXPECT_NEAR(outcome.jobs[0].finish_s, alone_s, 1e-3);
    EXPECT_NEAR(outcome.jobs[1].finish_s, 2 * alone_s, 1e-3);
    EXPECT_EQ(outcome.jobs[1].failures, 1u);
    EXPECT_EQ(outcome.jobs[2].end, JobEnd::unfinished);
    EXPECT_EQ(outcome.node_failures, 1u);
}

TEST(LostNodes, LossesAreGivenByNameAndTime) {
    const auto loss = parse_node_loss("v100-3@1.5");
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->node, "v100-3");
    EXPECT_EQ(loss->at_s, 1.5);
    for (const char* wrong : {"", "v100-3", "v100-3@", "@3", "v100-3@x", "v100-3@-1", "v100-3@1s", "v100-3@inf"}) {
        EXPECT_FALSE(parse_node_loss(wrong)) << wrong;
    }
}

// Serves jobs in order of arrival. Records the remaining work of each job whenever it waits.
class RecordsRemainingWork final : public Policy {
public:
    std::string_view name() const override { return "notes"; }
    bool preempts() const override { return false; }
    Result<Decision> decide(const Snapshot& snapshot) override {
        Decision decision;
        for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
            const JobState& job = *snapshot.jobs[j];
            decision.wants.push_back({.job = j, .gpus = job.spec->gpus});
            if (!job.running) left_bytes[job.spec->name].push_back(job.remaining_bytes);
        }
        return decision;
    }

    std::map<std::string, std::vector<double>> left_bytes;
};

TEST(LostNodes, RemainingWorkNeverGrows) {
    SimulatedCluster cluster(8);
    for (int j = 0; j < 5; ++j) {
        JobSpec& job = cluster.add(0, 8, 8);
        job.dataset = kNoDataset;
        job.restart_s = 30;
    }
    cluster.options.cache = *parse_cache("none", "");
    cluster.options.node_lifetime_s = 90;
    cluster.options.node_repair_s = 10;
    cluster.options.checkpoint_interval_s = 60;
    RecordsRemainingWork policy;
    const SimulationOutcome outcome = cluster.run(policy);
    for (const JobOutcome& job : outcome.jobs) EXPECT_GT(job.failures, 1u);
    for (const auto& [name, left] : policy.left_bytes) {
        EXPECT_TRUE(std::ranges::is_sorted(left, std::greater{})) << "job " << name;
    }
}

}  // namespace
}  // namespace larder::scheduler
