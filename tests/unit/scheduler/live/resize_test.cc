// Running attempts of elastic jobs get other nodes without a restart. The node that a job begins on is `first`, the
// other one is `other`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/unit/scheduler/live/live_fixture.h"

namespace larder::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Wants each job with the number of GPUs that the test names for it, the first jobs first.
class WantsGpus final : public Policy {
public:
    explicit WantsGpus(const std::map<std::string, std::uint32_t>& gpus) : gpus_(gpus) {}
    std::string_view name() const override { return "wants-gpus"; }
    bool preempts() const override { return true; }
    bool sizes_jobs() const override { return true; }
    Result<Decision> decide(const Snapshot& snapshot) override {
        Decision decision;
        for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) {
            const auto wanted = gpus_.find(snapshot.jobs[j]->spec->name);
            if (wanted != gpus_.end()) decision.wants.push_back({.job = j, .gpus = wanted->second});
        }
        return decision;
    }

private:
    const std::map<std::string, std::uint32_t>& gpus_;
};

class Resize : public Live {
protected:
    using Kind = EngineEvent::Kind;
    using Attempt = MemoryEngine::Attempt;

    void SetUp() override {
        own_policy = [this] { return std::make_unique<WantsGpus>(wanted); };
        engine.resizes_attempts = true;
        Live::SetUp();
    }
    static Submission elastic(const std::string& name) {
        Submission asked = job_with_gpus(4, name);
        asked.gpus_max = 8;
        asked.elastic = true;
        return asked;
    }
    // Starts a job with the GPUs of one node.
    JobId start_job() {
        wanted["train"] = 4;
        const JobId id = submit_and_start(elastic("train"));
        first = job(id).held->gpus.front().node;
        other = first == "n1" ? "n2" : "n1";
        return id;
    }
    void want(std::uint32_t count) {
        wanted["train"] = count;
        tick(20);
    }
    void answer(Kind kind, JobId id, std::uint32_t resize) {
        engine.tell_resize(kind, {id, 1}, resize);
        tick();
    }
    std::vector<NamedGpus> one_node() const { return {{first, 0xf}}; }
    std::vector<NamedGpus> both_nodes() const { return {{first, 0xf}, {other, 0xf}}; }
    // Starts a job that wants the other node, as far as it is free.
    JobId submit_second(const std::string& name = "second") {
        wanted[name] = 4;
        const JobId id = submit(job_with_gpus(4, name));
        tick(20);
        return id;
    }

    std::map<std::string, std::uint32_t> wanted;
    std::string first;
    std::string other;
};

TEST_F(Resize, GrowsAndShrinksInOneAttempt) {
    const JobId id = start_job();
    want(8);
    ASSERT_THAT(engine.resizes, SizeIs(1));
    EXPECT_EQ(engine.resizes[0].gpus, both_nodes());
    EXPECT_EQ(engine.resizes[0].resize, 1U);
    EXPECT_EQ(engine.resizes[0].environment.at("LARDER_NODES"), first + "," + other);
    EXPECT_EQ(engine.resizes[0].environment.at("LARDER_GPUS"), "8");
    EXPECT_EQ(job(id).held->gpus, one_node()) << "until the engine has resized it";
    EXPECT_THAT(why(id), HasSubstr("is to have 8 GPUs"));
    answer(Kind::resized, id, 1);
    EXPECT_EQ(job(id).held->gpus, both_nodes());
    EXPECT_FALSE(job(id).next);
    want(4);
    ASSERT_THAT(engine.resizes, SizeIs(2));
    EXPECT_EQ(engine.resizes[1].gpus, one_node()) << "the first node stays";
    answer(Kind::resized, id, 2);
    EXPECT_EQ(job(id).held->gpus, one_node());
    EXPECT_EQ(phase(id), Phase::running);
    EXPECT_EQ(job(id).attempt, 1U);
    EXPECT_EQ(job(id).state.preemptions, 0U);
    EXPECT_EQ(live->queue().counts().resizes, 2U);
    EXPECT_THAT(engine.stops, IsEmpty());
}

TEST_F(Resize, PodsComeAndGoWithTheirNodes) {
    wanted["train"] = 4;
    Submission asked = elastic("train");
    asked.shape.pods = {2, 2};
    const JobId id = submit_and_start(asked);
    EXPECT_EQ(engine.started.at({id, 1}).environment.at("LARDER_PODS"), "2,2");
    want(8);
    ASSERT_THAT(engine.resizes, SizeIs(1));
    EXPECT_EQ(engine.resizes[0].environment.at("LARDER_PODS"), "2,2,2,2");
    answer(Kind::resized, id, 1);
    want(4);
    ASSERT_THAT(engine.resizes, SizeIs(2));
    EXPECT_THAT(engine.resizes[1].gpus, SizeIs(1));
}

TEST_F(Resize, RestartsIfTheEngineCannot) {
    engine.resizes_attempts = false;
    const JobId id = start_job();
    want(8);
    EXPECT_THAT(engine.resizes, IsEmpty());
    EXPECT_THAT(engine.stops, ElementsAre(Attempt{id, 1}));
}

TEST_F(Resize, RestartsAJobThatIsNotElastic) {
    wanted["train"] = 4;
    Submission rigid = elastic("train");
    rigid.elastic = false;
    const JobId id = submit_and_start(rigid);
    want(8);
    EXPECT_THAT(engine.resizes, IsEmpty());
    EXPECT_THAT(engine.stops, ElementsAre(Attempt{id, 1}));
}

TEST_F(Resize, RestartsIfATaskWouldGetOtherGpus) {
    wanted["train"] = 4;
    Submission asked = elastic("train");
    asked.gpus_min = 2;
    const JobId id = submit_and_start(asked);
    want(2);
    EXPECT_THAT(engine.resizes, IsEmpty());
    EXPECT_THAT(engine.stops, ElementsAre(Attempt{id, 1}));
}

TEST_F(Resize, OthersBeginOnGpusGivenUpOnceTheResizeIsDone) {
    const JobId id = start_job();
    want(8);
    answer(Kind::resized, id, 1);
    wanted["train"] = 4;
    const JobId second = submit_second();
    EXPECT_EQ(phase(second), Phase::placed);
    EXPECT_EQ(job(second).held->gpus.front().node, other);
    tick(20);
    EXPECT_EQ(phase(second), Phase::placed) << "the task is still there";
    answer(Kind::resized, id, 2);
    EXPECT_EQ(phase(second), Phase::starting);
}

TEST_F(Resize, GrowthWaitsForGpusThatOthersLeave) {
    const JobId id = start_job();
    const JobId second = submit_second();
    engine.tell(Kind::started, {second, 1});
    tick();
    wanted.erase("second");
    want(8);
    ASSERT_EQ(phase(second), Phase::stopping);
    EXPECT_TRUE(job(id).next);
    EXPECT_THAT(engine.resizes, IsEmpty());
    EXPECT_THAT(why(id), HasSubstr("once the jobs that have these GPUs have given them up"));
    restart();
    EXPECT_THAT(engine.resizes, IsEmpty());
    engine.tell_ended({second, 1}, 0, true);
    tick();
    ASSERT_THAT(engine.resizes, SizeIs(1));
    EXPECT_EQ(engine.resizes[0].gpus, both_nodes());
}

TEST_F(Resize, GrowthThatHasNotBegunIsGivenUpWithoutAResize) {
    const JobId id = start_job();
    const JobId second = submit_second();
    engine.tell(Kind::started, {second, 1});
    tick();
    wanted.erase("second");
    want(8);
    want(4);
    EXPECT_FALSE(job(id).next);
    EXPECT_EQ(job(id).held->gpus, one_node());
    engine.tell_ended({second, 1}, 0, true);
    tick();
    EXPECT_THAT(engine.resizes, IsEmpty());
    EXPECT_THAT(engine.stops, ElementsAre(Attempt{second, 1}));
}

TEST_F(Resize, RefusedShrinkIsFollowedByARestart) {
    const JobId id = start_job();
    want(8);
    answer(Kind::resized, id, 1);
    want(4);
    answer(Kind::resize_refused, id, 2);
    EXPECT_EQ(phase(id), Phase::stopping);
    EXPECT_EQ(job(id).held->gpus, both_nodes()) << "the task may still be there";
    engine.tell_ended({id, 1}, 0, true);
    tick();
    EXPECT_THAT(engine.starts.back(), (Attempt{id, 2}));
    EXPECT_EQ(engine.started.at({id, 2}).gpus, one_node());
    EXPECT_EQ(job(id).resizes, 0U);
}

TEST_F(Resize, RefusedGrowthIsTakenBackAndTriedAgainLater) {
    const JobId id = start_job();
    want(8);
    answer(Kind::resize_refused, id, 1);
    EXPECT_EQ(phase(id), Phase::running);
    ASSERT_THAT(engine.resizes, SizeIs(2));
    EXPECT_EQ(engine.resizes[1].gpus, one_node()) << "a task may have begun on the other node";
    engine.tell_resize(Kind::resized, {id, 1}, 2);
    tick(0.5);
    EXPECT_EQ(job(id).held->gpus, one_node());
    EXPECT_THAT(engine.resizes, SizeIs(2));
    restart();
    tick(0.1);
    EXPECT_THAT(engine.resizes, SizeIs(2));
    tick(0.5);
    ASSERT_THAT(engine.resizes, SizeIs(3));
    EXPECT_EQ(engine.resizes[2].gpus, both_nodes());
    answer(Kind::resize_refused, id, 3);
    engine.tell_resize(Kind::resized, {id, 1}, 4);
    tick(1.5);
    EXPECT_THAT(engine.resizes, SizeIs(4)) << "the second time, it waits longer";
    tick(1);
    EXPECT_THAT(engine.resizes, SizeIs(5));
    EXPECT_THAT(engine.stops, IsEmpty());
}

TEST_F(Resize, RefusalOfGrowthAlreadyTakenBackIsIgnored) {
    const JobId id = start_job();
    want(8);
    engine.tell_resize(Kind::resize_refused, {id, 1}, 1);
    engine.tell_resize(Kind::resize_refused, {id, 1}, 1);
    tick();
    EXPECT_EQ(phase(id), Phase::running);
    EXPECT_THAT(engine.resizes, SizeIs(2));
}

TEST_F(Resize, LateAnswersToEarlierResizesAreIgnored) {
    const JobId id = start_job();
    want(8);
    want(4);
    ASSERT_THAT(engine.resizes, SizeIs(2));
    EXPECT_EQ(engine.resizes[1].gpus, one_node());
    answer(Kind::resized, id, 1);
    EXPECT_TRUE(job(id).next);
    answer(Kind::resize_refused, id, 1);
    EXPECT_EQ(phase(id), Phase::running);
    const JobId second = submit_second();
    EXPECT_EQ(phase(second), Phase::placed) << "a task may have begun on the other node";
    answer(Kind::resized, id, 2);
    EXPECT_EQ(job(id).held->gpus, one_node());
    EXPECT_EQ(phase(second), Phase::starting);
}

TEST_F(Resize, DevicesToldBeforeTheLastResizeAreIgnored) {
    const JobId id = start_job();
    want(8);
    const std::vector<GrantedDevices> all{{first, {"0"}}, {other, {"1"}}};
    engine.tell({.kind = Kind::resized, .job = id, .attempt = 1, .devices = all, .resize = 1});
    engine.tell({.kind = Kind::started, .job = id, .attempt = 1, .devices = {{first, {"0"}}}});
    tick();
    EXPECT_EQ(job(id).devices, all);
}

TEST_F(Resize, RestartedSchedulerRepeatsIt) {
    const JobId id = start_job();
    want(8);
    engine.resizes.clear();
    restart();
    ASSERT_THAT(engine.resizes, SizeIs(1));
    EXPECT_EQ(engine.resizes[0].resize, 1U);
    EXPECT_EQ(engine.resizes[0].gpus, both_nodes());
    EXPECT_EQ(job(id).held->gpus, one_node());
    tick(20);
    EXPECT_THAT(engine.resizes, SizeIs(1)) << "once a process";
    answer(Kind::resized, id, 1);
    restart();
    EXPECT_EQ(job(id).held->gpus, both_nodes());
    EXPECT_EQ(job(id).resizes, 1U);
    EXPECT_THAT(engine.resizes, SizeIs(1));
}

TEST_F(Resize, GpusGivenUpStayTakenOverARestart) {
    const JobId id = start_job();
    want(8);
    answer(Kind::resized, id, 1);
    wanted["train"] = 4;
    const JobId second = submit_second();
    restart();
    tick(20);
    EXPECT_EQ(phase(second), Phase::placed);
    answer(Kind::resized, id, 2);
    EXPECT_EQ(phase(second), Phase::starting);
}

TEST_F(Resize, CancelledJobKeepsAllNodesUntilItsEnd) {
    const JobId id = start_job();
    want(8);
    ASSERT_TRUE(cancel(id, "the test"));
    EXPECT_THAT(engine.stops, ElementsAre(Attempt{id, 1}));
    EXPECT_EQ(job(id).held->gpus, both_nodes());
    const JobId second = submit_second();
    EXPECT_EQ(phase(second), Phase::placed);
    answer(Kind::resized, id, 1);
    EXPECT_EQ(phase(id), Phase::stopping) << "a late answer";
    engine.tell_ended({id, 1}, 0, true);
    tick();
    EXPECT_EQ(phase(id), Phase::cancelled);
    EXPECT_EQ(phase(second), Phase::starting);
}

TEST_F(Resize, AttemptThatEndsMeanwhileFreesAllNodes) {
    for (const bool shrinks : {false, true}) {
        const JobId id = start_job();
        want(8);
        if (shrinks) {
            answer(Kind::resized, id, 1);
            want(4);
        }
        engine.tell_ended({id, 1}, 0);
        wanted.erase("train");
        tick();
        EXPECT_EQ(phase(id), Phase::succeeded);
        wanted["whole"] = 8;
        const JobId whole = submit(job_with_gpus(8, "whole"));
        tick(20);
        EXPECT_EQ(phase(whole), Phase::starting);
        engine.tell_ended({whole, 1}, 0);
        wanted.erase("whole");
        tick();
    }
}

TEST_F(Resize, AttemptThatIsLostMeanwhileWaitsAgain) {
    const JobId id = start_job();
    want(8);
    engine.tell(Kind::lost, {id, 1});
    tick();
    EXPECT_THAT(engine.starts.back(), (Attempt{id, 2}));
    EXPECT_EQ(engine.started.at({id, 2}).gpus.size(), 2U);
    EXPECT_EQ(job(id).resizes, 0U);
    EXPECT_FALSE(job(id).is_resizing);
}

TEST_F(Resize, NodeThatIsLostWhileAJobGrowsIsTakenBack) {
    const JobId id = start_job();
    want(8);
    wanted["train"] = 4;
    engine.tell_node(Kind::node_lost, other);
    tick();
    ASSERT_THAT(engine.resizes, SizeIs(2));
    EXPECT_EQ(engine.resizes[1].gpus, one_node());
    EXPECT_EQ(engine.resizes[1].resize, 2U);
    EXPECT_EQ(phase(id), Phase::running);
    answer(Kind::resized, id, 2);
    EXPECT_EQ(job(id).held->gpus, one_node());
    EXPECT_EQ(job(id).attempt, 1U);
}

TEST_F(Resize, NodeThatIsLostBeforeAJobGrowsThereIsLeftOut) {
    const JobId id = start_job();
    const JobId second = submit_second();
    engine.tell(Kind::started, {second, 1});
    tick();
    wanted.erase("second");
    want(8);
    wanted["train"] = 4;
    engine.tell_node(Kind::node_lost, other);
    engine.tell(Kind::lost, {second, 1});
    tick();
    EXPECT_FALSE(job(id).next);
    EXPECT_THAT(engine.resizes, IsEmpty());
    EXPECT_EQ(phase(id), Phase::running);
}

TEST_F(Resize, NodeThatIsLostWhileAJobLeavesItDoesNotStopTheJob) {
    const JobId id = start_job();
    want(8);
    answer(Kind::resized, id, 1);
    want(4);
    engine.tell_node(Kind::node_lost, other);
    tick();
    EXPECT_EQ(phase(id), Phase::running);
    answer(Kind::resized, id, 2);
    EXPECT_EQ(job(id).held->gpus, one_node());
}

TEST_F(Resize, GrowthThatIsNotAnsweredInTimeIsTakenBack) {
    start_timeout_s = 60;
    restart();
    const JobId id = start_job();  // with a grace of 30 s
    want(8);
    tick(89);
    EXPECT_THAT(engine.resizes, SizeIs(1));
    engine.connected = false;
    tick(60);
    EXPECT_THAT(engine.resizes, SizeIs(1)) << "no agent could answer";
    engine.connected = true;
    tick(90);
    EXPECT_THAT(job(id).log.back().text,
                HasSubstr("was not resized within 1m 00s and its grace: it goes on with 4 GPUs"));
    EXPECT_EQ(phase(id), Phase::running);
    tick();
    ASSERT_THAT(engine.resizes, SizeIs(2));
    EXPECT_EQ(engine.resizes[1].gpus, one_node());
    tick(90);
    EXPECT_EQ(phase(id), Phase::stopping) << "it cannot even go back";
}

TEST_F(Resize, TaskThatLeavesMayTakeItsGraceBeforeTheJobRestarts) {
    start_timeout_s = 60;
    restart();
    wanted["train"] = 8;
    Submission asked = elastic("train");
    asked.grace_s = 1200;
    const JobId id = submit_and_start(asked);
    want(4);
    ASSERT_THAT(engine.resizes, SizeIs(1));
    tick(1259);
    EXPECT_EQ(phase(id), Phase::running);
    tick(1);
    EXPECT_EQ(phase(id), Phase::stopping);
    EXPECT_THAT(job(id).log.back().text, HasSubstr("it is stopped, and starts again"));
}

TEST_F(Resize, JobIsResizedBeforeTheEngineHasToldWhatItCanDo) {
    const JobId id = start_job();
    engine.resizes_attempts.reset();
    restart();
    want(8);
    EXPECT_THAT(engine.resizes, SizeIs(1));
    EXPECT_THAT(engine.stops, IsEmpty());
    EXPECT_EQ(phase(id), Phase::running);
}

TEST_F(Resize, FailedRecordSendsNoResize) {
    const JobId id = start_job();
    saving_fails = true;
    want(8);
    EXPECT_THAT(engine.resizes, IsEmpty());
    saving_fails = false;
    tick();
    EXPECT_THAT(engine.resizes, SizeIs(1));
    EXPECT_EQ(job(id).resizes, 1U);
}

TEST_F(Resize, GpuTimeCountsAllGpusThatTheJobMayUse) {
    const JobId id = start_job();
    want(8);
    const double before = job(id).state.attained_gpu_s;
    tick(10);
    EXPECT_EQ(job(id).state.attained_gpu_s - before, 80) << "while it grows";
    answer(Kind::resized, id, 1);
    want(4);
    const double grown = job(id).state.attained_gpu_s;
    tick(10);
    EXPECT_EQ(job(id).state.attained_gpu_s - grown, 80) << "while it shrinks";
}

TEST_F(Resize, DeclaredRateIsThatOfTheGpusInForce) {
    wanted["train"] = 4;
    Submission asked = elastic("train");
    asked.ideal_by_type = {{"", 5e4}};
    const JobId id = submit_and_start(asked);
    want(8);
    EXPECT_EQ(cluster.registered("train")->ideal_bytes_per_second, 5e4);
    answer(Kind::resized, id, 1);
    EXPECT_EQ(cluster.registered("train")->ideal_bytes_per_second, 1e5);
    restart();
    tick();
    EXPECT_EQ(cluster.registered("train")->ideal_bytes_per_second, 1e5);
}

// A policy that does not size jobs lets them grow into spare GPUs. The growth costs no restart, so it is worthwhile for
// a job that is near its end.
TEST_F(Resize, JobNearItsEndGrowsIfThatNeedsNoRestart) {
    own_policy = {};
    policy = "las";
    for (const bool resizes : {false, true}) {
        engine.resizes_attempts = resizes;
        restart();
        report("", 0);
        const JobId blocker = submit_and_start(job_with_gpus(4, "blocker"));
        Submission asked = elastic("train");
        asked.gpus_min = 4;
        asked.dataset = "images";
        asked.epochs = 1;
        asked.ideal_by_type = {{"", 5e4}};
        const JobId id = submit_and_start(asked);
        engine.tell_ended({blocker, 1}, 0);
        tick();
        EXPECT_EQ(engine.resizes.size(), resizes ? 1U : 0U);
        EXPECT_EQ(phase(id), Phase::running);
        engine.tell_ended({id, 1}, 0);
        tick();
    }
}

// A queue whose decisions the test makes, on nodes n0, n1 and n2 of 4 GPUs each.
class ResizedQueue : public ::testing::Test {
protected:
    using Kind = EngineEvent::Kind;

    JobId submit(const std::string& name) {
        Submission asked{.name = name, .command = {"train"}, .directory = "/", .gpus = 4};
        asked.gpus_max = 12;
        asked.elastic = true;
        const SubmissionLimits limits{.cluster = cluster, .tenants = tenants, .placer = &placer, .by = submitter};
        const auto taken = [](const std::string&) { return false; };
        const JobId id = queue.submit(std::span(&asked, 1), limits, taken).value().front();
        queue.acknowledge(std::span(&id, 1), now_s);
        queue.job(id).spec.resizable = true;
        ids.push_back(id);
        return id;
    }
    // Gives the job all GPUs of these nodes.
    void give(JobId id, const std::vector<std::uint32_t>& nodes) {
        Start start = start_on(id, nodes);
        if (queue.job(id).placed() != nullptr) placer.release(id);
        const PlaceRequest request{.job = id, .gpus = start.gpus, .near = {}};
        ASSERT_TRUE(placer.place_at(request, start.placement));
        apply(std::move(start));
    }
    Start start_on(JobId id, const std::vector<std::uint32_t>& nodes) const {
        Start start{.job = index(id), .gpus = static_cast<std::uint32_t>(4 * nodes.size()), .placement = {}};
        for (const std::uint32_t node : nodes) start.placement.push_back({.node = node, .gpus = 0xf});
        return start;
    }
    void apply(Start start) {
        Actions actions;
        if (queue.job(ids[start.job]).phase == Phase::running) actions.stops.push_back(start.job);
        actions.starts.push_back(std::move(start));
        queue.apply(actions, ids, "test", now_s);
    }
    JobId start_job(const std::vector<std::uint32_t>& nodes) {
        const JobId id = submit("train");
        give(id, nodes);
        begin(id);
        return id;
    }
    void begin(JobId id) {
        queue.begin_starts(now_s);
        queue.take({.kind = Kind::started, .job = id, .attempt = 1}, now_s);
        ASSERT_EQ(queue.job(id).phase, Phase::running);
    }
    void answer(JobId id, std::uint32_t resize) {
        queue.take({.kind = Kind::resized, .job = id, .attempt = 1, .resize = resize}, now_s);
    }
    std::uint32_t index(JobId id) const { return static_cast<std::uint32_t>(std::ranges::find(ids, id) - ids.begin()); }

    double now_s = 1'000'000;
    GpuCluster cluster{.gpu_types = {"a100"}, .nodes = {{"n0", 0, 4, true}, {"n1", 0, 4, true}, {"n2", 0, 4, true}}};
    std::vector<Tenant> tenants{{.name = "default"}};
    Submitter submitter{.uid = {}, .name = "ci", .is_operator = false};
    FreePool placer{cluster};
    JobQueue queue{cluster, placer, 100};
    std::vector<JobId> ids;
    const std::vector<NamedGpus> two_nodes{{"n0", 0xf}, {"n1", 0xf}};
};

// The queue does not know if the agent has carried out the superseded resize, so it asks for what it goes on with.
TEST_F(ResizedQueue, GrowthThatSupersededAShrinkIsTakenBackByAResize) {
    for (const bool node_is_lost : {false, true}) {
        const JobId id = start_job({0, 1});
        give(id, {0});
        queue.begin_starts(now_s);
        ASSERT_EQ(queue.job(id).resizes, 1U);
        give(id, {0, 1, 2});
        answer(id, 1);
        EXPECT_EQ(queue.job(id).held->gpus, two_nodes);
        if (node_is_lost) {
            queue.close_node("n2", "was lost", now_s);
        } else {
            give(id, {0, 1});
        }
        queue.begin_starts(now_s);
        EXPECT_EQ(queue.job(id).resizes, 2U);
        ASSERT_TRUE(queue.job(id).is_resizing);
        EXPECT_EQ(queue.job(id).next->gpus, two_nodes);
        answer(id, 2);
        EXPECT_EQ(queue.job(id).held->gpus, two_nodes);
        EXPECT_FALSE(queue.job(id).next);
        queue.take({.kind = Kind::ended, .job = id, .attempt = 1, .exit_code = 0}, now_s);
    }
}

TEST_F(ResizedQueue, GuestOfAJobWhoseGrowthIsTakenBackIsStopped) {
    const JobId host = start_job({0});
    give(host, {0, 1});
    queue.begin_starts(now_s);
    const JobId guest = submit("guest");
    Start packed = start_on(guest, {0, 1});
    packed.packed_with = index(host);
    apply(std::move(packed));
    begin(guest);
    queue.close_node("n1", "was drained", now_s);
    EXPECT_EQ(queue.job(host).next->gpus.size(), 1U);
    EXPECT_EQ(queue.job(guest).phase, Phase::stopping) << "n1 is free for others";
}

TEST_F(ResizedQueue, JobThatLosesItsClaimWhileItGrowsHasNoneAfterwards) {
    const JobId id = start_job({0});
    give(id, {0, 1});
    queue.begin_starts(now_s);
    Actions actions;
    actions.demoted.push_back(index(id));
    queue.apply(actions, ids, "test", now_s);
    queue.close_node("n1", "was lost", now_s);
    EXPECT_EQ(queue.job(id).next->count, 4U);
    EXPECT_TRUE(queue.job(id).next->opportunistic);
}

}  // namespace
}  // namespace larder::scheduler
