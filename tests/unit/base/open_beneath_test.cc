// Opens under a rule for symbolic links: with openat2 and without it, and directories reached over links.

#include "base/open_beneath.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "tests/support/temp_directory.h"

namespace larder {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class OpenBeneathTest : public ::testing::Test {
protected:
    void SetUp() override {
        fs::create_directories(directory_ / "root/a/b");
        std::ofstream(directory_ / "root/a/b/file") << "in";
        std::ofstream(directory_ / "secret") << "out";
        fs::create_symlink("a/b/file", directory_ / "root/in");
        fs::create_directory_symlink("a", directory_ / "root/in_directory");
        fs::create_symlink("../secret", directory_ / "root/out");
        fs::create_symlink(directory_ / "root/a/b/file", directory_ / "root/absolute");
        fs::create_directory_symlink("..", directory_ / "root/out_directory");
        fs::create_symlink("/proc/self/root", directory_ / "root/magic");
        root_ = FileDescriptor(::open((directory_ / "root").c_str(), O_PATH | O_DIRECTORY));
        ASSERT_TRUE(root_);
    }

    using Open = int (*)(int, const char*, LinkRule, int);
    // Returns the first two bytes, or "errno N".
    std::string read(Open open, const std::string& path, LinkRule rule) const {
        const int opened = open(root_.get(), path.c_str(), rule, O_RDONLY);
        if (opened < 0) return "errno " + std::to_string(-opened);
        const FileDescriptor fd(opened);
        std::array<char, 2> content{};
        EXPECT_EQ(::read(fd.get(), content.data(), content.size()), 2);
        return {content.data(), content.size()};
    }

    test::TempDirectory directory_;
    FileDescriptor root_;
};

std::string errno_text(int number) {
    return "errno " + std::to_string(number);
}

TEST_F(OpenBeneathTest, FollowsLinksThatStayBeneath) {
    EXPECT_EQ(read(open_at, "a/b/file", LinkRule::beneath), "in");
    EXPECT_EQ(read(open_at, "in", LinkRule::beneath), "in");
    EXPECT_EQ(read(open_at, "in_directory/b/file", LinkRule::beneath), "in");
    for (const char* path :
         {"out", "absolute", "out_directory/secret", "magic/etc/passwd", "../secret", "/etc/passwd"}) {
        EXPECT_EQ(read(open_at, path, LinkRule::beneath), errno_text(EXDEV)) << path;
    }
    EXPECT_EQ(read(open_at, "missing", LinkRule::beneath), errno_text(ENOENT));
}

TEST_F(OpenBeneathTest, WithoutOpenat2NoLinkIsFollowed) {
    EXPECT_EQ(read(open_in_steps, "a/b/file", LinkRule::beneath), "in");
    EXPECT_EQ(read(open_in_steps, "./a//b/./file", LinkRule::beneath), "in");
    for (const char* path : {"in", "in_directory/b/file", "out", "absolute", "out_directory/secret", "magic/etc/passwd",
                             "../secret", "a/../in", "/etc/passwd"}) {
        EXPECT_EQ(read(open_in_steps, path, LinkRule::beneath), errno_text(EXDEV)) << path;
    }
    EXPECT_EQ(open_in_steps(root_.get(), "out", LinkRule::beneath, O_PATH), -EXDEV);
    EXPECT_EQ(read(open_in_steps, "missing", LinkRule::beneath), errno_text(ENOENT));
    EXPECT_EQ(read(open_in_steps, "a/b/file/x", LinkRule::beneath), errno_text(ENOTDIR));
    const FileDescriptor root(open_in_steps(root_.get(), ".", LinkRule::beneath, O_RDONLY | O_DIRECTORY));
    EXPECT_TRUE(root);
}

TEST_F(OpenBeneathTest, RuleNoneFollowsNoLink) {
    for (const Open open : {open_at, open_in_steps}) {
        EXPECT_EQ(read(open, directory_ / "root/a/b/file", LinkRule::none), "in");
        EXPECT_EQ(read(open, directory_ / "root/in", LinkRule::none), errno_text(ELOOP));
        EXPECT_EQ(read(open, directory_ / "root/in_directory/b/file", LinkRule::none), errno_text(ELOOP));
        EXPECT_EQ(read(open, "in_directory/b/file", LinkRule::none), errno_text(ELOOP));
    }
}

TEST_F(OpenBeneathTest, TrustedDirectoryHasThePathWithoutLinks) {
    const std::string real = fs::canonical(directory_ / "root/a");
    for (const char* path : {"root/a", "root/in_directory", "root/out_directory/root//in_directory/./b/.."}) {
        const auto opened = open_trusted_directory(directory_ / path);
        ASSERT_TRUE(opened) << opened.error().message;
        EXPECT_EQ(opened->real_path, real) << path;
        const FileDescriptor file(::openat(opened->fd.get(), "b/file", O_RDONLY));
        EXPECT_TRUE(file) << path;
    }
    EXPECT_EQ(open_trusted_directory("/")->real_path, "/");
}

TEST_F(OpenBeneathTest, LinkOfAnotherUserIsNotFollowedToADirectory) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a link to another user";
    ASSERT_EQ(::lchown((directory_ / "root/in_directory").c_str(), 65534, 65534), 0);
    const auto opened = open_trusted_directory(directory_ / "root/in_directory/b");
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::permission_denied);
    EXPECT_THAT(opened.error().message,
                AllOf(HasSubstr("the symbolic link " + (directory_ / "root/in_directory") + " to a,"),
                      HasSubstr("belongs to user 65534")));
}

TEST_F(OpenBeneathTest, DirectoryThatCannotBeOpenedIsAnError) {
    fs::create_symlink("loop", directory_ / "loop");
    const auto error_of = [&](const char* path) {
        return open_trusted_directory(directory_ / path).error().system_errno;
    };
    EXPECT_EQ(error_of("missing"), ENOENT);
    EXPECT_EQ(error_of("secret"), ENOTDIR);
    EXPECT_EQ(error_of("root/in"), ENOTDIR);
    EXPECT_EQ(error_of("loop"), ELOOP);
}

}  // namespace
}  // namespace larder
