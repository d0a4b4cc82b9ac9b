// The allocator and the runners of jobs killed at any moment while jobs are submitted: between decision and start,
// between start and record, while a job stops. Files of attempts are lost, too. Nothing acknowledged is lost, each
// attempt runs at most once, and no two attempts at a job run at the same time.

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/server/http_client.h"
#include "tests/crash/killed_server.h"
#include "tests/support/property_cases.h"
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

// The directory of an attempt, and its runner if it has begun.
struct FoundAttempt {
    std::filesystem::path directory;
    std::string job;
    pid_t runner = 0;
};

std::vector<FoundAttempt> find_attempts(const std::filesystem::path& jobs) {
    namespace fs = std::filesystem;
    std::vector<FoundAttempt> found;
    std::error_code error;
    for (const auto& queue : fs::directory_iterator(jobs, error)) {
        for (const auto& job : fs::directory_iterator(queue.path(), error)) {
            for (const auto& attempt : fs::directory_iterator(job.path(), error)) {
                FoundAttempt& last = found.emplace_back(FoundAttempt{attempt.path(), job.path().filename()});
                const auto started = read_file(attempt.path() / "started");
                json::error_code wrong;
                const json::value value = started ? json::parse(*started, wrong) : json::value();
                if (!wrong && value.is_object()) last.runner = value.at("pid").to_number<pid_t>();
            }
        }
    }
    return found;
}

// Each round submits, then kills the allocator, or a runner, or loses a file of an attempt. A job loses few attempts,
// because one that is lost five times in a row fails. On a busy machine many attempts end before they are looked at, so
// the rounds go on until enough of both has been lost.
TEST_F(KilledScheduler, RunnersAreKilledAndFilesOfAttemptsAreLost) {
    constexpr int kRoundsMin = 60;
    constexpr int kLostMin = 6;  // runners, and files
    constexpr int kHitsMax = 3;  // of one job
    const std::string overlaps = directory / "overlaps";
    const std::string script = "exec 9>" + directory.path().string() +
                               "/held-$LARDER_JOB_ID; /usr/bin/flock -n 9 || echo $LARDER_JOB_ID >> " + overlaps +
                               (test::kSanitized ? "; sleep " : "; sleep 0.");  // a sanitized allocator starts slowly
    std::mt19937_64 random(8);
    std::set<std::string> submitted;
    std::map<std::string, int> hits;
    int runners_killed = 0;
    int files_lost = 0;
    std::set<std::filesystem::path> touched;
    for (int round = 0; round < kRoundsMin || runners_killed < kLostMin || files_lost < kLostMin; ++round) {
        const std::string name = "k" + std::to_string(round) + "x";
        submit(job_body(name, script + std::to_string(random() % 4)));
        submitted.insert(name);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 150'000));
        if (random() % 3 == 0) allocator.kill_and_restart();
        std::vector<FoundAttempt> attempts = find_attempts(directory / "state/jobs");
        std::shuffle(attempts.begin(), attempts.end(), random);
        for (const FoundAttempt& attempt : attempts) {
            // An attempt loses its runner or one file, and only before its end is known to the allocator for sure.
            if (hits[attempt.job] >= kHitsMax || touched.contains(attempt.directory)) continue;
            const bool has_ended = std::filesystem::exists(attempt.directory / "exit.json");
            if (random() % 2 == 0) {
                if (attempt.runner <= 1 || has_ended || ::kill(attempt.runner, SIGKILL) != 0) continue;
                ++runners_killed;
            } else {
                constexpr std::array kFiles{"exit.json", "lock", "run.json", "stop.json", "output.log"};
                std::error_code error;
                if (!std::filesystem::remove(attempt.directory / kFiles[random() % kFiles.size()], error)) continue;
                ++files_lost;
            }
            touched.insert(attempt.directory);
            ++hits[attempt.job];
            break;
        }
        if (random() % 3 == 0) allocator.kill_and_restart();
    }
    while (ended_jobs().size() < submitted.size()) std::this_thread::sleep_for(std::chrono::milliseconds(20));

    EXPECT_FALSE(std::filesystem::exists(overlaps)) << "two attempts at one job ran at the same time";
    const StartCounts runs = count_starts();
    for (const auto& [attempt, count] : runs) {
        EXPECT_EQ(count, 1) << "job " << attempt.first << " attempt " << attempt.second;
    }
    std::set<std::string> names;
    for (const json::value& job : ended_jobs()) {
        names.insert(std::string(job.at("name").as_string()));
        EXPECT_EQ(job.at("state").as_string(), "succeeded") << json::serialize(job);
        const auto last =
            std::pair(job.at("id").to_number<std::uint64_t>(), job.at("attempt").to_number<std::uint64_t>());
        EXPECT_TRUE(runs.contains(last)) << "the attempt that succeeded never ran: " << json::serialize(job);
        EXPECT_LE(last.second, kHitsMax + 1u) << json::serialize(job);
    }
    EXPECT_EQ(names, submitted);
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
