// A reader reports a block as damaged because of its content; the manifest has no checksums. The shard reads the remote
// once more, past the cache, and decides by the bytes it gets. A false report harms no other job.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "tests/unit/cache/shard/shard_fixture.h"

namespace larder::cache {
namespace {

using protocol::BlockSource;
using protocol::BlockStatus;
using test::RingClient;
using test::ShardWorld;

constexpr std::uint32_t kDamagedBlock = 6;

std::uint32_t crc_of(const std::string& bytes) {
    return crc32c(std::as_bytes(std::span(bytes)));
}

struct StoreParameters {
    Quota quota;
    Compression compression;
};

class RefetchTest : public ::testing::TestWithParam<StoreParameters> {
protected:
    // Replaces the object's bytes at the remote and keeps its time. `bytes` has the object's size.
    void put(std::uint32_t block, const std::string& bytes) {
        world_.disk.put(world_.path(block), bytes, 1000 + block);
    }
    std::string damaged(std::uint32_t block, char flipped_bits = 1) {
        std::string bytes = world_.content[block];
        bytes.back() = static_cast<char>(bytes.back() ^ flipped_bits);
        return bytes;
    }
    // Reports the bytes in `reported` as damaged and waits for the block.
    ShardWorld::Fetched refetch_block(RingClient& client, std::uint32_t block, const std::string& reported) {
        client.refetch(block, 0, block, 1, crc_of(reported));
        const auto got = world_.completion(client);
        if (!got) {
            ADD_FAILURE() << "block " << block << " never came";
            return {};
        }
        ShardWorld::Fetched fetched{got->status, got->source, {}};
        if (got->status == BlockStatus::ok) fetched.bytes = client.payload(*got);
        if (got->status == BlockStatus::ok && got->segment == 0) client.release(0);
        world_.turns(20);
        return fetched;
    }
    std::uint64_t remote_reads() { return world_.dataset().counters.remote_reads; }
    std::uint64_t used_bytes() {
        const StoreUsage usage = world_.dataset().usage;
        return usage.memory_bytes + usage.disk_bytes;
    }

    ShardWorld world_{{.block_bytes_max = 40'000,
                       .quota = GetParam().quota,
                       .compression = GetParam().compression,
                       .compressible = true}};
};

TEST_P(RefetchTest, SameBytesOnRefetchMarkTheRemoteObjectCorrupt) {
    RingClient& client = world_.attach();
    const std::string bytes = world_.read(client, kDamagedBlock).bytes;
    world_.turns(20);
    EXPECT_EQ(refetch_block(client, kDamagedBlock, bytes).status, BlockStatus::object_corrupt);
    EXPECT_EQ(remote_reads(), 2u);
    const DatasetStatistics statistics = world_.dataset();
    ASSERT_EQ(statistics.quarantined.size(), 1u);
    EXPECT_EQ(statistics.quarantined[0].object, ShardWorld::object_name(kDamagedBlock));
    EXPECT_TRUE(statistics.quarantined[0].by_reader);
    EXPECT_EQ(statistics.counters.remote_corrupt, 1u);

    EXPECT_EQ(refetch_block(client, kDamagedBlock, bytes).status, BlockStatus::object_corrupt);
    EXPECT_EQ(remote_reads(), 2u) << "nobody asks the remote again";
    RingClient& other = world_.attach({.session_id = 2, .job = "other"});
    EXPECT_EQ(world_.read(other, kDamagedBlock).bytes, bytes) << "one reader's report does not affect another";
    EXPECT_EQ(remote_reads(), 2u) << "it is still cached";
}

TEST_P(RefetchTest, DifferentBytesOnRefetchReplaceTheCachedBlock) {
    RingClient& client = world_.attach();
    put(kDamagedBlock, damaged(kDamagedBlock));
    const std::string bad = world_.read(client, kDamagedBlock).bytes;
    world_.turns(20);
    put(kDamagedBlock, world_.content[kDamagedBlock]);
    EXPECT_EQ(world_.read(client, kDamagedBlock).bytes, bad) << "cached";
    const auto fetched = refetch_block(client, kDamagedBlock, bad);
    EXPECT_EQ(fetched.source, BlockSource::remote);
    EXPECT_EQ(fetched.bytes, world_.content[kDamagedBlock]);
    const auto again = world_.read(client, kDamagedBlock);
    EXPECT_NE(again.source, BlockSource::remote);
    EXPECT_EQ(again.bytes, world_.content[kDamagedBlock]);
    EXPECT_EQ(world_.dataset().quarantined_blocks, 0u);

    // Another client with the bad bytes reports them later.
    RingClient& late = world_.attach({.session_id = 2, .job = "late"});
    const auto healed = refetch_block(late, kDamagedBlock, bad);
    EXPECT_NE(healed.source, BlockSource::remote);
    EXPECT_EQ(healed.bytes, world_.content[kDamagedBlock]);
    EXPECT_EQ(remote_reads(), 2u);
}

TEST_P(RefetchTest, FalseDamageReportsCostOneReadAndEvictNothing) {
    RingClient& liar = world_.attach();
    world_.read_epoch(liar, 1);
    const std::uint64_t blocks = world_.dataset().usage.blocks;
    const std::uint64_t used = used_bytes();
    const bool usage_is_checked =
        GetParam().compression.kind == CompressionKind::none || GetParam().quota.memory_bytes > 0;
    for (int lie = 0; lie < 50; ++lie) {
        EXPECT_EQ(refetch_block(liar, kDamagedBlock, "lie " + std::to_string(lie)).bytes,
                  world_.content[kDamagedBlock]);
    }
    EXPECT_EQ(remote_reads(), world_.content.size() + 1);
    EXPECT_EQ(world_.dataset().usage.blocks, blocks);
    if (usage_is_checked) {
        EXPECT_EQ(used_bytes(), used) << "no room goes to dead records";
    }
    EXPECT_EQ(world_.dataset().quarantined_blocks, 0u);
    RingClient& honest = world_.attach({.session_id = 2, .job = "honest"});
    EXPECT_EQ(world_.read_epoch(honest, 1), world_.content.size()) << "all hits";
}

TEST_P(RefetchTest, BlockThatDiffersOnEveryRefetchIsQuarantined) {
    RingClient& client = world_.attach();
    put(kDamagedBlock, damaged(kDamagedBlock, 1));
    std::string bytes = world_.read(client, kDamagedBlock).bytes;
    for (const char flipped_bits : {char{2}, char{3}}) {
        put(kDamagedBlock, damaged(kDamagedBlock, flipped_bits));
        const auto fetched = refetch_block(client, kDamagedBlock, bytes);
        EXPECT_EQ(fetched.status, BlockStatus::ok);
        EXPECT_NE(fetched.bytes, bytes);
        bytes = fetched.bytes;
    }
    EXPECT_EQ(refetch_block(client, kDamagedBlock, bytes).status, BlockStatus::object_corrupt);
    EXPECT_EQ(remote_reads(), 3u);
    EXPECT_EQ(world_.dataset().quarantined_blocks, 1u);
}

TEST_P(RefetchTest, VerifyRemoteReleasesABlockRepairedAtTheRemote) {
    RingClient& client = world_.attach();
    put(kDamagedBlock, damaged(kDamagedBlock));
    const std::string bad = world_.read(client, kDamagedBlock).bytes;
    world_.turns(20);
    EXPECT_EQ(refetch_block(client, kDamagedBlock, bad).status, BlockStatus::object_corrupt);
    put(kDamagedBlock, world_.content[kDamagedBlock]);
    auto progress = std::make_shared<ScanProgress>();
    ASSERT_TRUE(
        world_.shard->start_scan(test::kDatasetId, ScanKind::verify_remote, std::make_shared<TokenBucket>(), progress));
    for (int i = 0; i < 20'000 && !progress->finished; ++i) world_.turns(1);
    EXPECT_EQ(progress->blocks_bad, 1u);
    EXPECT_EQ(world_.dataset().quarantined_blocks, 0u);
    EXPECT_EQ(world_.read(client, kDamagedBlock).bytes, world_.content[kDamagedBlock]);
}

TEST_P(RefetchTest, RefetchWaitsForTheTokensOfItsJob) {
    RingClient& client = world_.attach();
    const std::string bytes = world_.read(client, kDamagedBlock).bytes;
    auto empty = std::make_shared<TokenBucket>();
    empty->set_limit(1, 1, world_.clock.now_ns());
    ASSERT_TRUE(empty->try_take(1, world_.clock.now_ns()));
    RingClient& poor = world_.attach({.session_id = 2, .job = "poor", .bucket = empty});
    poor.refetch(kDamagedBlock, 0, kDamagedBlock, 1, crc_of(bytes));
    world_.turns(50);
    EXPECT_FALSE(poor.next_completion());
    EXPECT_EQ(remote_reads(), 1u);
}

// Flips a bit in the first copy of `bytes` in each writable memfd mapping. Returns the number of copies flipped.
int damage_memory(const std::string& bytes) {
    int damaged = 0;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        std::uintptr_t begin = 0;
        std::uintptr_t end = 0;
        if (line.find("memfd:") == std::string::npos || line.find(" rw-s ") == std::string::npos) continue;
        if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
        auto* found =
            static_cast<char*>(::memmem(reinterpret_cast<void*>(begin), end - begin, bytes.data(), bytes.size()));
        if (found == nullptr) continue;
        *found = static_cast<char>(*found ^ 1);
        ++damaged;
    }
    return damaged;
}

TEST(Refetch, BlockDamagedInMemoryIsRefetched) {
    ShardWorld world({.quota = test::kMemory});
    RingClient& client = world.attach();
    world.read(client, kDamagedBlock);
    ASSERT_EQ(damage_memory(world.content[kDamagedBlock]), 1);
    const std::string bad = world.read(client, kDamagedBlock).bytes;
    ASSERT_NE(bad, world.content[kDamagedBlock]);
    client.refetch(kDamagedBlock, 0, kDamagedBlock, 1, crc_of(bad));
    const auto got = world.completion(client);
    ASSERT_TRUE(got && got->status == BlockStatus::ok);
    EXPECT_EQ(client.payload(*got), world.content[kDamagedBlock]);
    EXPECT_EQ(world.dataset().counters.crc_failures, 1u);
    EXPECT_EQ(world.read(client, kDamagedBlock).bytes, world.content[kDamagedBlock]);
}

TEST(Refetch, BlockDamagedInMemoryAfterARefetchIsRefetchedAgain) {
    ShardWorld world({.quota = test::kMemory});
    RingClient& client = world.attach();
    const std::string good = world.content[kDamagedBlock];
    std::string bad = good;
    bad.back() = static_cast<char>(bad.back() ^ 1);
    world.disk.put(world.path(kDamagedBlock), bad, 1000 + kDamagedBlock);
    world.read(client, kDamagedBlock);
    world.disk.put(world.path(kDamagedBlock), good, 1000 + kDamagedBlock);
    for (const std::string& reported : {bad, std::string("bytes damaged in memory")}) {
        world.clock.advance_ns(2'000'000'000);
        client.refetch(kDamagedBlock, 0, kDamagedBlock, 1, crc_of(reported));
        const auto got = world.completion(client);
        ASSERT_TRUE(got && got->status == BlockStatus::ok);
        EXPECT_EQ(client.payload(*got), good);
        if (got->segment == 0) client.release(0);
        world.turns(20);
        if (reported == bad) {
            ASSERT_EQ(world.read(client, kDamagedBlock).bytes, good);
            ASSERT_GE(damage_memory(good), 1);  // used slots hold a copy, too
        }
    }
    EXPECT_EQ(world.dataset().counters.crc_failures, 1u);
    EXPECT_EQ(world.read(client, kDamagedBlock).bytes, good);
}

TEST(Refetch, SameBytesOnRefetchAreCorruptWithoutACache) {
    ShardWorld world({.quota = {}});
    RingClient& client = world.attach();
    const std::string bytes = world.read(client, kDamagedBlock).bytes;
    for (const std::uint64_t reads : {2u, 2u}) {
        client.refetch(kDamagedBlock, 0, kDamagedBlock, 1, crc_of(bytes));
        const auto got = world.completion(client);
        ASSERT_TRUE(got);
        EXPECT_EQ(got->status, BlockStatus::object_corrupt);
        EXPECT_EQ(world.dataset().counters.remote_reads, reads);
    }
}

constexpr Compression kLevel3{CompressionKind::zstd, 3};
INSTANTIATE_TEST_SUITE_P(Tiers, RefetchTest,
                         ::testing::Values(StoreParameters{test::kMemory, {}}, StoreParameters{test::kDisk, {}},
                                           StoreParameters{test::kMemory, kLevel3},
                                           StoreParameters{test::kDisk, kLevel3}));

}  // namespace
}  // namespace larder::cache
