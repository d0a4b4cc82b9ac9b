// Nodes that only the cluster manager knows: they come, go and change while jobs run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/scheduler/live/live_fixture.h"

namespace larder::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = EngineEvent::Kind;

class Inventory : public Live {
protected:
    void SetUp() override {
        gpus = {.gpu_types = {"gpu"}, .nodes = {}, .is_open = true};
        restart();
    }
    void tell(Kind kind, const std::string& node, std::optional<std::uint32_t> count = {}, std::string type = "") {
        EngineEvent event{.kind = kind, .message = "the test", .node = node};
        if (count) event.inventory = NodeInventory{.gpus = *count, .gpu_type = std::move(type), .labels = {}};
        engine.tell(std::move(event));
        tick();
    }
    std::vector<std::string> nodes_of(JobId id) const {
        std::vector<std::string> names;
        for (const NamedGpus& share : job(id).held->gpus) names.push_back(share.node);
        return names;
    }
    JobId start(std::uint32_t gpus_asked, const std::string& type = "") {
        Submission asked = job_with_gpus(gpus_asked);
        asked.gpu_type = type;
        return submit_and_start(asked);
    }
    void end(JobId id) {
        engine.tell_ended({id, job(id).attempt}, 0);
        tick();
    }
};

TEST_F(Inventory, WithoutNodesJobsAreRefused) {
    EXPECT_EQ(try_submit(job_with_gpus(1)).error().code, ErrorCode::no_space);
}

TEST_F(Inventory, AddedNodeGetsJobs) {
    tell(Kind::node_added, "a", 2);
    tell(Kind::node_added, "b", 4);
    const JobId large = start(4);
    EXPECT_THAT(nodes_of(large), ElementsAre("b"));
    EXPECT_EQ(try_submit(job_with_gpus(7)).error().code, ErrorCode::no_space);
    const JobId waits = submit(job_with_gpus(4));
    tick();
    EXPECT_EQ(phase(waits), Phase::waiting);
    tell(Kind::node_added, "c", 4);
    ASSERT_EQ(phase(waits), Phase::starting);
    EXPECT_THAT(nodes_of(waits), ElementsAre("c"));
}

TEST_F(Inventory, NodesOfAnotherTypeMakeATypeKnown) {
    tell(Kind::node_added, "a", 4);
    Submission asked = job_with_gpus(1);
    asked.gpu_type = "h100";
    EXPECT_EQ(try_submit(asked).error().code, ErrorCode::not_found);
    tell(Kind::node_added, "b", 4, "h100");
    EXPECT_THAT(nodes_of(start(1, "h100")), ElementsAre("b"));
    EXPECT_THAT(nodes_of(start(1, "gpu")), ElementsAre("a"));
}

TEST_F(Inventory, NodeThatShrinksBelowWhatRunsKeepsItsJobsAndGetsNoMore) {
    tell(Kind::node_added, "a", 8);
    const JobId first = start(3);
    const JobId second = start(3);
    tell(Kind::node_resized, "a", 4);
    EXPECT_EQ(phase(first), Phase::running);
    EXPECT_EQ(phase(second), Phase::running);
    const JobId waits = submit(job_with_gpus(1));
    tick(20);
    EXPECT_EQ(phase(waits), Phase::waiting);
    restart();
    tick(20);
    EXPECT_THAT(engine.stops, IsEmpty()) << "after a restart, too";
    EXPECT_EQ(phase(waits), Phase::waiting);
    end(first);
    ASSERT_EQ(phase(waits), Phase::starting) << "one of four is free";
    const JobId next = submit(job_with_gpus(1));
    tick(20);
    EXPECT_EQ(phase(next), Phase::waiting);
    tell(Kind::node_resized, "a", 8);
    EXPECT_EQ(phase(next), Phase::starting);
}

TEST_F(Inventory, RemovedNodeTakesNoJobAndItsJobWaitsAgainOnceItHasEnded) {
    tell(Kind::node_added, "a", 4);
    tell(Kind::node_added, "b", 2);
    const JobId id = start(4);
    tell(Kind::node_removed, "a");
    const JobId other = submit(job_with_gpus(2));
    tick();
    EXPECT_THAT(nodes_of(other), ElementsAre("b"));
    EXPECT_EQ(try_submit(job_with_gpus(3)).error().code, ErrorCode::no_space);
    engine.tell(Kind::lost, {id, 1});
    tick();
    EXPECT_EQ(phase(id), Phase::waiting);
    EXPECT_THAT(why(id), HasSubstr("it needs 4 GPUs"));
    tell(Kind::node_added, "a", 4);
    EXPECT_EQ(phase(id), Phase::starting);
}

TEST_F(Inventory, JobOfARemovedNodeIsStoppedAndItsLogSaysWhy) {
    tell(Kind::node_added, "a", 4);
    const JobId id = start(4);
    saving_fails = true;
    tell(Kind::node_removed, "a");
    EXPECT_THAT(engine.stops, IsEmpty()) << "the stop is not on record";
    saving_fails = false;
    tick();
    EXPECT_THAT(engine.stops, ElementsAre(MemoryEngine::Attempt{id, 1}));
    restart();
    tick();
    EXPECT_EQ(engine.stops.size(), 2u) << "the stop is repeated after a restart";
    EXPECT_EQ(job(id).log.back().text, "node a was removed: the job is stopped");
    engine.tell_ended({id, 1}, 0, true);
    tick();
    EXPECT_EQ(phase(id), Phase::waiting);
    EXPECT_EQ(live->queue().counts().lost, 0u);
    EXPECT_EQ(job(id).state.preemptions, 0u);
}

TEST_F(Inventory, DrainedNodeThatIsResizedStaysDrained) {
    tell(Kind::node_added, "a", 4);
    tell(Kind::node_drained, "a", 8);
    const JobId id = submit(job_with_gpus(8));
    tick(20);
    EXPECT_EQ(phase(id), Phase::waiting);
    EXPECT_THAT(why(id), HasSubstr("8 are on lost or drained nodes"));
    tell(Kind::node_back, "a");
    EXPECT_EQ(phase(id), Phase::starting);
}

TEST_F(Inventory, DrainedNodeIsDrainedAfterARestart) {
    tell(Kind::node_added, "a", 4);
    const JobId runs = start(2);
    tell(Kind::node_drained, "a", 4);
    restart();
    const JobId waits = submit(job_with_gpus(2));
    tick(20);
    EXPECT_EQ(phase(runs), Phase::running);
    EXPECT_EQ(phase(waits), Phase::waiting);
    EXPECT_THAT(engine.stops, IsEmpty());
    tell(Kind::node_back, "a", 4);
    EXPECT_EQ(phase(waits), Phase::starting);
}

TEST_F(Inventory, NodesOfTheAgentAreDroppedOnceTheConfigurationNamesThem) {
    tell(Kind::node_added, "a", 4);
    gpus = {.gpu_types = {"gpu"}, .nodes = {{.name = "b", .gpus = 4}}};
    restart();
    tick();
    EXPECT_THAT(record.nodes, IsEmpty());
    EXPECT_THAT(nodes_of(start(4)), ElementsAre("b"));
}

TEST_F(Inventory, LastKnownNodesOutliveARestart) {
    tell(Kind::node_added, "b", 4, "h100");
    tell(Kind::node_added, "a", 2, "a100");
    const JobId id = start(4, "h100");
    engine.tell({.kind = Kind::node_back,
                 .node = "a",
                 .inventory = NodeInventory{.gpus = 2, .gpu_type = "a100", .labels = {{"rack", "r7"}}}});
    tick();
    restart();
    tick();
    EXPECT_EQ(phase(id), Phase::running);
    EXPECT_THAT(engine.stops, IsEmpty());
    EXPECT_EQ(live->inventory().at("a").labels.at("rack"), "r7");
    EXPECT_THAT(nodes_of(start(2, "a100")), ElementsAre("a"));
    EXPECT_GT(job(id).state.ran_s_by_type.at(1), 0) << "h100 is the second type, gpu the first";
}

TEST_F(Inventory, NodeWhoseGpusAreReplacedKeepsItsJobsAndTheirGpus) {
    tell(Kind::node_added, "a", 4, "k80");
    const JobId old = start(2, "k80");
    tell(Kind::node_back, "a", 4, "h100");
    EXPECT_EQ(phase(old), Phase::running);
    EXPECT_THAT(nodes_of(start(2, "h100")), ElementsAre("a"));
    const JobId waits = submit(job_with_gpus(2));
    tick(20);
    EXPECT_EQ(phase(waits), Phase::waiting) << "two of four are the old job's";
    EXPECT_EQ(try_submit(job_with_gpus(5)).error().code, ErrorCode::no_space);
    end(old);
    EXPECT_EQ(phase(waits), Phase::starting);
    EXPECT_EQ(job(waits).held->gpu_type, "h100");
}

TEST_F(Inventory, JobOfAMachineThatGotAnotherTypeOutlivesARestart) {
    tell(Kind::node_added, "a", 4, "k80");
    const JobId old = start(2, "k80");
    tell(Kind::node_back, "a", 4, "h100");
    restart();
    const JobId waits = submit(job_with_gpus(4));
    tick(20);
    EXPECT_EQ(phase(old), Phase::running);
    EXPECT_THAT(engine.stops, IsEmpty());
    EXPECT_EQ(phase(waits), Phase::waiting);
    end(old);
    EXPECT_EQ(phase(waits), Phase::starting);
}

TEST_F(Inventory, JobThatHasNotBegunGivesUpItsPlaceOnANodeThatShrinks) {
    use_shortest_first();
    tell(Kind::node_added, "a", 8);
    const JobId first = start(4);
    const JobId second = start(4);
    Submission shorter = job_with_gpus(8);
    shorter.priority = 1;
    const JobId placed = submit(shorter);
    tick();
    ASSERT_EQ(phase(placed), Phase::placed) << "it waits for the others to leave";
    tell(Kind::node_resized, "a", 4);
    EXPECT_EQ(phase(placed), Phase::waiting);
    engine.tell_ended({first, 1}, 0, true);
    engine.tell_ended({second, 1}, 0, true);
    tick();
    tick(20);
    EXPECT_EQ(phase(placed), Phase::waiting);
    EXPECT_EQ(engine.starts.size(), 3u) << "one of the others has the four GPUs again";
}

TEST_F(Inventory, PlaceOnANodeThatShrankIsNotKeptOverARestart) {
    use_shortest_first();
    tell(Kind::node_added, "a", 8);
    start(8);
    Submission first = job_with_gpus(8);
    first.priority = 1;
    const JobId placed = submit(first);
    tick();
    ASSERT_EQ(phase(placed), Phase::placed);
    record.nodes.at("a")->gpus = 4;
    restart();
    EXPECT_EQ(phase(placed), Phase::waiting);
}

// Nodes of an autoscaler get a new name each time.
TEST_F(Inventory, PlacesOfRemovedNodesAreUsedAgain) {
    tell(Kind::node_added, "kept", 1);
    const JobId keeper = start(1);
    for (int i = 0; i < 20; ++i) {
        const std::string name = "n" + std::to_string(i);
        tell(Kind::node_added, name, 4, i % 2 == 0 ? "a100" : "h100");
        const JobId id = start(4);
        EXPECT_THAT(nodes_of(id), ElementsAre(name));
        end(id);
        tell(Kind::node_removed, name);
    }
    EXPECT_EQ(live->options().cluster.nodes.size(), 2u);
    EXPECT_EQ(phase(keeper), Phase::running);
}

TEST_F(Inventory, PlacesOfRemovedMachinesOfTwoTypesAreUsedAgain) {
    tell(Kind::node_added, "kept", 1);
    for (int i = 0; i < 20; ++i) {
        const std::string name = "n" + std::to_string(i);
        tell(Kind::node_added, name, 4);
        tell(Kind::node_back, name, 4, "a100");
        const JobId id = start(4, "a100");
        EXPECT_THAT(nodes_of(id), ElementsAre(name));
        end(id);
        tell(Kind::node_removed, name);
    }
    EXPECT_LE(live->options().cluster.nodes.size(), 3u);
}

TEST_F(Inventory, ManyNodesAreSavedInSmallChangesBeforeTheirJobs) {
    disk_is_slow = true;
    const JobId none = 0;
    for (int i = 0; i < 5000; ++i) {
        EngineEvent event{.kind = Kind::node_added, .node = "node-" + std::to_string(i)};
        event.inventory = NodeInventory{.gpus = 1, .gpu_type = "", .labels = {{"rack", std::string(400, 'r')}}};
        engine.tell(std::move(event));
    }
    tick();
    std::size_t changes = 0;
    while (!unwritten.empty()) {
        ASSERT_EQ(unwritten.size(), 1u);
        std::size_t bytes = 0;
        for (const auto& [name, node] : unwritten.front().first.nodes) bytes += name.size() + 450;
        EXPECT_LT(bytes, 200'000u) << "etcd takes 1 MiB a change, and a node may have control characters";
        EXPECT_EQ(engine.recorded_events, none);
        EXPECT_TRUE(unwritten.front().first.jobs.empty() || record.nodes.size() > 4000);
        ++changes;
        write_all();
    }
    EXPECT_GT(changes, 10u);
    EXPECT_EQ(record.nodes.size(), 5000u);
    EXPECT_EQ(engine.recorded_events, 5000u);
}

TEST_F(Inventory, InventoryThatCouldNotBeSavedIsSavedLater) {
    saving_fails = true;
    tell(Kind::node_added, "a", 4);
    EXPECT_FALSE(record.nodes.contains("a"));
    EXPECT_FALSE(live->all_saved());
    EXPECT_EQ(engine.recorded_events, 0u);
    saving_fails = false;
    tick();
    EXPECT_EQ(record.nodes.at("a")->gpus, 4u);
    EXPECT_EQ(engine.recorded_events, 1u);
}

TEST_F(Inventory, EveryPolicyLivesWithoutNodes) {
    for (const std::string_view name : policy_names()) {
        policy = name;
        record = {};
        engine.events.clear();
        restart();
        tell(Kind::node_added, "a", 2);
        const JobId id = submit(job_with_gpus(2));
        tell(Kind::node_removed, "a");
        if (is_with_engine(phase(id))) engine.tell(Kind::lost, {id, 1});
        tick();
        tick(20);
        EXPECT_EQ(phase(id), Phase::waiting) << name;
        EXPECT_EQ(live->counts().decisions_failed, 0u) << name;
        tell(Kind::node_added, "b", 2);
        tick(20);
        EXPECT_EQ(phase(id), Phase::starting) << name;
    }
}

}  // namespace
}  // namespace larder::scheduler
