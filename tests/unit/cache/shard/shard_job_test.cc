#include "cache/shard/shard_job.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace larder::cache {
namespace {

TEST(ShardJob, CountsUnreadAndEffectiveBytesExactly) {
    constexpr std::uint32_t kBlocks = 500;
    std::mt19937 random(3);
    std::vector<std::uint64_t> bytes(kBlocks);
    std::uint64_t total = 0;
    for (auto& size : bytes) total += size = 1 + random() % 1000;
    std::set<std::uint32_t> cached;
    std::set<std::uint32_t> read;
    ShardJob job;
    job.sessions = 1;
    std::uint32_t epoch = 1;
    job.begin_epoch(epoch, total, 0, kBlocks);
    for (int step = 0; step < 20'000; ++step) {
        const auto block = static_cast<std::uint32_t>(random() % kBlocks);
        switch (random() % 4) {
            case 0:
            case 1:
                read.insert(block);
                job.note_read(block, bytes[block], cached.contains(block));
                break;
            case 2:
                if (cached.insert(block).second) job.note_admitted(block, bytes[block]);
                break;
            case 3:
                if (cached.erase(block) > 0) job.note_dropped(block, bytes[block]);
                break;
        }
        if (step % 3000 == 2999) {
            std::uint64_t cached_bytes = 0;
            for (const std::uint32_t id : cached) cached_bytes += bytes[id];
            job.begin_epoch(++epoch, total, cached_bytes, kBlocks);
            read.clear();
        }
        std::uint64_t unread = 0;
        std::uint64_t effective = 0;
        for (std::uint32_t id = 0; id < kBlocks; ++id) {
            if (read.contains(id)) continue;
            unread += bytes[id];
            if (cached.contains(id)) effective += bytes[id];
        }
        ASSERT_EQ(job.unread_bytes, unread);
        ASSERT_EQ(job.effective_bytes, effective);
    }
}

TEST(ShardJob, ForgetsReadBlocksWhenItsLastSessionLeaves) {
    ShardJob job;
    job.sessions = 2;
    job.begin_epoch(3, 1000, 500, 64);
    job.note_read(7, 100, true);
    job.leave(5);
    EXPECT_TRUE(job.has_read(7));
    EXPECT_EQ(job.idle_since_ns, 0);
    job.leave(6);
    EXPECT_FALSE(job.has_read(7));
    EXPECT_EQ(job.idle_since_ns, 6);
    EXPECT_EQ(job.unread_bytes, 0u);
    job.note_admitted(9, 100);
    EXPECT_EQ(job.effective_bytes, 0u) << "nobody reads";
}

TEST(ShardJob, TokenQueueIsFirstInFirstOut) {
    ShardJob job;
    Fetch fetches[3];
    for (Fetch& fetch : fetches) job.queue.push(fetch);
    std::size_t place = 0;
    for (const Fetch* fetch : job.queue) EXPECT_EQ(fetch, &fetches[place++]);
    EXPECT_EQ(place, 3u);
    for (Fetch& fetch : fetches) {
        EXPECT_EQ(job.queue.first(), &fetch);
        EXPECT_EQ(job.queue.pop(), &fetch);
    }
    EXPECT_EQ(job.queue.first(), nullptr);
    EXPECT_EQ(job.queue.pop(), nullptr);
    job.queue.push(fetches[1]);
    EXPECT_EQ(job.queue.pop(), &fetches[1]);
}

}  // namespace
}  // namespace larder::cache
