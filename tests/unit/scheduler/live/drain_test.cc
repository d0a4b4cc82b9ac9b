// Nodes that an operator drains: they take no further job, over restarts and whatever the engine tells of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/scheduler/live/live_fixture.h"

namespace larder::scheduler {
namespace {

using ::testing::HasSubstr;
using Kind = EngineEvent::Kind;

class Drain : public Live {
protected:
    Result<void> drain(const std::string& node) {
        const auto answer = std::make_shared<Result<void>>(fail(ErrorCode::cancelled, "no answer yet"));
        live->drain(node, "ops", now(), [answer](const Result<void>& done) { *answer = done; });
        return *answer;
    }
    Result<void> undrain(const std::string& node) {
        const auto answer = std::make_shared<Result<void>>(fail(ErrorCode::cancelled, "no answer yet"));
        live->undrain(node, "ops", [answer](const Result<void>& done) { *answer = done; });
        return *answer;
    }
    std::string node_of(JobId id) const { return job(id).held->gpus.at(0).node; }
    std::string other_than(const std::string& node) const { return node == "n1" ? "n2" : "n1"; }
};

TEST_F(Drain, DrainedNodeKeepsItsJobsAndGetsNoOthersUntilItIsTakenBack) {
    const JobId first = submit_and_start(job_with_gpus(4, "first"));
    const std::string drained = node_of(first);
    ASSERT_TRUE(drain(drained));
    tick();
    EXPECT_EQ(phase(first), Phase::running);
    const JobId second = submit_and_start(job_with_gpus(4, "second"));
    EXPECT_EQ(node_of(second), other_than(drained));
    const JobId waits = submit(job_with_gpus(4, "waits"));
    engine.tell_ended({first, 1}, 0);
    tick();
    tick(20);
    EXPECT_EQ(phase(waits), Phase::waiting);
    EXPECT_THAT(why(waits), HasSubstr("0 GPUs of 8 are free, 4 are on 1 drained node (" + drained + ")"));
    EXPECT_EQ(binding(waits), "gpus");
    ASSERT_TRUE(undrain(drained));
    tick();
    EXPECT_EQ(phase(waits), Phase::starting);
    EXPECT_EQ(node_of(waits), drained);
}

TEST_F(Drain, EveryPolicyLeavesDrainedNodesAlone) {
    for (const std::string_view name : policy_names()) {
        policy = name;
        record = {};
        engine.started.clear();
        restart();
        report("", 0);
        ASSERT_TRUE(drain("n1"));
        std::vector<JobId> jobs;
        for (int i = 0; i < 3; ++i) jobs.push_back(submit(job_with_gpus(4)));
        for (int i = 0; i < 20; ++i) tick(10);
        ASSERT_FALSE(engine.started.empty()) << name;
        for (const auto& [attempt, started] : engine.started) EXPECT_EQ(started.gpus.at(0).node, "n2") << name;
    }
}

TEST_F(Drain, DrainIsAnsweredOnceItIsOnRecordAndOutlivesARestart) {
    disk_is_slow = true;
    EXPECT_EQ(drain("n1").error().code, ErrorCode::cancelled) << "not on record yet";
    EXPECT_FALSE(record.drains.contains("n1"));
    write_all();
    disk_is_slow = false;
    ASSERT_TRUE(record.drains.at("n1"));
    EXPECT_EQ(record.drains.at("n1")->by, "ops");
    EXPECT_EQ(record.drains.at("n1")->since_s, now_s);
    restart();
    EXPECT_TRUE(live->drains().contains("n1"));
    EXPECT_EQ(node_of(submit_and_start(job_with_gpus(4))), "n2");
    const JobId waits = submit(job_with_gpus(4));
    tick();
    EXPECT_EQ(phase(waits), Phase::waiting);
    ASSERT_TRUE(undrain("n1"));
    restart();
    tick();
    EXPECT_EQ(phase(waits), Phase::starting);
}

TEST_F(Drain, RunningJobOfADrainedNodeOutlivesARestart) {
    const JobId id = submit_and_start(job_with_gpus(4));
    ASSERT_TRUE(drain(node_of(id)));
    restart();
    tick();
    EXPECT_EQ(phase(id), Phase::running);
    EXPECT_TRUE(engine.stops.empty());
}

TEST_F(Drain, DrainThatCannotBeSavedIsSavedLater) {
    saving_fails = true;
    EXPECT_EQ(drain("n1").error().code, ErrorCode::unavailable);
    EXPECT_FALSE(live->all_saved());
    saving_fails = false;
    tick();
    EXPECT_TRUE(live->all_saved());
    EXPECT_TRUE(record.drains.at("n1"));
}

TEST_F(Drain, NodeThatIsBackStaysDrained) {
    ASSERT_TRUE(drain("n1"));
    engine.tell_node(Kind::node_lost, "n1");
    tick();
    engine.tell_node(Kind::node_back, "n1");
    tick();
    EXPECT_EQ(node_of(submit_and_start(job_with_gpus(1))), "n2");
    EXPECT_FALSE(live->options().cluster.nodes[0].usable);
    engine.tell_node(Kind::node_drained, "n1");
    tick();
    ASSERT_TRUE(undrain("n1"));
    EXPECT_FALSE(live->options().cluster.nodes[0].usable) << "the engine keeps jobs off it";
    engine.tell_node(Kind::node_back, "n1");
    tick();
    EXPECT_TRUE(live->options().cluster.nodes[0].usable);
}

TEST_F(Drain, JobThatWaitsForGpusOfADrainedNodeGivesThemUp) {
    use_shortest_first();
    Submission slow = job_reading_images("slow", 1000);
    slow.gpus = 4;
    const JobId first = submit_and_start(slow);
    slow.name = "also-slow";
    const JobId second = submit_and_start(slow);
    const JobId quick = submit(job_reading_images("quick", 1));
    tick();
    ASSERT_EQ(phase(quick), Phase::placed);
    ASSERT_TRUE(drain("n1"));
    tick();
    EXPECT_EQ(phase(quick), Phase::waiting);
    EXPECT_TRUE(std::ranges::any_of(job(quick).log, [](const LogEntry& entry) {
        return entry.text.find("node n1 was drained by ops") != std::string::npos;
    }));
    EXPECT_TRUE(is_with_engine(phase(first)) && is_with_engine(phase(second)));
}

TEST_F(Drain, ClusterManagerThatDrainsNodesItselfIsNamed) {
    engine.drains_itself = true;
    const auto refused = drain("n1");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
    EXPECT_THAT(refused.error().message, HasSubstr("drain n1"));
    EXPECT_EQ(undrain("n1").error().code, ErrorCode::unsupported);
    EXPECT_THAT(undrain("n1").error().message, HasSubstr("undrain n1"));
    EXPECT_TRUE(live->drains().empty());
    // A drain of the time before such an agent came can be taken back.
    engine.drains_itself = false;
    ASSERT_TRUE(drain("n1"));
    engine.drains_itself = true;
    EXPECT_TRUE(undrain("n1"));
}

TEST_F(Drain, UnknownNodeIsNotDrained) {
    EXPECT_EQ(drain("n9").error().code, ErrorCode::not_found);
    EXPECT_EQ(undrain("n9").error().code, ErrorCode::not_found);
    EXPECT_EQ(undrain("n1").error().code, ErrorCode::not_found);
    EXPECT_THAT(undrain("n1").error().message, HasSubstr("\"n1\" is not drained"));
    ASSERT_TRUE(drain("n1"));
    EXPECT_TRUE(drain("n1")) << "it is drained already";
}

TEST_F(Drain, NoStartIsPromisedForGpusOfADrainedNode) {
    report("", 0);
    Submission reading = job_reading_images("reading", 1);
    reading.gpus = 4;
    const JobId runs = submit_and_start(reading);
    for (int i = 0; i < 2; ++i) report("reading", 0);
    submit_and_start(job_with_gpus(4, "endless"));
    const JobId waits = submit(job_with_gpus(4, "waits"));
    tick();
    ASSERT_TRUE(live->why(job(waits), now()).starts_unix_s);
    ASSERT_TRUE(drain(node_of(runs)));
    tick();
    EXPECT_EQ(live->why(job(waits), now()).starts_unix_s, std::nullopt);
}

TEST_F(Drain, NodeOfTheClusterManagerStaysDrainedWhateverComesAndGoes) {
    gpus = {.gpu_types = {"gpu"}, .nodes = {}, .is_open = true};
    restart();
    const auto tell = [this](Kind kind, const std::string& node, std::uint32_t count, const std::string& type) {
        engine.tell(EngineEvent{
            .kind = kind, .node = node, .inventory = NodeInventory{.gpus = count, .gpu_type = type, .labels = {}}});
        tick();
    };
    EXPECT_EQ(drain("a").error().code, ErrorCode::not_found);
    tell(Kind::node_added, "a", 4, "gpu");
    tell(Kind::node_added, "b", 2, "gpu");
    ASSERT_TRUE(drain("a"));
    EXPECT_EQ(node_of(submit_and_start(job_with_gpus(1))), "b");
    tell(Kind::node_resized, "a", 8, "gpu");
    tell(Kind::node_resized, "a", 8, "newer");
    restart();
    const JobId waits = submit(job_with_gpus(4));
    tick();
    EXPECT_EQ(phase(waits), Phase::waiting);
    EXPECT_THAT(why(waits), HasSubstr("8 are on 1 drained node (a)"));
    engine.tell_node(Kind::node_removed, "a");
    tick();
    tell(Kind::node_added, "a", 4, "gpu");
    EXPECT_EQ(phase(waits), Phase::waiting) << "the operator has not taken it back";
    ASSERT_TRUE(undrain("a"));
    tick();
    EXPECT_EQ(phase(waits), Phase::starting);
}

}  // namespace
}  // namespace larder::scheduler
