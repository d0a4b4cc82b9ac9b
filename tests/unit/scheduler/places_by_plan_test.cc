#include "scheduler/places_by_plan.h"

#include <gmock/gmock.h>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler::tests {
namespace {

using testing::IsEmpty;

constexpr double kNetwork = kGpuBytesPerSecond;
constexpr std::uint64_t kSize = 1'000'000'000'000;

// Jobs that read dataset 0, on nodes of 8 GPUs without cache, with networks that carry one GPU's reads.
class PlaceChoice : public testing::Test {
protected:
    explicit PlaceChoice(std::uint32_t nodes = 4) : world_(nodes) {
        input_.cluster = &world_.cluster;
        input_.state.remote_bytes_per_second = 1e12;
        for (std::uint32_t n = 0; n < nodes; ++n) {
            input_.state.nodes.push_back(
                {.name = world_.cluster.nodes[n].name, .gpus = 8, .nic_bytes_per_second = kNetwork});
            input_.node_of.push_back(n);
        }
        input_.state.datasets.push_back({.name = "images", .size_bytes = kSize});
        input_.dataset_of[0] = 0;
        world_.datasets.push_back({.name = "images", .size_bytes = static_cast<double>(kSize)});
    }

    std::uint32_t add(std::uint32_t gpus) {
        world_.add(gpus, 10.0 * static_cast<double>(kSize)).dataset = 0;
        input_.job_of.push_back(PlanInput::kUnknown);
        return static_cast<std::uint32_t>(world_.states.size() - 1);
    }
    void add_running(std::uint32_t node, std::uint32_t gpus = 1) {
        const std::uint32_t job = add(gpus);
        input_.job_of[job] = static_cast<std::uint32_t>(input_.state.jobs.size());
        input_.state.jobs.push_back({.name = world_.specs[job].name,
                                     .gpus = gpus,
                                     .ideal_bytes_per_second = kGpuBytesPerSecond * gpus,
                                     .placement = {{.node = node, .gpus = gpus}}});
        used_[node] += gpus;
    }
    void own_caches() {
        for (std::uint32_t n = 0; n < input_.state.nodes.size(); ++n) input_.state.nodes[n].peer_group = n;
        world_.storage.own_caches = true;
    }

    // Returns how many GPUs the new job gets on each node if the placer chose `usual`.
    std::map<std::uint32_t, std::uint32_t> chosen(std::uint32_t job, const Placement& usual) {
        const Snapshot snapshot = world_.snapshot();
        PlacesByPlan places(snapshot, input_);
        for (const std::uint32_t stopped : stopped_) places.stop(stopped);
        const Gang gang{.job = job, .gpus = world_.specs[job].gpus};
        const PlacesByPlan::Rules rules{
            .free_on = [&](std::uint32_t node) { return lowest_bits(~0ULL, 8 - used_[node]); },
            .allows =
                [&](const Placement& placement) {
                    return std::ranges::none_of(placement,
                                                [&](const NodeGpus& share) { return forbidden_.contains(share.node); });
                }};
        std::map<std::uint32_t, std::uint32_t> gpus;
        for (const NodeGpus& share : places.choose(gang, usual, rules)) gpus[share.node] = share.count();
        return gpus;
    }

    World world_;
    PlanInput input_;
    std::map<std::uint32_t, std::uint32_t> used_;
    std::set<std::uint32_t> forbidden_;
    std::vector<std::uint32_t> stopped_;  // before the choice
};

using Gpus = std::map<std::uint32_t, std::uint32_t>;

TEST_F(PlaceChoice, JobGoesWhereNetworkHasRoom) {
    for (const std::uint32_t node : {0, 1, 3}) add_running(node);
    EXPECT_EQ(chosen(add(1), {{0, 0b10}}), (Gpus{{2, 1}}));
}

TEST_F(PlaceChoice, JobStaysWhereItFitsIfNetworksDoNotBind) {
    for (auto& node : input_.state.nodes) node.nic_bytes_per_second = 100 * kNetwork;
    add_running(0);
    EXPECT_EQ(chosen(add(1), {{0, 0b10}}), (Gpus{{0, 1}}));
}

TEST_F(PlaceChoice, JobStaysWhereItFitsIfRemoteAloneBinds) {
    input_.state.remote_bytes_per_second = kNetwork / 10;
    add_running(0);
    EXPECT_EQ(chosen(add(1), {{0, 0b10}}), (Gpus{{0, 1}}));
}

TEST_F(PlaceChoice, GangSpreadsOverAsManyNetworksAsItNeeds) {
    EXPECT_EQ(chosen(add(4), {{0, 0b1111}}), (Gpus{{0, 1}, {1, 1}, {2, 1}, {3, 1}}));
    for (auto& node : input_.state.nodes) node.nic_bytes_per_second = 2 * kNetwork;
    EXPECT_EQ(chosen(add(4), {{0, 0b1111}}), (Gpus{{0, 2}, {1, 2}}));
}

TEST_F(PlaceChoice, GangStaysTogetherIfCommunicationCostsMoreThanNetworks) {
    const std::uint32_t job = add(4);
    world_.specs[job].rate_by_nodes = {1, 0.25, 0.2, 0.1};
    EXPECT_EQ(chosen(job, {{0, 0b1111}}), (Gpus{{0, 4}}));
}

TEST_F(PlaceChoice, JobGoesToItsDataIfNetworksBind) {
    add_running(0);
    input_.state.nodes[3].disk_bytes = kSize;
    input_.state.datasets[0].cached = {{.node = 3, .disk_bytes = kSize}};
    input_.state.datasets[0].quotas = input_.state.datasets[0].cached;
    EXPECT_EQ(chosen(add(2), {{0, 0b110}}), (Gpus{{3, 2}}));
}

TEST_F(PlaceChoice, JobGoesToItsDataIfRemoteBindsAndNodesCacheForThemselves) {
    own_caches();
    for (auto& node : input_.state.nodes) {
        node.nic_bytes_per_second = allocator::kUnlimited;
        node.disk_bytes = kSize;
    }
    input_.state.remote_bytes_per_second = kNetwork / 10;
    // A second dataset fills the other nodes.
    input_.state.datasets.push_back({.name = "text", .size_bytes = kSize});
    for (const std::uint32_t node : {0, 1, 3}) {
        input_.state.datasets[1].cached.push_back({.node = node, .disk_bytes = kSize});
        add_running(node);
        input_.state.jobs.back().dataset = 1;
    }
    input_.state.datasets[0].cached = {{.node = 2, .disk_bytes = kSize}};
    for (auto& dataset : input_.state.datasets) dataset.quotas = dataset.cached;
    EXPECT_EQ(chosen(add(1), {{0, 0b10}}), (Gpus{{2, 1}}));
}

TEST_F(PlaceChoice, JobGoesWhereCacheHasRoomIfNodesCacheForThemselves) {
    own_caches();
    for (auto& node : input_.state.nodes) node.nic_bytes_per_second = allocator::kUnlimited;
    input_.state.remote_bytes_per_second = kNetwork / 10;
    input_.state.nodes[2].disk_bytes = kSize;
    EXPECT_EQ(chosen(add(1), {{0, 0b1}}), (Gpus{{2, 1}}));
}

// Node 3 caches a second dataset. A job that ends within its epoch gains nothing by cache, so its plans are as good on
// any node.
class PlaceChoiceNearDataOfOthers : public PlaceChoice {
protected:
    PlaceChoiceNearDataOfOthers() {
        own_caches();
        for (auto& node : input_.state.nodes) {
            node.nic_bytes_per_second = allocator::kUnlimited;
            node.disk_bytes = kSize;
        }
        input_.state.remote_bytes_per_second = kNetwork / 10;
        input_.state.datasets.push_back({.name = "text", .size_bytes = kSize});
        input_.state.datasets[1].cached = input_.state.datasets[1].quotas = {{.node = 3, .disk_bytes = kSize}};
        input_.dataset_of[1] = 1;
        world_.datasets.push_back({.name = "text", .size_bytes = static_cast<double>(kSize)});
        add_running(3);
        world_.specs.back().dataset = 1;
        input_.state.jobs.back().dataset = 1;
    }

    std::uint32_t add_short(std::uint32_t gpus) {
        const std::uint32_t job = add(gpus);
        world_.states[job].remaining_bytes = static_cast<double>(kSize) / 2;
        return job;
    }
};

TEST_F(PlaceChoiceNearDataOfOthers, JobLeavesGpusNearDataToItsReaders) {
    EXPECT_EQ(chosen(add_short(1), {{3, 0b10}}), (Gpus{{0, 1}}));
}

TEST_F(PlaceChoiceNearDataOfOthers, WholeNodesStayForTheLargestGang) {
    add(17);  // waits, and needs three whole nodes
    EXPECT_EQ(chosen(add_short(1), {{3, 0b10}}), (Gpus{{3, 1}}));
    // A place that breaks up a whole node in any case may give way to one that does so, too.
    used_[3] = 0;
    EXPECT_EQ(chosen(add_short(1), {{3, 0b1}}), (Gpus{{0, 1}}));
}

TEST_F(PlaceChoiceNearDataOfOthers, ReaderOfTheDataStaysNearIt) {
    input_.state.remote_bytes_per_second = 1e12;
    const std::uint32_t job = add_short(1);
    world_.specs[job].dataset = 1;
    EXPECT_EQ(chosen(job, {{3, 0b10}}), (Gpus{{3, 1}}));
}

TEST_F(PlaceChoiceNearDataOfOthers, JobGoesToItsDataIfThatOfOthersLiesThere) {
    input_.state.nodes[3].disk_bytes = 2 * kSize;
    input_.state.datasets[0].cached = input_.state.datasets[0].quotas = {{.node = 3, .disk_bytes = kSize}};
    EXPECT_EQ(chosen(add_short(1), {{0, 0b1}}), (Gpus{{3, 1}}));
}

TEST_F(PlaceChoiceNearDataOfOthers, JobStaysWhereItFitsIfNoJobReadsTheData) {
    input_.state.jobs[0].dataset = 0;
    EXPECT_EQ(chosen(add_short(1), {{3, 0b10}}), (Gpus{{3, 1}}));
}

TEST_F(PlaceChoiceNearDataOfOthers, JobStaysWhereItFitsIfAllReadersOfTheDataWereStopped) {
    add_running(3);
    world_.specs.back().dataset = 1;
    input_.state.jobs.back().dataset = 1;
    // Their sum, less each of them, is not 0 but a rounding error.
    input_.state.jobs[0].ideal_bytes_per_second = 0.1;
    input_.state.jobs[1].ideal_bytes_per_second = 0.2;
    stopped_ = {0, 1};
    EXPECT_EQ(chosen(add_short(1), {{3, 0b100}}), (Gpus{{3, 1}}));
}

TEST_F(PlaceChoiceNearDataOfOthers, GangIsNotSplitToLeaveGpusNearData) {
    for (const std::uint32_t node : {0, 1, 2}) used_[node] = 7;
    EXPECT_EQ(chosen(add_short(2), {{3, 0b110}}), (Gpus{{3, 2}}));
    used_[0] = 6;
    EXPECT_EQ(chosen(add_short(2), {{3, 0b110}}), (Gpus{{0, 2}}));
}

TEST_F(PlaceChoiceNearDataOfOthers, JobStaysWhereItFitsIfNodesReadFromEachOther) {
    for (auto& node : input_.state.nodes) {
        node.peer_group = 0;
        node.nic_bytes_per_second = 100 * kNetwork;
    }
    world_.storage.own_caches = false;
    EXPECT_EQ(chosen(add_short(1), {{3, 0b10}}), (Gpus{{3, 1}}));
}

TEST_F(PlaceChoice, PlaceThatIsNotAllowedIsNotChosen) {
    for (const std::uint32_t node : {0, 1, 3}) add_running(node);
    forbidden_ = {2};
    EXPECT_EQ(chosen(add(1), {{0, 0b10}}), (Gpus{{0, 1}}));
}

TEST_F(PlaceChoice, NodeThatPlansDoNotKnowIsNotChosen) {
    for (const std::uint32_t node : {0, 1, 3}) add_running(node);
    input_.node_of[2] = PlanInput::kUnknown;
    EXPECT_EQ(chosen(add(1), {{0, 0b10}}), (Gpus{{0, 1}}));
    EXPECT_EQ(chosen(add(1), {{2, 0b1}}), (Gpus{{2, 1}})) << "nothing says that another place is better";
}

TEST_F(PlaceChoice, JobThatReadsNothingStays) {
    add_running(0);
    const std::uint32_t job = add(1);
    world_.specs[job].dataset = kNoDataset;
    EXPECT_EQ(chosen(job, {{0, 0b10}}), (Gpus{{0, 1}}));
}

TEST_F(PlaceChoice, StartedJobsTakeRoomAndStoppedOnesGiveItBack) {
    const std::uint32_t first = add(1), second = add(1), third = add(1);
    forbidden_ = {2, 3};
    const Snapshot snapshot = world_.snapshot();
    PlacesByPlan places(snapshot, input_);
    const PlacesByPlan::Rules rules{.free_on = [](std::uint32_t) { return 0xffULL; },
                                    .allows = [](const Placement& placement) { return placement.back().node < 2; }};
    places.start({.job = first, .gpus = 1}, {{0, 0b1}});
    EXPECT_EQ(places.choose({.job = second, .gpus = 1}, {{0, 0b10}}, rules).front().node, 1);
    places.start({.job = second, .gpus = 1}, {{1, 0b1}});
    EXPECT_EQ(places.choose({.job = third, .gpus = 1}, {{1, 0b10}}, rules).front().node, 1) << "both are as good";
    places.stop(first);
    EXPECT_EQ(places.choose({.job = third, .gpus = 1}, {{1, 0b10}}, rules).front().node, 0);
}

// So large that no plan can be solved for a place.
class PlaceChoiceOnLargeCluster : public PlaceChoice {
protected:
    PlaceChoiceOnLargeCluster() : PlaceChoice(2000) {
        for (std::uint32_t n = 0; n < 1999; ++n) add_running(n);
    }
};

TEST_F(PlaceChoiceOnLargeCluster, JobGoesWhereNetworkHasRoom) {
    EXPECT_EQ(chosen(add(1), {{0, 0b10}}), (Gpus{{1999, 1}}));
}

TEST_F(PlaceChoiceOnLargeCluster, JobStaysWhereItFitsIfNetworksDoNotBind) {
    for (auto& node : input_.state.nodes) node.nic_bytes_per_second = 100 * kNetwork;
    EXPECT_EQ(chosen(add(1), {{0, 0b10}}), (Gpus{{0, 1}}));
}

TEST_F(PlaceChoiceOnLargeCluster, PlaceThatIsNotAllowedIsNotChosen) {
    forbidden_ = {1999};
    EXPECT_EQ(chosen(add(1), {{0, 0b10}}), (Gpus{{0, 1}}));
}

TEST_F(PlaceChoiceOnLargeCluster, GangSpreadsOverAsManyNetworksAsItNeeds) {
    EXPECT_EQ(chosen(add(4), {{0, 0b11110}}), (Gpus{{0, 1}, {1, 1}, {2, 1}, {1999, 1}}));
    input_.state.nodes[1999].nic_bytes_per_second = 2 * kNetwork;
    EXPECT_EQ(chosen(add(4), {{0, 0b11110}}), (Gpus{{1999, 4}})) << "fewer nodes go first if they are as good";
}

TEST_F(PlaceChoiceOnLargeCluster, GangIsSplitIfMoreNodesMakeItFaster) {
    for (auto& node : input_.state.nodes) node.nic_bytes_per_second = 100 * kNetwork;
    const std::uint32_t job = add(2);
    world_.specs[job].rate_by_nodes = {0.5, 1};
    EXPECT_EQ(chosen(job, {{0, 0b110}}), (Gpus{{0, 1}, {1999, 1}}));
}

}  // namespace
}  // namespace larder::scheduler::tests
