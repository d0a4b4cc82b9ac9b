// A cache disk that fills up while a job reads. It is a small tmpfs, which only the superuser may mount.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <cstring>
#include <fstream>
#include <map>

#include "loader/larder.h"
#include "tests/support/log_file.h"
#include "tests/support/read_epoch.h"
#include "tests/support/sample_data.h"
#include "tests/support/test_daemon.h"
#include "tests/support/test_units.h"

namespace larder::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class SmallDisk {
public:
    SmallDisk() : mounted_(::mount("tmpfs", path().c_str(), "tmpfs", 0, "size=40m,mode=0700") == 0), errno_(errno) {}
    ~SmallDisk() {
        if (mounted_) ::umount2(path().c_str(), MNT_DETACH);
    }
    SmallDisk(const SmallDisk&) = delete;
    SmallDisk& operator=(const SmallDisk&) = delete;

    std::string path() const { return directory_.path().string(); }
    // The reason why the disk is not mounted; empty if it is.
    std::string why_not_mounted() const { return mounted_ ? "" : std::strerror(errno_); }
    std::uint64_t bytes_used() const {
        struct statvfs status{};
        EXPECT_EQ(::statvfs(path().c_str(), &status), 0);
        return (status.f_blocks - status.f_bfree) * status.f_frsize;
    }

private:
    TempDirectory directory_;
    bool mounted_;
    int errno_;
};

class FullDisk : public testing::Test {
protected:
    void SetUp() override {
        if (!disk.why_not_mounted().empty()) GTEST_SKIP() << "no tmpfs may be mounted: " << disk.why_not_mounted();
        for (NamedBytes& file : make_tree(root, {.class_count = 2, .files_per_class = 150, .bytes_max = 400'000})) {
            total_bytes += file.content.size();
            files.emplace(std::move(file.name), std::move(file.content));
        }
        ASSERT_GT(total_bytes, 44 * kMiB);
    }

    // Reads an epoch. Each sample must come once, with its file's bytes.
    void read_epoch(Loader& loader) const { test::read_epoch(loader, files); }

    TempDirectory remote;
    const std::string root = remote / "tree";
    SmallDisk disk;
    std::map<std::string, std::string> files;
    std::uint64_t total_bytes = 0;
};

TEST_F(FullDisk, StopsAdmissionButNotServiceAndIsLoggedOnce) {
    const LogFile log(LogLevel::info);
    // State, index and segments are all on the small disk.
    TestDaemon daemon([&](cache::DaemonConfig& config) { config = test_config(disk.path()); });
    daemon.add("d", root, 0, 64 * kMiB);
    const auto counter = [&](const char* name) { return number_at(daemon.dataset("d").at("counters"), name); };
    const auto cached_blocks = [&] { return number_at(daemon.dataset("d").at("used"), "blocks"); };
    auto loader = Loader::open({{.dataset = "d", .socket = daemon.socket(), .memory_budget_bytes = 8 * kMiB}, 7});
    ASSERT_TRUE(loader.has_value()) << loader.error().message;
    read_epoch(*loader);
    TestDaemon::wait_until([&] { return text_at(daemon.dataset("d"), "disk_full") == "true"; });

    const auto reports = [&] { return log.lines_with("admits no more blocks"); };
    TestDaemon::wait_until([&] { return !reports().empty(); });
    const std::uint64_t cached = cached_blocks();
    EXPECT_GT(cached, 0u);
    EXPECT_LT(cached, files.size());

    // Take the last byte too, so that the index cannot be written either.
    {
        std::ofstream ballast(disk.path() + "/ballast", std::ios::binary);
        const std::string page(4096, 'x');
        while (ballast.write(page.data(), 4096) && ballast.flush()) {
        }
    }
    const std::uint64_t hits = counter("disk_hits");
    read_epoch(*loader);
    // There may be more hits, because a small block may still fit on the disk after the others.
    EXPECT_GE(counter("disk_hits") - hits, cached) << "cached blocks are still served";
    EXPECT_LT(cached_blocks(), files.size());
    EXPECT_GT(counter("admissions_refused"), 0u);
    EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("dataset=d"), HasSubstr("No space left on device"))));
    EXPECT_THAT(log.lines_with("takes blocks again"), IsEmpty());

    // A daemon that starts on the full disk serves the blocks that are cached.
    daemon.stop();
    daemon.start();
    const std::uint64_t kept = cached_blocks();
    EXPECT_GT(kept, 0u);
    read_epoch(*loader);
    EXPECT_GE(counter("disk_hits"), kept);
}

}  // namespace
}  // namespace larder::test
