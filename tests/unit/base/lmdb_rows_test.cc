// A store of rows whose disk fails for a moment. The tests of the allocator's state and of the queue's history try all
// else.

#include "base/server/lmdb_rows.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>

#include "base/file.h"
#include "tests/support/temp_directory.h"

namespace larder {
namespace {

namespace fs = std::filesystem;

using Rows = std::map<std::string, std::string>;

std::unique_ptr<RowStore> open_store(const std::string& directory, Rows& rows) {
    auto opened = open_lmdb_rows({.directory = directory,
                                  .program = "larder",
                                  .take = [&rows](std::string_view key, std::string_view text) -> Result<void> {
                                      rows[std::string(key)] = text;
                                      return {};
                                  },
                                  .lost = [](const std::string& why, const std::string&) { FAIL() << why; }});
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? std::move(*opened) : nullptr;
}

// The descriptor through which LMDB writes the last page of a commit; -1: none.
int commit_descriptor(const std::string& path) {
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
        std::error_code error;
        if (fs::read_symlink(entry.path(), error) != path) continue;
        const int fd = std::stoi(entry.path().filename());
        if ((::fcntl(fd, F_GETFL) & O_DSYNC) != 0) return fd;
    }
    return -1;
}

TEST(LmdbRowsTest, WritesAgainAfterCommitThatFailedAtItsLastStep) {
    const test::TempDirectory directory;
    const std::string path = directory / "rows";
    Rows rows;
    {
        auto store = open_store(path, rows);
        const Row first{"first", "1"};
        ASSERT_TRUE(store->write({&first, 1}));
        const int fd = commit_descriptor(fs::canonical(path) / "data.mdb");
        ASSERT_GE(fd, 0);
        const FileDescriptor read_only(::open((path + "/data.mdb").c_str(), O_RDONLY | O_CLOEXEC));
        ASSERT_EQ(::dup3(read_only.get(), fd, O_CLOEXEC), fd);
        const Row second{"second", "2"};
        EXPECT_FALSE(store->write({&second, 1}));
        const Row third{"third", "3"};
        for (int i = 0; i < 3; ++i) {
            const auto written = store->write({&third, 1});
            EXPECT_TRUE(written) << written.error().message;
        }
    }
    auto store = open_store(path, rows);
    EXPECT_EQ(rows, (Rows{{"first", "1"}, {"third", "3"}}));
}

}  // namespace
}  // namespace larder
