#include "scheduler/engines/slurm/slurm_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/engines/slurm/placed_environment.h"

namespace larder::scheduler::slurm {
namespace {

using ::testing::ElementsAre;

std::string padded(std::string text, std::size_t width) {
    text.resize(width, ' ');
    return text;
}

// A line as squeue prints it with queue_columns().
std::string line(const std::string& id, const std::string& state, const std::string& mark,
                 const std::string& account = "(null)", const std::string& array = "", const std::string& task = "N/A",
                 const std::string& nodes = "n[1-2]", std::size_t nodes_width = 257) {
    return padded(id, 12) + padded(array.empty() ? id : array, 12) + padded(task, 12) + padded(state, 16) +
           padded("0", 12) + padded("2", 8) + padded("1", 8) + padded("1", 4) + padded("768", 8) +
           padded("1700000000", 12) + padded("1700000005", 12) + padded("1700000060", 12) + padded("1003", 12) +
           padded(account, 65) + padded("short", 33) + padded("gpus", 65) + padded("1:00:00", 16) + padded("8", 8) +
           padded("2G", 12) + padded("gres:gpu:a100:4", 65) + padded("(null)", 97) + padded("JobHeldUser", 48) +
           padded(nodes, nodes_width) + mark + "\n";
}

TEST(SlurmState, WideRowHasTheNodesOfALargeJob) {
    std::string nodes = "n1";
    for (int i = 2; i < 400; ++i) nodes += ",n" + std::to_string(i * 7);
    std::string text = line("7", "RUNNING", "larder", "red", "", "N/A", nodes, 4097);
    text.pop_back();
    const auto row = parse_job_row(text, true);
    ASSERT_TRUE(row);
    EXPECT_EQ(expand_nodes(row->nodes).size(), 399u);
    EXPECT_TRUE(row->mark);
}

TEST(SlurmState, RowOfAJobIsRead) {
    std::string text = line("7", "PENDING", "larder,epochs=3,attempt=12.2.q-1,restarts=1;why_not", "red");
    text.pop_back();
    const auto row = parse_job_row(text);
    ASSERT_TRUE(row);
    EXPECT_EQ(row->key, "7");
    EXPECT_EQ(row->stage, JobStage::pending);
    EXPECT_TRUE(row->held && row->may_requeue && row->dependency.empty());
    EXPECT_EQ(row->nodes_wanted, 2u);
    EXPECT_EQ(row->gpus_per_node, 4u);
    EXPECT_EQ(row->gpu_type, "a100");
    EXPECT_EQ(row->restarts, 1u);
    EXPECT_EQ(row->wait_status, 768);
    EXPECT_EQ(row->uid, 1003u);
    EXPECT_EQ(row->account, "red");
    EXPECT_EQ(row->partition, "gpus");
    EXPECT_EQ(row->limits_key, "1003 red short gpus 1:00:00 8 2G 2 gres:gpu:a100:4 ");
    EXPECT_EQ(row->submitted_unix_s, 1'700'000'000);
    EXPECT_EQ(row->started_unix_s, 0) << "Slurm expects it then";
    EXPECT_EQ(row->ended_unix_s, 0);
    ASSERT_TRUE(row->mark && row->mark->attempt);
    EXPECT_EQ(row->mark->attempt->job, 12u);
    EXPECT_EQ(row->mark->words.at("epochs"), "3");
    EXPECT_EQ(text_of(*row->mark), "larder,attempt=12.2.q-1,restarts=1,stop-grace=30,epochs=3;why_not");
    EXPECT_FALSE(parse_job_row("7 PENDING"));
}

TEST(SlurmState, RowHasTheTimesOfWhatHasHappened) {
    const auto times_in = [](const std::string& state) {
        std::string text = line("7", state, "larder");
        text.pop_back();
        const auto row = parse_job_row(text);
        EXPECT_TRUE(row);
        return std::pair(row->started_unix_s, row->ended_unix_s);
    };
    EXPECT_EQ(times_in("RUNNING"), std::pair(std::int64_t{1'700'000'005}, std::int64_t{0}));
    EXPECT_EQ(times_in("COMPLETED"), std::pair(std::int64_t{1'700'000'005}, std::int64_t{1'700'000'060}));
}

TEST(SlurmState, DependencyOnAJobThatHasEndedIsFulfilledBeforeSlurmSaysSo) {
    std::map<std::string, JobRow, std::less<>> rows;
    const auto add = [&](std::string key, std::string state, JobStage stage) {
        rows[key].state = std::move(state);
        rows[key].stage = stage;
    };
    add("1", "COMPLETED", JobStage::ended);
    add("2", "FAILED", JobStage::ended);
    add("3", "RUNNING", JobStage::running);
    add("4_1", "COMPLETED", JobStage::ended);
    add("5", "COMPLETING", JobStage::completing);
    for (const auto& [dependency, waits] : std::initializer_list<std::pair<const char*, bool>>{
             {"", false},
             {"afterok:1(unfulfilled)", false},
             {"afterok:4_1(unfulfilled),afterany:2(unfulfilled)", false},
             {"afterok:2(unfulfilled)", true},
             {"afterok:1(unfulfilled),afterok:3(unfulfilled)", true},
             {"afterany:5(unfulfilled)", true},
             {"afterok:9(unfulfilled)", true},
             {"afterok:4_*(unfulfilled)", true},
             {"afterok:1(failed)", true},
             {"afternotok:2(unfulfilled)", true},
             {"after:1+5(unfulfilled)", true},
             {"singleton(unfulfilled)", true},
             {"afterok:1(unfulfilled)?afterok:1(unfulfilled)", true},
             {"afterok:1(unfulfilled),afterok:1", true}}) {
        JobRow row;
        row.dependency = dependency;
        EXPECT_EQ(waits_for_others(row, rows), waits) << dependency;
    }
}

TEST(SlurmState, MarkSurvivesItsText) {
    JobMark mark{.words = {{"dataset", "images"}}, .attempt = AttemptId{"q-1", 3, 4}, .restarts = 2, .grace_s = 2.5};
    mark.kill_unix_s = 1764368000;
    mark.note = "a_note";
    EXPECT_EQ(parse_mark(text_of(mark)), mark);
    EXPECT_FALSE(parse_mark("larder,attempt=3.4")->attempt) << "nobody knows of which queue";
    EXPECT_FALSE(parse_mark("somebody's own comment"));
    EXPECT_FALSE(parse_mark(""));
}

TEST(SlurmState, RowsFollowWhatSqueuePrints) {
    JobRows rows;
    ASSERT_TRUE(
        rows.update(line("3", "PENDING", "larder", "", "3", "0") + line("3", "PENDING", "larder", "", "3", "1")));
    ASSERT_EQ(rows.rows().size(), 2u);
    // A task that starts gets a number of its own, and stays the same job.
    ASSERT_TRUE(
        rows.update(line("3", "PENDING", "larder", "", "3", "0") + line("4", "RUNNING", "larder", "", "3", "1")));
    ASSERT_EQ(rows.rows().size(), 2u);
    EXPECT_EQ(rows.rows().at("3_1").stage, JobStage::running);
    ASSERT_TRUE(rows.update(line("4", "COMPLETED", "larder", "", "3", "1")));
    ASSERT_EQ(rows.rows().size(), 1u);
    EXPECT_EQ(rows.rows().at("3_1").stage, JobStage::ended);
}

TEST(SlurmState, StatesOfNodesAreRead) {
    const auto row = [](const std::string& name, const std::string& state, const std::string& partition = "p") {
        return padded(name, 65) + padded(state, 24) + padded("gpu:2(S:0)", 257) + padded("gpu:a100:1(IDX:0,2)", 257) +
               partition + "\n";
    };
    const auto nodes = parse_nodes(row("n1", "mixed") + row("n2", "drained") + row("n3", "down") + row("n4", "idle*") +
                                   row("n5", "reserved") + row("n1", "mixed", "q"));
    ASSERT_TRUE(nodes);
    ASSERT_EQ(nodes->size(), 5u);
    EXPECT_EQ((*nodes)[0].use, NodeUse::open);
    EXPECT_EQ((*nodes)[0].gpus, 2u);
    EXPECT_EQ((*nodes)[0].gpus_used, 1u);
    EXPECT_THAT((*nodes)[0].partitions, ElementsAre("p", "q"));
    EXPECT_THAT((*nodes)[1].partitions, ElementsAre("p"));
    EXPECT_EQ((*nodes)[1].use, NodeUse::closed);
    EXPECT_EQ((*nodes)[2].use, NodeUse::down);
    EXPECT_EQ((*nodes)[3].use, NodeUse::down);
    EXPECT_EQ((*nodes)[4].use, NodeUse::closed);
}

TEST(SlurmState, ListsOfNodesAreExpanded) {
    using Names = std::vector<std::string>;
    EXPECT_EQ(expand_nodes(""), Names{});
    EXPECT_EQ(expand_nodes("n1"), Names{"n1"});
    EXPECT_EQ(expand_nodes("n[1-2,5],m"), (Names{"n1", "n2", "n5", "m"}));
    EXPECT_EQ(expand_nodes("n[08-10]"), (Names{"n08", "n09", "n10"}));
    EXPECT_EQ(expand_nodes("r[1-2]n[1-2]"), (Names{"r1n1", "r1n2", "r2n1", "r2n2"}));
    EXPECT_EQ(expand_nodes("m,n[1-"), Names{"m"});
}

TEST(SlurmState, GpusAreCountedAmongOtherResources) {
    EXPECT_EQ(parse_gpus("gres:gpu:2").count, 2u);
    EXPECT_EQ(parse_gpus("gres:gpu").count, 1u);
    EXPECT_EQ(parse_gpus("gres:license:3,gres:gpu:h100:8").count, 8u);
    EXPECT_EQ(parse_gpus("gres:gpu:h100:8").type, "h100");
    EXPECT_EQ(parse_gpus("").count, 0u);
    EXPECT_FALSE(parse_gpus("gpu:h100:4(S:0),gpu:h100:4(S:1)").is_mixed);
    EXPECT_EQ(parse_gpus("gpu:h100:4(S:0),gpu:h100:4(S:1)").count, 8u);
    const Gpus mixed = parse_gpus("gpu:a100:4,gpu:v100:2");
    EXPECT_TRUE(mixed.is_mixed);
    EXPECT_EQ(mixed.count, 4u);
    EXPECT_EQ(mixed.type, "a100");
}

TEST(PlacedEnvironment, OnlyJobsOfLardersPartitionsHaveIt) {
    const std::map<std::string, std::string> given{{"SLURM_JOB_PARTITION", "gpu"},   {"SLURM_JOB_ID", "7"},
                                                   {"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_NODEID", "1"},
                                                   {"SLURM_GPUS_ON_NODE", "4"},      {"SLURM_ARRAY_JOB_ID", "5"},
                                                   {"SLURM_ARRAY_TASK_ID", "2"}};
    const auto variable = [&](const char* name) {
        const auto found = given.find(name);
        return found == given.end() ? std::string() : found->second;
    };
    EXPECT_TRUE(placed_environment(variable, {"other"}, "").empty());
    std::map<std::string, std::string> set;
    for (const auto& [name, value] : placed_environment(variable, {"gpu"}, "/run/s")) set[name] = value;
    EXPECT_EQ(set["LARDER_JOB"], "slurm-5_2");
    EXPECT_EQ(set["LARDER_GPUS"], "8");
    EXPECT_EQ(set["LARDER_NODES"], "n1,n2");
    EXPECT_EQ(set["LARDER_NODE_RANK"], "1");
    EXPECT_EQ(set["LARDER_ATTEMPT"], "1");
    EXPECT_EQ(set["MASTER_ADDR"], "n1");
    EXPECT_EQ(set["LARDER_SOCKET"], "/run/s");
}

TEST(SlurmState, DevicesAreReadByNode) {
    const JobDevices job = parse_devices(
        "JobId=12 ArrayJobId=9 ArrayTaskId=3 JobName=x JobState=RUNNING JOB_GRES=gpu:a100:6 Nodes=n[1-2] CPU_IDs=0-1 "
        "Mem=0 GRES=gpu:a100:2(IDX:0,3) Nodes=n7 CPU_IDs=0 Mem=0 GRES=shard:1(IDX:1),gpu:a100:2(IDX:1-2) "
        "MinCPUsNode=1");
    EXPECT_EQ(job.key, "9_3");
    EXPECT_EQ(job.devices, (std::vector<GrantedDevices>{{"n1", {"0", "3"}}, {"n2", {"0", "3"}}, {"n7", {"1", "2"}}}));
    const JobDevices none = parse_devices("JobId=7 JobState=RUNNING Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(CNT:2)");
    EXPECT_EQ(none.key, "7");
    EXPECT_TRUE(none.devices.empty());
}

}  // namespace
}  // namespace larder::scheduler::slurm
