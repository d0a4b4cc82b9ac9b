// Compares an index under random changes with a plain map. After every commit the file passes the check that runs
// before each opening.

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "cache/store/index.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using Model = std::map<std::uint64_t, std::map<std::uint32_t, std::map<std::uint32_t, StoredBlock>>>;

Model load_all(const Index& index, const Model& expected) {
    Model found;
    for (const auto& [dataset_id, segments] : expected) {
        const auto contents = index.load(dataset_id);
        EXPECT_TRUE(contents);
        auto& into = found[dataset_id];
        for (const StoredSegment& segment : *contents) {
            auto& blocks = into[segment.id];
            for (const StoredBlock& block : segment.blocks) blocks[block.offset_units] = block;
        }
    }
    return found;
}

class IndexProperty : public testing::TestWithParam<unsigned> {};

TEST_P(IndexProperty, MatchesAMapUnderRandomChanges) {
    std::mt19937_64 random(GetParam());
    const test::TempDirectory directory;
    const IndexOptions options{
        .directory = directory / "index", .map_bytes = std::uint64_t{1} << 30, .commit_after_ms = 3'600'000};
    auto index = std::move(Index::open(options)->index);
    Model model;
    for (std::uint64_t dataset_id = 1; dataset_id <= 3; dataset_id++) model[dataset_id];
    for (int round = 0; round < 40; round++) {
        const int changes = 1 << random() % 12;
        for (int i = 0; i < changes; i++) {
            const std::uint64_t dataset_id = 1 + random() % 3;
            auto& segments = model[dataset_id];
            const auto segment = static_cast<std::uint32_t>(random() % 20);
            const auto offset_units = static_cast<std::uint32_t>(64 + random() % 5000);
            const auto choice = random() % 1000;
            if (choice < 2) {
                index->remove_dataset(dataset_id);
                segments.clear();
            } else if (choice < 10) {
                index->remove_segment(dataset_id, segment);
                segments.erase(segment);
            } else if (choice < 200) {
                index->remove_block(dataset_id, segment, offset_units);
                if (segments.contains(segment)) segments[segment].erase(offset_units);
            } else {
                const auto number = static_cast<std::uint32_t>(random());
                const StoredBlock block{offset_units, number, number / 2, number / 3};
                if (!segments.contains(segment)) {
                    index->put_segment(dataset_id, segment, 1 << 24, 512, false);
                }
                index->put_block(dataset_id, segment, block);
                segments[segment][offset_units] = block;
            }
        }
        index->flush();
        ASSERT_EQ(find_index_damage(options.directory).value(), std::nullopt) << "round " << round;
        ASSERT_EQ(load_all(*index, model), model) << "round " << round;
        if (random() % 8 == 0) {
            index.reset();
            auto opened = Index::open(options);
            ASSERT_TRUE(opened);
            ASSERT_FALSE(opened->report.rebuilt) << opened->report.reason;
            index = std::move(opened->index);
            ASSERT_EQ(load_all(*index, model), model) << "round " << round;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, IndexProperty, testing::Range(1u, 5u));

}  // namespace
}  // namespace larder::cache
