#include "scheduler/live/live_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "tests/unit/scheduler/live/live_fixture.h"

namespace larder::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::StartsWith;
using Attempt = MemoryEngine::Attempt;
using Kind = EngineEvent::Kind;

TEST_F(Live, ProgressOfManyJobsIsRecordedInTurn) {
    gpus.nodes = {{"n1", 0, 50, true}, {"n2", 0, 50, true}, {"n3", 0, 50, true}, {"n4", 0, 50, true}};
    restart();
    std::vector<JobId> ids;
    for (int i = 0; i < 200; ++i) ids.push_back(submit(job_with_gpus(1)));
    tick();
    for (const JobId id : ids) engine.tell(EngineEvent::Kind::started, {id, 1});
    tick();
    std::vector<std::size_t> records;
    own_save = [&](const LiveRecord& change) {
        records.push_back(change.jobs.size());
        return put_on_record(change);
    };
    for (int i = 0; i < 3; ++i) tick(5);
    EXPECT_THAT(records, ElementsAre(90, 90, 90));
    for (const JobId id : ids) EXPECT_GE(record.jobs.at(id)->state.attained_gpu_s, 5);
}

TEST_F(Live, JobRunsToItsEnd) {
    Submission asked = job_with_gpus(2, "resnet");
    asked.environment = {{"SEED", "7"}};
    const JobId id = submit_and_start(asked);
    const EngineJob& started_job = engine.started.at({id, 1});
    EXPECT_THAT(started_job.command, ElementsAre("train", "resnet"));
    EXPECT_EQ(started_job.environment.at("LARDER_JOB"), "resnet");
    EXPECT_EQ(started_job.environment.at("LARDER_GPUS"), "2");
    EXPECT_EQ(started_job.environment.at("SEED"), "7");
    ASSERT_EQ(started_job.gpus.size(), 1u);
    EXPECT_EQ(std::popcount(started_job.gpus[0].gpus), 2);
    tick(100);
    engine.tell_ended({id, 1}, 0);
    tick();
    EXPECT_EQ(phase(id), Phase::succeeded);
    EXPECT_NEAR(job(id).state.attained_gpu_s, 2 * 102, 1e-6);
    EXPECT_EQ(job(id).state.first_started_s, job(id).submitted_s + 1);
    EXPECT_EQ(record.jobs.at(id)->phase, Phase::succeeded);
    EXPECT_EQ(live->queue().counts().ended.at(Phase::succeeded), 1u);
    EXPECT_EQ(live->counts().waits[0], 1u) << "it waited for a second at most";
}

TEST_F(Live, RestartAdoptsRunningJobsAndRepeatsPendingStarts) {
    const JobId running = submit_and_start(job_with_gpus(4));
    const JobId pending = submit(job_with_gpus(4));
    tick();
    ASSERT_EQ(phase(pending), Phase::starting);
    const JobId waiting = submit(job_with_gpus(8));
    tick();
    engine.starts.clear();
    restart();
    EXPECT_THAT(engine.adopted, ElementsAre(Attempt{running, 1}));
    tick();
    EXPECT_THAT(engine.starts, ElementsAre(Attempt{pending, 1})) << "the same attempt: the engine starts it once";
    EXPECT_EQ(phase(waiting), Phase::waiting) << "running jobs keep their GPUs";
    EXPECT_EQ(submit(job_with_gpus(1)), waiting + 1);
    engine.tell_ended({running, 1}, 0);
    engine.tell_ended({pending, 1}, 0);
    tick();
    tick();
    EXPECT_EQ(phase(waiting), Phase::starting);
}

TEST_F(Live, StrictJobFailsWhenItsDeadlinePasses) {
    policy = "chronus";
    restart();
    report("", 0);
    Submission blocker = job_with_gpus(8, "holds");
    blocker.preemptible = false;
    const JobId first = submit_and_start(blocker);
    Submission strict = job_with_gpus(8, "strict");
    strict.dataset = "images";
    strict.epochs = 1;
    strict.service = ServiceClass::strict_deadline;
    strict.deadline_s = now_s + 600;
    const JobId second = submit(strict);
    Submission after = job_with_gpus(1, "after");
    after.after = {"strict"};
    const JobId third = submit(after);
    tick(300);
    EXPECT_EQ(phase(second), Phase::waiting);
    EXPECT_EQ(binding(second), "deadline");
    tick(301);
    EXPECT_EQ(phase(second), Phase::failed);
    EXPECT_THAT(job(second).end_reason, HasSubstr("its deadline passed"));
    EXPECT_EQ(phase(third), Phase::cancelled);
    EXPECT_EQ(phase(first), Phase::running);
}

TEST_F(Live, SoftDeadlineWithoutEpochsStillRuns) {
    policy = "chronus";
    restart();
    Submission soft = job_with_gpus(4, "soft");
    soft.service = ServiceClass::soft_deadline;
    soft.deadline_s = now_s + 3600;
    (void)submit_and_start(soft);
}

TEST_F(Live, RenewedLeasesAreNotWrittenAndOutliveARestart) {
    policy = "max-min";
    restart();
    const JobId first = submit_and_start(job_with_gpus(4, "first"));
    const JobId second = submit_and_start(job_with_gpus(4, "second"));
    const auto lease_of = [&](JobId id) { return job(id).state.lease_until_s; };
    const double lease_s = lease_of(first);
    ASSERT_GT(lease_s, now_s);
    // Decisions are made every 10 s, and the jobs' progress is put on record every 5 s. The last of these ticks decides
    // only.
    tick(lease_s - now_s - 9);
    tick(6);
    std::size_t written = 0;
    own_save = [&](const LiveRecord& change) {
        written += change.jobs.size();
        return put_on_record(change);
    };
    tick(4);
    ASSERT_GT(lease_of(first), lease_s);
    EXPECT_EQ(lease_of(second), lease_of(first));
    EXPECT_EQ(written, 0u);
    // A change of one job is enough to know the leases of all.
    const double renewed_s = lease_of(first);
    record.jobs.at(second)->state.lease_until_s = renewed_s;
    ASSERT_EQ(record.jobs.at(first)->state.lease_until_s, lease_s);
    restart();
    EXPECT_EQ(lease_of(first), renewed_s);
    EXPECT_EQ(lease_of(second), renewed_s);
}

TEST_F(Live, PreemptedJobEndsBeforeItsGpusAreReused) {
    use_shortest_first();
    const JobId first = submit_and_start(job_reading_images("slow", 1000));
    const JobId second = submit(job_reading_images("quick", 1));
    tick();
    EXPECT_EQ(phase(first), Phase::stopping);
    EXPECT_THAT(engine.stops, ElementsAre(Attempt{first, 1}));
    EXPECT_EQ(phase(second), Phase::placed) << "its GPUs are chosen, but not free yet";
    EXPECT_THAT(why(second), HasSubstr("starts when the jobs that had them have ended: 1 (slow)"));
    tick(5);
    EXPECT_EQ(engine.starts.size(), 1u);
    engine.tell_ended({first, 1}, 0, true);
    tick();
    EXPECT_EQ(phase(second), Phase::starting);
    EXPECT_EQ(phase(first), Phase::waiting);
    EXPECT_EQ(job(first).state.preemptions, 1u);
    engine.tell_ended({second, 1}, 0);
    tick();
    tick();
    EXPECT_THAT(engine.starts, ElementsAre(Attempt{first, 1}, Attempt{second, 1}, Attempt{first, 2}));
}

TEST_F(Live, JobThatEndsWhileBeingStoppedSucceeds) {
    const JobId id = submit_and_start(job_with_gpus(1));
    ASSERT_TRUE(cancel(id, "alice"));
    tick();
    engine.tell_ended({id, 1}, 0, false);
    tick();
    EXPECT_EQ(phase(id), Phase::succeeded) << "the signal came too late";
}

TEST_F(Live, LostNodeRequeuesItsJobs) {
    const JobId on_first = submit_and_start(job_with_gpus(4));
    const JobId on_second = submit_and_start(job_with_gpus(4));
    const std::string lost = engine.started.at({on_first, 1}).gpus[0].node;
    engine.tell_node(Kind::node_lost, lost);
    engine.tell(Kind::lost, {on_first, 1});
    tick();
    EXPECT_EQ(phase(on_first), Phase::waiting);
    EXPECT_EQ(phase(on_second), Phase::running);
    EXPECT_THAT(why(on_first), HasSubstr("4 are on lost or drained nodes"));
    tick(20);
    EXPECT_EQ(engine.starts.size(), 2u);
    engine.tell_node(Kind::node_back, lost);
    tick();
    EXPECT_THAT(engine.starts.back(), (Attempt{on_first, 2}));
    EXPECT_EQ(engine.started.at({on_first, 2}).gpus[0].node, lost);
}

TEST_F(Live, JobPlacedOnLostNodeWaitsForAnotherPlace) {
    use_shortest_first();
    const JobId first = submit_and_start(job_reading_images("slow", 1000));
    const JobId second = submit(job_reading_images("quick", 1));
    tick();
    ASSERT_EQ(phase(second), Phase::placed);
    engine.tell_node(Kind::node_lost, "n1");
    engine.tell(Kind::lost, {first, 1});
    tick();
    EXPECT_EQ(phase(first), Phase::waiting);
    EXPECT_EQ(phase(second), Phase::waiting);
    EXPECT_EQ(binding(second), "capacity") << why(second);
    tick(20);
    EXPECT_THAT(engine.starts, ElementsAre(Attempt{first, 1})) << "no job is started on a lost node";
    engine.tell_node(Kind::node_back, "n1");
    tick();
    EXPECT_THAT(engine.starts, ElementsAre(Attempt{first, 1}, Attempt{second, 1}));
}

TEST_F(Live, RunningJobIsStoppedIfItsNodeIsGoneAfterRestart) {
    const JobId id = submit_and_start(job_with_gpus(8));
    gpus.nodes.pop_back();
    restart();
    EXPECT_EQ(phase(id), Phase::stopping);
    EXPECT_THAT(job(id).log.back().text, HasSubstr("its GPUs are gone"));
    tick();
    EXPECT_THAT(engine.stops, ElementsAre(Attempt{id, 1}));
    engine.tell_ended({id, 1}, 0, true);
    tick();
    EXPECT_EQ(phase(id), Phase::waiting);
}

TEST_F(Live, PlacedJobWaitsAgainIfItsNodeIsGoneAfterRestart) {
    use_shortest_first();
    submit_and_start(job_reading_images("slow", 1000));
    const JobId id = submit(job_reading_images("quick", 1));
    tick();
    ASSERT_EQ(phase(id), Phase::placed);
    gpus.nodes.pop_back();
    restart();
    EXPECT_EQ(phase(id), Phase::waiting);
    EXPECT_FALSE(job(id).held);
}

// Wants every job to have a given number of GPUs.
class WantsEach final : public Policy {
public:
    explicit WantsEach(const std::uint32_t& gpus) : gpus_(gpus) {}
    std::string_view name() const override { return "wants-each"; }
    bool preempts() const override { return true; }
    bool sizes_jobs() const override { return true; }
    Result<Decision> decide(const Snapshot& snapshot) override {
        Decision decision;
        for (std::uint32_t j = 0; j < snapshot.jobs.size(); ++j) decision.wants.push_back({.job = j, .gpus = gpus_});
        return decision;
    }

private:
    const std::uint32_t& gpus_;
};

TEST_F(Live, JobMovingToLostNodeIsRequeued) {
    std::uint32_t wanted = 4;
    own_policy = [&wanted] { return std::make_unique<WantsEach>(wanted); };
    restart();
    Submission elastic = job_with_gpus(4);
    elastic.gpus_max = 8;
    const JobId id = submit_and_start(elastic);
    const std::string first = engine.started.at({id, 1}).gpus[0].node;
    wanted = 8;
    tick(20);
    ASSERT_EQ(phase(id), Phase::stopping);
    ASSERT_TRUE(job(id).next);
    const std::string other = first == "n1" ? "n2" : "n1";
    engine.tell_node(Kind::node_lost, other);
    wanted = 4;
    tick();
    EXPECT_FALSE(job(id).next);
    engine.tell_ended({id, 1}, 0, true);
    tick();
    tick();
    EXPECT_THAT(engine.starts.back(), (Attempt{id, 2}));
    EXPECT_EQ(engine.started.at({id, 2}).gpus, (std::vector<NamedGpus>{{first, 0xf}}));
}

TEST_F(Live, MovedJobRemembersItsLastPlacement) {
    std::uint32_t wanted = 4;
    own_policy = [&wanted] { return std::make_unique<WantsEach>(wanted); };
    restart();
    Submission elastic = job_with_gpus(4);
    elastic.gpus_max = 8;
    const JobId id = submit_and_start(elastic);
    const auto before = job(id).held;
    wanted = 8;
    tick(20);
    engine.tell_ended({id, 1}, 0, true);
    tick();
    EXPECT_EQ(job(id).last, before);
    EXPECT_EQ(job(id).held->count, 8u);
}

TEST_F(Live, ElasticJobGrowsOnlyIfItGains) {
    policy = "las";
    for (const bool gains : {true, false}) {
        restart();
        report("", 0);
        Submission elastic = job_with_gpus(2);
        elastic.gpus_max = 4;
        elastic.dataset = "images";
        elastic.epochs = 1e4;
        elastic.ideal_by_type = {{"", 1e5}};
        if (!gains) elastic.scaling = {1, 1, 1};
        const JobId id = submit_and_start(elastic);
        EXPECT_EQ(job(id).held->count, gains ? 4u : 2u);
        ASSERT_TRUE(cancel(id, "the test"));
        tick();
        engine.tell_ended({id, 1}, 0, true);
        tick();
    }
}

TEST_F(Live, OnlyPackableJobsShareGpus) {
    policy = "gandiva";
    for (const double packed_rate : {0.0, 0.9}) {
        restart();
        report("", 0);
        Submission asked = job_with_gpus(8);
        asked.dataset = "images";
        asked.epochs = 1e5;
        asked.ideal_by_type = {{"", 1e6}};
        asked.packed_rate = packed_rate;
        asked.gpu_memory_part = 0.5;
        const JobId first = submit_and_start(asked);
        const JobId second = submit(asked);
        bool packed = false;
        for (int i = 0; i < 5 && !packed; ++i) {
            tick(1);
            packed = job(second).held && job(second).held->packed_with == first;
        }
        EXPECT_EQ(packed, packed_rate > 0);
        for (const JobId id : {first, second}) {
            ASSERT_TRUE(cancel(id, "the test"));
            tick();
            engine.tell_ended({id, 1}, 0, true);
            tick();
        }
    }
}

TEST_F(Live, JobLostFiveTimesInARowFails) {
    const JobId id = submit(job_with_gpus(1));
    for (std::uint32_t attempt = 1; attempt <= 5; ++attempt) {
        tick();
        EXPECT_THAT(engine.starts.back(), (Attempt{id, attempt}));
        engine.tell(Kind::lost, {id, attempt});
        tick();
    }
    EXPECT_EQ(phase(id), Phase::failed);
    EXPECT_THAT(job(id).end_reason, HasSubstr("lost 5 times in a row"));
}

// Nodes that fail once a week are no fault of a job that runs for months.
TEST_F(Live, LossAfterTenMinutesOfRunningBeginsANewRow) {
    const JobId id = submit(job_with_gpus(1));
    std::uint32_t attempt = 0;
    const auto lose_after = [&](double seconds) {
        tick();
        ASSERT_THAT(engine.starts.back(), (Attempt{id, ++attempt}));
        engine.tell(Kind::started, {id, attempt});
        tick();
        tick(seconds);
        engine.tell(Kind::lost, {id, attempt});
        tick();
    };
    for (int i = 0; i < 8; ++i) lose_after(600);
    EXPECT_NE(phase(id), Phase::failed);
    for (int i = 0; i < 3; ++i) lose_after(1);
    EXPECT_NE(phase(id), Phase::failed);
    lose_after(1);
    EXPECT_EQ(phase(id), Phase::failed) << "the row has the last of the long runs and four short ones";
}

TEST_F(Live, JobStoppedFromOutsideWaitsAgainHoweverOften) {
    const JobId id = submit(job_with_gpus(1));
    for (std::uint32_t attempt = 1; attempt <= 12; attempt += 4) {
        const EngineEvent stopped{.job = id, .stopped_by = "process 1 (systemd)"};
        const auto stop = [&](std::uint32_t more, EngineEvent event) {
            tick();
            ASSERT_THAT(engine.starts.back(), (Attempt{id, attempt + more}));
            event.attempt = attempt + more;
            engine.tell(event);
            tick(0);
        };
        EngineEvent saved = stopped;  // it caught SIGTERM
        saved.kind = Kind::ended;
        saved.exit_code = 0;
        saved.was_stopping = true;
        stop(0, saved);
        EngineEvent killed = stopped;  // its runner was told to stop after it
        killed.kind = Kind::ended;
        killed.exit_signal = 15;
        killed.stop_came_late = true;
        stop(1, killed);
        EngineEvent lost = stopped;
        lost.kind = Kind::lost;
        lost.was_stopping = true;
        stop(2, lost);
        stop(3, lost);
    }
    tick();
    EXPECT_THAT(engine.starts.back(), (Attempt{id, 13}));
    EXPECT_EQ(job(id).state.preemptions, 0u);
    EXPECT_TRUE(std::ranges::any_of(job(id).log, [](const LogEntry& entry) {
        return entry.text.find("stopped from outside by process 1 (systemd)") != std::string::npos;
    }));
}

TEST_F(Live, JobThatEndsJustBeforeItsStopKeepsItsVerdict) {
    const JobId id = submit_and_start(job_with_gpus(1));
    ASSERT_TRUE(cancel(id, "alice"));
    tick();
    engine.tell(
        {.kind = Kind::ended, .job = id, .attempt = 1, .exit_code = 0, .stop_came_late = true, .stopped_by = "us"});
    tick();
    EXPECT_EQ(phase(id), Phase::succeeded);
}

TEST_F(Live, DependentWaitsAndIsCancelledOnFailure) {
    const JobId first = submit_and_start(job_with_gpus(1, "first"));
    Submission after = job_with_gpus(1, "second");
    after.after = {"first"};
    const JobId second = submit(after);
    after.name = "third";
    after.after = {"second"};
    const JobId third = submit(after);
    tick();
    EXPECT_EQ(engine.starts.size(), 1u);
    EXPECT_EQ(binding(second), "dependencies");
    EXPECT_THAT(why(second), HasSubstr("the success of job 1 (first), which is running"));
    engine.tell_ended({first, 1}, 0);
    tick();
    EXPECT_THAT(engine.starts.back(), (Attempt{second, 1}));
    engine.tell_ended({second, 1}, 3);
    tick();
    EXPECT_EQ(phase(second), Phase::failed);
    EXPECT_EQ(phase(third), Phase::cancelled);
    EXPECT_EQ(job(third).end_reason, "job 2 (second), which it waits for, has failed: exit code 3");
    EXPECT_THAT(why(second), MatchesRegex("Job 2 \\(second\\) failed .* ago: exit code 3\\."));
    EXPECT_THAT(why(third), StartsWith("Job 3 (third) was cancelled "));
}

TEST_F(Live, CancellingWorksInEveryPhase) {
    const JobId running = submit_and_start(job_with_gpus(8));
    const JobId waiting = submit(job_with_gpus(8));
    tick();
    ASSERT_TRUE(cancel(waiting, "alice"));
    EXPECT_EQ(phase(waiting), Phase::cancelled);
    EXPECT_EQ(job(waiting).end_reason, "cancelled by alice");
    ASSERT_TRUE(cancel(running, "alice"));
    const JobId placed = submit(job_with_gpus(8));
    tick();
    EXPECT_EQ(phase(placed), Phase::placed);
    ASSERT_TRUE(cancel(placed, "alice"));
    EXPECT_EQ(phase(placed), Phase::cancelled);
    EXPECT_THAT(engine.stops, ElementsAre(Attempt{running, 1}));
    engine.tell_ended({running, 1}, 1, true);
    tick();
    EXPECT_EQ(phase(running), Phase::cancelled);
    EXPECT_EQ(cancel(running, "alice").error().code, ErrorCode::changed);
    EXPECT_EQ(engine.starts.size(), 1u);
}

TEST_F(Live, QuotaHoldsAndIsNamed) {
    Submission asked = job_with_gpus(2, "a");
    asked.tenant = "small";
    submit_and_start(asked);
    asked.name = "b";
    asked.gpus = 1;
    const JobId waits = submit(asked);
    tick();
    EXPECT_EQ(phase(waits), Phase::waiting);
    EXPECT_EQ(binding(waits), "quota");
    EXPECT_THAT(why(waits), HasSubstr("tenant small may have 2 GPUs at a time"));
    EXPECT_THAT(why(waits), HasSubstr("1 (a): 2 GPUs"));
}

TEST_F(Live, WhyNamesGpusAndTheirHolders) {
    submit_and_start(job_with_gpus(6, "big"));
    const JobId waits = submit(job_with_gpus(4, "next"));
    const JobId behind = submit(job_with_gpus(1, "behind"));
    tick(90);
    EXPECT_EQ(binding(waits), "gpus");
    EXPECT_THAT(why(waits), HasSubstr("Job 2 (next) has waited 1m 30s for GPUs: it needs 4 GPUs at once, and 2 GPUs of "
                                      "8 are free. They are held by 1 (big): 6 GPUs, tenant default"));
    EXPECT_EQ(binding(behind), "turn") << why(behind);
}

class ThrowingPolicy final : public Policy {
public:
    std::string_view name() const override { return "throws"; }
    bool preempts() const override { return false; }
    Result<Decision> decide(const Snapshot&) override { throw std::runtime_error("a bug"); }
};

TEST_F(Live, PolicyThatThrowsStopsNoJob) {
    const JobId id = submit_and_start(job_with_gpus(1));
    own_policy = [] { return std::make_unique<ThrowingPolicy>(); };
    restart();
    tick();
    EXPECT_EQ(phase(id), Phase::running);
    EXPECT_EQ(live->counts().decisions_failed, 1u);
    engine.tell_ended({id, 1}, 0);
    tick();
    EXPECT_EQ(phase(id), Phase::succeeded);
}

TEST_F(Live, LostQueueLeavesNoRegistrationOfItsJobs) {
    ASSERT_TRUE(cluster.register_job({.name = "outside"}));
    submit_and_start(job_with_gpus(1, "resnet"));
    restart();
    EXPECT_NE(cluster.registered("resnet"), nullptr);
    record = {};
    restart();
    EXPECT_EQ(cluster.registered("resnet"), nullptr);
    EXPECT_NE(cluster.registered("outside"), nullptr);
    submit_and_start(job_with_gpus(1, "resnet"));
}

TEST_F(Live, WhySaysThatIdealRateOfRunningJobIsNotKnown) {
    report("", 0);
    Submission asked = job_with_gpus(4, "resnet");
    asked.dataset = "images";
    const JobId id = submit_and_start(asked);
    report("resnet", 0);
    ASSERT_EQ(cluster.plan().jobs.at(0).predicted_bytes_per_second, 1e6) << "the plan assumes the remote's bandwidth";
    EXPECT_THAT(why(id), HasSubstr("its f* is not known yet, as it was neither declared nor measured: by the plan it "
                                   "reads 1.00 MB/s, with "));
    EXPECT_EQ(binding(id), "remote_bandwidth");
}

TEST_F(Live, RunningJobIsRegisteredAndItsReadsAreItsProgress) {
    report("resnet", 5'000);  // of an earlier job of that name
    Submission asked = job_with_gpus(4, "resnet");
    asked.dataset = "images";
    asked.epochs = 3;
    asked.ideal_by_type[""] = 2e5;
    const JobId id = submit_and_start(asked);
    const allocator::JobRegistration* spec = cluster.registered("resnet");
    ASSERT_NE(spec, nullptr);
    EXPECT_EQ(spec->epochs, 3);
    EXPECT_EQ(spec->ideal_bytes_per_second, 2e5);
    report("resnet", 505'000);
    tick();
    EXPECT_EQ(job(id).read_bytes, 500'000);
    EXPECT_EQ(job(id).remaining_bytes(), 2'500'000);
    EXPECT_THAT(why(id), HasSubstr(" left."));
    restart();
    report("resnet", 505'000);
    tick();
    EXPECT_LE(job(id).read_bytes, 505'000) << "nothing is counted twice";
    engine.tell_ended({id, 1}, 0);
    tick();
    EXPECT_EQ(cluster.registered("resnet"), nullptr);
}

TEST_F(Live, ReadsOfTheNamedReaderAreTheJobsProgress) {
    submitter = {.uid = 0, .name = {}, .is_operator = true};
    report("", 0);
    Submission asked = job_with_gpus(4, "resnet");
    asked.dataset = "images";
    asked.user = RunAs{.uid = 0, .gid = 0};
    asked.reader_uid = 1001;
    const JobId id = submit_and_start(asked);
    EXPECT_EQ(cluster.registered("resnet")->user, 1001u);
    report("resnet", 1'000, 1001);
    tick();
    report("resnet", 501'000, 1001);
    tick();
    EXPECT_EQ(job(id).read_bytes, 501'000);
    report("resnet", 900'000, 1002);
    tick();
    EXPECT_EQ(job(id).read_bytes, 501'000) << "of another user";
    restart();
    EXPECT_EQ(job(id).asked.reader_uid, 1001u);
}

TEST_F(Live, NameInUseIsRefused) {
    ASSERT_TRUE(cluster.register_job({.name = "by-hand"}));
    const Submission by_hand = job_with_gpus(1, "by-hand");
    EXPECT_EQ(try_submit(by_hand).error().code, ErrorCode::already_exists);
    const JobId id = submit_and_start(job_with_gpus(1, "once"));
    const Submission again = job_with_gpus(1, "once");
    EXPECT_EQ(try_submit(again).error().code, ErrorCode::already_exists);
    engine.tell_ended({id, 1}, 0);
    tick();
    EXPECT_EQ(submit(again), id + 1);
}

TEST_F(Live, NameOfAnotherUsersRunningJobIsRefused) {
    submitter = {.uid = 1002, .name = {}, .is_operator = false};
    report("resnet", 5'000, 1001);
    Submission asked = job_with_gpus(1, "resnet");
    asked.user = RunAs{.uid = 1002, .gid = 1002};
    const auto refused = try_submit(asked);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::already_exists);
    submitter.uid = 1001;
    asked.user = RunAs{.uid = 1001, .gid = 1001};
    EXPECT_TRUE(try_submit(asked)) << "it is the user's own";
}

TEST_F(Live, RegistrationByTheJobsUserBecomesTheSchedulers) {
    const JobId first = submit_and_start(job_with_gpus(8));
    Submission asked = job_with_gpus(1, "resnet");
    asked.user = RunAs{.uid = 1001, .gid = 1001};
    submit(asked);
    allocator::JobRegistration declared{.name = "resnet", .bandwidth_cap_bytes_per_second = 7e5, .user = 1001};
    declared.owner = {.uid = 1001, .token = {}};
    ASSERT_TRUE(cluster.register_job(declared));
    engine.tell_ended({first, 1}, 0);
    tick();
    tick();
    const allocator::JobRegistration* spec = cluster.registered("resnet");
    ASSERT_NE(spec, nullptr);
    EXPECT_TRUE(spec->registered_by_operator());
    EXPECT_EQ(spec->user, 1001u);
    EXPECT_EQ(spec->bandwidth_cap_bytes_per_second, 7e5) << "what the user declared stays";
}

TEST_F(Live, HistoryIsKeptWithinItsLimit) {
    history_max = 2;
    restart();
    for (int i = 0; i < 4; ++i) {
        const JobId id = submit_and_start(job_with_gpus(1));
        engine.tell_ended({id, 1}, 0);
        tick();
    }
    tick();
    EXPECT_EQ(record.jobs.size(), 2u);
    EXPECT_TRUE(record.jobs.contains(3) && record.jobs.contains(4));
    EXPECT_THAT(engine.forgotten, ElementsAre(1, 2));
}

TEST_F(Live, FailureReachesAllDependentsDespiteShortHistory) {
    history_max = 1;
    restart();
    const JobId failed = submit_and_start(job_with_gpus(1));
    std::vector<JobId> dependents;
    for (int i = 0; i < 3; ++i) {
        Submission after = job_with_gpus(1);
        after.after = {std::to_string(failed)};
        dependents.push_back(submit(after));
    }
    engine.tell_ended({failed, 1}, 1);
    tick();
    ASSERT_EQ(live->queue().jobs().size(), 1U);
    EXPECT_EQ(phase(dependents.back()), Phase::cancelled);
    EXPECT_THAT(job(dependents.back()).end_reason, HasSubstr("has failed"));
    EXPECT_TRUE(live->queue().active().empty());
}

TEST_F(Live, TenantAccountsContinueAcrossRestart) {
    const JobId id = submit_and_start(job_with_gpus(4));
    tick(100);
    tick(10);
    const auto gpu_time_s = [&] { return live->options().tenants[0].gpu_time.sum(now_s, live->options().window); };
    const double before = gpu_time_s();
    EXPECT_GT(before, 400);
    restart();
    tick();
    EXPECT_GE(gpu_time_s(), before - 4 * 10) << "only time after the last record is lost";
    EXPECT_EQ(phase(id), Phase::running);
}

TEST_F(Live, JobGoesToTheNodeWhoseNetworkHasRoom) {
    for (const char* const name : {"n1", "n2"}) {
        allocator::NodeReport node{.node = name,
                                   .instance = 1,
                                   .memory_bytes = 1'000,
                                   .nic_bytes_per_second = 1e5,
                                   .datasets = {{.name = "images", .size_bytes = 1'000'000'000}}};
        ASSERT_TRUE(cluster.report(node, now().steady_ns));
    }
    ASSERT_TRUE(cluster.set_remote(1e9));
    ASSERT_TRUE(cluster.replan(now().steady_ns));
    std::vector<JobId> ids;
    for (const char* const name : {"first", "second"}) {
        Submission asked = job_with_gpus(2, name);
        asked.dataset = "images";
        asked.ideal_by_type[""] = 1e5;
        ids.push_back(submit_and_start(asked));
    }
    EXPECT_EQ(job(ids[0]).held->gpus.front().node, "n1");
    EXPECT_EQ(job(ids[1]).held->gpus.front().node, "n2") << "no report has named the first job yet";
}

}  // namespace
}  // namespace larder::scheduler
