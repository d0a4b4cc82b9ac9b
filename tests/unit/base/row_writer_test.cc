#include "base/server/row_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>
#include <vector>

namespace larder {
namespace {

using ::testing::ElementsAre;

// Blocks the first commit until the test continues. Records the keys of every commit.
struct SlowDisk {
    Result<void> commit(std::span<const Row> rows) {
        std::vector<std::string> keys;
        for (const Row& row : rows) keys.push_back(row.key);
        commits.push_back(keys);
        if (commits.size() == 1) {
            first_commit_begun.set_value();
            go_on.get_future().wait();
        }
        for (const std::string& key : keys) {
            if (key == "too large") return fail(ErrorCode::no_space, "no room");
        }
        return {};
    }
    RowWriter::Done record_answer_of(const std::string& name) {
        return
            [this, name](const Result<void>& written) { answers.push_back(name + (written ? " kept" : " refused")); };
    }

    std::promise<void> first_commit_begun;
    std::promise<void> go_on;
    std::vector<std::vector<std::string>> commits;
    std::vector<std::string> answers;
};

TEST(RowWriter, WaitingPostsAreCommittedTogetherAndAnsweredInOrder) {
    SlowDisk disk;
    {
        RowWriter writer([&](std::span<const Row> rows) { return disk.commit(rows); });
        writer.post({{"a", "1"}}, disk.record_answer_of("a"));
        disk.first_commit_begun.get_future().wait();
        writer.post({{"b", "1"}, {"c", "1"}}, disk.record_answer_of("b"));
        writer.post({}, disk.record_answer_of("nothing"));
        writer.post({{"d", "1"}}, disk.record_answer_of("d"));
        disk.go_on.set_value();
    }
    EXPECT_THAT(disk.commits, ElementsAre(ElementsAre("a"), ElementsAre("b", "c", "d")));
    EXPECT_THAT(disk.answers, ElementsAre("a kept", "b kept", "nothing kept", "d kept"));
}

TEST(RowWriter, RowsAreMadeOnTheWritersThreadInTheOrderOfPosts) {
    SlowDisk disk;
    std::thread::id made_on;
    {
        RowWriter writer([&](std::span<const Row> rows) { return disk.commit(rows); }, 2);
        writer.post({{"a", "1"}}, disk.record_answer_of("a"));
        disk.first_commit_begun.get_future().wait();
        const auto make = [&] {
            made_on = std::this_thread::get_id();
            return std::vector<Row>{{"b", "1"}, {"c", "1"}};
        };
        writer.post_made(make, disk.record_answer_of("made"));
        writer.post({{"d", "1"}}, disk.record_answer_of("d"));
        disk.go_on.set_value();
    }
    EXPECT_THAT(disk.commits, ElementsAre(ElementsAre("a"), ElementsAre("b", "c"), ElementsAre("d")));
    EXPECT_THAT(disk.answers, ElementsAre("a kept", "made kept", "d kept"));
    EXPECT_NE(made_on, std::this_thread::get_id());
}

TEST(RowWriter, CommitOfSeveralPostsHasAtMostBytesMax) {
    SlowDisk disk;
    {
        RowWriter writer([&](std::span<const Row> rows) { return disk.commit(rows); }, 99, 10);
        writer.post({{"a", "1"}}, {});
        disk.first_commit_begun.get_future().wait();
        for (const char* key : {"b", "c", "d"}) writer.post({{key, "1234"}}, {});
        writer.post({{"e", "more than all"}}, {});
        disk.go_on.set_value();
    }
    EXPECT_THAT(disk.commits, ElementsAre(ElementsAre("a"), ElementsAre("b", "c"), ElementsAre("d"), ElementsAre("e")));
}

TEST(RowWriter, RefusedPostDoesNotFailOthers) {
    SlowDisk disk;
    {
        RowWriter writer([&](std::span<const Row> rows) { return disk.commit(rows); });
        writer.post({{"a", "1"}}, disk.record_answer_of("a"));
        disk.first_commit_begun.get_future().wait();
        writer.post({{"b", "1"}}, disk.record_answer_of("b"));
        writer.post({{"too large", "1"}}, disk.record_answer_of("large"));
        writer.post({{"c", "1"}}, disk.record_answer_of("c"));
        disk.go_on.set_value();
    }
    EXPECT_THAT(disk.answers, ElementsAre("a kept", "b kept", "large refused", "c kept"));
}

}  // namespace
}  // namespace larder
