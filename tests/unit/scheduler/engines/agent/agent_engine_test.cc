#include "scheduler/engines/agent/agent_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = EngineEvent::Kind;

class AgentEngineTest : public ::testing::Test {
protected:
    static EngineJob job(JobId id, std::uint32_t attempt = 1) {
        return {.job = id, .attempt = attempt, .command = {"true"}, .gpus = {{"n1", 1}}};
    }
    static EngineEvent event(Kind kind, JobId id, std::uint32_t attempt = 1) {
        return {.kind = kind, .queue = "q-1", .job = id, .attempt = attempt};
    }
    static AttemptName name(JobId id, const std::string& queue = "") {
        return {.queue = queue, .job = id, .attempt = 1};
    }
    static EngineEvent node(Kind kind, const std::string& name) { return {.kind = kind, .node = name}; }
    static std::vector<EngineEvent> all_nodes() { return {node(Kind::node_back, "n1"), node(Kind::node_back, "n2")}; }

    static EngineJob resized(JobId id, std::uint32_t resize) {
        EngineJob changed = job(id);
        changed.gpus.push_back({"n2", 1});
        changed.resize = resize;
        return changed;
    }
    static EngineEvent event_with_resize(Kind kind, JobId id, std::uint32_t resize) {
        EngineEvent told = event(kind, id);
        told.resize = resize;
        return told;
    }

    std::string attach(std::vector<EngineEvent> attempts = {}, bool resizes = false) {
        engine.recorded(0);
        const auto session =
            engine.attach({.agent = "a", .resizes = resizes, .nodes = all_nodes(), .attempts = std::move(attempts)});
        EXPECT_TRUE(session) << session.error().message;
        return *session;
    }
    std::vector<std::string> actions(const std::string& session, std::uint64_t after = 0) {
        std::vector<std::string> texts;
        const auto list = engine.actions(session, after);
        for (const AgentAction& action : *list) {
            texts.push_back(std::to_string(action.number) +
                            (action.is_resize ? " resize "
                             : action.job     ? " start "
                                              : " stop ") +
                            std::to_string(action.job ? action.job->job : action.stop_job));
        }
        return texts;
    }
    std::vector<std::pair<Kind, JobId>> events() {
        std::vector<std::pair<Kind, JobId>> found;
        for (const EngineEvent& one : engine.poll()) found.emplace_back(one.kind, one.job);
        return found;
    }

    AgentEngine engine{
        {.nodes = {"n1", "n2"}, .queue = "q-1", .instance = "x", .output_url = "https://logs/{job}/{attempt}"}};
};

TEST_F(AgentEngineTest, AgentAttachesOnlyOnceTheSchedulerHasResumed) {
    EXPECT_EQ(engine.attach({.agent = "a", .nodes = {}, .attempts = {}}).error().code, ErrorCode::unavailable);
    attach();
}

TEST_F(AgentEngineTest, AgentTellsHowItsClusterManagerDrainsNodes) {
    EXPECT_EQ(engine.drain_commands("n1").error().code, ErrorCode::unavailable);
    attach();
    EXPECT_EQ(engine.drain_commands("n1")->drain, "") << "Larder drains its nodes";
    ASSERT_TRUE(engine.attach({.agent = "a",
                               .drain_commands = {.drain = "cordon {node}", .undrain = "uncordon {node}"},
                               .nodes = all_nodes(),
                               .attempts = {}}));
    EXPECT_EQ(engine.drain_commands("n1")->drain, "cordon n1");
    EXPECT_EQ(engine.drain_commands("n1")->undrain, "uncordon n1");
}

TEST_F(AgentEngineTest, ActionsAreNumberedAndKeptUntilCarriedOut) {
    const std::string session = attach();
    engine.start(job(1));
    engine.start(job(2));
    engine.stop(1, 1);
    EXPECT_THAT(actions(session), ElementsAre("1 start 1", "2 start 2", "3 stop 1"));
    EXPECT_THAT(actions(session), SizeIs(3)) << "the answer may have been lost";
    EXPECT_THAT(actions(session, 2), ElementsAre("3 stop 1"));
    EXPECT_EQ(engine.actions(session, 4).error().code, ErrorCode::invalid_argument);
}

TEST_F(AgentEngineTest, NewSessionEndsTheOneBefore) {
    const std::string first = attach();
    const std::string second = attach();
    EXPECT_EQ(engine.actions(first, 0).error().code, ErrorCode::changed);
    EXPECT_EQ(engine.report(first, 1, {}).error().code, ErrorCode::changed);
    EXPECT_TRUE(engine.actions(second, 0));
    EXPECT_EQ(engine.actions("y-2", 0).error().code, ErrorCode::changed) << "a session of another process";
}

TEST_F(AgentEngineTest, ReportIsTakenOnceAndInOrder) {
    const std::string session = attach();
    engine.start(job(1));
    ASSERT_TRUE(engine.report(session, 1, {event(Kind::started, 1)}));
    ASSERT_TRUE(engine.report(session, 1, {event(Kind::started, 1)})) << "sent again";
    EXPECT_THAT(events(), ElementsAre(std::pair(Kind::started, JobId{1})));
    const auto gap = engine.report(session, 3, {});
    ASSERT_FALSE(gap);
    EXPECT_THAT(gap.error().message, HasSubstr("report 2 is missing"));
}

TEST_F(AgentEngineTest, EventsOfOtherAttemptsAreIgnored) {
    const std::string session = attach();
    engine.start(job(1, 2));
    ASSERT_TRUE(engine.report(session, 1, {event(Kind::lost, 1, 1), event(Kind::started, 7)}));
    EXPECT_THAT(events(), IsEmpty());
}

TEST_F(AgentEngineTest, StartsWithoutAnAgentWaitForOne) {
    engine.start(job(1));
    EXPECT_THAT(events(), ElementsAre(std::pair(Kind::pending, JobId{1})));
    EXPECT_EQ(engine.warning(), "no agent of the cluster manager is connected");
    const std::string session = attach();
    EXPECT_THAT(actions(session), ElementsAre("1 start 1"));
    EXPECT_EQ(engine.warning(), "");
}

TEST_F(AgentEngineTest, AttemptsOfAnAgentThatAttachesAreCompared) {
    engine.adopt(job(1));  // runs there, too
    engine.adopt(job(2));  // is gone
    engine.adopt(job(3));  // has ended in the meantime
    engine.start(job(4));  // had been started, which we did not hear
    engine.start(job(5));  // is not there yet
    engine.adopt(job(6));  // is to stop
    engine.stop(6, 1);
    engine.adopt(job(7));  // is to stop, and is gone
    engine.stop(7, 1);
    events();
    const std::string session =
        attach({event(Kind::started, 1),
                {.kind = Kind::ended, .queue = "q-1", .job = 3, .attempt = 1, .exit_code = 0},
                event(Kind::started, 4),
                event(Kind::started, 6),
                event(Kind::started, 99),
                {.kind = Kind::ended, .queue = "q-1", .job = 98, .attempt = 1, .exit_code = 0}});
    EXPECT_THAT(actions(session), ElementsAre("1 stop 6", "2 start 5"));
    EXPECT_THAT(events(), ElementsAre(std::pair(Kind::started, JobId{1}), std::pair(Kind::ended, JobId{3}),
                                      std::pair(Kind::started, JobId{4}), std::pair(Kind::started, JobId{6}),
                                      std::pair(Kind::lost, JobId{2}), std::pair(Kind::ended, JobId{7})));
    EXPECT_THAT(engine.list(), ElementsAre(name(1), name(4), name(6), name(99)));
    // Whatever has ended is wanted no more.
    EXPECT_THAT(actions(attach({event(Kind::started, 2)})), ElementsAre("1 start 5"));
    EXPECT_THAT(events(), ElementsAre(std::pair(Kind::lost, JobId{1}), std::pair(Kind::lost, JobId{4}),
                                      std::pair(Kind::ended, JobId{6})));
    EXPECT_THAT(engine.list(), ElementsAre(name(2)));
}

TEST_F(AgentEngineTest, EachSessionMakesTheListAnew) {
    EXPECT_EQ(engine.lists(), 0u);
    EXPECT_THAT(engine.list(), IsEmpty());
    engine.start(job(1));
    const std::string session = attach({event(Kind::started, 1), event(Kind::pending, 8), event(Kind::started, 9)});
    EXPECT_EQ(engine.lists(), 1u);
    EXPECT_THAT(engine.list(), ElementsAre(name(1), name(8), name(9)));
    ASSERT_TRUE(engine.report(session, 1, {event(Kind::started, 8), event(Kind::evicted, 9), event(Kind::lost, 1, 2)}));
    EXPECT_THAT(engine.list(), ElementsAre(name(1), name(8)));
    EXPECT_EQ(engine.lists(), 1u);
    attach({event(Kind::started, 9)});
    EXPECT_EQ(engine.lists(), 2u);
    EXPECT_THAT(engine.list(), ElementsAre(name(9)));
}

TEST_F(AgentEngineTest, OrphanIsStoppedInEachSessionInWhichItIsTold) {
    engine.stop_orphan(name(99));
    EXPECT_THAT(actions(attach({event(Kind::started, 99)})), IsEmpty()) << "the scheduler decides";
    engine.stop_orphan(name(99));
    engine.stop_orphan(name(98));
    std::string session = attach({event(Kind::started, 99)});
    EXPECT_THAT(actions(session), IsEmpty()) << "it was told in the session before";
    engine.stop_orphan(name(99));
    EXPECT_THAT(actions(session), ElementsAre("1 stop 99"));
    EXPECT_EQ(engine.actions(session, 0)->front().queue, "q-1");
    ASSERT_TRUE(engine.report(session, 1, {event(Kind::ended, 99)}));
    EXPECT_THAT(events(), IsEmpty());
    session = attach({});
    engine.stop_orphan(name(99));
    EXPECT_THAT(actions(session), IsEmpty()) << "the agent does not have it";
}

// A queue that was lost is made anew, and begins to number its jobs again.
TEST_F(AgentEngineTest, AttemptOfAnotherQueueIsStoppedAndNeverTakenForOurs) {
    engine.adopt(job(1));
    engine.start(job(2));
    events();
    EngineEvent first = event(Kind::started, 1);
    EngineEvent second = event(Kind::started, 2);
    first.queue = second.queue = "q-old";
    const std::string session = attach({first, second});
    EXPECT_THAT(engine.list(), ElementsAre(name(1, "q-old"), name(2, "q-old")));
    for (const AttemptName& orphan : engine.list()) engine.stop_orphan(orphan);
    const auto list = engine.actions(session, 0);
    ASSERT_THAT(*list, SizeIs(3));
    EXPECT_TRUE((*list)[0].job) << "job 2 is not there yet";
    EXPECT_EQ((*list)[0].queue, "q-1");
    for (const int i : {1, 2}) {
        EXPECT_FALSE((*list)[i].job);
        EXPECT_EQ((*list)[i].queue, "q-old");
    }
    EXPECT_THAT(events(), ElementsAre(std::pair(Kind::lost, JobId{1}))) << "ours is gone";
    first.kind = second.kind = Kind::lost;
    ASSERT_TRUE(engine.report(session, 1, {first, second}));
    EXPECT_THAT(events(), IsEmpty());
}

TEST_F(AgentEngineTest, AttemptThatIsStoppedBeforeItsStartHasEnded) {
    const std::string session = attach();
    engine.adopt(job(1));
    engine.stop(1, 1);
    const auto ends = engine.poll();
    ASSERT_THAT(ends, SizeIs(1));
    EXPECT_EQ(ends[0].kind, Kind::ended);
    EXPECT_TRUE(ends[0].was_stopping);
    EXPECT_THAT(actions(session), IsEmpty()) << "no agent knows it";
}

TEST_F(AgentEngineTest, ClosedNodeRejectsAttempts) {
    const std::string session = attach();
    ASSERT_TRUE(engine.report(session, 1, {node(Kind::node_drained, "n1")}));
    engine.poll();
    engine.start(job(1));
    const auto rejected = engine.poll();
    ASSERT_THAT(rejected, SizeIs(1));
    EXPECT_EQ(rejected[0].kind, Kind::rejected);
    EXPECT_EQ(rejected[0].message, "node n1 takes no jobs");
    EXPECT_FALSE(rejected[0].for_good);
    EXPECT_THAT(actions(session), IsEmpty());
}

TEST_F(AgentEngineTest, StartsWaitForNoAgentWhoseNodeIsClosed) {
    engine.start(job(1));
    engine.poll();
    engine.recorded(0);
    const auto session = engine.attach({.agent = "a", .nodes = {node(Kind::node_drained, "n1")}, .attempts = {}});
    EXPECT_THAT(actions(*session), IsEmpty());
    const auto seen = events();
    EXPECT_THAT(seen.back(), std::pair(Kind::rejected, JobId{1}));
}

TEST_F(AgentEngineTest, AnswerHasALimitedNumberOfActions) {
    const std::string session = attach();
    for (JobId id = 1; id <= 150; ++id) engine.start(job(id));
    EXPECT_THAT(actions(session), SizeIs(100));
    EXPECT_THAT(actions(session, 100), SizeIs(50));
}

TEST_F(AgentEngineTest, NodesAreComparedWithThoseKnown) {
    engine.recorded(0);
    ASSERT_TRUE(engine.attach(
        {.agent = "a", .nodes = {node(Kind::node_drained, "n1"), node(Kind::node_back, "n9")}, .attempts = {}}));
    const auto first = engine.poll();
    ASSERT_THAT(first, SizeIs(2));
    EXPECT_EQ(first[0].kind, Kind::node_drained);
    EXPECT_EQ(first[1].kind, Kind::node_lost) << "n2 is not in the list";
    EXPECT_EQ(first[1].node, "n2");
    EXPECT_EQ(engine.warning(), "the cluster manager has nodes that scheduler.node lacks: n9");
    attach();
    const auto second = engine.poll();
    ASSERT_THAT(second, SizeIs(2));
    EXPECT_EQ(second[0].kind, Kind::node_back);
    attach();
    EXPECT_THAT(engine.poll(), IsEmpty()) << "nothing has changed";
}

TEST_F(AgentEngineTest, ReportCountsAsRecordedOnceItsEventsAre) {
    const std::string session = attach();
    engine.start(job(1));
    ASSERT_TRUE(engine.report(session, 1, {event(Kind::started, 1)}));
    const std::uint64_t taken = engine.taken();
    EXPECT_FALSE(engine.is_recorded(taken));
    engine.poll();
    engine.recorded(taken - 1);
    EXPECT_FALSE(engine.is_recorded(taken));
    engine.recorded(taken);
    EXPECT_TRUE(engine.is_recorded(taken));
}

TEST_F(AgentEngineTest, OutputIsAtItsUrl) {
    EXPECT_EQ(engine.output_of(7, 2), "https://logs/7/2");
    EXPECT_EQ(engine.output_of(7, 0), "");
    EXPECT_EQ(AgentEngine({.queue = "q-1", .instance = "x"}).output_of(7, 2), "");
}

// The nodes are the agent's.
class AgentNodesTest : public AgentEngineTest {
protected:
    static EngineEvent sized(Kind kind, const std::string& name, std::uint32_t gpus) {
        return {.kind = kind, .node = name, .inventory = NodeInventory{.gpus = gpus, .gpu_type = "a", .labels = {}}};
    }
    void attach_with(std::vector<EngineEvent> nodes, std::vector<EngineEvent> attempts = {}) {
        open.recorded(0);
        const auto attached = open.attach({.agent = "a", .nodes = std::move(nodes), .attempts = std::move(attempts)});
        ASSERT_TRUE(attached) << attached.error().message;
        session = *attached;
    }
    // For example "back n1 4"; without a number if the GPUs have not changed.
    std::vector<std::string> node_events() {
        std::vector<std::string> texts;
        for (const EngineEvent& one : open.poll()) {
            if (one.node.empty()) continue;
            std::string text = one.kind == Kind::node_back      ? "back "
                               : one.kind == Kind::node_drained ? "drained "
                               : one.kind == Kind::node_lost    ? "lost "
                                                                : "removed ";
            text += one.node;
            if (one.inventory) text += " " + std::to_string(one.inventory->gpus);
            texts.push_back(text);
        }
        return texts;
    }
    std::vector<std::string> stops() {
        std::vector<std::string> texts;
        const auto list = open.actions(session, 0);
        for (const AgentAction& action : *list) {
            if (!action.job) texts.push_back(std::to_string(action.stop_job));
        }
        return texts;
    }

    AgentEngine open{{.nodes = {"n1", "n2"}, .agent_has_nodes = true, .queue = "q-1", .instance = "x"}};
    std::string session;
};

TEST_F(AgentNodesTest, AttachIsComparedWithTheNodesLastKnown) {
    attach_with({sized(Kind::node_back, "n1", 4), sized(Kind::node_drained, "n3", 8)});
    EXPECT_THAT(node_events(), ElementsAre("back n1 4", "drained n3 8", "lost n2"));
    attach_with({sized(Kind::node_back, "n1", 6), sized(Kind::node_drained, "n3", 8)});
    EXPECT_THAT(node_events(), ElementsAre("back n1 6", "removed n2")) << "left out for the second time";
    EXPECT_EQ(open.warning(), "");
}

TEST_F(AgentNodesTest, AttachWithoutANumberOfGpusIsRefusedAndNamesTheNode) {
    open.recorded(0);
    const auto refused = open.attach(
        {.agent = "a", .nodes = {sized(Kind::node_back, "n1", 4), node(Kind::node_back, "n2")}, .attempts = {}});
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("nodes[1]: gpus is missing"));
    EXPECT_FALSE(open.is_connected());
}

TEST_F(AgentNodesTest, NodesComeGoAndChange) {
    attach_with({sized(Kind::node_back, "n1", 4)});
    node_events();
    ASSERT_TRUE(open.report(
        session, 1,
        {sized(Kind::node_added, "n2", 2), node(Kind::node_drained, "n2"), sized(Kind::node_resized, "n2", 8),
         node(Kind::node_back, "n9"), node(Kind::node_removed, "n1"), node(Kind::node_removed, "n1")}));
    EXPECT_THAT(node_events(), ElementsAre("back n2 2", "drained n2", "drained n2 8", "removed n1"));
}

// The scheduler stops the attempts of a removed node, once that is on record.
TEST_F(AgentNodesTest, RemovedNodeTakesNoAttemptAndStopsNone) {
    attach_with({sized(Kind::node_back, "n1", 4), sized(Kind::node_back, "n2", 4)});
    open.start(job(1));
    ASSERT_TRUE(open.report(session, 1, {event(Kind::started, 1), node(Kind::node_removed, "n1")}));
    EXPECT_THAT(stops(), IsEmpty());
    open.start(job(3));
    EXPECT_EQ(open.poll().back().kind, Kind::rejected) << "the node is gone";
    open.stop(1, 1);
    EXPECT_THAT(stops(), ElementsAre("1"));
}

TEST_F(AgentNodesTest, NodesThatAreLeftOutKeepTheirAttempts) {
    attach_with({sized(Kind::node_back, "n1", 4), sized(Kind::node_back, "n2", 4)});
    open.start(job(1));
    ASSERT_TRUE(open.report(session, 1, {event(Kind::started, 1)}));
    node_events();
    attach_with({}, {event(Kind::started, 1)});
    EXPECT_THAT(node_events(), ElementsAre("lost n1", "lost n2"));
    EXPECT_THAT(stops(), IsEmpty());
    attach_with({}, {event(Kind::started, 1)});
    EXPECT_THAT(node_events(), ElementsAre("removed n2")) << "an attempt has GPUs of n1";
    EXPECT_THAT(stops(), IsEmpty());
    attach_with({sized(Kind::node_back, "n1", 4)}, {event(Kind::started, 1)});
    EXPECT_THAT(node_events(), ElementsAre("back n1"));
}

TEST_F(AgentNodesTest, TooManyNodesOrTypesAreRefused) {
    attach_with({sized(Kind::node_back, "n1", 4), sized(Kind::node_back, "n2", 4)});
    std::vector<EngineEvent> many;
    for (std::size_t i = 0; i < AgentEngine::kNodesMax; ++i) {
        many.push_back(sized(Kind::node_added, "m" + std::to_string(i), 0));
    }
    ASSERT_TRUE(open.report(session, 1, many)) << "nodes without GPUs do not count";
    node_events();
    for (EngineEvent& one : many) one.inventory->gpus = 1;
    EXPECT_EQ(open.report(session, 2, many).error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(node_events(), IsEmpty());
    std::vector<EngineEvent> types;
    for (std::size_t i = 0; i < AgentEngine::kGpuTypesMax; ++i) {
        types.push_back(sized(Kind::node_resized, "n1", 1));
        types.back().inventory->gpu_type = "type-" + std::to_string(i);
    }
    const auto refused = open.report(session, 2, types);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("more than 64 types of GPUs"));
    types.pop_back();
    EXPECT_TRUE(open.report(session, 2, types)) << "a refused report counts as not sent";
}

TEST_F(AgentEngineTest, ConfiguredNodesKeepTheirGpus) {
    const std::string session = attach();
    engine.poll();
    EngineEvent resized{.kind = Kind::node_resized, .node = "n1", .inventory = NodeInventory{.gpus = 1}};
    EngineEvent added{.kind = Kind::node_added, .node = "n9", .inventory = NodeInventory{.gpus = 1}};
    ASSERT_TRUE(engine.report(session, 1, {resized, added, node(Kind::node_removed, "n2")}));
    const auto events = engine.poll();
    ASSERT_THAT(events, SizeIs(1));
    EXPECT_EQ(events[0].kind, Kind::node_lost);
    EXPECT_EQ(events[0].node, "n2");
}

TEST_F(AgentEngineTest, ResizesOnlyWithAnAgentThatTakesThem) {
    EXPECT_EQ(engine.can_resize(), std::nullopt);
    attach();
    EXPECT_EQ(engine.can_resize(), false);
    engine.start(job(1));
    std::string session = attach({event(Kind::started, 1)}, true);
    EXPECT_EQ(engine.can_resize(), true);
    events();
    engine.resize(resized(1, 1));
    EXPECT_THAT(actions(session), ElementsAre("1 resize 1"));
    ASSERT_TRUE(engine.report(session, 1, {event_with_resize(Kind::resized, 1, 1)}));
    EXPECT_THAT(events(), ElementsAre(std::pair(Kind::resized, JobId{1})));
    session = attach({event_with_resize(Kind::started, 1, 1)});
    EXPECT_EQ(engine.can_resize(), false);
    events();
    engine.resize(resized(1, 2));
    EXPECT_THAT(actions(session), IsEmpty());
    EXPECT_THAT(events(), ElementsAre(std::pair(Kind::resize_refused, JobId{1})));
}

TEST_F(AgentEngineTest, ResizeIsRepeatedUntilTheAgentHasCarriedItOut) {
    engine.adopt(resized(1, 2));
    engine.resize(resized(1, 2));
    for (const std::uint32_t done : {0U, 1U}) {
        const std::string session = attach({event_with_resize(Kind::started, 1, done)}, true);
        EXPECT_THAT(actions(session), ElementsAre("1 resize 1"));
        EXPECT_EQ(engine.actions(session, 0)->front().job->resize, 2U);
    }
    for (const Kind kind : {Kind::started, Kind::resized}) {
        const std::string session = attach({event_with_resize(kind, 1, 2)}, true);
        EXPECT_THAT(actions(session), IsEmpty());
        const std::vector<EngineEvent> told = engine.poll();
        EXPECT_EQ(told.back().resize, 2U) << "the scheduler may not know yet";
    }
}

TEST_F(AgentEngineTest, ResizeIsRepeatedToAnAgentThatRefusedAnEarlierOne) {
    engine.adopt(resized(1, 2));
    engine.resize(resized(1, 2));
    EXPECT_THAT(actions(attach({event_with_resize(Kind::resize_refused, 1, 1)}, true)), ElementsAre("1 resize 1"));
    EXPECT_THAT(actions(attach({event_with_resize(Kind::resize_refused, 1, 2)}, true)), IsEmpty());
}

TEST_F(AgentEngineTest, NumbersOfResizesThatNeverWereAreRefused) {
    engine.adopt(job(1));
    engine.recorded(0);
    for (const bool resizes : {false, true}) {
        const auto refused = engine.attach(
            {.agent = "k8s", .resizes = resizes, .nodes = {}, .attempts = {event_with_resize(Kind::started, 1, 5)}});
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
        EXPECT_EQ(refused.error().message, "attempts[0]: there is no resize 5 of this attempt");
    }
    EXPECT_THAT(engine.poll(), IsEmpty());
}

TEST_F(AgentEngineTest, StopTakesThePlaceOfAResize) {
    engine.adopt(resized(1, 1));
    engine.stop(1, 1);
    EXPECT_THAT(actions(attach({event(Kind::started, 1)}, true)), ElementsAre("1 stop 1"));
}

TEST_F(AgentEngineTest, ResizeOfAnUnknownAttemptIsIgnored) {
    const std::string session = attach({}, true);
    engine.resize(resized(1, 1));
    EXPECT_THAT(actions(session), IsEmpty());
}

}  // namespace
}  // namespace larder::scheduler
