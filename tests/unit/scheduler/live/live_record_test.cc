// Acknowledgements, decisions and calls to the engine wait until the change is on record, however long that takes.

#include <gmock/gmock.h>

#include <algorithm>

#include "scheduler/live/why.h"
#include "tests/unit/scheduler/live/live_fixture.h"

namespace larder::scheduler {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Attempt = MemoryEngine::Attempt;

TEST_F(Live, StartIsOnRecordBeforeTheEngineIsTold) {
    const JobId id = submit(job_with_gpus(2));
    saving_fails = true;
    tick();
    EXPECT_THAT(engine.starts, IsEmpty());
    saving_fails = false;
    tick();
    EXPECT_THAT(engine.starts, ElementsAre(Attempt{id, 1}));
    EXPECT_EQ(record.jobs.at(id)->phase, Phase::starting);
}

TEST_F(Live, PreemptionAndTheStartAfterItAreOnRecord) {
    use_shortest_first();
    const JobId first = submit_and_start(job_reading_images("slow", 1000));
    const JobId second = submit(job_reading_images("quick", 1));
    tick();
    EXPECT_EQ(record.jobs.at(first)->phase, Phase::stopping);
    EXPECT_EQ(record.jobs.at(second)->phase, Phase::placed);
    EXPECT_EQ(record.jobs.at(second)->state.started_s, now_s) << "it has its GPUs since now";
    tick(5);
    engine.tell_ended({first, 1}, 0, true);
    tick();
    EXPECT_EQ(record.jobs.at(second)->phase, Phase::starting);
    EXPECT_EQ(record.jobs.at(second)->state.started_s, now_s);
}

TEST_F(Live, ExitOfAFailedJobIsOnRecord) {
    const JobId failed = submit_and_start(job_with_gpus(1));
    const JobId killed = submit_and_start(job_with_gpus(1));
    engine.tell_ended({failed, 1}, 3);
    engine.tell({.kind = EngineEvent::Kind::ended, .job = killed, .attempt = 1, .exit_signal = 9});
    tick();
    EXPECT_EQ(record.jobs.at(failed)->phase, Phase::failed);
    EXPECT_EQ(record.jobs.at(failed)->exit_code, 3);
    EXPECT_EQ(record.jobs.at(killed)->phase, Phase::failed);
    EXPECT_EQ(record.jobs.at(killed)->exit_signal, 9);
}

TEST_F(Live, ReasonForWaitingIsInTheLogOfTheRecord) {
    submit_and_start(job_with_gpus(8));
    const JobId waits = submit(job_with_gpus(1));
    tick();
    EXPECT_THAT(record.jobs.at(waits)->log, Contains(Field(&LogEntry::text, std::string(text_of(WaitsFor::gpus)))));
}

TEST_F(Live, SubmissionThatCannotBeSavedIsDropped) {
    saving_fails = true;
    const Submission asked = job_with_gpus(1, "lost");
    EXPECT_EQ(try_submit(asked).error().code, ErrorCode::no_space);
    saving_fails = false;
    tick();
    EXPECT_THAT(engine.starts, IsEmpty());
    EXPECT_THAT(live->queue().jobs(), IsEmpty());
    EXPECT_FALSE(live->queue().find("lost")) << "the name stands for no job";
    EXPECT_EQ(submit(job_with_gpus(1, "lost")), 2u) << "its number is not reused";
}

// Rows in etcd may be on record after an error.
TEST_F(Live, SubmissionThatIsOnRecordAfterAnErrorIsRemoved) {
    own_save = [&](const LiveRecord& change) {
        EXPECT_TRUE(put_on_record(change));
        return disk_is_full();
    };
    EXPECT_EQ(try_submit(job_with_gpus(1, "refused")).error().code, ErrorCode::no_space);
    EXPECT_FALSE(record.jobs.empty());
    EXPECT_FALSE(live->all_saved());
    own_save = nullptr;
    tick();
    EXPECT_TRUE(live->all_saved());
    restart();
    tick();
    EXPECT_THAT(live->queue().jobs(), IsEmpty());
    EXPECT_THAT(engine.starts, IsEmpty());
}

TEST_F(Live, SubmissionThatCannotBeSavedIsNotCountedOrNoted) {
    const JobId before = submit_and_start(job_with_gpus(1, "again"));
    engine.tell_ended({before, 1}, 0);
    tick();
    live->take_notes();
    saving_fails = true;
    EXPECT_FALSE(try_submit(job_with_gpus(1, "again")));
    EXPECT_THAT(live->take_notes(), IsEmpty());
    EXPECT_EQ(live->queue().counts().submitted, 1u);
    EXPECT_EQ(live->queue().find("again"), before) << "the earlier job has its name again";
    saving_fails = false;
    submit(job_with_gpus(1, "again"));
    EXPECT_EQ(live->take_notes().size(), 1u);
    EXPECT_EQ(live->queue().counts().submitted, 2u);
}

// A restarted daemon must keep what a policy has promised.
TEST(JobQueue, PromisesAndLeasesOfADecisionAreRecorded) {
    const GpuCluster gpus{.gpu_types = {"a100"}, .nodes = {{"n1", 0, 4, true}}};
    const std::vector<Tenant> tenants{{.name = "default"}};
    FreePool placer(gpus);
    JobQueue queue(gpus, placer, 10);
    const Submission asked{.command = {"train"}, .directory = "/"};
    const auto ids =
        queue.submit(std::span(&asked, 1), {.cluster = gpus, .tenants = tenants, .datasets = {}, .now_s = 1},
                     [](const std::string&) { return false; });
    ASSERT_TRUE(ids);
    queue.acknowledge(*ids, 1);
    queue.saving();
    queue.saved();
    const PromisedTimes times{.gpu_type = 0, .spans = {{2, 3}, {5, 8.5}}};
    Actions actions;
    actions.leases = {{0, 7.5}};
    actions.admitted = {0};
    actions.promised = {{.job = 0, .times = times}};
    queue.apply(actions, *ids, "policy", 2);
    const JobState& state = queue.jobs().at(ids->front()).state;
    EXPECT_EQ(state.lease_until_s, 7.5);
    EXPECT_EQ(state.admitted_s, 2);
    EXPECT_EQ(state.promised, times);
    EXPECT_TRUE(queue.unsaved().contains(ids->front()));
}

// One submitter fills the queue. Others submit as before, and what becomes of jobs is recorded.
TEST_F(Live, SubmitterWithTooManyJobsIsRefusedAndOthersAreNot) {
    queue_bytes_max = 16u << 20;
    restart();
    Submission big = job_with_gpus(1);
    big.environment["A"] = std::string(kRecordBytesMax - record_bytes(big) - 100, 'x');
    big.submitter = submitter.name;
    const std::uint64_t fits = queue_bytes_max / 4 / record_bytes(big);
    JobId last = 0;
    for (std::uint64_t i = 0; i < fits; ++i) last = submit(big);
    const auto refused = try_submit(big);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::no_space);
    EXPECT_THAT(refused.error().message, HasSubstr("your jobs in the queue take"));
    Submission others = big;
    others.submitter = "another";
    submit(others);
    Submission of_user = job_with_gpus(1);
    of_user.user = RunAs{1001, 1001};
    submit(of_user);
    ASSERT_TRUE(cancel(last, "a test"));
    submit(big);
    EXPECT_FALSE(try_submit(big));
    restart();
    EXPECT_FALSE(try_submit(big)) << "jobs of a former process count, too";
    submitter.is_agent = true;
    EXPECT_FALSE(try_submit(big)) << "an agent, too, leaves room for others";
    submitter.is_agent = false;
    submitter.is_operator = true;
    submit(big);
    submitter.is_operator = false;
    EXPECT_TRUE(cancel(1, "a test")) << "the queue goes on working";
}

TEST_F(Live, HistoryDropsTheOldestJobsWhenItTakesTooMuch) {
    history_max = 1'000'000;
    queue_bytes_max = 16u << 20;
    restart();
    submitter.is_operator = true;
    Submission big = job_with_gpus(1);
    big.environment["A"] = std::string(kRecordBytesMax - record_bytes(big) - 100, 'x');
    const std::uint64_t fits = queue_bytes_max / record_bytes(big);
    for (std::uint64_t i = 0; i < fits + 10; ++i) ASSERT_TRUE(cancel(submit(big), "a test"));
    EXPECT_EQ(live->queue().jobs().size(), fits);
    EXPECT_FALSE(live->queue().jobs().contains(10));
    EXPECT_TRUE(live->queue().jobs().contains(11));
}

TEST_F(Live, QueueTakesJobsUpToExactlyItsLimits) {
    const auto named = [](int n) {
        Submission job = job_with_gpus(1, "job-" + std::to_string(10 + n));
        job.tenant = "default";
        job.submitter = "ci";
        return job;
    };
    // A submitter may fill a quarter: three jobs.
    queue_bytes_max = 12 * record_bytes(named(0));
    restart();
    for (int n = 0; n < 3; ++n) submit(named(n));
    EXPECT_FALSE(try_submit(named(3)));
    ASSERT_TRUE(cancel(1, "a test"));
    submit(named(3));
    EXPECT_FALSE(try_submit(named(4)));
    submitter.is_operator = true;
    for (int n = 4; n < 13; ++n) submit(named(n));
    EXPECT_FALSE(try_submit(named(13)));
}

TEST_F(Live, HistoryKeepsAsManyJobsAsExactlyFit) {
    const auto named = [](std::size_t n) {
        Submission job = job_with_gpus(1, "job-" + std::to_string(100 + n));
        job.tenant = "default";
        return job;
    };
    history_max = 1'000'000;
    queue_bytes_max = 5 * record_bytes(named(0));
    restart();
    for (std::size_t n = 0; n < 30; ++n) {
        ASSERT_TRUE(cancel(submit(named(n)), "a test"));
        EXPECT_EQ(live->queue().jobs().size(), std::min<std::size_t>(n + 1, 5));
    }
    restart();
    for (std::size_t n = 30; n < 33; ++n) {
        ASSERT_TRUE(cancel(submit(named(n)), "a test"));
        EXPECT_EQ(live->queue().jobs().size(), 5u) << "jobs of a former process count, too";
    }
}

TEST_F(Live, JobIsAcknowledgedAndFoundOnlyAfterItIsOnRecord) {
    disk_is_slow = true;
    const Submission asked = job_with_gpus(1, "new");
    Result<std::vector<JobId>> answer = fail(ErrorCode::cancelled, "no answer yet");
    live->submit(std::span(&asked, 1), submitter, now(), [&](const Result<std::vector<JobId>>& ids) { answer = ids; });
    EXPECT_FALSE(answer);
    EXPECT_FALSE(live->queue().find("new"));
    EXPECT_EQ(try_submit(asked).error().code, ErrorCode::already_exists) << "its name is taken";
    tick();
    EXPECT_EQ(phase(1), Phase::waiting) << "no decision considers it yet";
    write_all();
    ASSERT_TRUE(answer);
    EXPECT_THAT(*answer, ElementsAre(1u));
    EXPECT_TRUE(live->queue().find("new"));
}

TEST_F(Live, JobThatIsNeverPutOnRecordLeavesNothingBehind) {
    disk_is_slow = true;
    static_cast<void>(try_submit(job_with_gpus(1, "lost")));
    tick();
    saving_fails = true;
    write_all();
    EXPECT_THAT(live->queue().jobs(), IsEmpty());
    EXPECT_THAT(live->queue().active(), IsEmpty());
}

TEST_F(Live, EngineIsToldOnlyWhatIsOnRecord) {
    const JobId id = submit(job_with_gpus(2));
    disk_is_slow = true;
    tick();
    EXPECT_THAT(engine.starts, IsEmpty());
    // The job changes while its start is being written.
    static_cast<void>(cancel(id, "alice"));
    write_all();
    EXPECT_THAT(engine.starts, IsEmpty()) << "the job has changed since";
    write_all();
    EXPECT_EQ(record.jobs.at(id)->phase, Phase::stopping);
    EXPECT_THAT(engine.starts, IsEmpty());
    EXPECT_THAT(engine.stops, ElementsAre(Attempt{id, 1}));
}

TEST_F(Live, CancellationIsAcknowledgedOnlyAfterItIsOnRecord) {
    const JobId id = submit(job_with_gpus(2));
    disk_is_slow = true;
    Result<void> answer = fail(ErrorCode::cancelled, "no answer yet");
    live->cancel(id, "alice", now(), [&](const Result<void>& done) { answer = done; });
    EXPECT_FALSE(answer);
    saving_fails = true;
    write_all();
    EXPECT_EQ(answer.error().code, ErrorCode::unavailable);
    saving_fails = false;
    tick();
    write_all();
    EXPECT_EQ(record.jobs.at(id)->phase, Phase::cancelled) << "the write is tried again";
}

TEST_F(Live, JobIsCancelledIfPredecessorFailsWhileJobIsWritten) {
    const JobId before = submit_and_start(job_with_gpus(1, "before"));
    disk_is_slow = true;
    Submission asked = job_with_gpus(1, "after");
    asked.after = {"before"};
    static_cast<void>(try_submit(asked));
    engine.tell_ended({before, 1}, 1);
    tick();
    write_all();
    tick();
    write_all();
    EXPECT_EQ(phase(before + 1), Phase::cancelled);
    EXPECT_EQ(record.jobs.at(before + 1)->phase, Phase::cancelled);
}

TEST_F(Live, NumbersContinueAfterLastNumberOnRecord) {
    record.last_number = 41;
    restart();
    EXPECT_EQ(submit(job_with_gpus(1)), 42u);
}

TEST_F(Live, JobWithoutTenantCountsForTheOnlyTenant) {
    tenants = {{.name = "vision"}};
    restart();
    EXPECT_EQ(job(submit(job_with_gpus(1))).asked.tenant, "vision");
    tenants = {{.name = "vision"}, {.name = "language"}};
    restart();
    const auto refused = try_submit(job_with_gpus(1));
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr("(--tenant): vision, language"));
    tenants = {{.name = "vision"}, {.name = "default"}};
    restart();
    EXPECT_EQ(job(submit(job_with_gpus(1))).asked.tenant, "default");
}

}  // namespace
}  // namespace larder::scheduler
