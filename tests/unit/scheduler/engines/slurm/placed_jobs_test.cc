#include "scheduler/engines/slurm/placed_jobs.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace larder::scheduler::slurm {
namespace {

using Kind = EngineEvent::Kind;
const AttemptId kAttempt{"q-1", 12, 1};

JobRow held_job() {
    JobRow row;
    row.key = "7";
    row.state = "PENDING";
    row.held = true;
    row.gpus_per_node = 2;
    row.reason = "JobHeldUser";
    row.mark = parse_mark("larder,dataset=images");
    return row;
}

NodeRow node(std::string name, NodeUse use = NodeUse::open, std::uint32_t used = 0) {
    return {.name = std::move(name), .use = use, .state = "", .gpus = 2, .gpus_used = used};
}

// One job, as Slurm shows it, and the jobs' state.
class PlacedJob : public ::testing::Test {
protected:
    void look() {
        jobs_.look(rows_, nodes_, ++now_s_);
        commands_ = jobs_.take_commands();
        events_ = jobs_.take_events();
    }
    JobRow& row() { return rows_.at("7"); }
    void set(std::string state, JobStage stage) {
        row().state = std::move(state);
        row().stage = stage;
    }
    // Carries out the commands that change the mark, as scontrol does.
    void apply() {
        const auto update = [&](const std::vector<std::string>& words) {
            if (words.front() == "hold") row().held = true;
            for (const std::string& word : words) {
                if (word.starts_with("AdminComment=")) row().mark = parse_mark(word.substr(13));
            }
        };
        for (const auto& place : commands_.placements) update(place.words);
        for (const auto& words : commands_.updates) update(words);
    }
    void start() {
        jobs_.start({.id = kAttempt, .key = "7", .grace_s = 5, .gpus_by_node = {{"n1", 2}}}, rows_, now_s_);
        commands_ = jobs_.take_commands();
        apply();
    }
    void run() {
        look();
        start();
        row().held = false;
        set("RUNNING", JobStage::running);
        row().nodes = "n1";
        look();
        ASSERT_EQ(events_.size(), 1u);
        ASSERT_EQ(events_[0].kind, Kind::started);
    }
    // The kind of the only event.
    std::optional<Kind> event() const {
        return events_.size() == 1 ? std::optional(events_.front().kind) : std::nullopt;
    }

    PlacedJobs jobs_;
    PlacedJobs::Rows rows_{{"7", held_job()}};
    std::vector<NodeRow> nodes_{node("n1"), node("n2")};
    std::int64_t now_s_ = 1000;
    JobId next_job_ = 100;
    SlurmCommands commands_;
    std::vector<EngineEvent> events_;
};

TEST_F(PlacedJob, HeldJobIsSubmittedOnce) {
    look();
    ASSERT_EQ(jobs_.to_submit().size(), 1u);
    jobs_.note_submitted("7");
    look();
    EXPECT_TRUE(jobs_.to_submit().empty());
    EXPECT_TRUE(commands_.empty());
}

TEST_F(PlacedJob, RefusedJobIsTriedAgainLaterAndSaysWhy) {
    look();
    jobs_.note_refused("7", "dataset \"x\" is unknown", rows_, now_s_);
    commands_ = jobs_.take_commands();
    apply();
    EXPECT_EQ(row().mark->note, "dataset_`x`_is_unknown");
    look();
    EXPECT_TRUE(jobs_.to_submit().empty());
    look();
    EXPECT_EQ(jobs_.to_submit().size(), 1u);
}

TEST_F(PlacedJob, StartGivesNodesAndMarkThenTheJobIsReleased) {
    look();
    start();
    ASSERT_EQ(commands_.placements.size(), 1u);
    EXPECT_EQ(commands_.placements[0].words[2], "ReqNodeList=n1");
    EXPECT_EQ(row().mark->attempt, kAttempt);
    look();  // the release was lost with a restart of slurmctld
    EXPECT_EQ(commands_.releases, std::vector<std::string>{"7"});
    row().mark = parse_mark("larder,dataset=images");  // and now the mark, too
    look();
    EXPECT_EQ(commands_.placements.size(), 1u);
}

// An agent that was away reports what has happened since then.
TEST_F(PlacedJob, EventsHaveTheTimesThatSlurmTells) {
    row().started_unix_s = 900;
    run();
    EXPECT_EQ(events_[0].at_s, 900.0);
    row().ended_unix_s = 950;
    set("COMPLETED", JobStage::ended);
    look();
    ASSERT_EQ(event(), Kind::ended);
    EXPECT_EQ(events_[0].at_s, 950.0);
}

TEST_F(PlacedJob, EventOfARequeueHasItsTime) {
    run();
    set("PENDING", JobStage::pending);
    row().held = true;
    row().restarts = 1;
    row().submitted_unix_s = 970;
    look();
    apply();
    look();
    ASSERT_EQ(event(), Kind::evicted);
    EXPECT_EQ(events_[0].at_s, 970.0);
}

TEST_F(PlacedJob, EventWithoutATimeOfSlurmHasThatOfTheLook) {
    run();
    EXPECT_EQ(events_[0].at_s, static_cast<double>(now_s_));
    rows_.clear();
    look();
    ASSERT_EQ(event(), Kind::lost);
    EXPECT_EQ(events_[0].at_s, static_cast<double>(now_s_));
}

TEST_F(PlacedJob, RequeuedJobRestsBeforeItsNextStart) {
    row().restarts = 1;
    look();
    row().submitted_unix_s = now_s_;
    start();
    EXPECT_TRUE(commands_.placements.empty());
    look();
    look();
    EXPECT_TRUE(commands_.placements.empty());
    look();
    EXPECT_EQ(commands_.placements.size(), 1u);
}

TEST_F(PlacedJob, PlaceOfAnotherShapeIsRejected) {
    row().nodes_wanted = 2;
    look();
    start();
    EXPECT_TRUE(commands_.empty());
    events_ = jobs_.take_events();
    EXPECT_EQ(event(), Kind::rejected);
}

TEST_F(PlacedJob, ReasonsOfSlurmArePendingAndItsLimitsRejections) {
    look();
    start();
    row().held = false;
    row().reason = "None";
    look();
    EXPECT_TRUE(events_.empty()) << "Slurm has no reason yet";
    row().reason = "Resources";
    look();
    ASSERT_EQ(event(), Kind::pending);
    EXPECT_EQ(events_[0].message, "Resources");
    look();
    EXPECT_TRUE(events_.empty()) << "the same reason again";
    row().reason = "QOSMaxJobsPerUserLimit";
    look();
    EXPECT_TRUE(events_.empty()) << "Slurm must hold it first";
    apply();
    look();
    EXPECT_EQ(event(), Kind::rejected);
    EXPECT_FALSE(row().mark->attempt);
}

TEST_F(PlacedJob, LimitNamesTheWaitingJobsThatItRefusesAlike) {
    row().limits_key = "1003 red short ";
    for (const auto& [key, asks] : std::map<std::string, std::string>{{"8", "1003 red short "},
                                                                      {"9_1", "1003 red short "},
                                                                      {"9_2", "1003 red long "},
                                                                      {"10", "1003 red short "}}) {
        rows_[key] = held_job();
        rows_[key].key = key;
        rows_[key].limits_key = asks;
        if (key != "10") jobs_.note_submitted(key);
    }
    const auto rejection_by = [&](const std::string& key, const std::string& reason) {
        const AttemptId id{"q-1", ++next_job_, 1};
        JobRow& asked = rows_.at(key);
        jobs_.start({.id = id, .key = key, .grace_s = 5, .gpus_by_node = {{"n1", 2}}}, rows_, now_s_);
        jobs_.take_commands();
        asked.mark->attempt = id;
        asked.held = false;
        asked.reason = reason;
        look();
        asked = held_job();
        asked.key = key;
        look();
        return event() == Kind::rejected ? events_[0].also_rejected : std::vector<std::string>{"none was rejected"};
    };
    EXPECT_EQ(rejection_by("7", "QOSMaxJobsPerUserLimit"), (std::vector<std::string>{"slurm-8", "slurm-9_1"}));
    EXPECT_EQ(rejection_by("9_1", "JobArrayTaskLimit"), std::vector<std::string>{"slurm-9_2"});
    EXPECT_EQ(rejection_by("8", "PartitionTimeLimit"), std::vector<std::string>{});
}

TEST_F(PlacedJob, EndTellsExitCodeOrSignal) {
    struct Case {
        std::string state;
        int wait_status;
        std::optional<int> code;
        std::optional<int> signal;
    };
    for (const Case& ended : {Case{"COMPLETED", 0, 0, {}}, Case{"FAILED", 3 << 8, 3, {}}, Case{"FAILED", 9, {}, 9},
                              Case{"TIMEOUT", 0, {}, 9}, Case{"OUT_OF_MEMORY", 0, {}, 9}}) {
        jobs_ = {};
        row() = held_job();
        run();
        set(ended.state, JobStage::ended);
        row().wait_status = ended.wait_status;
        look();
        ASSERT_EQ(event(), Kind::ended) << ended.state;
        EXPECT_EQ(events_[0].exit_code, ended.code) << ended.state;
        EXPECT_EQ(events_[0].exit_signal, ended.signal) << ended.state;
        EXPECT_FALSE(events_[0].was_stopping);
    }
}

TEST_F(PlacedJob, CompletingJobHasNotEnded) {
    run();
    set("COMPLETING", JobStage::completing);
    look();
    EXPECT_TRUE(events_.empty());
}

TEST_F(PlacedJob, StopAsksThenKillsThenRequeues) {
    run();
    jobs_.stop(kAttempt, rows_, now_s_);
    commands_ = jobs_.take_commands();
    apply();
    EXPECT_EQ(commands_.signals, std::vector<std::string>{"7"});
    EXPECT_EQ(row().mark->kill_unix_s, now_s_ + 5);
    look();
    EXPECT_TRUE(commands_.kills.empty());
    now_s_ += 5;
    look();
    EXPECT_EQ(commands_.kills, std::vector<std::string>{"7"});
    set("FAILED", JobStage::ended);
    look();
    ASSERT_EQ(commands_.updates.size(), 1u);
    EXPECT_EQ(commands_.updates[0].front(), "requeuehold");
    EXPECT_TRUE(events_.empty());
    set("PENDING", JobStage::pending);
    row().held = true;
    row().restarts = 1;
    look();
    apply();
    look();
    ASSERT_EQ(event(), Kind::ended);
    EXPECT_TRUE(events_[0].was_stopping);
}

TEST_F(PlacedJob, JobThatEndsBeforeItIsAskedHasEndedByItself) {
    run();
    jobs_.stop(kAttempt, rows_, now_s_);
    jobs_.note_late_signal("7");
    set("COMPLETED", JobStage::ended);
    look();
    ASSERT_EQ(event(), Kind::ended);
    EXPECT_FALSE(events_[0].was_stopping);
}

TEST_F(PlacedJob, RequeueByAnOperatorIsAnEvictionAndByALostNodeALoss) {
    for (const bool is_lost : {false, true}) {
        jobs_ = {};
        row() = held_job();
        nodes_[0].use = NodeUse::open;
        run();
        nodes_[0].use = is_lost ? NodeUse::down : NodeUse::open;
        set("PENDING", JobStage::pending);
        row().restarts = 1;
        look();
        apply();
        EXPECT_TRUE(row().held);
        look();
        ASSERT_EQ(event(), is_lost ? Kind::lost : Kind::evicted);
    }
}

TEST_F(PlacedJob, CancelledJobIsCancelledInLarder) {
    jobs_.set_mirrored({"7"}, {}, rows_);
    run();
    set("CANCELLED", JobStage::ended);
    look();
    EXPECT_EQ(jobs_.to_cancel(), std::set<std::string>{"7"});
    ASSERT_EQ(event(), Kind::ended);
    EXPECT_TRUE(events_[0].was_stopping);
}

TEST_F(PlacedJob, JobThatIsOverInLarderIsCancelledInSlurm) {
    jobs_.set_mirrored({"7"}, {}, rows_);
    look();
    jobs_.note_over("7", rows_);
    look();
    EXPECT_EQ(commands_.cancels, std::vector<std::string>{"7"});
    EXPECT_TRUE(jobs_.to_submit().empty());
}

TEST_F(PlacedJob, JobThatIsRequeuedAfterItsEndIsANewOne) {
    jobs_.set_mirrored({"7"}, {}, rows_);
    run();
    set("COMPLETED", JobStage::ended);
    look();
    jobs_.note_over("7", rows_);
    set("PENDING", JobStage::pending);
    row().restarts = 1;
    look();
    apply();
    EXPECT_TRUE(commands_.cancels.empty());
    look();
    apply();
    look();
    EXPECT_EQ(jobs_.to_submit().size(), 1u);
}

TEST_F(PlacedJob, NewAgentDoesNotSubmitWhatLarderHas) {
    look();
    EXPECT_EQ(jobs_.to_submit().size(), 1u);
    jobs_.set_mirrored({"7"}, {}, rows_);
    EXPECT_TRUE(jobs_.to_submit().empty());
}

TEST_F(PlacedJob, QueueThatHasLostAJobGetsItAgain) {
    jobs_.set_mirrored({"7"}, {}, rows_);
    jobs_.set_mirrored({}, {}, rows_);
    look();
    EXPECT_TRUE(commands_.empty());
    EXPECT_EQ(jobs_.to_submit().size(), 1u);
}

TEST_F(PlacedJob, JobThatHasEndedInLarderMeanwhileIsCancelledInSlurm) {
    row().submitted_unix_s = 900;
    for (const bool was_cancelled : {true, false}) {
        jobs_ = {};
        jobs_.set_mirrored({"7"}, {}, rows_);
        jobs_.set_mirrored({}, {{"7", {was_cancelled, 950}}}, rows_);
        look();
        EXPECT_EQ(commands_.cancels, std::vector<std::string>{"7"});
        EXPECT_TRUE(jobs_.to_submit().empty());
    }
}

TEST_F(PlacedJob, OldEndOfTheSameNumberCancelsNothing) {
    row().submitted_unix_s = 900;
    for (const std::int64_t ended : {800, 890}) {
        jobs_ = {};
        jobs_.set_mirrored({}, {{"7", {true, ended}}}, rows_);
        look();
        EXPECT_TRUE(commands_.empty());
        EXPECT_EQ(jobs_.to_submit().size(), 1u);
    }
}

TEST_F(PlacedJob, ReleaseByHandIsUndoneBeforeAndAfterTheJobBegins) {
    row().held = false;
    look();
    EXPECT_EQ(commands_.updates, (std::vector<std::vector<std::string>>{{"hold", "7"}}));
    set("RUNNING", JobStage::running);
    look();
    EXPECT_EQ(commands_.updates, (std::vector<std::vector<std::string>>{{"requeuehold", "7"}}));
    row().may_requeue = false;
    look();
    EXPECT_TRUE(commands_.empty());
}

TEST_F(PlacedJob, StartBeforeTheFormerAttemptIsOverIsRejectedForNow) {
    run();
    jobs_.start({.id = {"q-1", 12, 2}, .key = "7", .gpus_by_node = {{"n2", 2}}}, rows_, now_s_);
    EXPECT_TRUE(jobs_.take_commands().empty());
    events_ = jobs_.take_events();
    ASSERT_EQ(event(), Kind::rejected);
    EXPECT_EQ(events_[0].attempt, 2u);
    EXPECT_FALSE(events_[0].for_good);
}

// A queue that was lost is made anew, and begins to number its jobs again.
TEST_F(PlacedJob, AttemptOfAnotherQueueIsNotTakenForTheNewOneAndIsStopped) {
    run();
    const AttemptId same_numbers{"q-2", kAttempt.job, kAttempt.attempt};
    jobs_.start({.id = same_numbers, .key = "7", .gpus_by_node = {{"n2", 2}}}, rows_, now_s_);
    events_ = jobs_.take_events();
    ASSERT_EQ(event(), Kind::rejected);
    EXPECT_EQ(events_[0].queue, "q-2");
    jobs_.forget_ended(same_numbers);
    ASSERT_EQ(jobs_.attempt_events().size(), 1u);
    EXPECT_EQ(jobs_.attempt_events()[0].queue, "q-1");
    jobs_.stop(same_numbers, rows_, now_s_);
    EXPECT_TRUE(jobs_.take_commands().empty()) << "the one that runs is of another queue";
    jobs_.stop(kAttempt, rows_, now_s_);
    EXPECT_EQ(jobs_.take_commands().signals, std::vector<std::string>{"7"});
}

TEST_F(PlacedJob, InteractiveJobIsCancelledAfterItsGrace) {
    row().may_requeue = false;
    run();
    jobs_.stop(kAttempt, rows_, now_s_);
    commands_ = jobs_.take_commands();
    now_s_ += 10;
    look();
    EXPECT_TRUE(commands_.kills.empty());
    EXPECT_EQ(commands_.cancels, std::vector<std::string>{"7"});
}

TEST_F(PlacedJob, NewAgentRequeuesAnEndedJobOnlyIfLarderStillHasIt) {
    for (const bool is_mirrored : {true, false}) {
        jobs_ = {};
        row() = held_job();
        row().held = false;
        row().mark = parse_mark("larder,attempt=12.1.q-1,restarts=0,stop-grace=5,kill=900");
        set("FAILED", JobStage::ended);
        row().wait_status = 9;
        look();
        EXPECT_TRUE(commands_.empty()) << "the queue is not known";
        EXPECT_TRUE(events_.size() == 2 && events_[0].node == "n1") << "the nodes' events only";
        jobs_.set_mirrored(is_mirrored ? std::set<std::string>{"7"} : std::set<std::string>{}, {}, rows_);
        look();
        EXPECT_EQ(commands_.updates.size(), is_mirrored ? 1u : 0u);
        EXPECT_EQ(event(), is_mirrored ? std::nullopt : std::optional(Kind::ended));
    }
}

TEST_F(PlacedJob, NewAgentFindsWhatRunsAndNotWhatWasNeverReleased) {
    row().mark = parse_mark("larder,attempt=12.1.q-1,restarts=0,stop-grace=5");
    look();
    EXPECT_TRUE(jobs_.attempt_events().empty());
    ASSERT_EQ(commands_.updates.size(), 1u);
    EXPECT_EQ(commands_.updates[0].back(), "ReqNodeList=") << "its place is cleared";
    // The row has the mark still.
    jobs_.start({.id = kAttempt, .key = "7", .grace_s = 5, .gpus_by_node = {{"n2", 2}}}, rows_, now_s_);
    commands_ = jobs_.take_commands();
    EXPECT_TRUE(commands_.releases.empty());
    ASSERT_EQ(commands_.placements.size(), 1u);
    EXPECT_EQ(commands_.placements[0].words[2], "ReqNodeList=n2");
    jobs_ = {};
    row().held = false;
    row().nodes = "n1";
    row().mark = parse_mark("larder,attempt=12.1.q-1,restarts=0,stop-grace=5");
    set("RUNNING", JobStage::running);
    look();
    ASSERT_EQ(jobs_.attempt_events().size(), 1u);
    EXPECT_EQ(jobs_.attempt_events()[0].kind, Kind::started);
    EXPECT_EQ(jobs_.attempt_events()[0].job, 12u);
}

TEST_F(PlacedJob, EndStaysInTheStateUntilItIsAcknowledged) {
    run();
    set("COMPLETED", JobStage::ended);
    look();
    ASSERT_EQ(jobs_.attempt_events().size(), 1u);
    jobs_.start({.id = kAttempt, .key = "7"}, rows_, now_s_);
    EXPECT_TRUE(jobs_.take_commands().empty()) << "a start that comes twice";
    jobs_.forget_ended(kAttempt);
    EXPECT_TRUE(jobs_.attempt_events().empty());
}

TEST_F(PlacedJob, DevicesAreAskedForOnceAndToldInASecondEvent) {
    run();
    EXPECT_EQ(commands_.asks, std::vector<std::string>{"7"});
    look();
    EXPECT_TRUE(commands_.asks.empty());
    const std::vector<GrantedDevices> devices{{"n1", {"1", "3"}}};
    jobs_.note_devices({.key = "8", .devices = devices});
    jobs_.note_devices({.key = "7", .devices = {}});
    EXPECT_TRUE(jobs_.take_events().empty());
    jobs_.note_devices({.key = "7", .devices = devices});
    look();
    ASSERT_EQ(event(), Kind::started);
    EXPECT_EQ(events_[0].devices, devices);
    EXPECT_EQ(jobs_.attempt_events()[0].devices, devices);
}

TEST_F(PlacedJob, NodesAreToldWithTheirGpusAsTheyComeGoAndChange) {
    look();
    ASSERT_EQ(events_.size(), 2u);
    EXPECT_EQ(events_[0].inventory->gpus, nodes_[0].gpus);
    nodes_[0].gpus = 1;
    nodes_[0].gpu_type = "a100";
    look();
    ASSERT_EQ(event(), Kind::node_back);
    EXPECT_EQ(events_[0].inventory, (NodeInventory{.gpus = 1, .gpu_type = "a100", .labels = {}}));
    nodes_.pop_back();
    look();
    ASSERT_EQ(event(), Kind::node_lost) << "one answer of Slurm may be incomplete";
    EXPECT_EQ(jobs_.node_events().size(), 2u);
    now_s_ += PlacedJobs::kMissingMost_s - 2;
    look();
    EXPECT_TRUE(events_.empty());
    nodes_.push_back(node("n2"));
    look();
    ASSERT_EQ(event(), Kind::node_back);
    nodes_.pop_back();
    look();
    ASSERT_EQ(event(), Kind::node_lost);
    now_s_ += PlacedJobs::kMissingMost_s;
    look();
    ASSERT_EQ(event(), Kind::node_removed);
    EXPECT_EQ(jobs_.node_events().size(), 1u);
    look();
    EXPECT_TRUE(events_.empty());
    nodes_.push_back(node("n2"));
    look();
    EXPECT_EQ(event(), Kind::node_back);
}

TEST_F(PlacedJob, NodeWithGpusOfSeveralTypesTakesNoJobs) {
    nodes_[1].has_mixed_gpus = true;
    look();
    ASSERT_EQ(events_.size(), 2u);
    EXPECT_EQ(events_[1].kind, Kind::node_drained);
    EXPECT_EQ(events_[1].message, "the node has GPUs of several types");
}

TEST_F(PlacedJob, NodeThatOthersUseIsDrainedAtTheSecondLook) {
    look();
    EXPECT_EQ(events_.size(), 2u);
    nodes_[1].gpus_used = 1;
    look();
    EXPECT_TRUE(events_.empty());
    look();
    ASSERT_EQ(event(), Kind::node_drained);
    EXPECT_EQ(events_[0].node, "n2");
    nodes_[1].gpus_used = 0;
    look();
    EXPECT_EQ(event(), Kind::node_back);
    nodes_.pop_back();
    look();
    EXPECT_EQ(event(), Kind::node_lost);
}

TEST_F(PlacedJob, StopOfAnUnknownAttemptHasEnded) {
    look();
    jobs_.stop({"q-1", 9, 9}, rows_, now_s_);
    events_ = jobs_.take_events();
    ASSERT_EQ(event(), Kind::ended);
    EXPECT_TRUE(events_[0].was_stopping);
}

}  // namespace
}  // namespace larder::scheduler::slurm
