// Indexing ends with an error where the index takes too much memory, and where it is cancelled, also within one object
// that claims millions of samples.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/dataset/index_in_parallel.h"
#include "cache/dataset/index_json.h"
#include "cache/dataset/index_litdata.h"
#include "cache/dataset/index_megatron.h"
#include "tests/support/foreign_format_files.h"

namespace larder::cache {
namespace {

using test::MemorySource;
using test::number_bytes;
using test::numbers_bytes;
using ::testing::HasSubstr;

constexpr std::uint64_t kBytesMax = 1 << 20;

// An object whose index takes `bytes` bytes.
IndexedObject object_of(std::uint64_t bytes) {
    IndexedObject object;
    object.samples.resize(1);
    object.samples.resize(bytes / index_bytes(object));
    return object;
}

TEST(IndexMemory, ObjectsThatFitOneByOneAreRefusedIfTheyDoNotFitTogether) {
    const auto work = [](std::size_t, const ObjectProgress&) -> Result<IndexedObject> {
        return object_of(kBytesMax / 4);
    };
    EXPECT_TRUE(index_in_parallel(4, work, {}, {}, kBytesMax));
    const auto refused = index_in_parallel(5, work, {}, {}, kBytesMax);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
    EXPECT_THAT(refused.error().message, HasSubstr("takes more than 1.00 MiB of memory"));
}

TEST(IndexMemory, GrowingObjectIsRefusedBeforeItIsComplete) {
    std::uint64_t grown_bytes = 0;
    const auto work = [&](std::size_t, const ObjectProgress& progress) -> Result<IndexedObject> {
        for (; grown_bytes < 10 * kBytesMax; grown_bytes += 1024) {
            if (auto on = progress(0, grown_bytes); !on) return std::unexpected(on.error());
        }
        return IndexedObject();
    };
    const auto refused = index_in_parallel(1, work, {}, {}, kBytesMax);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("takes more than 1.00 MiB of memory"));
    EXPECT_EQ(grown_bytes, kBytesMax + 1024);
}

TEST(IndexMemory, JsonThatTakesTooMuchIsRefused) {
    MemorySource source;
    source.objects["index.json"] = R"({"shards": [0)";
    for (int i = 0; i < 100'000; ++i) source.objects["index.json"] += ",0";
    source.objects["index.json"] += "]}";
    std::optional<boost::json::value> memory;
    EXPECT_TRUE(read_index_json(source, "index.json", memory));
    const auto refused = read_index_json(source, "index.json", memory, kBytesMax);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
    EXPECT_THAT(refused.error().message, HasSubstr("index.json: the index takes more than 1.00 MiB of memory"));
}

// Asks for the end once `bytes` bytes are done. A call after the end of the object comes too late.
class Stop {
public:
    explicit Stop(std::uint64_t bytes) : bytes_(bytes) {}
    IndexProgressCallback callback() {
        return [this](const IndexProgress& now) {
            if (now.bytes_done >= bytes_) source_.request_stop();
        };
    }
    std::stop_token token() const { return source_.get_token(); }

private:
    std::uint64_t bytes_;
    std::stop_source source_;
};

Result<void> index_megatron(MemorySource& source, Stop& stop, std::uint32_t tokens_per_sample) {
    DatasetContent content;
    std::vector<std::string> notes;
    return index_megatron(source, {}, tokens_per_sample, content, notes, stop.callback(), stop.token());
}

TEST(IndexMemory, DocumentOfEmptySequencesCanBeCancelled) {
    constexpr std::uint64_t kSequences = 1 << 20;
    MemorySource source;
    source.objects["a.bin"] = "tokens";
    source.objects["a.idx"] = std::string("MMIDIDX\0\0", 9) + number_bytes(std::uint64_t{1}) + '\x04' +
                              number_bytes(kSequences) + number_bytes(std::uint64_t{2}) +
                              std::string(kSequences * 12, '\0') + numbers_bytes<std::int64_t>({0, kSequences});
    Stop stop(0);
    const auto indexed = index_megatron(source, stop, 0);
    ASSERT_FALSE(indexed);
    EXPECT_EQ(indexed.error().code, ErrorCode::cancelled) << indexed.error().message;
}

TEST(IndexMemory, DocumentOfManyWindowsCanBeCancelled) {
    MemorySource source;
    const auto files = test::megatron_files({{std::vector<std::int32_t>(200'000, 1)}});
    source.objects["a.bin"] = files.bin;
    source.objects["a.idx"] = files.idx;
    Stop stop(1);
    const auto indexed = index_megatron(source, stop, 1);
    ASSERT_FALSE(indexed);
    EXPECT_EQ(indexed.error().code, ErrorCode::cancelled) << indexed.error().message;
}

TEST(IndexMemory, ChunkOfManyWindowsCanBeCancelled) {
    MemorySource source;
    source.objects["c.bin"] = test::table_file({numbers_bytes(std::vector<std::int32_t>(200'000, 1))});
    source.objects["index.json"] =
        R"({"chunks": [{"chunk_bytes": 800000, "chunk_size": 1, "dim": null, "filename": "c.bin"}], "config": )"
        R"({"compression": null, "data_format": ["no_header_tensor:16"], "item_loader": "TokensLoader"}})";
    Stop stop(1);
    DatasetContent content;
    std::vector<std::string> notes;
    const auto indexed = index_litdata(source, {}, 1, content, notes, stop.callback(), stop.token());
    ASSERT_FALSE(indexed);
    EXPECT_EQ(indexed.error().code, ErrorCode::cancelled) << indexed.error().message;
}

}  // namespace
}  // namespace larder::cache
