// Corrupt remote bytes: the manifest's checksums find them. The shard refetches the block once, then quarantines it.
// Corrupt bytes are never delivered or cached.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/cache/shard/shard_fixture.h"

namespace larder::cache {
namespace {

using protocol::BlockSource;
using protocol::BlockStatus;
using test::kDisk;
using test::kMemory;
using test::RingClient;
using test::ShardWorld;

constexpr std::uint32_t kBadBlock = 7;

class QuarantineTest : public ::testing::TestWithParam<Quota> {
protected:
    // Changes the object's bytes, but neither its size nor its time.
    void damage(std::uint32_t block) {
        std::string bytes = world_.content[block];
        bytes.back() = static_cast<char>(bytes.back() ^ 1);
        world_.disk.put(world_.path(block), bytes, 1000 + block);
    }
    void repair(std::uint32_t block) { world_.disk.put(world_.path(block), world_.content[block], 1000 + block); }
    std::shared_ptr<ScanProgress> scan(ScanKind kind) {
        auto progress = std::make_shared<ScanProgress>();
        EXPECT_TRUE(world_.shard->start_scan(test::kDatasetId, kind, std::make_shared<TokenBucket>(), progress));
        for (int i = 0; i < 20'000 && !progress->finished; ++i) world_.turns(1);
        EXPECT_TRUE(progress->finished);
        return progress;
    }

    ShardWorld world_{{.quota = GetParam(), .checksums = true}};
};

TEST_P(QuarantineTest, WrongBytesAreRefetchedOnceThenQuarantined) {
    RingClient& client = world_.attach();
    damage(kBadBlock);
    EXPECT_EQ(world_.read(client, kBadBlock).status, BlockStatus::object_corrupt);
    EXPECT_EQ(world_.dataset().counters.remote_reads, 2u);
    EXPECT_EQ(world_.dataset().counters.remote_corrupt, 2u);
    EXPECT_EQ(world_.read(client, kBadBlock).status, BlockStatus::object_corrupt);
    EXPECT_EQ(world_.dataset().counters.remote_reads, 2u) << "nobody asks the remote again";
    const DatasetStatistics statistics = world_.dataset();
    EXPECT_EQ(statistics.quarantined_blocks, 1u);
    ASSERT_EQ(statistics.quarantined.size(), 1u);
    EXPECT_EQ(statistics.quarantined[0].object, ShardWorld::object_name(kBadBlock));
    EXPECT_EQ(statistics.quarantined[0].length, world_.content[kBadBlock].size());
    EXPECT_EQ(statistics.usage.blocks, 0u) << "bad bytes are not cached";

    for (std::uint32_t block = 0; block < world_.content.size(); ++block) {
        if (block == kBadBlock) continue;
        EXPECT_EQ(world_.read(client, block).bytes, world_.content[block]);
    }
}

TEST_P(QuarantineTest, CorrectBytesOnRefetchAreDeliveredAndCached) {
    RingClient& client = world_.attach();
    damage(kBadBlock);
    client.fetch(kBadBlock, 0, kBadBlock, 1);
    for (int i = 0; i < 5000 && world_.dataset().counters.remote_corrupt == 0; ++i) world_.turns(1);
    repair(kBadBlock);
    const auto got = world_.completion(client);
    ASSERT_TRUE(got);
    EXPECT_EQ(got->status, BlockStatus::ok);
    EXPECT_EQ(client.payload(*got), world_.content[kBadBlock]);
    if (got->segment == 0) client.release(0);
    world_.turns(20);
    EXPECT_EQ(world_.dataset().quarantined_blocks, 0u);
    EXPECT_EQ(world_.dataset().usage.blocks, 1u);
    EXPECT_NE(world_.read(client, kBadBlock).source, BlockSource::remote) << "the correct bytes are cached";
}

TEST_P(QuarantineTest, EveryWaitingClientGetsTheCorruptError) {
    RingClient& first = world_.attach();
    RingClient& second = world_.attach();
    damage(kBadBlock);
    first.fetch(kBadBlock, 0, kBadBlock, 1);
    second.fetch(kBadBlock, 0, kBadBlock, 1);
    for (RingClient* client : {&first, &second}) {
        const auto got = world_.completion(*client);
        ASSERT_TRUE(got);
        EXPECT_EQ(got->status, BlockStatus::object_corrupt);
    }
    EXPECT_EQ(world_.dataset().counters.remote_reads, 2u) << "one read and one refetch for both";
}

TEST_P(QuarantineTest, ClientLeavingBeforeTheRefetchLeavesNothingBehind) {
    RingClient& client = world_.attach();
    damage(kBadBlock);
    client.fetch(kBadBlock, 0, kBadBlock, 1);
    for (int i = 0; i < 5000 && world_.dataset().counters.remote_corrupt == 0; ++i) world_.turns(1);
    world_.clients.clear();
    world_.turns(200);
    EXPECT_EQ(world_.dataset().sessions, 0u);
}

TEST_P(QuarantineTest, RefetchContinuesForOtherClientsWhenOneLeaves) {
    auto slow = std::make_shared<TokenBucket>();
    slow->set_limit(1, 1, world_.clock.now_ns());
    RingClient& poor = world_.attach({.session_id = 1, .job = "poor", .bucket = slow});
    RingClient& rich = world_.attach({.session_id = 2, .job = "rich"});
    damage(kBadBlock);
    poor.fetch(kBadBlock, 0, kBadBlock, 1);
    rich.fetch(kBadBlock, 0, kBadBlock, 1);
    for (int i = 0; i < 5000 && world_.dataset().counters.remote_corrupt == 0; ++i) world_.turns(1);
    repair(kBadBlock);
    world_.clients.erase(world_.clients.begin());
    const auto got = world_.completion(rich);
    ASSERT_TRUE(got) << "it waits for tokens of a job that has left";
    EXPECT_EQ(got->status, BlockStatus::ok);
    EXPECT_EQ(rich.payload(*got), world_.content[kBadBlock]);
}

TEST_P(QuarantineTest, VerifyRemoteChecksEveryBlockChecksum) {
    RingClient& client = world_.attach();
    for (std::uint32_t block = 0; block < 10; ++block) world_.read(client, block);
    world_.turns(20);
    damage(3);   // cached: the cached copy is good
    damage(20);  // not cached
    auto progress = scan(ScanKind::verify);
    EXPECT_EQ(progress->blocks_bad, 0u);
    progress = scan(ScanKind::verify_remote);
    EXPECT_EQ(progress->blocks_done, world_.content.size());
    EXPECT_EQ(progress->blocks_bad, 0u);
    EXPECT_EQ(progress->blocks_corrupt, 2u);
    EXPECT_EQ(world_.dataset().quarantined_blocks, 2u);
    EXPECT_EQ(world_.dataset().usage.blocks, 10u) << "verifying caches nothing";
    EXPECT_EQ(world_.read(client, 3).bytes, world_.content[3]) << "the cached copy is served";

    repair(3);
    repair(20);
    progress = scan(ScanKind::verify_remote);
    EXPECT_EQ(progress->blocks_corrupt, 0u);
    EXPECT_EQ(world_.dataset().quarantined_blocks, 0u) << "the remote is read again for repaired blocks";
    EXPECT_EQ(world_.read(client, 20).bytes, world_.content[20]);
}

INSTANTIATE_TEST_SUITE_P(Tiers, QuarantineTest, ::testing::Values(kMemory, kDisk));

}  // namespace
}  // namespace larder::cache
