// The index opens even if its LMDB file is truncated, damaged or missing, and never returns a wrong row.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/hash.h"
#include "cache/store/index.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using test::TempDirectory;

constexpr std::uint64_t kDataset = 77;
constexpr std::uint32_t kSegments = 6;
constexpr std::uint32_t kBlocks = 300;

StoredBlock block(std::uint32_t segment, std::uint32_t number) {
    return {.offset_units = 64 + number * 8,
            .block_id = segment * kBlocks + number,
            .payload_bytes = 448,
            .payload_crc = static_cast<std::uint32_t>(mix64(segment * kBlocks + number))};
}

class IndexDamage : public testing::Test {
protected:
    IndexDamage() {
        auto opened = open();
        for (std::uint32_t segment = 1; segment <= kSegments; segment++) {
            opened.index->put_segment(kDataset, segment, 1 << 20, 512, false);
            for (std::uint32_t number = 0; number < kBlocks; number++) {
                opened.index->put_block(kDataset, segment, block(segment, number));
            }
            opened.index->flush();
        }
        // Leaves freed pages in the file, too.
        opened.index->remove_segment(kDataset, 3);
        opened.index->flush();
        opened.index.reset();
        std::ifstream file(data_, std::ios::binary);
        content_.assign(std::istreambuf_iterator<char>(file), {});
    }
    Index::Opened open() {
        auto opened = Index::open({.directory = directory_ / "index", .map_bytes = std::uint64_t{1} << 30});
        if (!opened) throw std::runtime_error(opened.error().message);
        return std::move(*opened);
    }
    void restore(const std::string& content) {
        std::filesystem::remove_all(directory_ / "index");
        std::filesystem::create_directory(directory_ / "index");
        std::ofstream(data_, std::ios::binary) << content;
    }
    // Opens the index and compares every row with what was put. Returns true if the index was rebuilt.
    bool open_and_check() {
        auto opened = open();
        const auto segments = opened.index->load(kDataset);
        EXPECT_TRUE(segments);
        for (const StoredSegment& segment : *segments) {
            EXPECT_NE(segment.id, 3u);
            EXPECT_EQ(segment.alignment, 512u);
            for (const StoredBlock& stored : segment.blocks) {
                EXPECT_EQ(stored, block(segment.id, (stored.offset_units - 64) / 8));
            }
        }
        // The index accepts changes in any case.
        opened.index->put_segment(kDataset, 1000, 5, 512, false);
        opened.index->flush();
        EXPECT_EQ(opened.index->status().problem, "");
        const auto after = opened.index->load(kDataset);
        EXPECT_TRUE(after);
        EXPECT_EQ(after->back().id, 1000u);
        EXPECT_EQ(opened.report.rebuilt, !opened.report.reason.empty());
        return opened.report.rebuilt;
    }

    TempDirectory directory_;
    std::string data_ = directory_ / "index/data.mdb";
    std::string content_;
};

TEST_F(IndexDamage, IntactFileOpensWithoutRebuild) {
    restore(content_);
    EXPECT_FALSE(open_and_check());
    EXPECT_FALSE(open_and_check());
}

TEST_F(IndexDamage, TruncatedFileTriggersARebuild) {
    const std::size_t page = 4096;
    for (std::size_t bytes = 0; bytes < content_.size(); bytes += bytes < 3 * page ? page / 2 : 5 * page) {
        restore(content_.substr(0, bytes));
        EXPECT_TRUE(open_and_check()) << bytes;
    }
    restore(content_.substr(0, content_.size() - page));
    EXPECT_TRUE(open_and_check());
    EXPECT_TRUE(std::filesystem::exists(directory_ / "index.damaged/data.mdb"));
}

TEST_F(IndexDamage, OverwrittenPagesYieldNoWrongRows) {
    for (std::size_t page = 0; page * 4096 < content_.size(); page += 3) {
        for (const char fill : {'\0', '\xff', 'x'}) {
            std::string damaged = content_;
            damaged.replace(page * 4096, 4096, 4096, fill);
            restore(damaged);
            open_and_check();
        }
    }
}

TEST_F(IndexDamage, FlippedBitsYieldNoWrongRows) {
    std::size_t rebuilt = 0;
    for (std::uint64_t seed = 0; seed < 120; seed++) {
        std::string damaged = content_;
        // Half of the flips hit the first bytes of a page, where LMDB keeps its structure.
        std::size_t at = mix64(seed) % content_.size();
        if (seed % 2 == 0) at = at / 4096 * 4096 + mix64(at) % 48;
        damaged[at] = static_cast<char>(damaged[at] ^ (1 << (seed % 8)));
        restore(damaged);
        SCOPED_TRACE(at);
        rebuilt += open_and_check();
    }
    EXPECT_GT(rebuilt, 20u);
}

TEST_F(IndexDamage, ForeignFileTriggersARebuild) {
    restore("this is no database\n");
    EXPECT_TRUE(open_and_check());
}

TEST_F(IndexDamage, DeletedFileIsCreatedAgain) {
    std::filesystem::remove_all(directory_ / "index");
    auto opened = open();
    EXPECT_TRUE(opened.report.created);
    EXPECT_FALSE(opened.report.rebuilt);
}

}  // namespace
}  // namespace larder::cache
