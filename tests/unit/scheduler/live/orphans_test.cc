// Attempts that the engine has and the queue does not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/scheduler/live/live_fixture.h"

namespace larder::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Attempt = MemoryEngine::Attempt;
using Kind = EngineEvent::Kind;

class Orphans : public Live {
protected:
    static AttemptName own(JobId id, std::uint32_t attempt = 1) { return {.queue = "", .job = id, .attempt = attempt}; }
    static AttemptName others(JobId id) { return {.queue = "q-old", .job = id, .attempt = 1}; }
    // Has the engine make its list anew.
    void list(std::vector<AttemptName> attempts) {
        engine.listed = std::move(attempts);
        ++engine.listed_times;
    }
};

TEST_F(Orphans, AttemptsThatTheQueueDoesNotHaveAreStopped) {
    const JobId running = submit_and_start(job_with_gpus(1));
    const JobId lost = submit_and_start(job_with_gpus(1));
    engine.tell(Kind::lost, {lost, 1});
    tick();
    ASSERT_EQ(engine.starts.back(), Attempt(lost, 2));
    const JobId ended = submit_and_start(job_with_gpus(1));
    engine.tell_ended({ended, 1}, 0);
    tick();
    ASSERT_EQ(phase(ended), Phase::succeeded);
    list({own(running), others(running), own(lost, 1), own(lost, 2), own(ended), own(ended + 1), own(running, 2)});
    tick();
    EXPECT_THAT(engine.orphans,
                ElementsAre(others(running), own(lost, 1), own(ended), own(ended + 1), own(running, 2)));
    EXPECT_THAT(engine.stops, IsEmpty());
}

TEST_F(Orphans, AttemptOnRecordIsNoneWhateverItsPhase) {
    const JobId running = submit_and_start(job_with_gpus(1));
    const JobId stopping = submit_and_start(job_with_gpus(1));
    const JobId starting = submit(job_with_gpus(1));
    tick();
    ASSERT_TRUE(cancel(stopping, "ci"));
    ASSERT_EQ(phase(stopping), Phase::stopping);
    ASSERT_EQ(phase(starting), Phase::starting);
    list({own(running), own(stopping), own(starting)});
    tick();
    EXPECT_THAT(engine.orphans, IsEmpty());
    EXPECT_THAT(engine.stops, ElementsAre(Attempt(stopping, 1)));
}

TEST_F(Orphans, JobCancelledAfterTheListIsStoppedOnce) {
    const JobId id = submit_and_start(job_with_gpus(1));
    list({own(id)});
    ASSERT_TRUE(cancel(id, "ci"));
    tick();
    EXPECT_THAT(engine.stops, ElementsAre(Attempt(id, 1)));
    EXPECT_THAT(engine.orphans, IsEmpty());
}

TEST_F(Orphans, AttemptStartedAfterTheListIsWanted) {
    const JobId id = submit(job_with_gpus(1));
    disk_is_slow = true;
    tick();
    ASSERT_EQ(phase(id), Phase::starting);
    list({own(id)});
    write_all();
    ASSERT_THAT(engine.starts, ElementsAre(Attempt(id, 1)));
    tick();
    EXPECT_EQ(engine.listings, 1u);
    EXPECT_THAT(engine.orphans, IsEmpty());
}

TEST_F(Orphans, EventsBeforeTheListCountFirst) {
    const JobId id = submit_and_start(job_with_gpus(1));
    engine.tell(Kind::lost, {id, 1});
    list({own(id)});
    tick();
    EXPECT_THAT(engine.orphans, ElementsAre(own(id))) << "the engine lost it, and has it again";
    EXPECT_EQ(engine.starts.back(), Attempt(id, 2));
}

TEST_F(Orphans, ListIsReadOnceEachTimeThatItIsMade) {
    tick();
    EXPECT_EQ(engine.listings, 0u) << "there is none yet";
    for (std::uint64_t times = 1; times <= 2; ++times) {
        list({others(1)});
        for (int i = 0; i < 3; ++i) tick();
        EXPECT_EQ(engine.listings, times);
        EXPECT_EQ(engine.orphans.size(), times) << "it is told to stop with each list that has it";
    }
}

TEST_F(Orphans, RestartedSchedulerComparesTheListWithItsRecord) {
    const JobId running = submit_and_start(job_with_gpus(1));
    const JobId starting = submit(job_with_gpus(1));
    tick();
    const LiveRecord before = record;
    const JobId later = submit_and_start(job_with_gpus(1));
    list({own(running), own(starting), own(later)});
    record = before;
    restart();
    EXPECT_THAT(engine.orphans, IsEmpty());
    tick();
    EXPECT_THAT(engine.orphans, ElementsAre(own(later))) << "the record is older";
}

}  // namespace
}  // namespace larder::scheduler
