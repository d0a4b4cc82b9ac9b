// Jobs whose cluster manager does things of its own.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/scheduler/live/live_fixture.h"

namespace larder::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using Attempt = MemoryEngine::Attempt;
using Kind = EngineEvent::Kind;

class EngineEvents : public Live {
protected:
    JobId submit_and_place(std::uint32_t gpus_asked = 1) {
        const JobId id = submit(job_with_gpus(gpus_asked));
        tick();
        EXPECT_EQ(phase(id), Phase::starting);
        return id;
    }
    void reject(Attempt attempt, const std::string& message, bool for_good = false) {
        engine.tell({.kind = Kind::rejected,
                     .job = attempt.first,
                     .attempt = attempt.second,
                     .message = message,
                     .for_good = for_good});
    }
    std::size_t times_logged(JobId id, const std::string& text) const {
        return static_cast<std::size_t>(
            std::ranges::count_if(job(id).log, [&](const LogEntry& entry) { return entry.text == text; }));
    }
};

TEST_F(EngineEvents, PendingIsLoggedOnceForEachReason) {
    const JobId id = submit_and_place();
    for (const char* reason : {"no image", "no image", "no room", "no room"}) {
        engine.tell({.kind = Kind::pending, .job = id, .attempt = 1, .message = reason});
        tick();
    }
    EXPECT_EQ(times_logged(id, "is pending: no image"), 1u);
    EXPECT_EQ(times_logged(id, "is pending: no room"), 1u);
    EXPECT_EQ(phase(id), Phase::starting);
    EXPECT_THAT(why(id), HasSubstr("it is pending: no room"));
}

TEST_F(EngineEvents, OutputIsNamedIfTheEngineKnowsWhereItIs) {
    const JobId id = submit_and_start(job_with_gpus(1));
    EXPECT_THAT(why(id), HasSubstr("limit it. Its output is in output/1/1."));
    engine.output_directory.clear();
    EXPECT_THAT(why(id), EndsWith("limit it."));
}

TEST_F(EngineEvents, RejectedJobWaitsLongerEachTime) {
    const JobId id = submit_and_place();
    double delay_s = 1;
    for (std::uint32_t attempt = 1; attempt <= 4; ++attempt, delay_s *= 2) {
        reject({id, attempt}, "full");
        tick();
        ASSERT_EQ(phase(id), Phase::waiting);
        EXPECT_THAT(why(id), HasSubstr("did not begin when it was last placed: full"));
        tick(delay_s - 0.25);
        ASSERT_EQ(phase(id), Phase::waiting) << attempt;
        tick(0.25);
        ASSERT_EQ(phase(id), Phase::starting) << attempt;
    }
    EXPECT_EQ(live->queue().counts().rejections, 4u);
    EXPECT_EQ(job(id).state.preemptions, 0u);
    EXPECT_EQ(job(id).lost, 0u);
    engine.tell(Kind::started, {id, 5});
    tick();
    EXPECT_EQ(job(id).rejected, 0u) << "it begins anew";
}

// A job behind them does not wait until the cluster manager has rejected each.
TEST_F(EngineEvents, JobsThatAreRejectedAlongWithOneAreNotPlaced) {
    const JobId host = submit_and_start(job_with_gpus(7));
    const JobId first = submit_and_place();
    const JobId second = submit(job_with_gpus(1));
    const JobId other = submit(job_with_gpus(1));
    engine.tell({.kind = Kind::rejected,
                 .job = first,
                 .attempt = 1,
                 .message = "QOSMaxJobs",
                 .also_rejected = {job(second).asked.name, "unknown"}});
    tick();
    EXPECT_EQ(phase(second), Phase::waiting);
    EXPECT_EQ(phase(other), Phase::starting);
    EXPECT_THAT(why(second), HasSubstr("a job for which the same limit holds: QOSMaxJobs; it is placed in 1.0 s"));
    engine.tell(Kind::started, {other, 1});
    tick(0.25);
    engine.tell_ended({host, 1}, 0);
    tick(0.25);
    EXPECT_EQ(phase(first), Phase::waiting);
    EXPECT_EQ(phase(second), Phase::starting) << "a job of the tenant has ended";
}

TEST_F(EngineEvents, JobRejectedAlongWithAnotherWaitsNoLongerThanThat) {
    const JobId first = submit_and_place(8);
    const JobId second = submit(job_with_gpus(8));
    engine.tell({.kind = Kind::rejected,
                 .job = first,
                 .attempt = 1,
                 .message = "QOSMaxJobs",
                 .also_rejected = {job(second).asked.name}});
    tick();
    EXPECT_EQ(phase(second), Phase::waiting);
    ASSERT_TRUE(cancel(first, "alice"));
    tick(1);
    EXPECT_EQ(phase(second), Phase::starting);
}

TEST_F(EngineEvents, BackOffGoesOnAfterARestart) {
    const JobId id = submit_and_place();
    for (std::uint32_t attempt = 1; attempt <= 3; ++attempt) {
        reject({id, attempt}, "full");
        tick();
        if (attempt < 3) tick(4);
    }
    ASSERT_EQ(phase(id), Phase::waiting);
    restart();
    EXPECT_THAT(why(id), HasSubstr("did not begin when it was last placed: full"));
    tick(3.75);
    ASSERT_EQ(phase(id), Phase::waiting) << "4 s after the third rejection";
    tick(0.25);
    ASSERT_EQ(phase(id), Phase::starting);
    reject({id, 4}, "full");
    tick();
    tick(7.75);
    EXPECT_EQ(phase(id), Phase::waiting) << "the fourth rejection waits 8 s";
    // The process that takes over may have a clock that is behind.
    now_s -= 1e6;
    restart();
    tick();
    EXPECT_EQ(phase(id), Phase::waiting);
    tick(JobQueue::kRetryMost_s);
    EXPECT_EQ(phase(id), Phase::starting);
}

TEST_F(EngineEvents, GuestOnADrainedNodeRunsOnWhenItsHostEnds) {
    policy = "gandiva";
    restart();
    report("", 0);
    Submission asked = job_with_gpus(8);
    asked.dataset = "images";
    asked.epochs = 1e5;
    asked.ideal_by_type = {{"", 1e6}};
    asked.packed_rate = 0.9;
    asked.gpu_memory_part = 0.5;
    const JobId host = submit_and_start(asked);
    const JobId guest = submit(asked);
    for (int i = 0; i < 5 && !job(guest).held; ++i) tick();
    ASSERT_TRUE(job(guest).held && job(guest).held->packed_with == host);
    engine.tell(Kind::started, {guest, 1});
    tick();
    engine.tell_node(Kind::node_drained, "n1");
    tick();
    engine.tell_ended({host, 1}, 0);
    tick();
    EXPECT_EQ(phase(host), Phase::succeeded);
    EXPECT_EQ(phase(guest), Phase::running);
    EXPECT_FALSE(job(guest).held->packed_with);
}

TEST_F(EngineEvents, RejectionForGoodFailsTheJob) {
    const JobId id = submit_and_place();
    reject({id, 1}, "no such account", true);
    tick();
    EXPECT_EQ(phase(id), Phase::failed);
    EXPECT_EQ(job(id).end_reason, "rejected by the cluster manager: no such account");
}

TEST_F(EngineEvents, RejectionOfARunningJobEvictsIt) {
    const JobId id = submit_and_start(job_with_gpus(1));
    reject({id, 1}, "late", true);
    tick();
    EXPECT_EQ(phase(id), Phase::starting) << "of its next attempt";
    EXPECT_EQ(live->queue().counts().evictions, 1u);
}

TEST_F(EngineEvents, RejectionOrEvictionOfAPreemptedJobIsItsEnd) {
    use_shortest_first();
    for (const Kind kind : {Kind::rejected, Kind::evicted}) {
        const JobId slow = submit_and_start(job_reading_images("slow", 1000));
        const JobId quick = submit(job_reading_images("quick", 1));
        tick();
        ASSERT_EQ(phase(slow), Phase::stopping);
        engine.tell(kind, {slow, 1});
        tick();
        EXPECT_EQ(phase(slow), Phase::waiting);
        EXPECT_EQ(job(slow).state.preemptions, 1u);
        EXPECT_EQ(job(slow).rejected, 0u);
        EXPECT_EQ(phase(quick), Phase::starting);
        ASSERT_TRUE(cancel(slow, "alice"));
        engine.tell_ended({quick, 1}, 0);
        tick();
    }
}

TEST_F(EngineEvents, RejectionOfACancelledJobEndsIt) {
    const JobId id = submit_and_place();
    ASSERT_TRUE(cancel(id, "alice"));
    reject({id, 1}, "full");
    tick();
    EXPECT_EQ(phase(id), Phase::cancelled);
}

TEST_F(EngineEvents, EvictedJobWaitsAgainHoweverOften) {
    const JobId id = submit_and_start(job_with_gpus(1));
    for (std::uint32_t attempt = 1; attempt <= 10; ++attempt) {
        engine.tell(Kind::started, {id, attempt});
        tick();
        engine.tell(Kind::evicted, {id, attempt});
        tick();
        ASSERT_EQ(phase(id), Phase::starting) << "of its next attempt";
    }
    EXPECT_EQ(live->queue().counts().evictions, 10u);
    EXPECT_EQ(live->queue().counts().lost, 0u);
    EXPECT_EQ(job(id).state.preemptions, 0u);
}

TEST_F(EngineEvents, EvictionOfACancelledJobCancelsIt) {
    const JobId id = submit_and_start(job_with_gpus(1));
    ASSERT_TRUE(cancel(id, "alice"));
    tick();
    engine.tell(Kind::evicted, {id, 1});
    tick();
    EXPECT_EQ(phase(id), Phase::cancelled);
}

TEST_F(EngineEvents, DrainedNodeKeepsItsJobsAndGetsNoOthers) {
    const JobId on_drained = submit_and_start(job_with_gpus(4));
    const std::string drained = engine.started.at({on_drained, 1}).gpus[0].node;
    engine.tell_node(Kind::node_drained, drained);
    tick();
    EXPECT_EQ(phase(on_drained), Phase::running);
    const JobId elsewhere = submit_and_start(job_with_gpus(4));
    EXPECT_NE(engine.started.at({elsewhere, 1}).gpus[0].node, drained);
    const JobId waits = submit(job_with_gpus(4));
    engine.tell_ended({on_drained, 1}, 0);
    tick();
    tick(20);
    EXPECT_EQ(phase(waits), Phase::waiting);
    engine.tell_node(Kind::node_back, drained);
    tick();
    EXPECT_EQ(phase(waits), Phase::starting);
}

TEST_F(EngineEvents, JobOnADrainedNodeIsNotStoppedForOthers) {
    use_shortest_first();
    Submission asked = job_reading_images("slow", 1000);
    asked.gpus = 4;
    const JobId slow = submit_and_start(asked);
    const std::string drained = engine.started.at({slow, 1}).gpus[0].node;
    engine.tell_node(Kind::node_drained, drained);
    tick();
    asked.name = "middle";
    asked.epochs = 100;
    const JobId middle = submit_and_start(asked);
    asked.name = "quick";
    asked.epochs = 1;
    const JobId quick = submit(asked);
    tick();
    EXPECT_EQ(phase(slow), Phase::running);
    EXPECT_EQ(phase(middle), Phase::stopping);
    EXPECT_EQ(phase(quick), Phase::placed);
}

TEST_F(EngineEvents, TimeWithoutAConnectionIsNoDelay) {
    start_timeout_s = 30;
    restart();
    const JobId id = submit_and_place();
    engine.connected = false;
    tick(100);
    EXPECT_EQ(phase(id), Phase::starting);
    engine.connected = true;
    tick(29);
    EXPECT_EQ(phase(id), Phase::starting);
    tick(1);
    EXPECT_EQ(phase(id), Phase::stopping);
}

TEST_F(EngineEvents, RestartTellsTheEngineOfStartsBeforeAnythingElse) {
    const JobId id = submit_and_place();
    restart();
    EXPECT_THAT(engine.starts, ElementsAre(Attempt{id, 1}, Attempt{id, 1}));
    tick();
    EXPECT_EQ(engine.starts.size(), 2u);
}

TEST_F(EngineEvents, AttemptThatDoesNotBeginIsStoppedAndPlacedAgain) {
    start_timeout_s = 30;
    restart();
    const JobId id = submit_and_place(4);
    tick(29);
    EXPECT_EQ(phase(id), Phase::starting);
    tick(1);
    EXPECT_EQ(phase(id), Phase::stopping);
    EXPECT_THAT(engine.stops, ElementsAre(Attempt{id, 1}));
    engine.tell_ended({id, 1}, 0, true);
    tick();
    EXPECT_EQ(phase(id), Phase::waiting);
    EXPECT_EQ(job(id).state.preemptions, 0u);
    tick(1);
    EXPECT_EQ(phase(id), Phase::starting);
    engine.tell(Kind::started, {id, 2});
    tick();
    tick(1000);
    EXPECT_EQ(phase(id), Phase::running);
}

TEST_F(EngineEvents, EventIsLoggedWithItsOwnTime) {
    const JobId id = submit_and_place();
    tick(100);
    engine.tell({.kind = Kind::started, .job = id, .attempt = 1, .at_s = now_s - 40});
    tick();
    EXPECT_EQ(job(id).log.back().at_s, now_s - 41);
    engine.tell({.kind = Kind::ended, .job = id, .attempt = 1, .exit_code = 0, .at_s = now_s + 1e6});
    tick();
    EXPECT_EQ(job(id).ended_s, now_s) << "the engine's clock is ahead";
}

TEST_F(EngineEvents, EventsAreRecordedWhenTheirEffectsAre) {
    const JobId id = submit(job_with_gpus(1));
    disk_is_slow = true;
    tick();
    write_all();
    EXPECT_THAT(engine.starts, ElementsAre(Attempt{id, 1}));
    EXPECT_EQ(engine.recorded_events, 0u);
    engine.tell(Kind::started, {id, 1});
    tick();
    EXPECT_EQ(engine.recorded_events, 0u) << "not on disk yet";
    engine.tell_ended({id, 1}, 0);
    tick();
    write_all();
    EXPECT_EQ(engine.recorded_events, 1u) << "the end came after the change that was written";
    tick();
    write_all();
    EXPECT_EQ(engine.recorded_events, 2u);
    EXPECT_EQ(record.jobs.at(id)->phase, Phase::succeeded);
}

}  // namespace
}  // namespace larder::scheduler
