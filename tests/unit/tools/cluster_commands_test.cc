// The `larder` commands that ask the allocator, against a real one.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "base/server/http.h"
#include "tests/support/http_service.h"
#include "tests/support/program.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/tools/allocator_process.h"

namespace larder {
namespace {

using test::ProgramResult;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ProgramResult run_larder(std::vector<std::string> arguments, const std::string& allocator) {
    arguments.insert(arguments.begin(), LARDER_PROGRAM);
    return test::run_program(arguments, {{"LARDER_ALLOCATOR", allocator}});
}

class ClusterCommands : public ::testing::Test {
protected:
    ProgramResult larder(const std::vector<std::string>& arguments) { return run_larder(arguments, allocator.socket); }
    std::string output(const std::vector<std::string>& arguments) {
        const ProgramResult result = larder(arguments);
        EXPECT_EQ(result.exit_code, 0) << result.errors;
        return result.output;
    }

    // The lease is longer than any test takes.
    test::AllocatorProcess allocator{{"--lease", "3600 s"}};
};

TEST(ClusterCommandsWithoutAllocator, SayHowToNameAnAllocator) {
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{{"plan"},
                                               {"events"},
                                               {"job", "ls"},
                                               {"node", "ls"},
                                               {"quota", "pin", "d", "1GiB"},
                                               {"remote", "set", "--bandwidth", "1Gbit"},
                                               {"whatif", "--cache", "+1GiB"}}) {
        const ProgramResult unnamed = run_larder(command, "");
        EXPECT_EQ(unnamed.exit_code, 3);
        EXPECT_THAT(unnamed.errors, AllOf(HasSubstr("no daemon answers"), HasSubstr("--allocator names an allocator")));
        const ProgramResult absent = run_larder(command, "/nowhere/allocator.sock");
        EXPECT_EQ(absent.exit_code, 3) << absent.errors;
        EXPECT_THAT(absent.errors, HasSubstr("no allocator answers"));
    }
}

// The allocator that takes over first closes its socket, then answers 421 for a while, and then leads.
TEST(ClusterCommandsOfSeveralAllocators, WaitForTheOneThatTakesOver) {
    std::atomic<int> requests = 0;
    const test::HttpService taking_over([&requests](const HttpRequest&, const HttpRespond& respond) {
        if (++requests <= 3) return respond(http_error(kHttpMisdirected, "unavailable", "none leads at present"));
        respond({.body = R"({"jobs": []})"});
    });
    const test::TempDirectory directory;
    const std::string socket = directory / "allocator.sock";
    std::optional<ProgramResult> listed;
    std::jthread command([&] { listed = run_larder({"job", "ls"}, "/nowhere/allocator.sock," + socket); });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // nobody listens at first
    std::filesystem::create_symlink(taking_over.socket, socket);
    command.join();
    EXPECT_EQ(listed->exit_code, 0) << listed->errors;
    EXPECT_EQ(listed->output, "no jobs run and none is registered\n");
    EXPECT_EQ(requests, 5);
}

TEST_F(ClusterCommands, OptionOverridesEnvironment) {
    EXPECT_EQ(run_larder({"plan", "--allocator", allocator.socket}, "/nowhere/allocator.sock").exit_code, 0);
}

TEST_F(ClusterCommands, JobsAreRegisteredListedAndRemoved) {
    EXPECT_EQ(output({"job", "ls"}), "no jobs run and none is registered\n");
    EXPECT_EQ(output({"job", "register", "vision", "--ideal", "80 MB/s", "--epochs", "3", "--weight", "2", "--floor",
                      "8 Mbit", "--cap", "1 Gbit"}),
              "vision is registered\n");
    EXPECT_THAT(output({"job", "ls"}),
                ContainsRegex("vision +registered +- +- +- +2 +3 +80.00 MB/s +- +1.00 MB/s +125.00 MB/s\n"));
    const ProgramResult again = larder({"job", "register", "vision"});
    EXPECT_EQ(again.exit_code, 5);
    EXPECT_THAT(again.errors, HasSubstr("is already registered"));
    allocator.report();
    EXPECT_THAT(output({"job", "ls"}), ContainsRegex("vision +runs +images +a +1 +2"));
    EXPECT_EQ(output({"job", "rm", "vision"}), "vision is no longer registered\n");
    EXPECT_EQ(larder({"job", "rm", "vision"}).exit_code, 4);
    EXPECT_THAT(output({"job", "ls"}), ContainsRegex("vision +runs, unregistered +images"));
    const ProgramResult wrong = larder({"job", "register", "x", "--ideal", "fast"});
    EXPECT_EQ(wrong.exit_code, 2);
    EXPECT_THAT(wrong.output + wrong.errors, HasSubstr("\"fast\" is not a rate"));
}

TEST_F(ClusterCommands, QuotasArePinnedAndReleased) {
    allocator.report();
    EXPECT_EQ(output({"quota", "pin", "images", "512KiB"}),
              "the quota of images is fixed at 512.00 KiB over all nodes\n");
    EXPECT_THAT(output({"plan", "--json"}), HasSubstr("\"quota_bytes\":524288,"));
    // A row has one family of units: that of the quota.
    EXPECT_THAT(output({"whatif", "--remote-bandwidth", "400Mbit"}),
                ContainsRegex("images +3.81 MiB +512.00 KiB +512.00 KiB"));
    EXPECT_EQ(output({"quota", "pin", "images", "--release"}), "the allocator plans the quota of images again\n");
    EXPECT_THAT(output({"plan", "--json"}), HasSubstr("\"quota_bytes\":1000000,"));
    EXPECT_EQ(larder({"quota", "pin", "lost", "512KiB"}).exit_code, 4);
    EXPECT_EQ(larder({"quota", "pin", "images", "512"}).exit_code, 2) << "a unit is missing";
    EXPECT_EQ(larder({"quota", "pin", "images"}).exit_code, 2);
    EXPECT_EQ(larder({"quota", "pin", "images", "1KiB", "--release"}).exit_code, 2);
    const ProgramResult large = larder({"quota", "pin", "images", "2MB"});
    EXPECT_EQ(large.exit_code, 1);
    EXPECT_THAT(large.errors, HasSubstr("dataset \"images\" cannot have 2.00 MB: at most 1.00 MB is free"));
}

TEST_F(ClusterCommands, RemoteBandwidthIsSet) {
    allocator.report();
    EXPECT_EQ(output({"remote", "set", "--bandwidth", "400Mbit"}),
              "remote bandwidth of all jobs together: 50.00 MB/s\n");
    EXPECT_THAT(output({"plan"}), ContainsRegex("remote +50.00 MB/s, of which"));
    EXPECT_EQ(output({"remote", "reset"}), "remote bandwidth of all jobs together: 100.00 MB/s\n");
    EXPECT_THAT(output({"plan"}), ContainsRegex("remote +100.00 MB/s, of which"));
    EXPECT_EQ(output({"remote", "set", "--bandwidth", "10 MB/s", "--json"}), "{}\n");
    EXPECT_EQ(larder({"job", "register", "vision", "--floor", "8 MB/s"}).exit_code, 0);
    const ProgramResult low = larder({"remote", "set", "--bandwidth", "5MB/s"});
    EXPECT_EQ(low.exit_code, 2);
    EXPECT_THAT(low.errors, HasSubstr("below the floors of all jobs"));
    EXPECT_EQ(larder({"remote", "set", "--bandwidth", "fast"}).exit_code, 2);
    EXPECT_EQ(larder({"remote", "set"}).exit_code, 2);
    EXPECT_EQ(larder({"remote"}).exit_code, 2);
    EXPECT_THAT(output({"plan"}), ContainsRegex("remote +10.00 MB/s, of which"));
}

TEST_F(ClusterCommands, NodesAreListedAndRemovalWaitsForLease) {
    EXPECT_EQ(output({"node", "ls"}), "no node has reported yet\n");
    EXPECT_EQ(larder({"node", "rm", "a"}).exit_code, 4);
    allocator.report();
    EXPECT_THAT(output({"node", "ls"}), ContainsRegex("a +1.00 MB +1.00 MB +0 B +1 +100.00 MB/s +[0-9.]+ "));
    EXPECT_THAT(output({"node", "ls", "--json"}), HasSubstr("\"name\":\"a\",\"alive\":true"));
    const ProgramResult early = larder({"node", "rm", "a"});
    EXPECT_EQ(early.exit_code, 1);
    EXPECT_THAT(early.errors, HasSubstr("stop its daemon and wait"));
    EXPECT_EQ(larder({"node", "rm"}).exit_code, 2);
}

TEST(ClusterCommandsWithShortLease, NodeIsRemovedOnceItsLeaseExpires) {
    const test::AllocatorProcess allocator({"--lease", "1 s"});
    allocator.report();
    ProgramResult removed;
    do {
        removed = run_larder({"node", "rm", "a"}, allocator.socket);
    } while (removed.exit_code == 1);
    EXPECT_EQ(removed.exit_code, 0) << removed.errors;
    EXPECT_EQ(removed.output, "a is removed; the bandwidth kept for it is free for other nodes\n");
    EXPECT_EQ(run_larder({"node", "ls"}, allocator.socket).output, "no node has reported yet\n");
}

TEST_F(ClusterCommands, PlanIsShown) {
    allocator.report();
    const std::string plan = output({"plan"});
    EXPECT_THAT(plan, ContainsRegex("plan +1\nobjective +max-min\n"));
    EXPECT_THAT(plan, ContainsRegex("images +4.00 MB +0 B +1.00 MB +a 1.00 MB\n"));
    EXPECT_THAT(plan, ContainsRegex("vision +images +a +100.00 MB/s +100.00 MB/s +100.00 MB/s +0.0 % +100.00 MB/s "
                                    "+25.0 % +100.00 MB/s\n"));
    EXPECT_THAT(output({"plan", "--json"}), StartsWith("{\"plan\":1,\"objective\":\"max-min\","));
}

TEST_F(ClusterCommands, WhatIfShowsChangeOfEachJob) {
    allocator.report();
    const std::string table = output({"whatif", "--remote-bandwidth", "400Mbit", "--cache=-500KB", "--add-job",
                                      "big,dataset=text,size=1MB,ideal=10MB/s,nodes=a", "--objective", "efficiency"});
    EXPECT_THAT(table, ContainsRegex("objective +max-min +efficiency\n"));
    EXPECT_THAT(table, ContainsRegex("remote bandwidth +100.00 MB/s +50.00 MB/s\n"));
    EXPECT_THAT(table, ContainsRegex("cache +1.00 MB +500.00 kB\n"));
    EXPECT_THAT(table, ContainsRegex("vision +images +100.00 MB/s +100.00 MB/s +[0-9.]+ MB/s +-[0-9.]+ %"));
    EXPECT_THAT(table, ContainsRegex("big +text +10.00 MB/s +- +10.00 MB/s +-"));
    EXPECT_THAT(output({"plan", "--json"}), HasSubstr("\"remote_bytes_per_second\":100000000"));
    EXPECT_THAT(output({"whatif", "--remove-job", "vision", "--json"}),
                AllOf(HasSubstr("\"before\""), Not(HasSubstr("big"))));
    EXPECT_THAT(table, ContainsRegex("GRANTED NOW +THEN"));
    EXPECT_EQ(larder({"whatif"}).exit_code, 2);
    EXPECT_EQ(larder({"whatif", "--remove-job", "lost"}).exit_code, 4);
    EXPECT_EQ(larder({"whatif", "--cache", "lots"}).exit_code, 2);
    EXPECT_EQ(larder({"whatif", "--add-job", "big"}).exit_code, 2);
    EXPECT_EQ(larder({"whatif", "--objective", "luck"}).exit_code, 2);
}

// The rates of a lease that has expired are in force nowhere: who adds up the column would find more than there is.
TEST(ExpiredLease, IsShownAsFloors) {
    const test::AllocatorProcess allocator({"--lease", "1 s"});
    allocator.report();
    const auto nodes = [&] { return run_larder({"node", "ls"}, allocator.socket).output; };
    EXPECT_THAT(nodes(), HasSubstr("100.00 MB/s"));
    while (!nodes().contains("gone")) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_THAT(nodes(), ContainsRegex("1 +floors +gone"));
}

TEST_F(ClusterCommands, ErrorsNameTheOptionThatIsWrong) {
    allocator.report();
    for (const auto& [command, says] : std::vector<std::pair<std::vector<std::string>, std::string>>{
             {{"whatif", "--cache", "-1GB"}, "--cache: removes more than the nodes' 1.00 MB"},
             {{"whatif", "--cache", "1GB"}, "begin with + for more, or - for less"},
             {{"whatif", "--add-job", "big,dataset=text"}, "for a new dataset, give size="},
             {{"whatif", "--remove-job", "lost"}, "--remove-job: no job \"lost\" runs"},
             {{"whatif", "--objective", "luck"}, "--objective is wrong"},
             {{"job", "register", "x", "--weight", "-1"}, "--weight is -1"},
             {{"job", "register", "x", "--weight", "nan"}, "--weight must be a finite number"},
             {{"remote", "set", "--bandwidth", "0"}, "--bandwidth must be above 0"}}) {
        const ProgramResult result = larder(command);
        EXPECT_NE(result.exit_code, 0) << says;
        EXPECT_THAT(result.errors, HasSubstr(says));
        EXPECT_THAT(result.errors, Not(HasSubstr("_bytes")));
    }
}

TEST_F(ClusterCommands, TopShowsClusterUnlessNodeIsRequested) {
    EXPECT_THAT(output({"top", "--count", "1"}), HasSubstr("no node has reported yet"));
    allocator.report();
    const std::string shown = output({"top", "--count", "1"});
    EXPECT_THAT(shown, ContainsRegex("a +1.00 MB +1.00 MB +0 B +1 +100.00 MB/s"));
    EXPECT_THAT(shown, ContainsRegex("images +4.00 MB +1.00 MB +0 B +0 B +- +100.00 MB/s +vision"));
    EXPECT_THAT(shown, ContainsRegex("vision +images +a +100.00 MB/s +100.00 MB/s +- +0.0 % +100.00 MB/s +-"));
    EXPECT_THAT(output({"top", "--count", "1", "--json"}), StartsWith("{\"plan\":2,\"nodes\":[{"))
        << "plan 1 had no nodes";
    const ProgramResult node = larder({"top", "--node", "--admin-socket", "/nowhere/admin.sock"});
    EXPECT_EQ(node.exit_code, 3);
    EXPECT_THAT(node.errors, HasSubstr("no daemon answers"));
}

TEST_F(ClusterCommands, EventsAfterGivenEventAreListed) {
    EXPECT_EQ(output({"events"}), "");
    EXPECT_EQ(larder({"job", "register", "vision"}).exit_code, 0);
    allocator.report();
    EXPECT_THAT(output({"events"}), ContainsRegex("20[0-9-]+ [0-9:]+  job_registered  job vision is registered\n"
                                                  ".*  node_came       node \"a\" reports\n"));
    EXPECT_THAT(output({"events", "--after", "1", "--json"}), StartsWith("{\"number\":2,"));
}

TEST_F(ClusterCommands, EventsAreFollowedUntilCtrlC) {
    const std::string path = allocator.directory / "events.txt";
    std::vector<std::string> arguments = {LARDER_PROGRAM, "events", "--follow", "--allocator", allocator.socket};
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 1, path.c_str(), O_WRONLY | O_CREAT, 0600);
    pid_t pid = -1;
    ASSERT_EQ(::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    const auto wait_for = [&](const std::string& text) {
        for (;;) {
            std::ostringstream seen;
            seen << std::ifstream(path).rdbuf();
            if (seen.str().find(text) != std::string::npos) return;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    };
    EXPECT_EQ(larder({"job", "register", "one"}).exit_code, 0);
    wait_for("job one is registered");
    EXPECT_EQ(larder({"job", "register", "two"}).exit_code, 0);
    wait_for("job two is registered");
    ::kill(pid, SIGINT);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace larder
