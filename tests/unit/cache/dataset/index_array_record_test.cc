// Indexing of ArrayRecord files over objects in memory: groups become blocks as the block goal says, files are found by
// name, and what is refused names its file. tests/python/test_formats.py reads files that array_record wrote.

#include "cache/dataset/index_array_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/dataset/detect_format.h"
#include "tests/support/array_record_files.h"

namespace larder::cache {
namespace {

using protocol::BlockTarget;
using test::MemorySource;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct IndexedGroups {
    DatasetContent content;
    std::vector<std::string> notes;
    Result<void> result;
};

IndexedGroups index_groups(MemorySource& source, const BlockGoal& goal = {}) {
    IndexedGroups indexed;
    indexed.result = index_array_record(source, goal, indexed.content, indexed.notes, {}, {});
    return indexed;
}

TEST(IndexArrayRecord, GroupsAreBlocksAsTheGoalSays) {
    MemorySource source;
    // Chunks of 40 + 1 + 1 bytes with the sizes and the records: 45, 44 and 43 bytes.
    source.objects["a.array_record"] = test::array_record_file({{"a", "b"}, {"c"}, {""}});
    const auto blocks_by = [&](const BlockGoal& goal) {
        const IndexedGroups indexed = index_groups(source, goal);
        EXPECT_TRUE(indexed.result) << indexed.result.error().message;
        EXPECT_TRUE(indexed.content.samples_by_ordinal);
        std::vector<std::string> blocks;
        for (const auto& block : indexed.content.blocks) {
            blocks.push_back(std::to_string(block.offset) + "+" + std::to_string(block.length) + " records " +
                             std::to_string(block.sample_count) + " raw " + std::to_string(block.raw_bytes));
        }
        return blocks;
    };
    const auto each = ElementsAre("64+46 records 2 raw 18", "110+44 records 1 raw 13", "154+43 records 1 raw 12");
    EXPECT_THAT(blocks_by({BlockTarget::sample, 0}), each);
    EXPECT_THAT(blocks_by({BlockTarget::bytes, 86}), each);
    EXPECT_THAT(blocks_by({BlockTarget::bytes, 90}), ElementsAre("64+90 records 3 raw 23", "154+43 records 1 raw 12"));
    EXPECT_THAT(blocks_by({BlockTarget::object, 0}), ElementsAre("64+133 records 4 raw 27"));
}

TEST(IndexArrayRecord, FilesAreFoundByName) {
    for (const char* name : {"a.array_record", "a.arrayrecord", "m-train.array_record-00000-of-00001"}) {
        EXPECT_TRUE(is_array_record_name(name)) << name;
    }
    for (const char* name : {"array_record", "a.array_records", "a.array_record-1", "a.array_record.txt"}) {
        EXPECT_FALSE(is_array_record_name(name)) << name;
    }
    MemorySource source;
    source.objects["a.array_record"] = test::array_record_file({{"a"}});
    source.objects["features.json"] = "{}";
    const IndexedGroups indexed = index_groups(source);
    ASSERT_TRUE(indexed.result) << indexed.result.error().message;
    EXPECT_EQ(indexed.content.objects.size(), 1u);
    EXPECT_THAT(indexed.notes, ElementsAre(HasSubstr("left out 1 file(s) that are not called .array_record")));
}

TEST(IndexArrayRecord, ErrorsNameTheFile) {
    MemorySource source;
    source.objects["a.array_record"] = test::array_record_file({{"a"}}).substr(1);
    const IndexedGroups indexed = index_groups(source);
    ASSERT_FALSE(indexed.result);
    EXPECT_THAT(indexed.result.error().message, HasSubstr("a.array_record: at offset 131071"));
}

}  // namespace
}  // namespace larder::cache
