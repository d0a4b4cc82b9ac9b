// Starting, reloading and stopping a daemon in this process.

#include "cache/control/daemon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <utility>

#include "base/server/logging.h"
#include "tests/support/log_file.h"
#include "tests/support/name_service.h"
#include "tests/support/sample_data.h"
#include "tests/support/test_daemon.h"
#include "tests/support/test_units.h"

namespace larder::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(DaemonTest, SecondDaemonInSameDirectoryIsRefused) {
    TestDaemon daemon;
    const auto second = cache::Daemon::start(daemon.config());
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code, ErrorCode::already_exists);
    EXPECT_THAT(second.error().message, HasSubstr("process " + std::to_string(::getpid())));
    EXPECT_THAT(second.error().message, HasSubstr(daemon.config().state_directory));
    EXPECT_EQ(daemon.get("/healthz").status, 200u) << "the first one goes on";
    daemon.stop();
    EXPECT_TRUE(cache::Daemon::start(daemon.config()).has_value());
}

// Without memory for its last steps the daemon ends at once. An exception would destroy a thread that still runs.
static_assert(noexcept(std::declval<cache::Daemon&>().stop()));

TEST(DaemonTest, StopRemovesBothSockets) {
    TestDaemon daemon;
    daemon.stop();
    EXPECT_NE(::access(daemon.config().socket_path.c_str(), F_OK), 0);
    EXPECT_NE(::access(daemon.config().admin_socket_path.c_str(), F_OK), 0);
}

TEST(DaemonTest, StateDirectoriesAreOpenToTheOwnerOnly) {
    TestDaemon daemon;
    for (const char* name : {"state/datasets", "state/segments", "state/index"}) {
        struct stat status{};
        ASSERT_EQ(::stat((daemon.state / name).c_str(), &status), 0);
        EXPECT_EQ(status.st_mode & 0777, 0700u) << name;
    }
}

TEST(DaemonTest, ImpossibleStateDirectoryFailsTheStart) {
    TempDirectory directory;
    write_file(directory.path() / "file", "x");
    const auto started = cache::Daemon::start(test_config(directory / "file/state"));
    ASSERT_FALSE(started.has_value());
    EXPECT_THAT(started.error().message, HasSubstr(directory / "file/state"));
}

TEST(DaemonTest, BrokenRecordLeavesOutItsDatasetOnly) {
    TestDaemon daemon;
    make_tree(daemon.state / "tree");
    daemon.add("d", daemon.state / "tree", 0, 8 * kMiB);
    daemon.add("other", daemon.state / "tree");
    EXPECT_EQ(text_at(daemon.finished(daemon.post("/v1/datasets/d/warm")), "state"), "done");
    const std::uint64_t cached = number_at(daemon.dataset("d").at("used"), "blocks");
    EXPECT_GT(cached, 0u);
    daemon.stop();
    const std::string path = daemon.state / "state/datasets/d/dataset.json";
    const std::string record = read_bytes(path);
    write_file(path, "{");
    {
        const LogFile log(LogLevel::error);
        daemon.start();
        EXPECT_THAT(log.lines_with(path), SizeIs(1));
    }
    EXPECT_EQ(daemon.get("/v1/datasets/other").status, 200u);
    EXPECT_THAT(daemon.get("/v1/datasets/d").error_message(), AllOf(HasSubstr(path), HasSubstr("dataset rm")));
    EXPECT_THAT(text_at(daemon.get("/v1/status").body, "problems"), HasSubstr("d/dataset.json"));
    EXPECT_THAT(text_at(daemon.get("/v1/datasets").body, "damaged"), HasSubstr("d/dataset.json"));
    daemon.stop();
    // The record is restored: no other file of the dataset is gone.
    write_file(path, record);
    daemon.start();
    EXPECT_EQ(number_at(daemon.dataset("d").at("used"), "blocks"), cached);
    daemon.stop();
    // Or the dataset is removed and added again.
    write_file(path, "{");
    daemon.start();
    EXPECT_EQ(daemon.call("DELETE", "/v1/datasets/d").status, 200u);
    daemon.add("d", daemon.state / "tree");
    EXPECT_EQ(text_at(daemon.get("/v1/status").body, "problems"), "[]");
}

TEST(DaemonTest, ConfiguredDatasetsAreAddedOnce) {
    TempDirectory data;
    make_tree(data / "tree");
    TestDaemon daemon([&](cache::DaemonConfig& config) {
        config.datasets["d"] = {
            .definition = {.url = "file://" + (data / "tree")}, .mode = 0644, .quota_memory_bytes = kMiB};
    });
    TestDaemon::wait_until([&] { return daemon.get("/v1/datasets/d").status == 200; });
    const auto dataset = daemon.dataset("d");
    EXPECT_EQ(text_at(dataset, "mode"), "0644");
    EXPECT_EQ(number_at(dataset.at("quota"), "memory_bytes"), kMiB);
    daemon.stop();
    daemon.config().datasets["d"].quota_disk_bytes = 2 * kMiB;
    daemon.start();
    const auto again = daemon.dataset("d");
    EXPECT_EQ(text_at(again, "dataset_id"), text_at(dataset, "dataset_id"));
    EXPECT_EQ(number_at(again.at("quota"), "memory_bytes"), kMiB);
    EXPECT_EQ(number_at(again.at("quota"), "disk_bytes"), 2 * kMiB);
}

TEST(DaemonTest, ConfiguredQuotasAboveCapacityFailTheStart) {
    TempDirectory directory;
    cache::DaemonConfig config = test_config(directory / "state");
    config.datasets["d"] = {.definition = {.url = "file:///x"}, .quota_memory_bytes = config.memory_bytes + 1};
    const auto started = cache::Daemon::start(config);
    ASSERT_FALSE(started.has_value());
    EXPECT_EQ(started.error().code, ErrorCode::no_space);
}

TEST(DaemonTest, ReloadAppliesQuotasLimitsAndLogLevelOrNothing) {
    const LogFile log(LogLevel::info);
    TestDaemon daemon;
    make_tree(daemon.state / "tree");
    daemon.add("d", daemon.state / "tree", kMiB);
    cache::DaemonConfig config = daemon.config();
    config.datasets["d"] = {.definition = {.url = "file:///ignored"}, .quota_memory_bytes = 5 * kMiB};
    config.jobs["j"] = {.remote_bytes_per_second = 1000};
    config.log_level = "warn";
    ASSERT_TRUE((*daemon).reload(config));
    log_info("left out");
    EXPECT_THAT(log.lines_with("left out"), IsEmpty());
    EXPECT_EQ(number_at(daemon.dataset("d").at("quota"), "memory_bytes"), 5 * kMiB);
    EXPECT_EQ(daemon.get("/v1/jobs").body.at("jobs").at(0).at("remote_rate").to_number<double>(), 1000);
    const cache::DaemonConfig good = config;
    config.log_level = "debug";
    config.datasets["d"].quota_memory_bytes = daemon.config().memory_bytes + 1;
    config.jobs["j"] = {.remote_bytes_per_second = 2000};
    EXPECT_FALSE((*daemon).reload(config));
    config = good;
    config.log_level = "loud";
    EXPECT_FALSE((*daemon).reload(config));
    config = good;
    config.log_level = "debug";
    config.datasets["d"].quota_memory_bytes = 6 * kMiB;
    config.datasets["e"] = {.definition = {.url = "ftp://nowhere"}};
    config.jobs["j"] = {.remote_bytes_per_second = 2000};
    const auto refused = (*daemon).reload(config);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("\"e\""));
    EXPECT_EQ(number_at(daemon.dataset("d").at("quota"), "memory_bytes"), 5 * kMiB);
    EXPECT_EQ(daemon.get("/v1/jobs").body.at("jobs").at(0).at("remote_rate").to_number<double>(), 1000)
        << "all or nothing";
    log_info("left out");
    EXPECT_THAT(log.lines_with("left out"), IsEmpty());
}

// The allocator never answers, so every quota comes from the config or the API.
TEST(DaemonTest, ReloadUnderAnAllocatorSetsConfiguredQuotas) {
    TestDaemon daemon([](cache::DaemonConfig& config) { config.allocator.endpoint = "/nowhere/allocator.sock"; });
    make_tree(daemon.state / "tree");
    for (const char* name : {"d", "e", "f"}) daemon.add(name, daemon.state / "tree");
    const auto quota_of = [&](const char* name) { return number_at(daemon.dataset(name).at("quota"), "memory_bytes"); };
    cache::DaemonConfig config = daemon.config();
    config.datasets["d"] = {.definition = {.url = "file:///ignored"}, .quota_memory_bytes = 60 * kMiB};
    config.datasets["e"] = {.definition = {.url = "file:///ignored"}, .quota_memory_bytes = 4 * kMiB};
    config.datasets["f"] = {.definition = {.url = "file:///ignored"}};
    ASSERT_TRUE((*daemon).reload(config));
    EXPECT_EQ(quota_of("d"), 60 * kMiB);
    EXPECT_TRUE(daemon.dataset("d").at("quota_held").as_bool());
    EXPECT_FALSE(daemon.dataset("f").at("quota_held").as_bool()) << "the config gives it no quota";
    config.datasets["d"].quota_memory_bytes = 4 * kMiB;
    config.datasets["e"].quota_memory_bytes = 60 * kMiB;
    ASSERT_TRUE((*daemon).reload(config)) << "room passes from one to the other";
    EXPECT_EQ(quota_of("d"), 4 * kMiB);
    EXPECT_EQ(quota_of("e"), 60 * kMiB);
    config.datasets["f"].quota_memory_bytes = kMiB;
    EXPECT_FALSE((*daemon).reload(config)) << "one MiB too many";
    EXPECT_EQ(quota_of("f"), 0u);
}

TEST(DaemonTest, OfflineDatasetIsServedOnceItsRemoteReturns) {
    TestDaemon daemon;
    make_tree(daemon.state / "tree");
    daemon.add("d", daemon.state / "tree");
    daemon.stop();
    std::filesystem::rename(daemon.state / "tree", daemon.state / "away");
    daemon.start();
    EXPECT_THAT(text_at(daemon.dataset("d"), "offline"), HasSubstr("tree"));
    EXPECT_EQ(daemon.post("/v1/datasets/d/warm").status, 503u);
    EXPECT_EQ(daemon.put("/v1/datasets/d/quota", {{"memory_bytes", kMiB}, {"disk_bytes", 0}}).status, 200u);
    std::filesystem::rename(daemon.state / "away", daemon.state / "tree");
    daemon.stop();
    daemon.start();
    EXPECT_EQ(text_at(daemon.dataset("d"), "offline"), "null");
    EXPECT_EQ(daemon.finished(daemon.post("/v1/datasets/d/warm")).at("state"), "done");
}

TEST(DaemonTest, SignalBeforeRunStopsIt) {
    TempDirectory directory;
    const auto daemon = cache::Daemon::start(test_config(directory / "state"), cache::Daemon::Signals::taken);
    ASSERT_TRUE(daemon.has_value()) << daemon.error().message;
    ::kill(::getpid(), SIGTERM);
    (*daemon)->run();
    EXPECT_NE(::access((*daemon)->socket_path().c_str(), F_OK), 0);
}

TEST(DaemonTest, RunEndsWhenStopped) {
    TestDaemon daemon;
    std::thread stopper([&] { (*daemon).stop(); });
    (*daemon).run();
    stopper.join();
    EXPECT_FALSE((*daemon).reload(daemon.config()).has_value());
}

TEST(DaemonTest, SighupLooksUsersUpAgainAndNeverWaitsForThem) {
    served_uid = 4001;
    TempDirectory data;
    make_tree(data / "tree");
    const cache::DatasetRequest request{.definition = {.url = "file://" + (data / "tree")}, .owner = kServedUser};
    TestDaemon daemon([&](cache::DaemonConfig& config) { config.datasets["d"] = request; });
    TestDaemon::wait_until([&] { return daemon.get("/v1/datasets/d").status == 200; });
    EXPECT_EQ(text_at(daemon.dataset("d"), "owner"), "4001");
    served_uid = 4002;
    ::signal(SIGHUP, SIG_IGN);
    ::signal(SIGTERM, SIG_IGN);
    std::thread sender([&] {
        TestDaemon::wait_until([&] {
            ::kill(::getpid(), SIGHUP);
            return daemon.get("/v1/datasets/e").status == 200;
        });
        EXPECT_EQ(text_at(daemon.dataset("e"), "owner"), "4002");
        service_hangs = true;
        TestDaemon::wait_until([&] {
            ::kill(::getpid(), SIGHUP);
            return look_ups_hanging > 0;
        });
        EXPECT_EQ(daemon.get("/v1/status").status, 200u) << "all is answered meanwhile";
        ::kill(::getpid(), SIGTERM);
    });
    (*daemon).run({.reload = [config = daemon.config(), request]() mutable -> Result<cache::DaemonConfig> {
        config.datasets["e"] = request;
        return config;
    }});
    sender.join();
    daemon.stop();
    service_hangs = false;
    TestDaemon::wait_until([] { return look_ups_hanging == 0; });
    ::signal(SIGHUP, SIG_DFL);
    ::signal(SIGTERM, SIG_DFL);
}

TEST(DaemonTest, SigtermStopsAndSighupReloads) {
    const LogFile log(LogLevel::info);
    TestDaemon daemon;
    make_tree(daemon.state / "tree");
    daemon.add("d", daemon.state / "tree", kMiB);
    // The signals must not end the test before `run` handles them.
    ::signal(SIGHUP, SIG_IGN);
    ::signal(SIGTERM, SIG_IGN);
    std::atomic<bool> reloaded = false;  // reads of the config may overlap
    std::thread sender([&] {
        TestDaemon::wait_until([&] {
            ::kill(::getpid(), SIGHUP);
            return number_at(daemon.dataset("d").at("quota"), "memory_bytes") == 2 * kMiB;
        });
        // The reload sets the log level after the quotas.
        TestDaemon::wait_until([&] {
            log_debug("wanted now");
            return !log.lines_with("wanted now").empty();
        });
        ::kill(::getpid(), SIGTERM);
    });
    (*daemon).run({.reload = [&]() -> Result<cache::DaemonConfig> {
        reloaded = true;
        cache::DaemonConfig config = daemon.config();
        config.datasets["d"] = {.definition = {.url = "file:///ignored"}, .quota_memory_bytes = 2 * kMiB};
        config.log_level = "debug";
        return config;
    }});
    sender.join();
    EXPECT_TRUE(reloaded);
    ::signal(SIGHUP, SIG_DFL);
    ::signal(SIGTERM, SIG_DFL);
}

}  // namespace
}  // namespace larder::test
