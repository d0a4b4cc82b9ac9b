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

TEST_F(Inventory, JobOfARemovedNodeIsStoppedAfterARestart) {
    tell(Kind::node_added, "a", 4);
    const JobId id = start(4);
    tell(Kind::node_removed, "a");
    restart();
    tick();
    EXPECT_THAT(engine.stops, ElementsAre(MemoryEngine::Attempt{id, 1}));
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

TEST_F(Inventory, NodeWhoseGpusAreReplacedKeepsItsJobs) {
    tell(Kind::node_added, "a", 4, "k80");
    const JobId old = start(2, "k80");
    tell(Kind::node_back, "a", 4, "h100");
    EXPECT_EQ(phase(old), Phase::running);
    EXPECT_THAT(nodes_of(start(4, "h100")), ElementsAre("a"));
    EXPECT_EQ(try_submit(job_with_gpus(5)).error().code, ErrorCode::no_space);
    end(old);
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
