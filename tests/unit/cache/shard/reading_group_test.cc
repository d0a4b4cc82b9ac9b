#include "cache/shard/reading_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>
#include <set>
#include <utility>

#include "cache/dataset/manifest_writer.h"
#include "cache/shard/shard_job.h"
#include "tests/support/property_cases.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

std::shared_ptr<const protocol::Manifest> manifest_of(std::uint32_t blocks) {
    const test::TempDirectory directory;
    DatasetContent content;
    for (std::uint32_t i = 0; i < blocks; ++i) content.add_object(std::to_string(i), 100, 1, protocol::kNoLabel);
    const auto written = write_manifest(content, {.url = "file:///data", .format = protocol::Format::raw},
                                        {.path = directory / "manifest"});
    EXPECT_TRUE(written) << written.error().message;
    return std::make_shared<const protocol::Manifest>(*protocol::Manifest::open(directory / "manifest"));
}

std::vector<std::uint64_t> random_share(std::mt19937_64& random, std::uint32_t blocks) {
    std::vector<std::uint64_t> share(protocol::share_words(blocks));
    const std::uint64_t density = random() % 5;
    for (std::uint64_t& word : share) word = density == 0 ? 0 : density == 4 ? ~std::uint64_t{0} : random();
    return share;
}

// The sum of squared deviations of `counts` from equal ones, in units of their variance if each is the number of hits
// in `of` drawings.
double chi_square(const std::vector<std::uint32_t>& counts, double of) {
    double sum = 0;
    for (const std::uint32_t count : counts) sum += count;
    const double expected = sum / static_cast<double>(counts.size());
    double chi = 0;
    for (const std::uint32_t count : counts) chi += std::pow(count - expected, 2) / (expected * (1 - expected / of));
    return chi;
}

// Jobs that read in shared order, each with one session. What one of them fetches is at hand for the others, until all
// have read it, or until the window is full and it is the oldest.
class GroupWorld {
public:
    GroupWorld(std::uint32_t blocks, double kappa, std::size_t window_blocks, std::uint64_t seed = 1)
        : group(manifest_of(blocks)), window_blocks_(window_blocks), random_(seed), cached_(blocks) {
        for (std::size_t i = 0; i < cached_.size(); ++i)
            cached_[i] = static_cast<double>(random_() % 1000) < 1000 * kappa;
    }

    GroupReader& join() {
        jobs_.push_back(std::make_unique<ShardJob>());
        return group.join(*jobs_.back(), random_());
    }
    void begin_pass(GroupReader& reader) { begin_pass(reader, std::vector(share_words(), ~std::uint64_t{0})); }
    void begin_pass(GroupReader& reader, const std::vector<std::uint64_t>& share) {
        group.begin_pass(reader, ++passes_, share);
    }

    std::optional<std::uint32_t> choose(GroupReader& reader) {
        const Choice choice = group.choose(reader, [&](std::uint32_t id) { return is_cached(id); });
        if (choice.kind != Choice::Kind::block) return std::nullopt;
        const std::uint32_t block = choice.block;
        if (!is_cached(block) && !is_at_hand(block)) {
            ++fetched;
            window_.push_back(block);
        }
        const bool is_read_by_all = group.waiting_readers(block) == 0;
        if (is_at_hand(block) && is_read_by_all) {
            std::erase(window_, block);
            group.withdraw(block);
        }
        if (window_.size() > window_blocks_) {
            group.withdraw(window_.front());
            window_.pop_front();
        }
        return block;
    }

    // Reads so many blocks, and begins a pass whenever one ends.
    void read(GroupReader& reader, std::uint32_t count) {
        while (count > 0) {
            if (choose(reader)) {
                --count;
            } else {
                begin_pass(reader);
            }
        }
    }

    bool is_cached(std::uint32_t block) const { return cached_[block]; }
    bool is_at_hand(std::uint32_t block) const { return std::ranges::find(window_, block) != window_.end(); }
    std::size_t share_words() const { return protocol::share_words(group.manifest().block_count()); }
    const std::deque<std::uint32_t>& window() const { return window_; }

    ReadingGroup group;
    std::uint64_t fetched = 0;

private:
    std::vector<std::unique_ptr<ShardJob>> jobs_;
    std::size_t window_blocks_;
    std::mt19937_64 random_;
    std::vector<bool> cached_;
    std::deque<std::uint32_t> window_;
    std::uint32_t passes_ = 0;
};

TEST(ReadingGroup, EachBlockOfAShareIsChosenOncePerPass) {
    std::mt19937_64 random(1);
    for (std::uint64_t round = 0; round < test::property_cases(60); ++round) {
        SCOPED_TRACE(round);
        const auto blocks = static_cast<std::uint32_t>(1 + random() % 400);
        GroupWorld world(blocks, static_cast<double>(random() % 5) / 4, random() % 50, random());
        struct Pass {
            GroupReader* reader;
            std::set<std::uint32_t> left;
        };
        std::vector<Pass> passes(1 + random() % 5);
        const auto begin = [&](Pass& pass) {
            const auto share = random_share(random, blocks);
            world.begin_pass(*pass.reader, share);
            pass.left.clear();
            for (std::uint32_t block = 0; block < blocks; ++block) {
                if (((share[block / 64] >> (block % 64)) & 1) != 0) pass.left.insert(block);
            }
        };
        for (Pass& pass : passes) {
            pass.reader = &world.join();
            EXPECT_EQ(world.choose(*pass.reader), std::nullopt) << "before the first pass";
            begin(pass);
        }
        for (int step = 0; step < 4000; ++step) {
            Pass& pass = passes[random() % passes.size()];
            const auto block = world.choose(*pass.reader);
            ASSERT_EQ(block.has_value(), !pass.left.empty());
            if (block) {
                ASSERT_EQ(pass.left.erase(*block), 1u) << *block;
            } else {
                begin(pass);
            }
        }
    }
}

TEST(ReadingGroup, BitsBeyondTheLastBlockAreIgnored) {
    for (const std::uint32_t blocks : {1u, 63u, 64u, 70u}) {
        GroupWorld world(blocks, 0, 0);
        GroupReader& reader = world.join();
        world.begin_pass(reader, std::vector(world.share_words(), ~std::uint64_t{0}));
        std::set<std::uint32_t> chosen;
        while (const auto block = world.choose(reader)) chosen.insert(*block);
        EXPECT_EQ(chosen.size(), blocks);
        EXPECT_EQ(*chosen.rbegin(), blocks - 1);
    }
}

// The positions of the cached blocks in a pass of the reader, and how often it met a block that was at hand, are the
// same from the pass's begin to its end. 43.8: one in a thousand is above, with 19 degrees of freedom.
TEST(ReadingGroup, CachedBlocksAreMetEvenlyOverAPass) {
    constexpr std::uint32_t kBlocks = 20'000;
    constexpr std::uint32_t kBins = 20;
    for (const std::vector<std::uint32_t>& speeds : {std::vector{1u}, {1u, 1u, 1u, 1u}, {1u, 2u, 4u}}) {
        SCOPED_TRACE(speeds.size());
        GroupWorld world(kBlocks, 0.5, kBlocks / 20);
        std::vector<GroupReader*> readers;
        for (std::size_t i = 0; i < speeds.size(); ++i) readers.push_back(&world.join());
        for (std::size_t i = 0; i < speeds.size(); ++i) world.read(*readers[i], 1);
        // The first reader, which is the slowest one, ends its first pass before it is watched.
        std::vector<std::uint32_t> cached(kBins);
        for (std::uint32_t position = 1; position < 2 * kBlocks; ++position) {
            for (std::size_t i = 1; i < speeds.size(); ++i) world.read(*readers[i], speeds[i]);
            auto block = world.choose(*readers[0]);
            if (!block) {
                world.begin_pass(*readers[0]);
                block = world.choose(*readers[0]);
            }
            if (position >= kBlocks) cached[(position - kBlocks) / (kBlocks / kBins)] += world.is_cached(*block);
        }
        EXPECT_LT(chi_square(cached, kBlocks / kBins), 43.8);
    }
}

// With J readers in step, one of them fetches each block that is not cached.
TEST(ReadingGroup, OneFetchServesAllReadersInStep) {
    constexpr std::uint32_t kBlocks = 8'000;
    constexpr std::uint32_t kPasses = 3;
    for (const std::uint32_t jobs : {1u, 2u, 4u, 8u}) {
        GroupWorld world(kBlocks, 0.5, kBlocks / 20);
        std::vector<GroupReader*> readers;
        for (std::uint32_t i = 0; i < jobs; ++i) readers.push_back(&world.join());
        for (std::uint32_t i = 0; i < kPasses * kBlocks; ++i) {
            for (GroupReader* reader : readers) world.read(*reader, 1);
        }
        std::uint32_t cached = 0;
        for (std::uint32_t block = 0; block < kBlocks; ++block) cached += world.is_cached(block);
        const double misses = static_cast<double>(kBlocks - cached) / kBlocks / jobs;
        EXPECT_NEAR(static_cast<double>(world.fetched) / kPasses / kBlocks / jobs, misses, 0.03 * misses) << jobs;
    }
}

TEST(ReadingGroup, LateReaderBeginsWithWhatIsAtHand) {
    GroupWorld world(1000, 0, 100);
    GroupReader& early = world.join();
    GroupReader& other = world.join();
    world.begin_pass(other);
    world.read(early, 300);
    ASSERT_EQ(world.window().size(), 100u);
    const std::set<std::uint32_t> at_hand(world.window().begin(), world.window().end());
    GroupReader& late = world.join();
    world.begin_pass(late);
    std::set<std::uint32_t> chosen;
    for (int i = 0; i < 100; ++i) chosen.insert(*world.choose(late));
    EXPECT_EQ(chosen, at_hand);
    EXPECT_EQ(world.fetched, 300u);
}

TEST(ReadingGroup, ReaderThatLeavesIsNotWaitedFor) {
    GroupWorld world(100, 0, 100);
    GroupReader& first = world.join();
    GroupReader& second = world.join();
    EXPECT_EQ(world.group.jobs().size(), 2u);
    world.begin_pass(second);
    world.read(first, 1);
    const std::uint32_t block = world.window().front();
    EXPECT_EQ(world.group.waiting_readers(block), 1u);
    world.group.leave(second);
    EXPECT_EQ(world.group.waiting_readers(block), 0u);
    EXPECT_EQ(world.group.jobs().size(), 1u);
    world.read(first, 99);
    EXPECT_EQ(world.choose(first), std::nullopt);
    world.group.leave(first);
    EXPECT_TRUE(world.group.empty());
}

TEST(ReadingGroup, ReaderThatNeverChoosesHoldsLittle) {
    for (const auto& [blocks, window_blocks] : {std::pair{1u, 0u}, {2u, 1u}, {50u, 0u}, {50u, 10u}, {50u, 49u}}) {
        SCOPED_TRACE(blocks);
        GroupWorld world(blocks, 0, window_blocks);
        GroupReader& reader = world.join();
        GroupReader& idle = world.join();
        world.begin_pass(idle);
        std::size_t most = 0;
        for (int i = 0; i < 500; ++i) {
            world.read(reader, 10);
            most = std::max(most, idle.offered_count());
        }
        EXPECT_LE(most, 2 * (window_blocks + 1) + 65);
        std::set<std::uint32_t> chosen;
        while (const auto block = world.choose(idle)) chosen.insert(*block);
        EXPECT_EQ(chosen.size(), blocks);
    }
}

TEST(ReadingGroup, ReaderWhoseFetchesWaitGetsNoNewBlock) {
    using Kind = Choice::Kind;
    ReadingGroup group(manifest_of(1000));
    ShardJob job;
    ShardJob other_job;
    GroupReader& reader = group.join(job, 1);
    GroupReader& other = group.join(other_job, 2);
    const std::vector all(protocol::share_words(1000), ~std::uint64_t{0});
    for (GroupReader* each : {&reader, &other}) group.begin_pass(*each, 1, all);
    std::set<std::uint32_t> asked;
    std::set<std::uint32_t> cached;
    const auto choose = [&](GroupReader& by) {
        return group.choose(by, [&](std::uint32_t id) {
            asked.insert(id);
            return cached.contains(id);
        });
    };
    std::vector<std::uint32_t> waiting;
    for (std::size_t i = 0; i < ReadingGroup::kWaitingBlocksMax; ++i) {
        const Choice choice = choose(reader);
        ASSERT_EQ(choice.kind, Kind::block);
        group.note_waiting(reader, choice.block);
        waiting.push_back(choice.block);
    }
    // The drawn block waits: a new draw each time would find a cached one before long.
    asked.clear();
    for (int i = 0; i < 20; ++i) EXPECT_EQ(choose(reader).kind, Kind::later);
    ASSERT_EQ(asked.size(), 1u);
    // A block that another reader takes to fetch is at hand meanwhile.
    for (std::size_t i = 0; i < waiting.size(); ++i) choose(other);
    const std::uint32_t brought = choose(other).block;
    const Choice at_hand = choose(reader);
    EXPECT_EQ(at_hand.kind, Kind::block);
    EXPECT_EQ(at_hand.block, brought);
    EXPECT_EQ(choose(reader).kind, Kind::later);
    // A fetch that begins, or is answered, makes room for a new block.
    group.note_begun(waiting.front());
    EXPECT_EQ(choose(reader).kind, Kind::block);
}

}  // namespace
}  // namespace larder::cache
