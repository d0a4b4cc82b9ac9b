#include "cache/dataset/blocks_ahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <optional>
#include <string>

#include "cache/dataset/manifest_writer.h"
#include "tests/support/memory_source.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kObjects = 20;

// The first kReadsMax opens block until all of them are in flight.
class SlowSource final : public ObjectSource {
public:
    std::string description() const override { return "slow"; }
    Result<ObjectListing> list(const std::function<void(std::uint64_t, std::uint64_t)>&, std::stop_token) override {
        return ObjectListing();
    }
    Result<std::unique_ptr<ObjectReader>> open(const std::string& path) override {
        if (opened_++ < BlocksAhead::kReadsMax) all_in_flight_.arrive_and_wait();
        return memory.open(path);
    }
    test::MemorySource memory;

private:
    std::atomic<std::size_t> opened_ = 0;
    std::latch all_in_flight_{BlocksAhead::kReadsMax};
};

class BlocksAheadTest : public testing::Test {
protected:
    BlocksAheadTest() {
        DatasetContent content;
        for (std::uint32_t i = 0; i < kObjects; ++i) {
            const std::string path = "object-" + std::to_string(100 + i);
            source_.memory.objects[path] = "the bytes of " + path;
            content.add_object(path, source_.memory.objects[path].size(), (*source_.memory.open(path))->tag(),
                               protocol::kNoLabel);
            order_.insert(order_.begin(), i);
        }
        EXPECT_TRUE(
            write_manifest(content, {.format = protocol::Format::raw}, {.path = directory_ / "m", .dataset_id = 1}));
        auto opened = protocol::Manifest::open(directory_ / "m");
        EXPECT_TRUE(opened);
        manifest_.emplace(std::move(*opened));
    }

    test::TempDirectory directory_;
    SlowSource source_;
    std::optional<protocol::Manifest> manifest_;
    std::vector<std::uint32_t> order_;  // backwards
};

TEST_F(BlocksAheadTest, ReadsConcurrentlyAndDeliversInOrder) {
    BlocksAhead ahead(source_, *manifest_, order_);
    for (const std::uint32_t block : order_) {
        const auto read = ahead.next();
        ASSERT_TRUE(read) << read.error().message;
        const std::string_view text(reinterpret_cast<const char*>(read->bytes.data()), read->bytes.size());
        EXPECT_EQ(text, "the bytes of object-" + std::to_string(100 + block));
    }
}

TEST_F(BlocksAheadTest, ChangedObjectFailsWhenItsTurnComes) {
    source_.memory.objects["object-109"] += " and more";
    BlocksAhead ahead(source_, *manifest_, order_);
    for (std::uint32_t i = 0; i < 10; ++i) ASSERT_TRUE(ahead.next());
    const auto changed = ahead.next();
    ASSERT_FALSE(changed);
    EXPECT_EQ(changed.error().code, ErrorCode::changed);
    EXPECT_THAT(changed.error().message, HasSubstr("object-109 changed"));
}

TEST_F(BlocksAheadTest, CanBeDestroyedBeforeTheEnd) {
    BlocksAhead ahead(source_, *manifest_, order_);
    ASSERT_TRUE(ahead.next());
}

}  // namespace
}  // namespace larder::cache
