// The engine with real processes.

#include "scheduler/engines/local_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "scheduler/engines/control_group.h"
#include "tests/support/program.h"
#include "tests/support/temp_directory.h"

namespace larder::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = EngineEvent::Kind;

class LocalEngineTest : public ::testing::Test {
protected:
    std::unique_ptr<LocalEngine> make_engine(const std::string& group_parent = "") const {
        auto made = LocalEngine::open({.directory = directory / "jobs",
                                       .queue = "q-1",
                                       .runner = LARDER_RUNNER_PROGRAM,
                                       .first_gpus = {{"n1", 0}, {"n2", 4}},
                                       .group_parent = group_parent});
        EXPECT_TRUE(made) << made.error().message;
        return std::move(*made);
    }
    EngineJob job(const std::string& script, double grace_s = 20) const {
        return {.job = 7,
                .attempt = 2,
                .command = {"sh", "-c", script},
                .directory = directory.path(),
                .environment = {{"COLOUR", "red"}},
                .gpus = {{"n1", 0b1010}, {"n2", 0b0001}},
                .grace_s = grace_s};
    }
    // Waits for the next event of this kind.
    static EngineEvent wait_for(LocalEngine& engine, Kind kind) {
        for (;;) {
            for (const EngineEvent& event : engine.poll()) {
                if (event.kind == kind) return event;
                EXPECT_EQ(event.kind, Kind::started) << event.message;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    }
    void wait_for_file(const std::string& name) const {
        while (!std::ifstream(directory / name)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::string text_of(const std::string& path) const {
        std::ostringstream text;
        text << std::ifstream(path).rdbuf();
        return text.str();
    }
    bool is_unlocked(const std::string& name) const {
        return test::run_program({"/usr/bin/flock", "-n", directory / name, "true"}).exit_code == 0;
    }
    AttemptFiles files() const { return AttemptFiles(directory / "jobs/q-1/7/2", "q-1"); }

    test::TempDirectory directory;
    std::unique_ptr<LocalEngine> engine = make_engine();
};

TEST_F(LocalEngineTest, RunsACommandWithItsGpusAndKeepsItsOutput) {
    engine->start(job("echo $CUDA_VISIBLE_DEVICES $COLOUR $PWD; echo oops >&2; exit 3"));
    const EngineEvent ended = wait_for(*engine, Kind::ended);
    EXPECT_EQ(ended.job, 7u);
    EXPECT_EQ(ended.attempt, 2u);
    EXPECT_EQ(ended.exit_code, 3);
    EXPECT_FALSE(ended.was_stopping);
    EXPECT_EQ(text_of(engine->output_of(7, 2)), "1,3,4 red " + directory.path().string() + "\noops\n");
}

TEST_F(LocalEngineTest, JobOfAUserRunsWithTheRightsOfThatUserOnly) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    ASSERT_EQ(::chmod(directory.path().c_str(), 0755), 0);
    EngineJob users_job = job("id -u; id -g; id -G; ! cat /proc/1/environ");
    users_job.user = RunAs{.uid = 65534, .gid = 65534};
    engine->start(users_job);
    const EngineEvent ended = wait_for(*engine, Kind::ended);
    EXPECT_EQ(ended.exit_code, 0) << ended.message;
    const std::string output = engine->output_of(7, 2);
    EXPECT_THAT(text_of(output), ::testing::StartsWith("65534\n65534\n65534\n"));
    struct stat status{};
    ASSERT_EQ(::stat(output.c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, 65534u);
}

TEST_F(LocalEngineTest, FilesOfAnotherQueueAreIgnored) {
    engine->start(job("exit 0"));
    wait_for(*engine, Kind::ended);
    ASSERT_TRUE(files().exit());
    ASSERT_TRUE(files().started());
    const AttemptFiles others(files().directory(), "q-2");
    EXPECT_FALSE(others.exit());
    EXPECT_FALSE(others.started());
    // The same number in another queue is another job.
    const auto other =
        LocalEngine::open({.directory = directory / "jobs", .queue = "q-2", .runner = LARDER_RUNNER_PROGRAM});
    ASSERT_TRUE(other);
    (*other)->start(job("exit 3"));
    EXPECT_EQ(wait_for(**other, Kind::ended).exit_code, 3);
    EXPECT_EQ(highest_job_number(directory / "jobs"), 7u);
}

TEST_F(LocalEngineTest, AttemptOfALostQueueIsStoppedWithItsGrace) {
    engine->start(job("trap 'touch asked; exit 0' TERM; touch runs; while :; do sleep 0.01; done"));
    wait_for_file("runs");
    const auto other =
        LocalEngine::open({.directory = directory / "jobs", .queue = "q-2", .runner = LARDER_RUNNER_PROGRAM});
    ASSERT_TRUE(other) << other.error().message;
    EXPECT_THAT((*other)->list(), ElementsAre(AttemptName{"q-1", 7, 2}));
    (*other)->stop(7, 2);
    (*other)->stop_orphan({"", 7, 2});
    EXPECT_FALSE(std::ifstream(directory / "asked")) << "attempts of another queue";
    EXPECT_FALSE(std::filesystem::exists(directory / "jobs/q-2")) << "an attempt that the engine does not have";
    (*other)->stop_orphan({"q-1", 7, 2});
    (*other)->stop_orphan({"q-1", 7, 2});
    wait_for_file("asked");
    EXPECT_TRUE(wait_for(*engine, Kind::ended).was_stopping);
    EXPECT_THAT((*other)->list(), IsEmpty());
    EXPECT_THAT((*other)->poll(), IsEmpty());
}

TEST_F(LocalEngineTest, AttemptOfTheOwnQueueIsListedWhileItRunsAndStoppedAsAnOrphan) {
    engine->start(job("trap 'touch asked; exit 0' TERM; touch runs; while :; do sleep 0.01; done"));
    wait_for_file("runs");
    const auto later = make_engine();
    EXPECT_THAT(later->list(), ElementsAre(AttemptName{"", 7, 2}));
    EXPECT_EQ(later->lists(), 1u);
    later->stop_orphan({"", 7, 2});
    wait_for_file("asked");
    EXPECT_TRUE(wait_for(*engine, Kind::ended).was_stopping);
    EXPECT_THAT(later->list(), IsEmpty());
}

// The daemon was killed before it started the runner, or the runner has not begun.
TEST_F(LocalEngineTest, PreparedAttemptIsListedAndNeverRunsOnceItIsStoppedAsAnOrphan) {
    ASSERT_TRUE(files().write_run(job("touch ran"), ""));
    EXPECT_THAT(engine->list(), ElementsAre(AttemptName{"", 7, 2}));
    engine->stop_orphan({"", 7, 2});
    EXPECT_THAT(engine->list(), IsEmpty());
    ASSERT_TRUE(files().exit());
    EXPECT_TRUE(files().exit()->was_stopping);
    engine->start(job("touch ran"));
    wait_for(*engine, Kind::ended);
    EXPECT_FALSE(std::ifstream(directory / "ran"));
}

TEST_F(LocalEngineTest, AttemptWhoseRunnerWasKilledIsNotListed) {
    engine->start(job("touch runs; sleep 1000"));
    wait_for_file("runs");
    ::kill(files().started()->pid, SIGKILL);
    wait_for(*engine, Kind::lost);
    EXPECT_THAT(engine->list(), IsEmpty());
}

TEST_F(LocalEngineTest, AttemptStartedBeforeQueuesHadIdentitiesIsListedAsOneOfTheOwnQueue) {
    const AttemptFiles old(directory / "jobs/3/1");
    const AttemptFiles nobodys(directory / "jobs/9/1");
    for (const AttemptFiles& prepared : {old, nobodys}) ASSERT_TRUE(prepared.write_run(job("touch ran"), ""));
    const auto upgraded = LocalEngine::open(
        {.directory = directory / "jobs", .queue = "q-1", .first = 8, .runner = LARDER_RUNNER_PROGRAM});
    ASSERT_TRUE(upgraded);
    EXPECT_THAT((*upgraded)->list(), ElementsAre(AttemptName{"", 3, 1}));
    (*upgraded)->stop_orphan({"", 3, 1});
    EXPECT_TRUE(old.exit());
    EXPECT_THAT((*upgraded)->list(), IsEmpty());
}

TEST_F(LocalEngineTest, JobStartedBeforeQueuesHadIdentitiesIsFound) {
    const AttemptFiles old(directory / "jobs/7/2");
    ASSERT_TRUE(old.claim({.pid = 1, .boot = "b"}));
    ASSERT_TRUE(old.write_exit({.code = 5}));
    const auto upgraded = LocalEngine::open(
        {.directory = directory / "jobs", .queue = "q-1", .first = 8, .runner = LARDER_RUNNER_PROGRAM});
    ASSERT_TRUE(upgraded);
    (*upgraded)->adopt(job("exit 0"));
    EXPECT_EQ(wait_for(**upgraded, Kind::ended).exit_code, 5);
}

TEST_F(LocalEngineTest, AttemptIsStartedOnceByAnyEngine) {
    const EngineJob engine_job = job("echo started >> starts; while [ ! -e end ]; do sleep 0.01; done");
    engine->start(engine_job);
    const auto other = make_engine();
    other->start(engine_job);
    other->start(engine_job);
    wait_for(*engine, Kind::started);
    make_engine()->start(engine_job);
    std::ofstream(directory / "end").flush();
    wait_for(*engine, Kind::ended);
    wait_for(*other, Kind::ended);
    EXPECT_EQ(text_of(directory / "starts"), "started\n");
}

TEST_F(LocalEngineTest, AnotherEngineFindsRunningAndEndedJobs) {
    const EngineJob engine_job = job("touch runs; while [ ! -e end ]; do sleep 0.01; done; exit 9");
    engine->start(engine_job);
    wait_for_file("runs");
    const auto other = make_engine();
    other->adopt(engine_job);
    EXPECT_TRUE(other->poll().empty());
    std::ofstream(directory / "end").flush();
    EXPECT_EQ(wait_for(*other, Kind::ended).exit_code, 9);
    const auto late = make_engine();
    late->adopt(engine_job);
    EXPECT_EQ(wait_for(*late, Kind::ended).exit_code, 9) << "the job had ended before the engine adopted it";
}

TEST_F(LocalEngineTest, StopSendsSigtermFirst) {
    engine->start(job("trap 'echo saved; exit 0' TERM; touch runs; while :; do sleep 0.01; done"));
    wait_for_file("runs");
    engine->stop(7, 2);
    engine->stop(7, 2);
    const EngineEvent ended = wait_for(*engine, Kind::ended);
    EXPECT_EQ(ended.exit_code, 0);
    EXPECT_TRUE(ended.was_stopping);
    EXPECT_THAT(text_of(engine->output_of(7, 2)), HasSubstr("saved\n"));
}

TEST_F(LocalEngineTest, JobIgnoringSigtermIsKilledAfterGraceWithDescendants) {
    // The child leaves its process group and its parent. It holds the lock for as long as it lives.
    engine->start(
        job("trap '' TERM; (setsid sh -c 'exec 9>held; flock 9; touch locked; sleep 1000' &) ; "
            "while [ ! -e locked ]; do sleep 0.01; done; touch runs; while :; do sleep 0.01; done",
            0.1));
    wait_for_file("runs");
    engine->stop(7, 2);
    const EngineEvent ended = wait_for(*engine, Kind::ended);
    EXPECT_EQ(ended.exit_signal, SIGKILL);
    EXPECT_TRUE(ended.was_stopping);
    EXPECT_TRUE(is_unlocked("held")) << "no process of the job is left";
}

TEST_F(LocalEngineTest, AttemptStoppedBeforeStartNeverRuns) {
    const EngineJob engine_job = job("touch ran");
    engine->adopt(engine_job);
    engine->stop(7, 2);
    const EngineEvent ended = wait_for(*engine, Kind::ended);
    EXPECT_TRUE(ended.was_stopping);
    engine->start(engine_job);
    wait_for(*engine, Kind::ended);
    EXPECT_FALSE(std::ifstream(directory / "ran"));
}

TEST_F(LocalEngineTest, CommandThatCannotRunSaysWhy) {
    EngineJob missing = job("");
    missing.command = {"no-such-program"};
    engine->start(missing);
    const EngineEvent ended = wait_for(*engine, Kind::ended);
    EXPECT_EQ(ended.exit_code, 127);
    EXPECT_THAT(ended.message, HasSubstr("cannot run it (no-such-program): No such file or directory"));
    EngineJob nowhere = job("true");
    nowhere.attempt = 3;
    nowhere.directory = "/no/such/directory";
    engine->start(nowhere);
    EXPECT_THAT(wait_for(*engine, Kind::ended).message, HasSubstr("cannot enter its directory"));
}

TEST_F(LocalEngineTest, JobOfKilledRunnerIsLostAndLeavesNoProcess) {
    engine->start(job("(exec 9>held; flock 9; touch runs; sleep 1000) & wait"));
    wait_for_file("runs");
    ASSERT_TRUE(files().started());
    ::kill(files().started()->pid, SIGKILL);
    const EngineEvent lost = wait_for(*engine, Kind::lost);
    EXPECT_THAT(lost.message, HasSubstr("its runner is gone"));
    while (!is_unlocked("held")) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

// An attempt whose lock file is gone still runs. Another attempt beside it would write the same checkpoints.
TEST_F(LocalEngineTest, AttemptWithoutItsLockFileStillRuns) {
    const EngineJob known = job("touch runs; while [ ! -e end ]; do sleep 0.01; done");
    engine->start(known);
    wait_for_file("runs");
    wait_for(*engine, Kind::started);
    std::filesystem::remove(files().directory() + "/lock");
    const auto other = make_engine();
    other->adopt(known);
    for (int i = 0; i < 20; ++i) {
        EXPECT_TRUE(other->poll().empty());
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::ofstream(directory / "end").flush();
    EXPECT_EQ(wait_for(*other, Kind::ended).exit_code, 0);
}

TEST_F(LocalEngineTest, SigtermFromOutsideIsReportedAsAStop) {
    engine->start(job("trap 'exit 0' TERM; touch runs; while :; do sleep 0.01; done"));
    wait_for_file("runs");
    ASSERT_TRUE(files().started());
    ::kill(files().started()->pid, SIGTERM);
    const EngineEvent ended = wait_for(*engine, Kind::ended);
    EXPECT_EQ(ended.exit_code, 0);
    EXPECT_TRUE(ended.was_stopping);
    EXPECT_THAT(ended.stopped_by, HasSubstr("process " + std::to_string(::getpid()) + " ("));
}

TEST_F(LocalEngineTest, StopThatComesAfterTheEndIsReportedAsLate) {
    engine->start(job("echo $$ > writing; mv writing pid; while [ ! -e end ]; do sleep 0.01; done; exit 3"));
    wait_for_file("pid");
    ASSERT_TRUE(files().started());
    const pid_t runner = files().started()->pid;
    ::kill(runner, SIGSTOP);
    std::ofstream(directory / "end").flush();
    const std::string pid = text_of(directory / "pid");
    const std::string stat = "/proc/" + pid.substr(0, pid.find('\n')) + "/stat";
    while (text_of(stat).find(") Z ") == std::string::npos) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ::kill(runner, SIGTERM);
    ::kill(runner, SIGCONT);
    const EngineEvent ended = wait_for(*engine, Kind::ended);
    EXPECT_EQ(ended.exit_code, 3);
    EXPECT_FALSE(ended.was_stopping) << "the job had ended by itself";
    EXPECT_TRUE(ended.stop_came_late);
}

TEST_F(LocalEngineTest, JobCannotStopItsOwnRunner) {
    engine->start(job("kill -TERM $PPID; sleep 0.1; exit 5"));
    const EngineEvent ended = wait_for(*engine, Kind::ended);
    EXPECT_EQ(ended.exit_code, 5);
    EXPECT_FALSE(ended.was_stopping);
    EXPECT_FALSE(ended.stop_came_late);
}

TEST_F(LocalEngineTest, RunnerKilledWhileItStopsAJobSaysThatItWasStopping) {
    engine->start(job("trap 'touch asked' TERM; touch runs; while :; do sleep 0.01; done"));
    wait_for_file("runs");
    ASSERT_TRUE(files().started());
    ::kill(files().started()->pid, SIGTERM);
    wait_for_file("asked");
    ::kill(files().started()->pid, SIGKILL);
    EXPECT_TRUE(wait_for(*engine, Kind::lost).was_stopping);
}

TEST_F(LocalEngineTest, MissingRunnerIsRefused) {
    const auto refused = LocalEngine::open({.directory = directory / "jobs", .runner = directory / "missing"});
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("the program that runs jobs"));
}

TEST_F(LocalEngineTest, ForgottenJobLeavesNoFiles) {
    engine->start(job("true"));
    wait_for(*engine, Kind::ended);
    engine->forget(7);
    EXPECT_FALSE(std::filesystem::exists(directory / "jobs/7"));
}

// A job whose processes leave their session and their parent. `held` is locked as long as one of them lives. Once the
// test's directory is gone, they end by themselves.
class LocalEngineWithGroups : public LocalEngineTest, public ::testing::WithParamInterface<GroupVersion> {
protected:
    void SetUp() override {
        const auto parent = find_group_parent(GetParam());
        if (!parent) GTEST_SKIP() << parent.error().message;
        engine = make_engine(*parent);
        std::ofstream(directory / "alive").flush();
        std::ofstream(directory / "stay")
            << "exec 9>>held; flock -s 9; touch runs; while [ -e alive ]; do sleep 0.01; done";
        std::ofstream(directory / "hop")
            << "exec 9>>held; flock -s 9; touch runs; [ -e alive ] && setsid sh hop & exit 0";
    }
    EngineJob detaches(const std::string& script) const {
        return job("(setsid sh " + script + " &); while [ ! -e end ]; do sleep 0.01; done; exit 4");
    }
    std::string group() const { return files().started()->group; }
};

TEST_P(LocalEngineWithGroups, DetachedProcessesEndWithTheirCommand) {
    engine->start(detaches("stay"));
    wait_for_file("runs");
    EXPECT_TRUE(std::filesystem::exists(group()));
    std::ofstream(directory / "end").flush();
    EXPECT_EQ(wait_for(*engine, Kind::ended).exit_code, 4);
    EXPECT_TRUE(is_unlocked("held"));
    EXPECT_FALSE(std::filesystem::exists(group()));
}

TEST_P(LocalEngineWithGroups, DetachedProcessesEndBeforeTheirKilledRunnerIsReportedLost) {
    engine->start(detaches("stay"));
    wait_for_file("runs");
    ::kill(files().started()->pid, SIGKILL);
    wait_for(*engine, Kind::lost);
    EXPECT_TRUE(is_unlocked("held"));
    EXPECT_FALSE(std::filesystem::exists(group()));
}

TEST_P(LocalEngineWithGroups, ProcessThatForksAllTheTimeEndsToo) {
    engine->start(detaches("hop"));
    wait_for_file("runs");
    ::kill(files().started()->pid, SIGKILL);
    wait_for(*engine, Kind::lost);
    EXPECT_TRUE(is_unlocked("held"));
}

TEST_P(LocalEngineWithGroups, AnotherEngineEndsDetachedProcesses) {
    const EngineJob known = detaches("stay");
    engine->start(known);
    wait_for_file("runs");
    wait_for(*engine, Kind::started);
    const pid_t runner = files().started()->pid;
    ::kill(runner, SIGKILL);
    ::waitpid(runner, nullptr, 0);
    // Groups of later attempts may be made elsewhere, or nowhere.
    const auto other = make_engine();
    other->adopt(known);
    wait_for(*other, Kind::lost);
    EXPECT_TRUE(is_unlocked("held"));
}

TEST_P(LocalEngineWithGroups, GroupsBelowAGroupEndWithIt) {
    const ControlGroup outer(find_group_parent(GetParam()).value() + "/larder-test-" + std::to_string(::getpid()));
    const ControlGroup inner(outer.directory() + "/inner");
    std::vector<pid_t> children;
    for (const ControlGroup& entered : {outer, inner}) {
        std::array<int, 2> ends{};
        ASSERT_EQ(::pipe(ends.data()), 0);
        children.push_back(::fork());
        if (children.back() == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            const char good = entered.enter() ? 1 : 0;
            static_cast<void>(!::write(ends[1], &good, 1));
            for (;;) ::pause();
        }
        char good = 0;
        EXPECT_EQ(::read(ends[0], &good, 1), 1);
        EXPECT_EQ(good, 1);
        ::close(ends[0]);
        ::close(ends[1]);
    }
    while (!outer.kill_all()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (const pid_t child : children) {
        int status = 0;
        // A process leaves its group a moment before its parent can wait for it.
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    EXPECT_TRUE(outer.kill_all()) << "a group that is gone has no processes";
}

// As systemd does with Delegate=yes and User=.
TEST(DelegatedControlGroup, ItsUserMakesGroupsThere) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    const auto parent = find_group_parent(GroupVersion::two);
    if (!parent) GTEST_SKIP() << parent.error().message;
    constexpr uid_t kNobody = 65534;
    const ControlGroup unit(*parent + "/larder-test-unit-" + std::to_string(::getpid()));
    for (const bool is_delegated : {false, true}) {
        const pid_t child = ::fork();
        if (child == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            bool good = unit.enter().has_value();
            for (const char* file : {"", "/cgroup.procs", "/cgroup.threads", "/cgroup.subtree_control"}) {
                const std::string path = unit.directory() + file;
                if (is_delegated) good = good && ::chown(path.c_str(), kNobody, kNobody) == 0;
            }
            good = good && ::setgid(kNobody) == 0 && ::setuid(kNobody) == 0;
            const auto found = find_group_parent(GroupVersion::two);
            if (is_delegated) {
                good = good && found == unit.directory() && ControlGroup(*found + "/attempt").enter().has_value();
            } else {
                good = good && !found;
            }
            ::_exit(good ? 0 : 1);
        }
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0) << "delegated: " << is_delegated;
        EXPECT_TRUE(unit.kill_all());
    }
}

INSTANTIATE_TEST_SUITE_P(Versions, LocalEngineWithGroups, ::testing::Values(GroupVersion::one, GroupVersion::two),
                         [](const auto& version) {
                             return version.param == GroupVersion::one ? "Version1" : "Version2";
                         });

TEST_F(LocalEngineTest, JobRunsWhereItsGroupCannotBeMade) {
    engine = make_engine(directory / "no/such/directory");
    engine->start(job("exit 6"));
    EXPECT_EQ(wait_for(*engine, Kind::ended).exit_code, 6);
    EXPECT_THAT(text_of(engine->output_of(7, 2)), HasSubstr("the job runs without a control group"));
}

}  // namespace
}  // namespace larder::scheduler
