#include <gmock/gmock.h>

#include <fstream>

#include "scheduler/cells/cells.h"
#include "scheduler/simulator/guarantee.h"
#include "scheduler/simulator/random.h"
#include "scheduler/simulator/tenant_shares.h"
#include "tests/support/temp_directory.h"

namespace larder::scheduler {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;

std::vector<double> entitled_gpus(const std::vector<double>& demands, std::vector<Tenant> tenants, double gpus) {
    TenantShares shares({}, tenants);
    shares.set_gpus(gpus);
    for (std::uint32_t t = 0; t < demands.size(); ++t) shares.change_demand(t, demands[t]);
    return shares.entitled();
}

TEST(EntitledGpus, FollowWeightsUpToDemand) {
    const std::vector<Tenant> tenants{
        {.name = "a", .weight = 1}, {.name = "b", .weight = 1}, {.name = "c", .weight = 2}};
    EXPECT_THAT(entitled_gpus({100, 100, 100}, tenants, 8), ElementsAre(2, 2, 4));
    EXPECT_THAT(entitled_gpus({1, 100, 100}, tenants, 10), ElementsAre(1, 3, 6));
    EXPECT_THAT(entitled_gpus({1, 1, 1}, tenants, 10), ElementsAre(1, 1, 1));
    EXPECT_THAT(entitled_gpus({0, 0, 0}, tenants, 10), ElementsAre(0, 0, 0));
}

TEST(EntitledGpus, AreSharesOfTheParentsShare) {
    const std::vector<Tenant> tenants{{.name = "lab", .weight = 1},
                                      {.name = "vision", .weight = 3, .parent = 0},
                                      {.name = "speech", .weight = 1, .parent = 0},
                                      {.name = "product", .weight = 3}};
    EXPECT_THAT(entitled_gpus({0, 100, 100, 100}, tenants, 16), ElementsAre(0, 3, 1, 12)) << "not 3/8, 1/8 and 3/8";
    EXPECT_THAT(entitled_gpus({0, 1, 100, 100}, tenants, 16), ElementsAre(0, 1, 3, 12))
        << "a sibling gets the share that one tenant leaves";
    EXPECT_THAT(entitled_gpus({0, 1, 1, 100}, tenants, 16), ElementsAre(0, 1, 1, 14));
    EXPECT_THAT(entitled_gpus({100, 0, 100, 100}, tenants, 16), ElementsAre(2, 0, 2, 12))
        << "the parent's own jobs weigh 1";
}

TEST(TenantShares, AreAttainedOverEntitledGpuTimeInWindow) {
    std::vector<Tenant> tenants{{.name = "a"}, {.name = "b"}};
    TenantShares shares({.window_intervals = 2, .interval_s = 3600}, tenants);
    shares.set_gpus(8);
    shares.change_demand(0, 8);
    shares.change_demand(1, 8);
    shares.add(0, 0, 3600, 8);
    shares.advance(3600, 3600);
    EXPECT_THAT(tenants[0].gpu_time.gpu_s_by_interval.front(), 8 * 3600);
    shares.add(0, 3600, 7200, 4);
    shares.add(1, 3600, 7200, 4);
    shares.advance(3600, 7200);
    EXPECT_THAT(shares.ratios(), ElementsAre(DoubleEq(1), DoubleEq(0.5)));
}

TEST(TenantWeights, AreReadFromAFile) {
    test::TempDirectory directory;
    const std::string path = directory / "w.csv";
    std::ofstream(path) << "name,share\na,2690\nb,0.5\n";
    const auto weights = read_tenant_weights(path);
    ASSERT_TRUE(weights) << weights.error().message;
    EXPECT_DOUBLE_EQ(weights->at("a"), 2690);
    std::ofstream(path) << "name,share\na,-1\n";
    EXPECT_THAT(read_tenant_weights(path).error().message, testing::HasSubstr("line 2"));
}

Workload contended_workload(std::uint64_t seed) {
    Workload workload;
    for (const char* name : {"a", "b", "c"}) workload.tenants.push_back({.name = name, .weight = 1});
    workload.tenants[2].weight = 2;
    Random random(seed);
    double now_s = 0;
    for (int j = 0; j < 600; ++j) {
        now_s += random.exponential_s(100);
        constexpr std::uint32_t kGangs[] = {1, 1, 1, 2, 4, 8, 16, 24};
        JobSpec& job = workload.jobs.emplace_back();
        job.name = std::to_string(j);
        job.tenant = static_cast<std::uint32_t>(random.below(3));
        job.submit_s = now_s;
        job.gpus = job.gpus_min = job.gpus_max = kGangs[random.below(std::size(kGangs))];
        job.ideal_bytes_per_second = {1e6 * job.gpus};
        job.total_bytes = job.ideal_bytes_per_second[0] * (100 + random.exponential_s(2000));
        workload.models.emplace_back("m");
    }
    return workload;
}

TEST(Guarantee, CellsHaveRequestedNodeSize) {
    const std::vector<Tenant> tenants{{.name = "red"}, {.name = "blue", .weight = 3}};
    const std::vector<std::string> names{"red", "blue"};
    for (const std::uint32_t gpus_per_node : {1U, 2U, 3U, 4U, 8U, 16U}) {
        const auto config = cells_by_weight(tenants, {.type = "a100", .gpus = 48 * gpus_per_node}, gpus_per_node);
        ASSERT_TRUE(config) << config.error().message;
        EXPECT_EQ(config->hierarchies[0].gpus(), 48 * gpus_per_node);
        EXPECT_EQ(config->hierarchies[0].gpu_type, "a100");
        const GpuCluster cluster = cluster_of(*config);
        ASSERT_EQ(cluster.nodes.size(), 48U);
        for (const GpuNode& node : cluster.nodes) EXPECT_EQ(node.gpus, gpus_per_node);
        EXPECT_TRUE(Cells::create(*config, cluster, names));
    }
    const auto few = cells_by_weight(tenants, {.type = "a100", .gpus = 31}, 8);
    ASSERT_FALSE(few);
    EXPECT_NE(few.error().message.find("31 GPUs make 0 nodes of 8"), std::string::npos) << few.error().message;
}

TEST(Guarantee, NoJobStartsLaterThanAlone) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        const Workload workload = contended_workload(seed);
        const auto config = cells_by_weight(workload.tenants, {.type = "v100", .gpus = 64}, 8);
        ASSERT_TRUE(config);
        const auto guarantees = check_guarantee(workload, *config);
        ASSERT_TRUE(guarantees) << guarantees.error().message;
        ASSERT_EQ(guarantees->size(), 3);
        std::uint64_t jobs = 0;
        for (const TenantGuarantee& one : *guarantees) {
            EXPECT_EQ(one.later, 0) << one.tenant << ", seed " << seed;
            EXPECT_GT(one.waited_alone_s, 0);
            EXPECT_LE(one.waited_shared_s, one.waited_alone_s * 1.001);
            jobs += one.jobs + one.too_large;
        }
        EXPECT_EQ(jobs, 600);
        EXPECT_EQ((*guarantees)[2].gpus, 32);
    }
}

}  // namespace
}  // namespace larder::scheduler
