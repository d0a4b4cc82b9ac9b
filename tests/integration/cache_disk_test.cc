// Disks and mounts that fail while the node starts or runs: the node starts, serves what it can, and says what it
// cannot.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <chrono>
#include <map>
#include <string>

#include "loader/larder.h"
#include "tests/support/hung_mount.h"
#include "tests/support/log_file.h"
#include "tests/support/read_epoch.h"
#include "tests/support/sample_data.h"
#include "tests/support/test_daemon.h"
#include "tests/support/test_units.h"

namespace larder::test {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

class CacheDisk : public testing::Test {
protected:
    CacheDisk() {
        for (NamedBytes& file : make_tree(root, {.class_count = 2, .files_per_class = 50, .bytes_max = 100'000})) {
            files.emplace(std::move(file.name), std::move(file.content));
        }
    }

    // Reads an epoch. Each sample must come once, with its file's bytes.
    void read_epoch(const std::string& socket) const {
        auto loader = Loader::open({{.dataset = "d", .socket = socket, .memory_budget_bytes = 8 * kMiB}, 7});
        ASSERT_TRUE(loader.has_value()) << loader.error().message;
        test::read_epoch(*loader, files);
    }

    TempDirectory remote;
    const std::string root = remote / "tree";
    std::map<std::string, std::string> files;
};

std::uint64_t counter(const TestDaemon& daemon, const char* name) {
    return number_at(daemon.dataset("d").at("counters"), name);
}

TEST_F(CacheDisk, ReadOnlyDiskIsServedFromAndReported) {
    TempDirectory disk;
    if (::mount("tmpfs", disk.path().c_str(), "tmpfs", 0, "size=100m,mode=0700") != 0) {
        GTEST_SKIP() << "no tmpfs may be mounted";
    }
    TempDirectory sockets;
    {
        TestDaemon daemon([&](cache::DaemonConfig& config) {
            config = test_config(disk.path());
            config.socket_path = sockets / "larderd.sock";
            config.admin_socket_path = sockets / "admin.sock";
        });
        daemon.add("d", root, 0, 64 * kMiB);
        read_epoch(daemon.socket());
        TestDaemon::wait_until([&] { return number_at(daemon.dataset("d").at("used"), "blocks") == files.size(); });
        daemon.add("e", root, 0, 8 * kMiB);
        daemon.stop();
        ASSERT_EQ(::mount(nullptr, disk.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
        const LogFile log(LogLevel::info);
        daemon.start();
        read_epoch(daemon.socket());
        EXPECT_EQ(counter(daemon, "disk_hits"), files.size());
        EXPECT_EQ(counter(daemon, "misses"), 0u);
        TestDaemon::wait_until([&] { return !daemon.get("/v1/status").body.at("problems").as_array().empty(); });
        EXPECT_THAT(text_at(daemon.get("/v1/status").body, "problems"), HasSubstr("Read-only file system"));
        EXPECT_THAT(log.lines_with("a part of the cache cannot be used"), SizeIs(1));
        daemon.stop();
    }
    ::umount2(disk.path().c_str(), MNT_DETACH);
}

TEST_F(CacheDisk, HungMountHoldsUpNoOtherDataset) {
    std::filesystem::create_directory(remote.path() / "hung");
    make_tree(remote / "hung", {.class_count = 1, .files_per_class = 3});
    TestDaemon daemon;
    daemon.add("d", root, 0, 64 * kMiB);
    daemon.add("hung", remote / "hung", 0, kMiB);
    daemon.stop();
    const auto is_offline = [&] { return !daemon.dataset("hung").at("offline").is_null(); };
    {
        const HungMount hung(remote / "hung");
        if (!hung.mounted()) GTEST_SKIP() << "no FUSE file system may be mounted";
        daemon.start();
        EXPECT_TRUE(hung.is_asked()) << "the start is over while the mount still owes its answer";
        EXPECT_TRUE(is_offline());
        EXPECT_THAT(text_at(daemon.dataset("hung"), "offline"), HasSubstr("has not answered"));
        read_epoch(daemon.socket());
        // A state file is written after the time at which the hung dataset is looked for again.
        std::this_thread::sleep_for(std::chrono::seconds(11));
        EXPECT_EQ(daemon.put("/v1/datasets/d/quota", {{"memory_bytes", 0}, {"disk_bytes", 32 * kMiB}}).status, 200u);
        daemon.stop();
        daemon.start();
        EXPECT_EQ(number_at(daemon.dataset("d").at("quota"), "disk_bytes"), 32 * kMiB);
    }
    TestDaemon::wait_until([&] { return !is_offline(); });
}

}  // namespace
}  // namespace larder::test
