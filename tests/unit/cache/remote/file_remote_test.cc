// FileRemote on real files through every real device, and on the fake device where a file must change at a chosen
// moment.

#include "cache/remote/file_remote.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/hash.h"
#include "tests/support/fake_device.h"
#include "tests/support/hung_mount.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using protocol::BlockStatus;

std::string noise(std::size_t bytes, std::uint64_t seed) {
    std::string text(bytes, '\0');
    for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(mix64(seed * 1'000'003 + i));
    return text;
}

struct Read : RemoteRead {
    Read() {
        done = [](RemoteRead& read, BlockStatus given, int given_errno) noexcept {
            auto& self = static_cast<Read&>(read);
            self.status = given;
            self.system_errno = given_errno;
            ++self.completions;
        };
    }
    // Sets up a read of [from, from + bytes) of an object with this path, size and mtime.
    void describe(std::string_view object, std::uint64_t size, std::int64_t mtime, std::uint64_t from,
                  std::size_t bytes) {
        path = object;
        object_bytes = size;
        object_mtime_ns = mtime;
        offset = from;
        content.assign(bytes, '\0');
        into = std::as_writable_bytes(std::span(content));
    }
    std::string content;
    BlockStatus status = BlockStatus::ok;
    int system_errno = 0;
    int completions = 0;
};

std::size_t open_descriptors() {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator{}));
}

class FileRemoteTest : public testing::TestWithParam<DeviceKind> {
protected:
    FileRemoteTest() {
        auto made = make_device(GetParam(), clock_);
        if (!made) throw std::runtime_error(made.error().message);
        device_ = std::move(made->device);
        auto remote = make_file_remote(directory_.path(), *device_, {.open_files = 4});
        if (!remote) throw std::runtime_error(remote.error().message);
        remote_ = std::move(*remote);
    }

    std::int64_t write(const std::string& name, const std::string& content) {
        std::filesystem::create_directories((directory_.path() / name).parent_path());
        std::ofstream(directory_ / name, std::ios::binary) << content;
        return mtime(name);
    }
    std::int64_t mtime(const std::string& name) const {
        struct stat stat{};
        EXPECT_EQ(::stat((directory_ / name).c_str(), &stat), 0);
        return stat.st_mtim.tv_sec * 1'000'000'000 + stat.st_mtim.tv_nsec;
    }
    void set_mtime(const std::string& name, std::int64_t mtime_ns) const {
        const timespec times[2] = {{0, UTIME_OMIT}, {mtime_ns / 1'000'000'000, mtime_ns % 1'000'000'000}};
        ASSERT_EQ(::utimensat(AT_FDCWD, (directory_ / name).c_str(), times, 0), 0);
    }
    void finish(const Read& read, int completions = 1) {
        const std::int64_t deadline_ns = clock_.now_ns() + 60'000'000'000;
        while (read.completions < completions && clock_.now_ns() < deadline_ns) device_->wait(deadline_ns);
        ASSERT_EQ(read.completions, completions);
    }
    void run(Read& read) {
        remote_->read(read);
        EXPECT_EQ(read.completions, 0) << "completed inside the call";
        finish(read);
    }

    test::TempDirectory directory_;
    SteadyClock clock_;
    std::unique_ptr<Device> device_;
    std::unique_ptr<Remote> remote_;
};

INSTANTIATE_TEST_SUITE_P(Device, FileRemoteTest, testing::Values(DeviceKind::ring, DeviceKind::threads),
                         [](const auto& kind) { return kind.param == DeviceKind::ring ? "ring" : "threads"; });

TEST_P(FileRemoteTest, HungMountHoldsNoWorkerOfOthers) {
    test::TempDirectory mount;
    auto hung = std::make_unique<test::HungMount>(mount.path());
    if (!hung->mounted()) GTEST_SKIP() << "no FUSE file system may be mounted";
    auto hung_remote = make_file_remote_at(mount.path(), *device_, {});
    std::vector<Read> reads(300);
    for (Read& read : reads) {
        read.describe("object", 1000, 1, 0, 1000);
        hung_remote->read(read);
    }
    device_->wait(clock_.now_ns() + 100'000'000);
    // Another remote and the disk are not held up.
    const std::string content = noise(5000, 1);
    const std::int64_t written_ns = write("a", content);
    for (int i = 0; i < 20; ++i) {
        Read read;
        read.describe("a", content.size(), written_ns, 0, content.size());
        remote_->read(read);
        const std::int64_t deadline_ns = clock_.now_ns() + 5'000'000'000;
        while (read.completions == 0 && clock_.now_ns() < deadline_ns) device_->wait(deadline_ns);
        ASSERT_EQ(read.completions, 1) << "the read waits for the hung mount";
        EXPECT_EQ(read.status, BlockStatus::ok);
    }
    for (const Read& read : reads) EXPECT_EQ(read.completions, 0);
    hung.reset();
    const auto are_over = [&] {
        return std::ranges::all_of(reads, [](const Read& read) { return read.completions == 1; });
    };
    while (!are_over()) device_->wait(clock_.now_ns() + 1'000'000'000);
    for (const Read& read : reads) EXPECT_NE(read.status, BlockStatus::ok);
}

TEST_P(FileRemoteTest, ReadsWholeObjects) {
    const std::string content = noise(300'000, 1);
    const std::int64_t written_ns = write("class a/x.png", content);
    Read read;
    read.describe("class a/x.png", content.size(), written_ns, 0, content.size());
    run(read);
    EXPECT_EQ(read.status, BlockStatus::ok);
    EXPECT_EQ(read.content, content);
}

TEST_P(FileRemoteTest, ReadsRangesOfManyShardsAtOnce) {
    constexpr std::size_t kShards = 12, kBlocks = 16, kBlockBytes = 8192;
    std::vector<std::string> names, contents;
    std::vector<std::int64_t> times_ns;
    for (std::size_t i = 0; i < kShards; ++i) {
        names.push_back("shard-" + std::to_string(i) + ".tar");
        contents.push_back(noise(kBlocks * kBlockBytes, i));
        times_ns.push_back(write(names[i], contents[i]));
    }
    const std::size_t before = open_descriptors();
    std::vector<Read> reads(kShards * kBlocks);
    for (int round = 0; round < 2; ++round) {
        for (std::size_t i = 0; i < reads.size(); ++i) {
            const std::size_t at = (i * 37) % reads.size(), shard = at % kShards, block = at / kShards;
            reads[i] = Read();
            reads[i].describe(names[shard], contents[shard].size(), times_ns[shard], block * kBlockBytes, kBlockBytes);
            remote_->read(reads[i]);
        }
        for (std::size_t i = 0; i < reads.size(); ++i) {
            finish(reads[i]);
            const std::size_t at = (i * 37) % reads.size(), shard = at % kShards, block = at / kShards;
            EXPECT_EQ(reads[i].status, BlockStatus::ok);
            EXPECT_EQ(reads[i].content, contents[shard].substr(block * kBlockBytes, kBlockBytes));
        }
    }
    const std::int64_t deadline_ns = clock_.now_ns() + 10'000'000'000;
    while (open_descriptors() > before + 4 && clock_.now_ns() < deadline_ns) device_->wait(clock_.now_ns() + 1'000'000);
    EXPECT_LE(open_descriptors(), before + 4) << "only as many as open_files stay open";
}

TEST_P(FileRemoteTest, ManySmallObjectsLeaveNoDescriptorOpen) {
    constexpr std::size_t kObjects = 400;
    std::vector<std::string> names;
    std::vector<std::int64_t> times_ns;
    for (std::size_t i = 0; i < kObjects; ++i) {
        names.push_back("d" + std::to_string(i % 7) + "/" + std::to_string(i));
        times_ns.push_back(write(names[i], noise(100 + i, i)));
    }
    const std::size_t before = open_descriptors();
    std::vector<Read> reads(kObjects);
    for (std::size_t i = 0; i < kObjects; ++i) {
        reads[i].describe(names[i], 100 + i, times_ns[i], 0, 100 + i);
        remote_->read(reads[i]);
    }
    for (std::size_t i = 0; i < kObjects; ++i) {
        finish(reads[i]);
        EXPECT_EQ(reads[i].status, BlockStatus::ok);
        EXPECT_EQ(reads[i].content, noise(100 + i, i));
    }
    const std::int64_t deadline_ns = clock_.now_ns() + 10'000'000'000;
    while (open_descriptors() > before && clock_.now_ns() < deadline_ns) device_->wait(clock_.now_ns() + 1'000'000);
    EXPECT_EQ(open_descriptors(), before);
}

TEST_P(FileRemoteTest, MissingObjectIsReportedMissing) {
    write("file", "x");
    for (const char* path : {"none", "no/such/directory", "file/below"}) {
        Read read;
        read.describe(path, 10, 0, 0, 10);
        run(read);
        EXPECT_EQ(read.status, BlockStatus::object_missing) << path;
    }
}

TEST_P(FileRemoteTest, DifferentSizeOrTimeIsAChange) {
    const std::int64_t written_ns = write("x", noise(1000, 1));
    Read grown, touched, cut;
    grown.describe("x", 999, written_ns, 0, 999);
    run(grown);
    EXPECT_EQ(grown.status, BlockStatus::object_changed);
    touched.describe("x", 1000, written_ns - 1, 0, 1000);
    run(touched);
    EXPECT_EQ(touched.status, BlockStatus::object_changed);
    cut.describe("x", 1001, written_ns, 0, 1001);
    run(cut);
    EXPECT_EQ(cut.status, BlockStatus::object_changed);
}

TEST_P(FileRemoteTest, ReadPastTheEndIsTruncated) {
    const std::int64_t written_ns = write("x", noise(1000, 1));
    Read read;
    read.describe("x", 1000, written_ns, 900, 200);
    run(read);
    EXPECT_EQ(read.status, BlockStatus::object_truncated);
}

TEST_P(FileRemoteTest, OpenShardOverwrittenInPlaceIsAChange) {
    const std::string old_content = noise(10'000, 1), new_content = noise(10'000, 2);
    const std::int64_t old_ns = write("shard", old_content);
    Read first;
    first.describe("shard", 10'000, old_ns, 5000, 1000);
    run(first);
    ASSERT_EQ(first.status, BlockStatus::ok);

    write("shard", new_content);  // in place: the open descriptor sees it
    set_mtime("shard", old_ns + 1'000'000'000);
    Read stale, fresh;
    stale.describe("shard", 10'000, old_ns, 5000, 1000);
    run(stale);
    EXPECT_EQ(stale.status, BlockStatus::object_changed);
    fresh.describe("shard", 10'000, old_ns + 1'000'000'000, 5000, 1000);
    run(fresh);
    EXPECT_EQ(fresh.status, BlockStatus::ok);
    EXPECT_EQ(fresh.content, new_content.substr(5000, 1000));
}

TEST_P(FileRemoteTest, OpenShardReplacedByRenameIsAChange) {
    const std::string old_content = noise(10'000, 1);
    const std::int64_t old_ns = write("shard", old_content);
    Read reads[3];
    for (Read& read : reads) read.describe("shard", 10'000, old_ns, 5000, 1000);
    run(reads[0]);
    write("new", noise(10'000, 2));
    set_mtime("new", old_ns + 1'000'000'000);
    std::filesystem::rename(directory_ / "new", directory_ / "shard");
    run(reads[1]);  // old bytes or object_changed, never new bytes as ok
    if (reads[1].status == BlockStatus::ok) {
        EXPECT_EQ(reads[1].content, old_content.substr(5000, 1000));
    }
    run(reads[2]);
    EXPECT_EQ(reads[2].status, BlockStatus::object_changed);
}

TEST_P(FileRemoteTest, DirectoryInPlaceOfObjectIsAChange) {
    std::filesystem::create_directory(directory_ / "x");
    Read read;
    read.describe("x", 10, 0, 0, 10);
    run(read);
    EXPECT_EQ(read.status, BlockStatus::object_changed);
}

TEST_P(FileRemoteTest, FifoInPlaceOfObjectIsAChange) {
    ASSERT_EQ(::mkfifo((directory_ / "object").c_str(), 0600), 0);
    Read read;
    read.describe("object", 100, mtime("object"), 0, 100);
    run(read);
    EXPECT_EQ(read.status, BlockStatus::object_changed);
}

TEST_P(FileRemoteTest, PathsOutsideTheRootAreRefused) {
    for (const std::string& path : {std::string("../x"), std::string("a/../../x"), std::string("/etc/hostname"),
                                    std::string(".."), std::string("a/.."), std::string(), std::string("a\0b", 3)}) {
        Read read;
        read.describe(path, 10, 0, 0, 10);
        run(read);
        EXPECT_EQ(read.status, BlockStatus::remote_failed) << path;
        EXPECT_EQ(read.system_errno, EINVAL) << path;
    }
    const std::int64_t written_ns = write("..a/b..c", "1234567890");
    Read read;
    read.describe("..a/b..c", 10, written_ns, 0, 10);
    run(read);
    EXPECT_EQ(read.status, BlockStatus::ok);
}

TEST_P(FileRemoteTest, LinkIsReadOnlyIfItStaysBeneathTheRoot) {
    const std::int64_t written_ns = write("root/a/real", "1234567890");
    write("secret", "1234567890");
    set_mtime("secret", written_ns);
    const auto problems = std::make_shared<RemoteProblems>();
    auto remote = make_file_remote(directory_ / "root", *device_, {.problems = problems});
    ASSERT_TRUE(remote);
    auto following = make_file_remote(directory_ / "root", *device_, {.follow_symlinks = true});
    ASSERT_TRUE(following);
    const std::size_t before = open_descriptors();
    const auto read_from = [&](Remote& from, const std::string& path, std::size_t bytes) {
        Read read;
        read.describe(path, 10, written_ns, 0, bytes);
        from.read(read);
        finish(read);
        return std::pair(read.status, read.system_errno);
    };
    std::filesystem::create_directory_symlink("a", directory_ / "root/b");
    std::filesystem::create_symlink("../a/real", directory_ / "root/a/in");
    for (const std::string path : {"b/real", "b/in", "a/in"}) {
        EXPECT_EQ(read_from(**remote, path, 10).first, BlockStatus::ok) << path;
    }
    const std::vector<std::string> targets{"../../secret", (directory_ / "secret"), (directory_ / "root/a/real")};
    for (const std::string& target : targets) {
        std::filesystem::create_symlink(target, directory_ / "root/a/x.bin");
        for (const std::size_t bytes : {10u, 5u}) {
            EXPECT_EQ(read_from(**remote, "a/x.bin", bytes), std::pair(BlockStatus::remote_failed, EXDEV)) << target;
            EXPECT_EQ(read_from(**following, "a/x.bin", bytes).first, BlockStatus::ok) << target;
        }
        EXPECT_THAT(problems->latest("a/x.bin"),
                    testing::AllOf(testing::HasSubstr("root/a/x.bin"), testing::HasSubstr("--follow-symlinks")));
        std::filesystem::remove(directory_ / "root/a/x.bin");
    }
    // A directory that was real when the dataset was indexed.
    std::filesystem::rename(directory_ / "root/a", directory_ / "moved");
    std::filesystem::create_directory_symlink(directory_ / "moved", directory_ / "root/a");
    EXPECT_EQ(read_from(**remote, "a/real", 10), std::pair(BlockStatus::remote_failed, EXDEV));
    remote->reset();
    following->reset();
    device_->stop();
    EXPECT_LE(open_descriptors(), before);
}

TEST_P(FileRemoteTest, EndsCleanlyWithReadsInFlight) {
    const std::string content = noise(100'000, 1);
    const std::int64_t written_ns = write("x", content);
    Read warm;
    warm.describe("x", content.size(), written_ns, 0, content.size());
    run(warm);
    const std::size_t before = open_descriptors();
    std::vector<Read> reads(100);
    for (std::size_t i = 0; i < reads.size(); ++i) {
        reads[i].describe("x", content.size(), written_ns, 0, i % 2 == 0 ? content.size() : 500);
        remote_->read(reads[i]);
    }
    device_->wait(clock_.now_ns());
    device_->stop();
    remote_.reset();
    EXPECT_LE(open_descriptors(), before);
}

// Uses the fake device, so that the test decides what happens between two steps.
class FileRemoteOnFakeDevice : public testing::Test {
protected:
    FileRemoteOnFakeDevice() {
        auto remote = make_file_remote(directory_.path(), device_);
        if (!remote) throw std::runtime_error(remote.error().message);
        remote_ = std::move(*remote);
        disk_.put(path_, noise(4000, 1), kMtime_ns);
    }
    void run(Read& read) {
        remote_->read(read);
        finish(read);
    }
    void finish(const Read& read) {
        for (int i = 0; read.completions == 0 && i < 1000; ++i) device_.wait(device_.next_completion_ns());
        ASSERT_EQ(read.completions, 1);
    }

    static constexpr std::int64_t kMtime_ns = 77;
    test::TempDirectory directory_;
    const std::string path_ = directory_ / "x";
    test::FakeDisk disk_;
    ManualClock clock_;
    test::FakeDevice device_{disk_, clock_};
    std::unique_ptr<Remote> remote_;
};

TEST_F(FileRemoteOnFakeDevice, WriteBetweenTwoHalvesOfAReadIsAChange) {
    device_.inject({.action = test::FakeAction::read, .kind = test::Fault::Kind::short_count});
    Read read;
    read.describe("x", 4000, kMtime_ns, 0, 4000);
    remote_->read(read);
    while (device_.operations(test::FakeAction::read) < 2) device_.wait(device_.next_completion_ns());
    const std::string new_content = noise(4000, 2);
    const auto file = disk_.find(path_);
    file->write(std::as_bytes(std::span(new_content)), 0);
    file->mtime_ns = kMtime_ns + 1;
    finish(read);
    EXPECT_EQ(read.status, BlockStatus::object_changed);
}

TEST_F(FileRemoteOnFakeDevice, ShortReadsAreContinued) {
    device_.inject({.action = test::FakeAction::read, .kind = test::Fault::Kind::short_count, .times = 5});
    Read read;
    read.describe("x", 4000, kMtime_ns, 0, 4000);
    run(read);
    EXPECT_EQ(read.status, BlockStatus::ok);
    EXPECT_EQ(read.content, noise(4000, 1));
}

TEST_F(FileRemoteOnFakeDevice, ErrorAtAnyStepFailsOnlyThatRead) {
    for (const auto action : {test::FakeAction::open, test::FakeAction::read, test::FakeAction::stat}) {
        for (const std::size_t bytes : {4000, 1000}) {
            device_.inject({.action = action, .error = EIO});
            Read bad, good;
            bad.describe("x", 4000, kMtime_ns, 0, bytes);
            run(bad);
            if (bad.status == BlockStatus::ok) {  // the shard was open already
                EXPECT_EQ(action, test::FakeAction::open);
                device_.clear_faults();
                continue;
            }
            EXPECT_EQ(bad.status, BlockStatus::remote_failed);
            EXPECT_EQ(bad.system_errno, EIO);
            good.describe("x", 4000, kMtime_ns, 0, bytes);
            run(good);
            EXPECT_EQ(good.status, BlockStatus::ok);
        }
    }
    remote_.reset();
    EXPECT_EQ(device_.open_files(), 0u);
}

TEST_F(FileRemoteOnFakeDevice, FailedOpenFailsAllReadsWaitingForIt) {
    device_.inject({.action = test::FakeAction::open, .error = EACCES});
    std::vector<Read> reads(5);
    for (Read& read : reads) {
        read.describe("x", 4000, kMtime_ns, 0, 100);
        remote_->read(read);
    }
    for (const Read& read : reads) {
        finish(read);
        EXPECT_EQ(read.status, BlockStatus::remote_failed);
        EXPECT_EQ(read.system_errno, EACCES);
    }
    EXPECT_EQ(device_.operations(test::FakeAction::open), 1u);
}

TEST_F(FileRemoteOnFakeDevice, StaleHandleIsReopenedOnce) {
    device_.inject({.action = test::FakeAction::read, .error = ESTALE});
    Read healed, lost;
    healed.describe("x", 4000, kMtime_ns, 0, 1000);
    run(healed);
    EXPECT_EQ(healed.status, BlockStatus::ok);
    EXPECT_EQ(healed.content, noise(4000, 1).substr(0, 1000));
    device_.inject({.action = test::FakeAction::read, .times = 2, .error = ESTALE});
    lost.describe("x", 4000, kMtime_ns, 0, 1000);
    run(lost);
    EXPECT_EQ(lost.status, BlockStatus::remote_failed);
    EXPECT_EQ(lost.system_errno, ESTALE);
}

TEST_F(FileRemoteOnFakeDevice, OneOpenServesManyBlocksOfAShard) {
    std::vector<Read> reads(40);
    for (std::size_t i = 0; i < reads.size(); ++i) {
        reads[i].describe("x", 4000, kMtime_ns, i * 100, 100);
        remote_->read(reads[i]);
    }
    for (std::size_t i = 0; i < reads.size(); ++i) {
        finish(reads[i]);
        EXPECT_EQ(reads[i].content, noise(4000, 1).substr(i * 100, 100));
    }
    EXPECT_EQ(device_.operations(test::FakeAction::open), 1u);
}

}  // namespace
}  // namespace larder::cache
