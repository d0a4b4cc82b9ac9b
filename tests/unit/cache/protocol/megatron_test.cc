// MegatronIndex: a document is the bytes of its sequences, and an impossible index is an error that says where.

#include "cache/protocol/megatron.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/foreign_format_files.h"

namespace larder::protocol {
namespace {

using test::MegatronFiles;
using test::number_bytes;
using ::testing::HasSubstr;

using Documents = std::vector<std::vector<std::vector<std::int32_t>>>;

Result<std::vector<std::string>> documents_of(const MegatronFiles& files) {
    test::MemoryReader idx(files.idx);
    auto index = MegatronIndex::open(idx, files.bin.size());
    if (!index) return std::unexpected(index.error());
    std::vector<std::string> documents;
    for (;;) {
        const auto document = index->next();
        if (!document) return std::unexpected(document.error());
        if (!*document) return documents;
        documents.push_back(files.bin.substr((*document)->offset, (*document)->bytes));
    }
}

std::string error_of(const MegatronFiles& files) {
    const auto documents = documents_of(files);
    return documents ? "no error" : documents.error().message;
}

const Documents kDocuments{{{1, 2, 3}}, {{4}, {5, 6}}, {}, {{7, 8, 9, 10}}};

TEST(MegatronIndex, DocumentConcatenatesItsSequences) {
    const auto documents = documents_of(test::megatron_files(kDocuments));
    ASSERT_TRUE(documents) << documents.error().message;
    ASSERT_EQ(documents->size(), 4u);
    EXPECT_EQ((*documents)[0], test::numbers_bytes<std::int32_t>({1, 2, 3}));
    EXPECT_EQ((*documents)[1], test::numbers_bytes<std::int32_t>({4, 5, 6}));
    EXPECT_EQ((*documents)[2], "");
    EXPECT_EQ((*documents)[3], test::numbers_bytes<std::int32_t>({7, 8, 9, 10}));
}

TEST(MegatronIndex, LongIndexIsStreamedInPieces) {
    Documents many;
    for (std::int32_t i = 0; i < 300'000; ++i) many.push_back({{i}});
    const auto documents = documents_of(test::megatron_files(many));
    ASSERT_TRUE(documents) << documents.error().message;
    ASSERT_EQ(documents->size(), many.size());
    EXPECT_EQ(documents->back(), number_bytes(std::int32_t{299'999}));
}

TEST(MegatronIndex, ModesOfMultimodalDatasetsAreSkipped) {
    MegatronFiles files = test::megatron_files(kDocuments);
    files.idx += std::string(4, '\0');
    EXPECT_TRUE(documents_of(files));
}

TEST(MegatronIndex, ErrorsSayWhatIsWrongAndWhere) {
    const MegatronFiles good = test::megatron_files(kDocuments);
    const auto error_with = [&](std::size_t at, const std::string& bytes) {
        MegatronFiles files = good;
        files.idx.replace(at, bytes.size(), bytes);
        return error_of(files);
    };
    // 4 sequences and 5 document indices: lengths from 34, pointers from 50, indices from 82.
    EXPECT_THAT(error_of({good.bin, good.idx.substr(0, 33)}), HasSubstr("at least 34 bytes"));
    EXPECT_THAT(error_with(0, "X"), HasSubstr("MMIDIDX"));
    EXPECT_THAT(error_with(9, number_bytes(std::uint64_t{2})), HasSubstr("version 2"));
    EXPECT_THAT(error_with(17, "\x09"), HasSubstr("token type 9"));
    EXPECT_THAT(error_with(18, number_bytes(std::uint64_t{5})), HasSubstr("do not fit its size"));
    EXPECT_THAT(error_with(18, number_bytes(~std::uint64_t{0})), HasSubstr("do not fit its size"));
    // 2^62 sequences of 12 bytes, and 2^61 indices of 8 bytes, are a multiple of 2^64 bytes.
    EXPECT_THAT(error_with(18, number_bytes(std::uint64_t{1} << 62) + number_bytes(std::uint64_t{11})),
                HasSubstr("do not fit its size"));
    EXPECT_THAT(error_with(26, number_bytes((std::uint64_t{1} << 61) + 5)), HasSubstr("do not fit its size"));
    EXPECT_THAT(error_with(26, number_bytes(std::uint64_t{0})), HasSubstr("no document indices"));
    EXPECT_THAT(error_of({good.bin, good.idx + "x"}), HasSubstr("do not fit its size"));
    EXPECT_THAT(error_with(34, number_bytes(std::int32_t{-1})), HasSubstr("at offset 34: sequence 0 has -1 tokens"));
    EXPECT_THAT(error_with(58, number_bytes(std::int64_t{8})), HasSubstr("at offset 58: sequence 1 lies at 8"));
    EXPECT_THAT(error_with(66, number_bytes(std::int64_t{20})), HasSubstr("at offset 66: sequence 2 lies at 20"));
    EXPECT_THAT(error_with(74, number_bytes(std::int64_t{-4})), HasSubstr("at offset 74"));
    EXPECT_THAT(error_with(82, number_bytes(std::int64_t{1})), HasSubstr("at offset 82: the first document"));
    EXPECT_THAT(error_with(90, number_bytes(std::int64_t{9})),
                HasSubstr("at offset 90: a document ends at sequence 9"));
    EXPECT_THAT(error_with(98, number_bytes(std::int64_t{0})), HasSubstr("at offset 98"));
    EXPECT_THAT(error_with(114, number_bytes(std::int64_t{3})), HasSubstr("the documents end at sequence 3 of 4"));
    EXPECT_THAT(error_of({good.bin.substr(0, 39), good.idx}), HasSubstr("past the end of the .bin"));
}

}  // namespace
}  // namespace larder::protocol
