// Kills the real daemon with SIGKILL in a loop while a job reads, each time after it has served some blocks. However
// often it is killed, the job gets no bad byte and no missing or repeated sample, what was cached on disk is served
// again, and nobody has to repair anything. LARDER_KILLS sets the number of kills (default 200).

#include <boost/json.hpp>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/server/http.h"
#include "loader/larder.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

extern char** environ;

namespace larder {
namespace {

using std::chrono::milliseconds;

class DaemonUnderFire {
public:
    explicit DaemonUnderFire(std::string state) : state_(std::move(state)) {}
    ~DaemonUnderFire() { end(SIGTERM); }

    void start() {
        const std::vector<std::string> arguments = {
            LARDERD_PROGRAM, "--state-directory", state_, "--memory", "64 MiB", "--disk",
            "64 MiB",        "--log.level",       "error"};
        std::vector<char*> argv;
        for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
        argv.push_back(nullptr);
        ASSERT_EQ(::posix_spawn(&pid_, LARDERD_PROGRAM, nullptr, nullptr, argv.data(), environ), 0);
    }

    void end(int signal) {
        if (pid_ <= 0) return;
        ::kill(pid_, signal);
        int status = 0;
        ASSERT_EQ(::waitpid(pid_, &status, 0), pid_);
        pid_ = -1;
        if (signal == SIGTERM) {
            EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "a clean end is exit status 0";
        } else {
            EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << "the daemon ended by itself";
        }
    }

    void set_quota(std::uint64_t disk_bytes) const {
        const auto answer = http_request(state_ + "/admin.sock", "PUT", "/v1/datasets/fire/quota",
                                         R"({"memory_bytes":0,"disk_bytes":)" + std::to_string(disk_bytes) + "}");
        ASSERT_TRUE(answer && answer->status == 200) << (answer ? answer->body : answer.error().message);
    }

    // Returns the dataset as the API shows it. Waits until the daemon answers.
    boost::json::object dataset() const {
        for (;;) {
            const auto answer = http_request(state_ + "/admin.sock", "GET", "/v1/datasets/fire");
            if (answer && answer->status == 200) return boost::json::parse(answer->body).as_object();
            std::this_thread::sleep_for(milliseconds(1));
        }
    }

    void add_dataset(const std::string& root) const {
        const std::string admin = state_ + "/admin.sock";
        while (!http_request(admin, "GET", "/healthz")) std::this_thread::sleep_for(milliseconds(2));
        const auto answer = http_request(
            admin, "POST", "/v1/datasets",
            R"({"name":"fire","url":"file://)" + root + R"(","quota":{"memory_bytes":0,"disk_bytes":9000000}})");
        ASSERT_TRUE(answer.has_value() && answer->status == 202) << (answer ? answer->body : answer.error().message);
        for (;;) {
            const auto dataset = http_request(admin, "GET", "/v1/datasets/fire");
            if (dataset && dataset->status == 200) return;
            std::this_thread::sleep_for(milliseconds(2));
        }
    }

private:
    std::string state_;
    pid_t pid_ = -1;
};

std::uint64_t count_at(const boost::json::object& dataset, const char* group, const char* key) {
    return dataset.at(group).at(key).to_number<std::uint64_t>();
}

std::uint64_t served_bytes(const boost::json::object& dataset) {
    return count_at(dataset, "counters", "bytes_disk") + count_at(dataset, "counters", "bytes_remote");
}

TEST(Crash, DaemonKilledRepeatedlyLosesAndCorruptsNothing) {
    const char* wanted = std::getenv("LARDER_KILLS");
    const int kills = wanted != nullptr ? std::atoi(wanted) : 200;
    test::TempDirectory directory;
    const auto files = test::make_tree(directory.path() / "data", {.files_per_class = 500, .bytes_max = 12'000});
    std::map<std::string, const std::string*> content;
    for (const test::NamedBytes& file : files) content[file.name] = &file.content;
    const std::string state = directory / "state";
    DaemonUnderFire daemon(state);
    daemon.start();
    daemon.add_dataset(directory / "data");

    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> epochs{0};
    std::string failure;  // belongs to the job's thread until it is joined
    std::atomic<bool> ended{false};
    std::thread job([&] {
        auto loader = Loader::open(
            {{.dataset = "fire", .socket = state + "/larderd.sock", .reconnect_timeout_ms = 60'000}, 9, true, 16, 16});
        if (!loader) {
            failure = loader.error().message;
            ended = true;
            return;
        }
        std::vector<int> seen(files.size());
        while (!stop && failure.empty()) {
            auto batch = loader->next();
            if (!batch) {
                failure = batch.error().message;
            } else if (!*batch) {
                for (std::size_t i = 0; i < seen.size(); ++i) {
                    if (seen[i] != 1)
                        failure = "sample " + std::to_string(i) + " came " + std::to_string(seen[i]) + " times";
                }
                std::ranges::fill(seen, 0);
                ++epochs;
            } else {
                for (const Sample& sample : (*batch)->samples()) {
                    ++seen[sample.index];
                    const std::string_view got(reinterpret_cast<const char*>(sample.bytes().data()),
                                               sample.bytes().size());
                    if (got != *content.at(std::string(sample.key)))
                        failure = "wrong bytes in " + std::string(sample.key);
                }
                // Slow the job down, so that part of the epoch is left for the time after the kill.
                std::this_thread::sleep_for(std::chrono::microseconds(300));
            }
        }
        ended = true;
    });

    std::mt19937 random(11);
    std::uint64_t blocks_kept = 0;
    for (int kill = 0; kill < kills && !ended; ++kill) {
        // The daemon dies after it has served a random number of bytes since its start.
        const std::uint64_t served_before_kill = 1 + random() % 1'000'000;
        auto dataset = daemon.dataset();
        while (served_bytes(dataset) < served_before_kill && !ended) dataset = daemon.dataset();
        // Also drop and refill segments while the daemon is killed.
        if (kill % 5 == 4) {
            daemon.set_quota(kill % 2 == 0 ? 3'000'000 : 9'000'000);
            dataset = daemon.dataset();
        }
        EXPECT_EQ(count_at(dataset, "counters", "crc_failures"), 0u);
        const std::uint64_t blocks_before = count_at(dataset, "used", "blocks");
        daemon.end(SIGKILL);
        daemon.start();
        if (HasFatalFailure()) break;
        // A kill loses no block that was on the disk: the kernel goes on, and the tails of segments are scanned.
        const std::uint64_t blocks_after = count_at(daemon.dataset(), "used", "blocks");
        EXPECT_GE(blocks_after, blocks_before) << "after kill " << kill;
        blocks_kept += blocks_before;
    }
    EXPECT_GT(blocks_kept, 0u);

    // Once all blocks are on the disk, not one is fetched again after a kill.
    daemon.set_quota(60'000'000);
    for (const std::uint64_t all = daemon.dataset().at("blocks").to_number<std::uint64_t>();
         !ended && count_at(daemon.dataset(), "used", "blocks") < all;) {
        std::this_thread::sleep_for(milliseconds(5));
    }
    daemon.end(SIGKILL);
    daemon.start();
    const std::uint64_t epochs_before = epochs;
    while (epochs < epochs_before + 2 && !ended) std::this_thread::sleep_for(milliseconds(5));
    const auto dataset = daemon.dataset();
    stop = true;
    job.join();
    EXPECT_EQ(failure, "");
    EXPECT_EQ(count_at(dataset, "counters", "bytes_remote"), 0u);
    EXPECT_GT(count_at(dataset, "counters", "disk_hits"), 0u);
    EXPECT_EQ(count_at(dataset, "counters", "crc_failures"), 0u);
}

}  // namespace
}  // namespace larder
