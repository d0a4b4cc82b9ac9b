// A shard and a peer that lies: jobs get the remote's bytes, and the peer is not asked for a while.

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <string>

#include "cache/protocol/record.h"
#include "cache/shard/read_digests.h"
#include "tests/unit/cache/shard/shard_fixture.h"

namespace larder::test {
namespace {

using cache::BlockDigest;
using protocol::BlockSource;
using protocol::BlockStatus;

std::span<const std::byte> bytes_of(const std::string& text) {
    return std::as_bytes(std::span(text));
}

// Other bytes of the same length with the same CRC32C: changes the first byte, and the last four so that the CRC holds.
std::string forged(std::string block) {
    const std::uint32_t wanted = crc32c(bytes_of(block));
    block[0] = static_cast<char>(block[0] ^ 0x55);
    const auto crc_with = [&](std::uint32_t tail) {
        std::memcpy(block.data() + block.size() - sizeof tail, &tail, sizeof tail);
        return crc32c(bytes_of(block));
    };
    // The CRC is affine in the last four bytes: solve for them by elimination.
    const std::uint32_t zero = crc_with(0);
    std::array<std::uint32_t, 32> effect{};
    std::array<std::uint32_t, 32> inputs{};
    std::uint32_t left = zero ^ wanted;
    std::uint32_t tail = 0;
    for (unsigned bit = 0; bit < 32; ++bit) {
        std::uint32_t value = crc_with(1u << bit) ^ zero;
        std::uint32_t input = 1u << bit;
        for (unsigned high = 32; high-- > 0;) {
            if ((value >> high & 1) == 0) continue;
            if (effect[high] == 0) {
                effect[high] = value;
                inputs[high] = input;
                break;
            }
            value ^= effect[high];
            input ^= inputs[high];
        }
    }
    for (unsigned high = 32; high-- > 0;) {
        if ((left >> high & 1) == 0) continue;
        left ^= effect[high];
        tail ^= inputs[high];
    }
    EXPECT_EQ(crc_with(tail), wanted);
    return block;
}

// Answers each read with what `bytes` returns for the block.
class FakePeer final : public cache::PeerRemote {
public:
    struct Script {
        std::function<std::string(std::uint32_t block)> bytes;
        std::deque<cache::RemoteRead*> reads;
        int asked = 0;
    };
    FakePeer(std::shared_ptr<Script> script, std::shared_ptr<const protocol::Manifest> manifest)
        : script_(std::move(script)), manifest_(std::move(manifest)) {}

    void read(cache::RemoteRead& read) override {
        ++script_->asked;
        const auto block = static_cast<std::uint32_t>(std::stoul(std::string(read.path)));
        const std::string payload = script_->bytes(block);
        const auto header =
            protocol::make_record_header(kDatasetId, manifest_->block_id(block),
                                         static_cast<std::uint32_t>(payload.size()), crc32c(bytes_of(payload)), 0);
        EXPECT_EQ(read.into.size(), sizeof header + payload.size());
        std::memcpy(read.into.data(), &header, sizeof header);
        std::memcpy(read.into.data() + sizeof header, payload.data(), payload.size());
        script_->reads.push_back(&read);
    }
    void offer(cache::RemoteRead& block) override { script_->reads.push_back(&block); }

private:
    std::shared_ptr<Script> script_;
    std::shared_ptr<const protocol::Manifest> manifest_;
};

class LyingPeer : public testing::Test {
protected:
    explicit LyingPeer(const ShardWorldOptions& options = {.blocks = 16,
                                                           .quota = kMemory,
                                                           .shard = {.takes_digests = true}})
        : world(options), client(world.attach()) {
        script->bytes = [this](std::uint32_t block) { return world.content[block]; };
    }

    // The peer holds all blocks; this node trusts the given digests, all of which must come from elsewhere.
    void set_peers(std::vector<BlockDigest> digests) {
        cache::PeerBlocks blocks{.manifest = world.manifest, .peers = {}, .holder = {}, .digests = nullptr};
        blocks.peers.push_back({.key = "peer",
                                .open = [this](cache::Device&) -> Result<std::unique_ptr<cache::PeerRemote>> {
                                    return std::make_unique<FakePeer>(script, world.manifest);
                                },
                                .room_bytes = peer_room_bytes,
                                .conduct = conduct});
        for (std::uint32_t block = 0; block < world.content.size(); ++block) {
            const bool usable = digests.empty() || digests[block].is_known();
            blocks.holder.push_back(usable ? 1 : 0);
        }
        if (!digests.empty()) blocks.digests = std::make_shared<const std::vector<BlockDigest>>(std::move(digests));
        world.shard->set_peers(kDatasetId, std::make_shared<const cache::PeerBlocks>(std::move(blocks)));
    }
    std::vector<BlockDigest> right_digests() const {
        std::vector<BlockDigest> digests;
        for (const std::string& block : world.content) digests.push_back(cache::digest_of(bytes_of(block)));
        return digests;
    }

    ShardWorld::Fetched read(std::uint32_t block) {
        client.fetch(block, 0, block, 1);
        for (int i = 0; i < 5000; ++i) {
            while (!script->reads.empty()) {
                cache::RemoteRead& pending = *script->reads.front();
                script->reads.pop_front();
                pending.done(pending, BlockStatus::ok, 0);
            }
            if (const auto got = client.next_completion()) {
                ShardWorld::Fetched fetched{got->status, got->source, client.payload(*got)};
                if (got->segment == 0) client.release(0);
                return fetched;
            }
            world.turns(1);
        }
        ADD_FAILURE() << "block " << block << " never came";
        return {};
    }

    std::shared_ptr<FakePeer::Script> script = std::make_shared<FakePeer::Script>();
    std::shared_ptr<cache::PeerConduct> conduct = std::make_shared<cache::PeerConduct>();
    std::uint64_t peer_room_bytes = 0;
    ShardWorld world;
    RingClient& client;
};

TEST_F(LyingPeer, RightBytesAreTakenFromPeer) {
    set_peers(right_digests());
    for (std::uint32_t block = 0; block < world.content.size(); ++block) {
        const auto fetched = read(block);
        EXPECT_EQ(fetched.bytes, world.content[block]);
        EXPECT_EQ(fetched.source, BlockSource::peer);
    }
    EXPECT_EQ(conduct->wrong_blocks(), 0u);
}

TEST_F(LyingPeer, WrongBytesNeverReachJobs) {
    for (const bool with_same_crc : {false, true}) {
        script->bytes = [&](std::uint32_t block) {
            std::string wrong = world.content[block];
            if (with_same_crc) return forged(wrong);
            wrong[wrong.size() / 2] ^= 1;
            return wrong;
        };
        conduct = std::make_shared<cache::PeerConduct>();
        world.clock.advance_ns(2'000'000'000);  // a peer that failed is not asked for a second
        script->asked = 0;
        set_peers(right_digests());
        for (std::uint32_t block = with_same_crc ? 8 : 0; block < (with_same_crc ? 16u : 8u); ++block) {
            ASSERT_GE(world.content[block].size(), 8u);
            const auto fetched = read(block);
            EXPECT_EQ(fetched.status, BlockStatus::ok);
            EXPECT_EQ(fetched.bytes, world.content[block]) << "block " << block;
            EXPECT_EQ(fetched.source, BlockSource::remote);
        }
        EXPECT_EQ(script->asked, 1) << "after its first lie the peer is not asked";
        EXPECT_EQ(conduct->wrong_blocks(), 1u);
        EXPECT_TRUE(conduct->is_excluded(world.clock.now_ns() + 30'000'000'000));
        EXPECT_FALSE(conduct->is_excluded(world.clock.now_ns() + 61'000'000'000));
        EXPECT_EQ(world.dataset().counters.peer_failures, with_same_crc ? 2u : 1u);
    }
}

TEST_F(LyingPeer, OfferedBlockIsTakenOnlyIfItsDigestIsTrusted) {
    const auto offer = [&](std::uint32_t block, const std::string& payload) {
        const std::size_t room = protocol::record_bytes(payload.size(), protocol::kPageBytes);
        cache::OfferedBlock offered{.manifest = world.manifest,
                                    .block = block,
                                    .payload_crc = crc32c(bytes_of(payload)),
                                    .digest = cache::digest_of(bytes_of(payload)),
                                    .pages = static_cast<std::uint32_t>(room / protocol::kPageBytes)};
        offered.record = {static_cast<std::byte*>(std::aligned_alloc(protocol::kPageBytes, room)), std::free};
        std::memcpy(offered.record.get() + protocol::kRecordHeaderBytes, payload.data(), payload.size());
        return world.shard->take_offered(kDatasetId, std::move(offered));
    };
    EXPECT_FALSE(offer(0, world.content[0])) << "nobody here knows the block";
    std::vector<BlockDigest> digests(world.content.size());
    digests[1] = cache::digest_of(bytes_of(world.content[1]));
    set_peers(std::move(digests));
    EXPECT_FALSE(offer(0, world.content[0]));
    EXPECT_FALSE(offer(1, forged(world.content[1])));
    EXPECT_TRUE(offer(1, world.content[1]));
    EXPECT_TRUE(offer(1, world.content[1])) << "another node, or another job, offers it too";
    EXPECT_FALSE(offer(1, forged(world.content[1])));
    EXPECT_EQ(read(1).bytes, world.content[1]);
    EXPECT_EQ(world.dataset().counters.memory_hits, 1u);
    // A block that was read from the remote and dropped since may come back.
    EXPECT_EQ(read(2).source, BlockSource::remote);
    world.shard->set_quota(kDatasetId, {});
    world.shard->set_quota(kDatasetId, kMemory);
    EXPECT_FALSE(offer(2, forged(world.content[2])));
    EXPECT_TRUE(offer(2, world.content[2]));
}

// Another job of this node may want the block before the peer reports what it holds.
TEST_F(LyingPeer, BlockThatAPeerHasJustTakenIsReadThere) {
    const std::vector<BlockDigest> nobody_knows(world.content.size());
    peer_room_bytes = 1 << 20;
    world.shard->set_quota(kDatasetId, {});
    set_peers(nobody_knows);
    for (const std::uint32_t block : {1u, 2u, 3u}) EXPECT_EQ(read(block).source, BlockSource::remote);
    const auto again = read(1);
    EXPECT_EQ(again.source, BlockSource::peer);
    EXPECT_EQ(again.bytes, world.content[1]);
    script->bytes = [&](std::uint32_t block) { return forged(world.content[block]); };
    const auto forged_by_peer = read(2);
    EXPECT_EQ(forged_by_peer.source, BlockSource::remote);
    EXPECT_EQ(forged_by_peer.bytes, world.content[2]) << "this node knows what it has offered";
    EXPECT_EQ(conduct->wrong_blocks(), 1u);
    // The peer reports that it holds nothing.
    conduct = std::make_shared<cache::PeerConduct>();
    world.clock.advance_ns(2'000'000'000);
    set_peers(nobody_knows);
    EXPECT_EQ(read(3).source, BlockSource::remote);
    EXPECT_EQ(script->asked, 2);
}

TEST_F(LyingPeer, ReadsFromTheRemoteLeaveTheirDigests) {
    const auto held = world.shard->held(kDatasetId);
    ASSERT_NE(held.digests, nullptr);
    EXPECT_EQ(held.digests->changes(), 0u);
    for (const std::uint32_t block : {3u, 5u}) EXPECT_EQ(read(block).source, BlockSource::remote);
    EXPECT_EQ(read(3).source, BlockSource::memory);
    const auto all = held.digests->after(0, *world.manifest, 100);
    EXPECT_EQ(all.change, 2u);
    ASSERT_EQ(all.blocks.size(), 2u) << "a hit changes nothing";
    EXPECT_EQ(held.digests->find(world.manifest->block_id(3)), right_digests()[3]);
    const auto first = held.digests->after(0, *world.manifest, 1);
    ASSERT_EQ(first.blocks.size(), 1u);
    EXPECT_EQ(first.blocks[0].first, 3u);
    const auto second = held.digests->after(first.change, *world.manifest, 1);
    ASSERT_EQ(second.blocks.size(), 1u);
    EXPECT_EQ(second.blocks[0].first, 5u);
    EXPECT_TRUE(held.digests->after(second.change, *world.manifest, 1).blocks.empty());
}

// A node that trusts its peers, with a dataset that has checksums.
class TrustedPeer : public LyingPeer {
protected:
    TrustedPeer() : LyingPeer({.blocks = 16, .quota = kMemory, .checksums = true}) {}
};

TEST_F(TrustedPeer, BytesAreCheckedAgainstTheChecksumsOfTheDataset) {
    set_peers({});
    EXPECT_EQ(read(0).source, BlockSource::peer);
    script->bytes = [&](std::uint32_t block) {
        std::string wrong = world.content[block];
        wrong[wrong.size() / 2] ^= 1;
        return wrong;
    };
    const auto fetched = read(1);
    EXPECT_EQ(fetched.bytes, world.content[1]);
    EXPECT_EQ(fetched.source, BlockSource::remote);
    EXPECT_EQ(conduct->wrong_blocks(), 1u);
}

TEST(PeerConduct, ExclusionsDoubleUpToAnHour) {
    cache::PeerConduct conduct;
    std::int64_t now_ns = 1;
    std::int64_t expected_ns = cache::PeerConduct::kFirstExclusion_ns;
    for (int i = 0; i < 10; ++i) {
        EXPECT_FALSE(conduct.is_excluded(now_ns));
        EXPECT_TRUE(conduct.note_wrong_bytes(now_ns));
        EXPECT_FALSE(conduct.note_wrong_bytes(now_ns + 5));
        EXPECT_EQ(conduct.excluded_until_ns(), now_ns + expected_ns) << "reads in flight do not count again";
        now_ns += expected_ns;
        expected_ns = std::min(2 * expected_ns, cache::PeerConduct::kExclusionMax_ns);
    }
    EXPECT_EQ(conduct.wrong_blocks(), 20u);
}

}  // namespace
}  // namespace larder::test
