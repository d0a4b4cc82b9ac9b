// replace_file(), with fsync() observed: what is acknowledged must survive a power cut.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/support/temp_directory.h"

namespace larder {
namespace {

struct Sync {
    ino_t inode = 0;
    bool new_content_is_visible = false;
};

std::string observed_path;  // empty: syncs are not noted
std::vector<Sync> syncs;

ino_t inode_of(const std::string& path) {
    struct stat status{};
    return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

void note_sync(int fd) {
    if (observed_path.empty()) return;
    struct stat status{};
    if (::fstat(fd, &status) != 0) return;
    const auto content = read_file(observed_path);
    syncs.push_back({.inode = status.st_ino, .new_content_is_visible = content && *content == "new"});
}

}  // namespace
}  // namespace larder

// Replaces the C library's function in this program.
extern "C" int fsync(int fd) {
    static const auto real = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, "fsync"));
    larder::note_sync(fd);
    return real(fd);
}

namespace larder {
namespace {

TEST(ReplaceFile, SyncsTheFileBeforeItsNameChangesAndThenTheDirectory) {
    const test::TempDirectory directory;
    const std::string path = directory / "settings";
    ASSERT_TRUE(replace_file(path, "old"));
    observed_path = path;
    syncs.clear();
    const auto replaced = replace_file(path, "new", 0600);
    observed_path.clear();
    ASSERT_TRUE(replaced) << replaced.error().message;
    ASSERT_EQ(syncs.size(), 2U);
    EXPECT_EQ(syncs[0].inode, inode_of(path));
    EXPECT_FALSE(syncs[0].new_content_is_visible);
    EXPECT_EQ(syncs[1].inode, inode_of(directory.path()));
    EXPECT_TRUE(syncs[1].new_content_is_visible);
    EXPECT_EQ(*read_file(path), "new");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
}

TEST(ReplaceFile, UnsyncedFormSyncsNothing) {
    const test::TempDirectory directory;
    const std::string path = directory / "settings";
    observed_path = path;
    syncs.clear();
    const auto replaced = replace_file_unsynced(path, "new", 0600);
    observed_path.clear();
    ASSERT_TRUE(replaced) << replaced.error().message;
    EXPECT_TRUE(syncs.empty());
    EXPECT_EQ(*read_file(path), "new");
}

TEST(ReplaceFile, FailureKeepsTheOldContent) {
    const test::TempDirectory directory;
    const std::string path = directory / "settings";
    ASSERT_TRUE(replace_file(path, "old"));
    std::filesystem::create_directory(path + ".new");  // where the new content would be written
    const auto replaced = replace_file(path, "new");
    ASSERT_FALSE(replaced);
    EXPECT_NE(replaced.error().message.find(path), std::string::npos) << replaced.error().message;
    EXPECT_EQ(*read_file(path), "old");
}

}  // namespace
}  // namespace larder
