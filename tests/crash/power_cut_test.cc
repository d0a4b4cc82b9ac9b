// The allocator's machine loses power right after an answer: everything acknowledged is on the disk. If the queue is
// lost, the leftovers of former jobs are never taken for another job's.

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/server/http_client.h"
#include "tests/crash/killed_server.h"
#include "tests/support/temp_directory.h"

namespace larder::scheduler {
namespace {

namespace fs = std::filesystem;

// Returns the environment of a program that keeps a copy of `state` in `images`, with only what has reached the disk.
std::vector<std::pair<std::string, std::string>> power_cut_environment(const std::string& state,
                                                                       const std::string& images) {
    return {{"LD_PRELOAD", LARDER_POWER_CUT_LIBRARY},
            // ASan need not be the first library.
            {"ASAN_OPTIONS", "verify_asan_link_order=0"},
            {"LARDER_POWER_CUT", images},
            {"LARDER_POWER_CUT_OF", state}};
}

// Leaves only what had reached the disk.
void cut_power_of(test::KilledServer& server, const std::string& state, const std::string& images) {
    server.kill_and_restart([&] {
        fs::create_directories(images);  // in case nothing has reached the disk
        // Moves both out of reach of jobs' processes, which a real power cut would have ended.
        static int cuts = 0;
        const std::string lost = state + ".lost" + std::to_string(++cuts);
        const std::string left = images + ".left";
        fs::rename(state, lost);
        fs::rename(images, left);
        fs::copy(left, state, fs::copy_options::recursive);
        fs::remove_all(left);
    });
}

class PowerCut : public ::testing::Test {
protected:
    boost::json::value ask(const std::string& method, const std::string& target, const std::string& body = "") const {
        const auto answer = http_request(allocator.socket(), method, target, body);
        EXPECT_TRUE(answer) << answer.error().message;
        if (!answer) return nullptr;
        EXPECT_EQ(answer->status, 200u) << method << " " << target << ": " << answer->body;
        return boost::json::parse(answer->body);
    }
    std::uint64_t submit(const std::string& name, const std::string& script, const std::string& rest = "") const {
        const boost::json::value command = boost::json::array{"sh", "-c", script};
        const auto answer = ask("POST", "/v1/queue",
                                R"({"jobs":[{"name":")" + name + R"(","command":)" + boost::json::serialize(command) +
                                    R"(,"directory":")" + directory.path().string() + R"(")" + rest + "}]}");
        return answer.at("jobs").at(0).at("id").to_number<std::uint64_t>();
    }
    boost::json::value wait_for_end(std::uint64_t job) const {
        for (;;) {
            auto seen = ask("GET", "/v1/queue/" + std::to_string(job));
            if (HasFailure() || seen.as_object().contains("ended_unix_s")) return seen;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }
    void cut_power() { cut_power_of(allocator, state, images); }
    void SetUp() override { std::ofstream(directory / "hold") << "on"; }
    // A job's command that runs until the file "hold" is removed, at the latest with the test's directory.
    static constexpr const char* kRunUntilReleased = "while [ -e hold ]; do sleep 0.01; done";

    test::TempDirectory directory;
    std::string state = directory / "state";
    std::string images = directory / "images";
    test::KilledAllocator allocator{
        state, {"--remote-bandwidth", "1 GB/s", "--scheduler.gpus", "1"}, power_cut_environment(state, images)};
};

TEST_F(PowerCut, AcknowledgedJobIsInTheQueueAfterwards) {
    for (int cut = 1; cut <= 5; ++cut) {
        const std::string name = "n" + std::to_string(cut);
        const std::uint64_t job = submit(name, "touch " + name + "; exit 3");
        cut_power();
        const auto ended = wait_for_end(job);
        EXPECT_EQ(ended.at("name").as_string(), name);
        EXPECT_EQ(ended.at("exit_code").to_number<int>(), 3);
        EXPECT_TRUE(fs::exists(directory / name)) << "the job did not run";
    }
}

TEST_F(PowerCut, ManyAcknowledgedJobsSurviveAndNoNumberIsReused) {
    submit("first", kRunUntilReleased);
    std::set<std::uint64_t> numbers;
    for (int job = 0; job < 150; ++job) numbers.insert(submit("j" + std::to_string(job) + "x", "true"));
    cut_power();
    for (const std::uint64_t number : numbers) ask("GET", "/v1/queue/" + std::to_string(number));
    EXPECT_GT(submit("later", "true"), *numbers.rbegin());
    fs::remove(directory / "hold");
}

TEST_F(PowerCut, AcknowledgedCancellationHolds) {
    submit("first", kRunUntilReleased);
    const std::uint64_t job = submit("second", "touch second");
    ask("DELETE", "/v1/queue/" + std::to_string(job));
    cut_power();
    EXPECT_EQ(ask("GET", "/v1/queue/" + std::to_string(job)).at("state").as_string(), "cancelled");
    fs::remove(directory / "hold");
}

TEST_F(PowerCut, OperatorSettingsHold) {
    ask("POST", "/v1/jobs", R"({"name":"vision","weight":2})");
    ask("PUT", "/v1/remote", R"({"bytes_per_second":5e8})");
    cut_power();
    const auto jobs = ask("GET", "/v1/jobs").at("jobs").as_array();
    ASSERT_EQ(jobs.size(), 1u);
    EXPECT_EQ(jobs[0].at("weight").to_number<double>(), 2);
    EXPECT_EQ(ask("GET", "/v1/status").at("remote_bytes_per_second").to_number<double>(), 5e8);
    ask("DELETE", "/v1/jobs/vision");
    cut_power();
    EXPECT_TRUE(ask("GET", "/v1/jobs").at("jobs").as_array().empty());
}

TEST_F(PowerCut, JobOfNewQueueIsNotTakenForEarlierOne) {
    const std::uint64_t before = submit("before", "true");
    EXPECT_EQ(wait_for_end(before).at("state").as_string(), "succeeded");
    allocator.kill_and_restart([&] { fs::remove_all(state + "/queue"); });
    const std::uint64_t after = submit("after", "touch ran; exit 3");
    EXPECT_GT(after, before);
    const auto ended = wait_for_end(after);
    EXPECT_EQ(ended.at("state").as_string(), "failed");
    EXPECT_EQ(ended.at("exit_code").to_number<int>(), 3);
    EXPECT_TRUE(fs::exists(directory / "ran"));
}

TEST_F(PowerCut, NewQueueWithoutNumberFileStartsAboveJobsWithFiles) {
    const std::uint64_t before = submit("before", "true");
    wait_for_end(before);
    allocator.kill_and_restart([&] {
        fs::remove_all(state + "/queue");
        fs::remove(state + "/job-numbers");
    });
    EXPECT_EQ(submit("after", "true"), before + 1);
}

TEST(PowerCutOfANode, DatasetsQuotasAndLimitsHold) {
    const test::TempDirectory directory;
    fs::create_directories(directory / "data");
    std::ofstream(directory / "data/file") << "content";
    const std::string state = directory / "state";
    const std::string images = directory / "images";
    test::KilledServer daemon(
        {LARDERD_PROGRAM, "--state-directory", state, "--memory", "64 MiB", "--disk", "0", "--log.level", "error"},
        state + "/admin.sock", power_cut_environment(state, images));
    const auto ask = [&](const char* method, const std::string& target, const std::string& body = "") {
        return http_request(daemon.socket(), method, target, body).value();
    };
    ask("POST", "/v1/datasets", R"({"name":"files","url":"file://)" + directory.path().string() + R"(/data"})");
    while (ask("GET", "/v1/datasets/files").status != 200) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(ask("PUT", "/v1/datasets/files/quota", R"({"memory_bytes":3000000,"disk_bytes":0})").status, 200u);
    EXPECT_EQ(ask("PUT", "/v1/jobs/slow/limit", R"({"rate_bytes_per_second":1000000})").status, 200u);
    cut_power_of(daemon, state, images);
    const auto quota = boost::json::parse(ask("GET", "/v1/datasets/files/quota").body);
    EXPECT_EQ(quota.at("memory_bytes").to_number<int>(), 3'000'000);
    EXPECT_THAT(ask("GET", "/v1/jobs").body, ::testing::HasSubstr(R"("job":"slow")"));
}

}  // namespace
}  // namespace larder::scheduler
