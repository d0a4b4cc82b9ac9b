// Indexing of raw trees: labels, order, skipped entries, and the bytes of every sample.

#include "cache/dataset/index_raw.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <stop_token>

#include "cache/remote/file_objects.h"
#include "tests/support/another_user.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class IndexRawTest : public ::testing::Test {
protected:
    void write(const std::string& path, std::string_view content = "x") { test::write_file(root_ / path, content); }
    Result<IndexReport> index(const RemoteOptions& remote = {}) {
        return index_dataset({.definition = {.url = root_.string(), .remote = remote, .format = protocol::Format::raw},
                              .manifest = {.path = directory_ / "manifest"}},
                             {}, {});
    }
    std::string error() {
        const auto report = index();
        return report ? "no error" : report.error().message;
    }
    // "path label" of every object.
    std::vector<std::string> listing() {
        const auto manifest = protocol::Manifest::open(directory_ / "manifest");
        EXPECT_TRUE(manifest && manifest->check());
        std::vector<std::string> lines;
        for (std::uint64_t i = 0; i < manifest->object_count(); ++i) {
            const auto object = manifest->object(i);
            lines.push_back(std::string(object.path) +
                            (object.label == protocol::kNoLabel ? "" : " " + std::to_string(object.label)));
        }
        return lines;
    }

    test::TempDirectory directory_;
    std::filesystem::path root_ = directory_.path() / "data";
};

TEST_F(IndexRawTest, LabelsMatchImageFolder) {
    write("dog/b.jpg");
    write("dog/a.jpg");
    write("cat/deep/er/c.jpg");
    write("cat-big/x.png");
    write("top.txt");
    std::filesystem::create_directories(root_ / "ant");  // a class without files is still a class
    const auto report = index();
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->manifest.class_count, 4u);
    EXPECT_TRUE(report->notes.empty());
    EXPECT_THAT(listing(),
                ElementsAre("cat-big/x.png 2", "cat/deep/er/c.jpg 1", "dog/a.jpg 3", "dog/b.jpg 3", "top.txt"));
    const auto manifest = protocol::Manifest::open(directory_ / "manifest");
    EXPECT_EQ(manifest->class_name(0), "ant");
    EXPECT_EQ(manifest->class_name(2), "cat-big");
    EXPECT_EQ(manifest->url(), "file://" + root_.string());
}

TEST_F(IndexRawTest, EverySampleMapsToItsFile) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        const auto root = directory_.path() / ("tree" + std::to_string(seed));
        const auto files = test::make_tree(
            root, {.class_count = static_cast<std::uint32_t>(1 + seed), .files_per_class = 7, .seed = seed});
        const auto manifest = test::make_manifest(root, directory_ / "m");
        ASSERT_TRUE(manifest.check());
        ASSERT_EQ(manifest.sample_count(), files.size());
        std::uint64_t bytes = 0;
        for (std::uint64_t i = 0; i < files.size(); ++i) {
            EXPECT_EQ(manifest.object(i).path, files[i].name);
            EXPECT_EQ(manifest.object(i).label, i / 7);
            EXPECT_EQ(test::sample_content(root, manifest, i), files[i].content);
            bytes += files[i].content.size();
        }
        EXPECT_EQ(manifest.total_bytes(), bytes);
    }
}

TEST_F(IndexRawTest, StoresModificationTimes) {
    write("a", "hello");
    const timespec times[2] = {{.tv_sec = 5, .tv_nsec = 6}, {.tv_sec = 1'600'000'000, .tv_nsec = 123'456'789}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (root_ / "a").c_str(), times, 0), 0);
    ASSERT_TRUE(index());
    EXPECT_EQ(protocol::Manifest::open(directory_ / "manifest")->object(0).mtime_ns, 1'600'000'000'123'456'789);
}

TEST_F(IndexRawTest, LinkedDirectoryBeneathTheRootIsAClass) {
    write("cat/1.jpg");
    write("fox/1.jpg");
    std::filesystem::create_directory_symlink("cat", root_ / "dog");
    std::filesystem::create_directory_symlink("../cat", root_ / "fox/cat");
    const auto report = index();
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_THAT(listing(), ElementsAre("cat/1.jpg 0", "dog/1.jpg 1", "fox/1.jpg 2", "fox/cat/1.jpg 2"));
}

TEST_F(IndexRawTest, LinkOutOfTheRootIsAnErrorThatNamesItAndTheOption) {
    write("../elsewhere/secret");
    write("a/real.jpg");
    const std::vector<std::string> targets{"../../elsewhere/secret", "../../elsewhere", (root_ / "a/real.jpg").string(),
                                           "/proc/self/root/etc/passwd"};
    for (const std::string& target : targets) {
        std::filesystem::create_symlink(target, root_ / "a/x.bin");
        const auto report = index();
        ASSERT_FALSE(report) << target;
        EXPECT_EQ(report.error().code, ErrorCode::permission_denied);
        EXPECT_THAT(report.error().message,
                    AllOf(HasSubstr((root_ / "a/x.bin").string()), HasSubstr("--follow-symlinks")));
        const auto opened = make_file_objects(root_.string(), false)->open("a/x.bin");
        ASSERT_FALSE(opened) << target;
        EXPECT_THAT(opened.error().message,
                    AllOf(HasSubstr((root_ / "a/x.bin").string()), HasSubstr("--follow-symlinks")));
        std::filesystem::remove(root_ / "a/x.bin");
    }
}

TEST_F(IndexRawTest, LinkOnTheWayToTheRootIsFollowedOnlyIfItsOwnerIsTrusted) {
    write("cat/1.jpg");
    const std::filesystem::path link = directory_.path() / "link";
    std::filesystem::create_directory_symlink(root_, link);
    EXPECT_TRUE(make_file_objects(link.string(), false)->list({}, {}));
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give the link to another user";
    ASSERT_EQ(::lchown(link.c_str(), 65534, 65534), 0);
    const auto refused = make_file_objects(link.string(), false)->list({}, {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::permission_denied);
    EXPECT_THAT(refused.error().message,
                AllOf(HasSubstr(link.string()), HasSubstr(root_.string()), HasSubstr("65534")));
    EXPECT_TRUE(make_file_objects(link.string(), true)->list({}, {}));
}

TEST_F(IndexRawTest, LinkedDirectoryIsAClassIfLinksAreFollowed) {
    write("../elsewhere/dog/1.jpg");
    write("cat/1.jpg");
    write("fox/1.jpg");
    std::filesystem::create_directory_symlink(root_ / "../elsewhere/dog", root_ / "dog");
    std::filesystem::create_directory_symlink(root_ / "cat", root_ / "fox/cat");
    const auto report = index({.follow_symlinks = true});
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_THAT(listing(), ElementsAre("cat/1.jpg 0", "dog/1.jpg 1", "fox/1.jpg 2", "fox/cat/1.jpg 2"));
}

TEST_F(IndexRawTest, FollowsLinksAndReportsSkippedEntries) {
    write("a/real.jpg", "12345");
    write("a/empty.jpg", "");
    write("a/.hidden.jpg");
    write(".git/config");
    std::filesystem::create_symlink("real.jpg", root_ / "a/link.jpg");
    std::filesystem::create_symlink("nothing", root_ / "a/dangling.jpg");
    std::filesystem::create_symlink("loop.jpg", root_ / "a/loop.jpg");
    std::filesystem::create_directory_symlink("..", root_ / "a/up");
    std::filesystem::create_directory_symlink(".", root_ / "self");
    ASSERT_EQ(::mkfifo((root_ / "a/pipe").c_str(), 0644), 0);
    const auto report = index();
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_THAT(listing(), ElementsAre("a/link.jpg 0", "a/real.jpg 0"));
    EXPECT_EQ(report->manifest.total_bytes, 10u);
    EXPECT_THAT(
        report->notes,
        ElementsAre(HasSubstr("1 empty file"), HasSubstr("2 file(s) or directories whose names begin with a dot"),
                    HasSubstr("2 symbolic link(s) to directories they are in"), HasSubstr("2 broken symbolic link(s)"),
                    HasSubstr("1 entry that is neither")));
}

// Each folder links to the next one eight times, so that there are 8^12 paths to the last one.
TEST_F(IndexRawTest, FoldersThatLinkToEachOtherAreRefusedEarly) {
    constexpr int kLevels = 12;
    write("12/file");
    for (int level = 0; level < kLevels; ++level) {
        const std::filesystem::path folder = root_ / std::to_string(level);
        std::filesystem::create_directories(folder);
        for (int link = 0; link < 8; ++link) {
            std::filesystem::create_directory_symlink("../" + std::to_string(level + 1),
                                                      folder / ("link-" + std::to_string(link)));
        }
    }
    std::stop_source stop;
    const auto ends = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const auto listed = make_file_objects(root_.string(), false)
                            ->list(
                                [&](std::uint64_t, std::uint64_t) {
                                    if (std::chrono::steady_clock::now() > ends) stop.request_stop();
                                },
                                stop.get_token());
    ASSERT_FALSE(listed);
    EXPECT_EQ(listed.error().code, ErrorCode::invalid_argument) << listed.error().message;
    EXPECT_THAT(listed.error().message, HasSubstr("by more than 100 paths"));
}

TEST_F(IndexRawTest, ListingWithoutFilesStopsOnRequest) {
    for (const char* folder : {"a", "b"}) std::filesystem::create_directories(root_ / folder);
    std::stop_source stop;
    stop.request_stop();
    const auto listed = make_file_objects(root_.string(), false)->list({}, stop.get_token());
    ASSERT_FALSE(listed);
    EXPECT_EQ(listed.error().code, ErrorCode::cancelled);
}

TEST_F(IndexRawTest, FifoReplacingAFileIsAChangeAndDoesNotBlock) {
    write("file");
    const auto objects = make_file_objects(root_.string(), false);
    ASSERT_TRUE(objects->open("file"));
    std::filesystem::remove(root_ / "file");
    ASSERT_EQ(::mkfifo((root_ / "file").c_str(), 0644), 0);
    const auto opened = objects->open("file");
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::changed);
}

TEST_F(IndexRawTest, UnusableDirectoryErrorSaysWhy) {
    EXPECT_THAT(error(), HasSubstr("there is no file or directory " + root_.string()));
    std::filesystem::create_directories(root_ / "class");
    EXPECT_THAT(error(), HasSubstr("has no files to train on"));
    write("class/empty", "");
    EXPECT_THAT(error(), HasSubstr("1 empty file"));
    test::write_file(directory_.path() / "file", "x");
    const auto file = index_dataset({.definition = {.url = directory_ / "file", .format = protocol::Format::raw},
                                     .manifest = {.path = directory_ / "m"}},
                                    {}, {});
    ASSERT_FALSE(file);
    EXPECT_THAT(file.error().message,
                HasSubstr("is a file, and a dataset is a directory or a .tar: give the directory, "));
    EXPECT_FALSE(std::filesystem::exists(directory_.path() / "m"));
}

TEST_F(IndexRawTest, UnreadableDirectoryErrorNamesIt) {
    write("class/a");
    std::filesystem::permissions(root_ / "class", std::filesystem::perms::none);
    // The other user may enter the parent directory.
    ASSERT_EQ(::chmod(directory_.path().c_str(), 0755), 0);
    const auto report = [&] {
        const test::AnotherUser other;
        return index();
    }();
    std::filesystem::permissions(root_ / "class", std::filesystem::perms::owner_all);
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, ErrorCode::permission_denied);
    EXPECT_THAT(report.error().message, HasSubstr((root_ / "class").string()));
}

TEST_F(IndexRawTest, OversizedFileErrorNamesIt) {
    write("class/huge.bin");
    std::filesystem::resize_file(root_ / "class/huge.bin", std::uint64_t{protocol::kBlockBytesMax} + 1);
    EXPECT_THAT(error(), HasSubstr("class/huge.bin has 1"));
    std::filesystem::resize_file(root_ / "class/huge.bin", protocol::kBlockBytesMax);
    EXPECT_EQ(error(), "no error");
}

TEST_F(IndexRawTest, ReportsProgressAndStopsOnRequest) {
    for (int i = 0; i < 2500; ++i) write("class/" + std::to_string(i));
    std::vector<std::uint64_t> seen;
    const IndexRequest request{.definition = {.url = root_.string()}, .manifest = {.path = directory_ / "manifest"}};
    ASSERT_TRUE(
        index_dataset(request, [&](const IndexProgress& progress) { seen.push_back(progress.objects_done); }, {}));
    EXPECT_THAT(seen, ElementsAre(1024, 2048, 2500));

    std::filesystem::remove(directory_.path() / "manifest");
    std::stop_source stop;
    const auto stopped = index_dataset(request, [&](const IndexProgress&) { stop.request_stop(); }, stop.get_token());
    ASSERT_FALSE(stopped);
    EXPECT_EQ(stopped.error().code, ErrorCode::cancelled);
    EXPECT_FALSE(std::filesystem::exists(directory_.path() / "manifest"));
}

TEST_F(IndexRawTest, ChangedFileGetsANewIdAndOthersKeepTheirs) {
    const auto files = test::make_tree(root_, {.class_count = 2, .files_per_class = 5});
    const auto before = test::make_manifest(root_, directory_ / "1");
    test::write_file(root_ / files[3].name, "changed");
    write("class_000/a_new_one", "new");
    const auto after = test::make_manifest(root_, directory_ / "2", std::nullopt, {}, 1, &before);
    EXPECT_EQ(after.header().version, 2u);
    for (std::uint64_t i = 0; i < after.object_count(); ++i) {
        const auto object = after.object(i);
        const auto old = before.find_object(object.path);
        if (old && *old != 3) {
            EXPECT_EQ(object.first_block_id, before.object(*old).first_block_id);
        } else {
            EXPECT_GE(object.first_block_id, before.header().block_id_end);
        }
    }
}

}  // namespace
}  // namespace larder::cache
