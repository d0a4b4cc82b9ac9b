// The allocator killed at any moment while it runs submitted jobs: between decision and start, between start and
// record, while a job stops. Nothing acknowledged is lost, and each attempt runs exactly once.

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/server/http_client.h"
#include "tests/crash/killed_server.h"
#include "tests/support/temp_directory.h"

namespace larder::scheduler {
namespace {

namespace json = boost::json;

constexpr int kKills = 30;

using StartCounts = std::map<std::pair<std::uint64_t, std::uint64_t>, int>;  // number of starts by (job, attempt)

class KilledScheduler : public ::testing::Test {
protected:
    // Returns a job that records each of its starts in the file `starts` and then runs the script `more`.
    std::string job_body(const std::string& name, const std::string& more, const std::string& rest = "") const {
        const json::value command =
            json::array{"sh", "-c", "echo $LARDER_JOB_ID $LARDER_ATTEMPT >> " + starts + "; " + more};
        return R"({"jobs":[{"name":")" + name + R"(","command":)" + json::serialize(command) +
               R"(,"directory":"/","gpus":1)" + rest + "}]}";
    }

    // Submits until acknowledged, as a user would. Returns the job's id, or nothing if the name was already taken.
    std::optional<std::uint64_t> submit(const std::string& body) {
        for (;;) {
            const auto answer = http_request(allocator.socket(), "POST", "/v1/queue", body);
            if (answer && answer->status == 200) {
                return json::parse(answer->body).at("jobs").at(0).at("id").to_number<std::uint64_t>();
            }
            // The job was recorded, but the acknowledgement was lost.
            if (answer && answer->status == 409) return std::nullopt;
            EXPECT_FALSE(answer) << answer->status << answer->body;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }

    json::array ended_jobs() const {
        const auto answer = http_request(allocator.socket(), "GET", "/v1/history?limit=100000");
        return answer ? json::parse(answer->body).at("jobs").as_array() : json::array();
    }

    StartCounts count_starts() const {
        StartCounts count;
        std::ifstream lines(starts);
        for (std::uint64_t id = 0, attempt = 0; lines >> id >> attempt;) ++count[{id, attempt}];
        return count;
    }

    // A slow runner: often the daemon that spawned it is dead by then, and the next daemon has spawned another.
    std::string slow_runner() const {
        const std::string path = directory / "slow-runner";
        std::ofstream(path) << "#!/bin/sh\nsleep 0.$(($$ % 4 * 2))\nexec " LARDER_RUNNER_PROGRAM " \"$1\"\n";
        std::filesystem::permissions(path, std::filesystem::perms::owner_all);
        return path;
    }

    test::TempDirectory directory;
    std::string starts = directory / "starts";
    test::KilledAllocator allocator{
        directory / "state",
        {"--remote-bandwidth", "1 GB/s", "--scheduler.gpus", "3", "--scheduler.runner", slow_runner()}};
};

TEST_F(KilledScheduler, NoJobIsLostAndNoneStartsTwice) {
    std::mt19937_64 random(5);
    std::set<std::string> submitted;
    for (int kill = 0; kill < kKills; ++kill) {
        for (int i = 0; i < 2; ++i) {
            const std::string name = "j" + std::to_string(submitted.size() + 1) + "x";
            submit(job_body(name, "sleep 0.0" + std::to_string(random() % 10)));
            submitted.insert(name);
        }
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 300'000));
        // Now and then kill again, while the allocator is starting or has just loaded its state.
        allocator.kill_and_spawn();
        if (kill % 3 == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 120'000));
            allocator.kill_and_spawn();
        }
        allocator.wait_until_it_serves();
    }
    while (ended_jobs().size() < submitted.size()) std::this_thread::sleep_for(std::chrono::milliseconds(20));

    const json::array jobs = ended_jobs();
    const StartCounts runs = count_starts();
    std::set<std::string> names;
    for (const json::value& job : jobs) {
        names.insert(std::string(job.at("name").as_string()));
        EXPECT_EQ(job.at("state").as_string(), "succeeded") << json::serialize(job);
        EXPECT_EQ(job.at("attempt").to_number<int>(), 1) << "a running job must continue: " << json::serialize(job);
        const auto run = runs.find({job.at("id").to_number<std::uint64_t>(), 1});
        ASSERT_NE(run, runs.end()) << json::serialize(job);
        EXPECT_EQ(run->second, 1) << json::serialize(job);
    }
    EXPECT_EQ(names, submitted);
    EXPECT_EQ(runs.size(), submitted.size());
}

TEST_F(KilledScheduler, RunningJobIsAdoptedAndItsEndIsSeen) {
    const auto quick = submit(job_body("ends-meanwhile", "sleep 0.3; exit 7"));
    const auto slow =
        submit(job_body("goes-on", "trap 'exit 0' TERM; while :; do sleep 0.02; done", R"(,"grace_s":20)"));
    ASSERT_TRUE(quick && slow);
    const auto state_of = [&](const std::string& name) {
        const auto answer = http_request(allocator.socket(), "GET", "/v1/queue/" + name);
        return answer ? std::string(json::parse(answer->body).at("state").as_string()) : answer.error().message;
    };
    while (count_starts().size() < 2 || state_of("goes-on") != "running") {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    for (int kill = 0; kill < 5; ++kill) allocator.kill_and_restart();
    while (ended_jobs().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(ended_jobs()[0].at("exit_code").to_number<int>(), 7);
    const std::string target = "/v1/queue/goes-on";
    // The record may not say yet that the job runs. In that case the engine finds it running.
    while (state_of("goes-on") == "starting") std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(state_of("goes-on"), "running");
    // Kill between the request to stop the job and its end.
    ASSERT_TRUE(http_request(allocator.socket(), "DELETE", target));
    allocator.kill_and_restart();
    while (ended_jobs().size() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(ended_jobs()[0].at("state").as_string(), "cancelled");
    EXPECT_EQ(count_starts(), (StartCounts{{{*quick, 1}, 1}, {{*slow, 1}, 1}}));
}

}  // namespace
}  // namespace larder::scheduler
