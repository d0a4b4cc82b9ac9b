// Jobs without a claim in the simulator, on cells of two tenants.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/cells/cells.h"
#include "scheduler/simulator/scenario.h"

namespace larder::scheduler {
namespace {

constexpr double kRateOfAGpu = 1e8;  // bytes/s

class OpportunisticJobs : public ::testing::Test {
protected:
    void SetUp() override {
        workload_.tenants = {{.name = "one"}, {.name = "two"}, {.name = "none"}};
        HierarchyConfig hierarchy{.name = "h", .gpu_type = "a", .levels = {{"node", 8}}, .node_level = 1, .nodes = {}};
        hierarchy.nodes = {"n0", "n1"};
        config_.hierarchies.push_back(hierarchy);
        config_.virtual_clusters.push_back({.name = "one", .cells = {{0, 1, 1}}, .pinned = {}});
        config_.virtual_clusters.push_back({.name = "two", .cells = {{0, 1, 1}}, .pinned = {}});
    }

    JobSpec& add(double submit_s, std::uint32_t tenant, std::uint32_t gpus, double seconds) {
        JobSpec& job = workload_.jobs.emplace_back();
        job.name = std::to_string(workload_.jobs.size() - 1);
        job.tenant = tenant;
        job.submit_s = submit_s;
        job.gpus = job.gpus_min = job.gpus_max = gpus;
        job.ideal_bytes_per_second = {kRateOfAGpu * gpus};
        job.total_bytes = seconds * kRateOfAGpu * gpus;
        workload_.models.emplace_back("m");
        return job;
    }

    SimulationOutcome run(std::string_view policy_name) {
        const GpuCluster cluster = cluster_of(config_);
        const std::vector<std::string> tenants{"one", "two", "none"};
        const auto cells = Cells::create(config_, cluster, tenants);
        const auto policy = make_policy(policy_name, {});
        EXPECT_TRUE(cells && policy);
        auto outcome = simulate(workload_, cluster, **policy, **cells,
                                {.cache = *parse_cache("none", ""), .storage = {.remote_bytes_per_second = 1e12}});
        EXPECT_TRUE(outcome) << outcome.error().message;
        return outcome ? std::move(*outcome) : SimulationOutcome{};
    }

    Workload workload_;
    CellConfig config_;
};

TEST_F(OpportunisticJobs, UseCellsOfOthersAndYieldToOwners) {
    JobSpec& guest = add(0, 0, 16, 1000);
    guest.opportunistic = true;
    guest.restart_s = 10;
    add(100, 1, 8, 300);
    const SimulationOutcome outcome = run("fifo-backfill");
    EXPECT_NEAR(outcome.jobs[1].start_s, 100, 1e-6) << "the owner's job does not wait";
    EXPECT_EQ(outcome.jobs[0].preemptions, 1U);
    EXPECT_NEAR(outcome.jobs[0].finish_s, 1000 + 300 + 10, 1e-3);
}

TEST_F(OpportunisticJobs, NeedNoCellsOfTheirTenant) {
    add(0, 2, 8, 100);
    add(1, 2, 8, 100).opportunistic = true;
    add(2, 0, 16, 100);
    const SimulationOutcome outcome = run("fifo-backfill");
    EXPECT_EQ(outcome.jobs[0].end, JobEnd::rejected);
    EXPECT_EQ(outcome.jobs[1].end, JobEnd::finished);
    EXPECT_EQ(outcome.jobs[2].end, JobEnd::rejected) << "it needs more GPUs than its tenant owns";
    EXPECT_FALSE(outcome.jobs[2].larger_than_cluster);
}

// Under every policy, owners' jobs start and end as if the guests were not there.
TEST_F(OpportunisticJobs, DelayNoOwnersJob) {
    const auto add_owners_jobs = [&] {
        for (int j = 0; j < 30; ++j) {
            add(50.0 * j, static_cast<std::uint32_t>(j % 2), 1U << (j % 4), 100 + 37 * (j % 7));
        }
    };
    for (const std::string_view policy : {"fifo", "sjf", "las", "srtf"}) {
        workload_.jobs.clear();
        add_owners_jobs();
        const SimulationOutcome alone = run(policy);
        for (int j = 0; j < 20; ++j) add(3000 + j, 2, 1U << (j % 5), 500).opportunistic = true;
        for (JobSpec& job : workload_.jobs) job.submit_s -= job.opportunistic ? 3000 : 0;
        std::ranges::stable_sort(workload_.jobs, {}, &JobSpec::submit_s);
        const SimulationOutcome shared = run(policy);
        std::size_t owner = 0;
        for (std::size_t j = 0; j < workload_.jobs.size(); ++j) {
            EXPECT_EQ(shared.jobs[j].end, JobEnd::finished);
            if (workload_.jobs[j].opportunistic) continue;
            EXPECT_NEAR(shared.jobs[j].start_s, alone.jobs[owner].start_s, 1e-3) << policy << " " << owner;
            EXPECT_NEAR(shared.jobs[j].finish_s, alone.jobs[owner].finish_s, 1e-3) << policy << " " << owner;
            ++owner;
        }
    }
}

}  // namespace
}  // namespace larder::scheduler
