#include "cache/shard/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "cache/shard/block_server.h"
#include "tests/unit/cache/shard/shard_fixture.h"

namespace larder::cache {
namespace {

using protocol::BlockSource;
using protocol::BlockStatus;
using test::kDisk;
using test::kMemory;
using test::kMiB;
using test::kMillisecond_ns;
using test::RingClient;
using test::ShardWorld;

TEST(Shard, BlockIsReadFromRemoteOnceThenServedFromMemory) {
    ShardWorld world({.quota = kMemory});
    RingClient& client = world.attach();
    EXPECT_EQ(world.read_epoch(client, 1), 0u);
    EXPECT_EQ(world.read_epoch(client, 2), world.content.size());
    const DatasetStatistics dataset = world.dataset();
    EXPECT_EQ(dataset.counters.misses, world.content.size());
    EXPECT_EQ(dataset.counters.memory_hits, world.content.size());
    EXPECT_EQ(dataset.counters.remote_read_bytes, world.total_bytes);
    EXPECT_EQ(dataset.counters.memory_bytes, world.total_bytes);
    EXPECT_EQ(dataset.usage.payload_bytes, world.total_bytes);
}

TEST(Shard, MissLatencyIsTheTimeSinceItsRequest) {
    ShardWorld world({.device = {.latency_ns = 5 * kMillisecond_ns}});
    world.read_epoch(world.attach(), 1);
    const auto remote = world.dataset().latency[static_cast<std::size_t>(BlockSource::remote)];
    EXPECT_EQ(remote.count, world.content.size());
    EXPECT_EQ(std::accumulate(remote.buckets.begin(), remote.buckets.end(), std::uint64_t{0}), remote.count);
    EXPECT_GE(remote.sum_ns, static_cast<std::int64_t>(remote.count) * 5 * kMillisecond_ns);
}

TEST(Shard, MemoryHitLatencyIsTheTimeOfItsBatch) {
    ShardWorld world({.quota = kMemory});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    constexpr std::int64_t kReading_ns = 3000;
    world.stepping_clock.step_ns = kReading_ns;
    world.read_epoch(client, 2);
    const auto memory = world.dataset().latency[static_cast<std::size_t>(BlockSource::memory)];
    EXPECT_EQ(memory.count, world.content.size());
    EXPECT_EQ(memory.sum_ns, static_cast<std::int64_t>(memory.count) * kReading_ns);
    EXPECT_EQ(memory.buckets[2], memory.count) << "2 to 4 us";
}

TEST(Shard, BlockAdmittedToDiskIsServedFromDisk) {
    ShardWorld world({.quota = kDisk});
    RingClient& client = world.attach();
    EXPECT_EQ(world.read_epoch(client, 1), 0u);
    EXPECT_EQ(world.read_epoch(client, 2), world.content.size());
    EXPECT_EQ(world.dataset().counters.disk_hits, world.content.size());
}

TEST(Shard, HitCountEqualsCachedBlockCount) {
    ShardWorld world({.blocks = 200, .quota = {.memory_bytes = 500'000, .disk_bytes = 500'000}});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    const StoreUsage usage = world.dataset().usage;
    EXPECT_LE(usage.memory_bytes, 500'000u);
    EXPECT_LE(usage.disk_bytes, 500'000u);
    EXPECT_GT(usage.memory_bytes, 500'000u - 21'000u);
    EXPECT_GT(usage.disk_bytes, 500'000u - 21'000u);
    EXPECT_EQ(world.read_epoch(client, 2), usage.blocks);
    EXPECT_EQ(world.read_epoch(client, 3), usage.blocks) << "what is cached is never replaced";
}

TEST(Shard, DiskReadsInFlightStayWithinTheLimit) {
    ShardWorld world(
        {.blocks = 32, .quota = {.disk_bytes = std::uint64_t{1} << 20}, .shard = {.disk_reads_in_flight_max = 3}});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    const std::size_t at_rest = world.device->in_flight();
    for (std::uint32_t block = 0; block < 32; ++block) client.fetch(block, block * 5, block, 2);
    std::size_t most = 0;
    std::vector<std::uint32_t> order;
    for (int turn = 0; turn < 5000 && order.size() < 32; ++turn) {
        world.turns(1);
        most = std::max(most, world.device->in_flight() - at_rest);
        while (const auto got = client.next_completion()) {
            EXPECT_EQ(got->source, protocol::BlockSource::disk);
            EXPECT_EQ(client.payload(*got), world.content[got->tag]);
            order.push_back(got->tag);
        }
    }
    EXPECT_EQ(order.size(), 32u);
    EXPECT_EQ(most, 3u);
    // With three reads in flight, no read overtakes the others by much.
    for (std::uint32_t i = 0; i < order.size(); ++i) EXPECT_LE(order[i], i + 16);
}

TEST(Shard, FlippedBitOnDiskIsCountedAndRefetched) {
    ShardWorld world({.quota = kDisk});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    for (const std::string& path : world.disk.paths()) {
        if (path.find("segment") != std::string::npos) world.disk.flip_bit(path, (4096 + 300) * 8);
    }
    EXPECT_EQ(world.read_epoch(client, 2), world.content.size() - 1);
    EXPECT_EQ(world.dataset().counters.crc_failures, 1u);
    EXPECT_EQ(world.job("job").counters.crc_failures, 1u);
    EXPECT_EQ(world.read_epoch(client, 3), world.content.size()) << "the good bytes were admitted again";
}

TEST(Shard, BlockStaysCachedAfterTransientReadFailure) {
    using test::FakeAction;
    using test::Fault;
    ShardWorld world({.quota = kDisk});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    world.device->inject(
        {.action = FakeAction::read, .kind = Fault::Kind::fail, .path_part = "segment", .error = EAGAIN});
    EXPECT_EQ(world.read_epoch(client, 2), world.content.size()) << "the disk read is retried";
    world.device->inject(
        {.action = FakeAction::read, .kind = Fault::Kind::fail, .path_part = "segment", .times = 4, .error = ENOMEM});
    EXPECT_EQ(world.read_epoch(client, 3), world.content.size() - 1) << "one block is read from the remote, once";
    EXPECT_EQ(world.read_epoch(client, 4), world.content.size());
    EXPECT_EQ(world.dataset().counters.crc_failures, 0u);
}

TEST(Shard, PlaceThatCannotBeReadIsNotUsedAgain) {
    using test::FakeAction;
    const test::TempDirectory index_directory;
    const auto opened = Index::open({.directory = index_directory.path()});
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    ShardWorld world({.quota = kDisk, .index = opened->index.get()});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    const StoreUsage before = world.dataset().usage;
    world.device->inject({.action = FakeAction::read, .path_part = "segment", .error = EIO});
    EXPECT_EQ(world.read_epoch(client, 2), world.content.size() - 1) << "one block is read from the remote";
    EXPECT_EQ(world.dataset().counters.crc_failures, 1u);
    EXPECT_EQ(world.read_epoch(client, 3), world.content.size());
    EXPECT_EQ(world.dataset().usage.blocks, before.blocks);
    EXPECT_GT(world.dataset().usage.disk_bytes, before.disk_bytes) << "the bad place still counts";
    opened->index->flush();
    const auto segments = opened->index->load(test::kDatasetId);
    ASSERT_TRUE(segments.has_value()) << segments.error().message;
    std::ptrdiff_t retired = 0;
    for (const StoredSegment& segment : *segments) {
        retired += std::ranges::count_if(segment.blocks, &StoredBlock::is_retired);
    }
    EXPECT_EQ(retired, 1) << "the place is not used after a restart either";
}

TEST(Shard, EpochsThatFollowWithoutReadsAreNotBegun) {
    // Beginning an epoch costs a word for each 64 blocks.
    ShardWorld world({.blocks = 1280, .block_bytes_max = 100, .quota = kMemory});
    RingClient& client = world.attach();
    world.read(client, 0);
    std::set<std::uint32_t> begun;
    constexpr std::uint32_t kRequests = 400;
    for (std::uint32_t epoch = 2; epoch < 2 + kRequests; ++epoch) {
        EXPECT_EQ(world.read(client, 0, epoch).status, BlockStatus::ok) << "the request itself is served";
        begun.insert(world.job("job").epoch);
    }
    EXPECT_LE(begun.size(), 2 + kRequests / 20);
    EXPECT_GE(begun.size(), 2u);
}

TEST(Shard, EpochWithFewReadsIsLeftAfterASecond) {
    ShardWorld world({.blocks = 1280, .block_bytes_max = 100, .quota = kMemory});
    RingClient& client = world.attach();
    world.read(client, 0, 1);
    world.read(client, 1, 2);
    EXPECT_EQ(world.job("job").epoch, 1u);
    world.clock.advance_ns(1'000'000'000);
    world.read(client, 2, 2);
    EXPECT_EQ(world.job("job").epoch, 2u);
}

TEST(Shard, FarEpochFreezesTheAccountsForNoMoreThanAPass) {
    ShardWorld world({.quota = kMemory});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    world.read(client, 0, 0xffffffff);
    world.read_epoch(client, 2);
    world.read_epoch(client, 3);
    EXPECT_EQ(world.job("job").epoch, 3u);
    world.read_epoch(client, 4);
    EXPECT_EQ(world.job("job").epoch, 4u);
    EXPECT_EQ(world.job("job").unread_bytes, 0u);
}

TEST(Shard, RankThatIsStillInTheEpochBeforeChangesNoEpoch) {
    ShardWorld world({.quota = kMemory});
    RingClient& client = world.attach();
    RingClient& slow = world.attach({.session_id = 2});
    world.read_epoch(client, 1);
    for (std::uint32_t block = 0; block < world.content.size(); ++block) {
        world.read(client, block, 2);
        // However many in all: only requests that no read of the epoch comes between count.
        for (int request = 0; request < 3; ++request) world.read(slow, block, 1);
        EXPECT_EQ(world.job("job").epoch, 2u);
    }
    EXPECT_EQ(world.job("job").unread_bytes, 0u);
}

TEST(Shard, HitsAreCopiedWhenSegmentMessagesFillTheSocket) {
    ShardWorld world({.quota = {.memory_bytes = 20'100, .disk_bytes = 0}});
    RingClient& writer = world.attach({.session_id = 1});
    for (std::uint32_t block = 0; block < world.content.size(); ++block) {
        world.read(writer, block);
        world.shard->set_quota(test::kDatasetId, {.memory_bytes = (block + 2) * 20'100, .disk_bytes = 0});
    }
    ASSERT_GT(world.dataset().usage.memory_segments, 6u);

    RingClient& reader = world.attach({.session_id = 2, .socket_buffer_bytes = 1});
    std::vector<protocol::Completion> completions;
    for (std::uint32_t block = 0; block < world.content.size(); ++block) {
        reader.fetch(block, block * 8, block, 1);
        const auto got = world.completion(reader);
        ASSERT_TRUE(got);
        completions.push_back(*got);
    }
    EXPECT_FALSE(reader.hung_up());
    std::size_t copied = 0;
    std::size_t hits = 0;
    for (const protocol::Completion& got : completions) {
        EXPECT_EQ(reader.payload(got), world.content[got.tag]);
        hits += got.source == BlockSource::memory;
        copied += got.source == BlockSource::memory && got.segment == 0;
    }
    EXPECT_EQ(hits, world.dataset().usage.blocks);
    EXPECT_GT(copied, 0u);
    EXPECT_LT(copied, hits);
}

TEST(Shard, ReturningJobStartsWithAllBlocksUnread) {
    ShardWorld world({.quota = kDisk});
    RingClient& first = world.attach({.session_id = 1, .job = "job"});
    world.read_epoch(first, 7);
    EXPECT_EQ(world.job("job").epoch, 7u);
    EXPECT_EQ(world.job("job").unread_bytes, 0u);
    first.close_socket();
    world.turns(5);
    world.attach({.session_id = 2, .job = "job"});
    world.turns(5);
    EXPECT_EQ(world.job("job").epoch, 0u);
    EXPECT_GT(world.job("job").unread_bytes, 0u);
    EXPECT_EQ(world.job("job").effective_cache_bytes, world.job("job").unread_bytes) << "all of it is cached";
}

TEST(Shard, ReturningJobIsListedHoweverLongItRuns) {
    ShardWorld world({.quota = kDisk});
    RingClient& first = world.attach({.session_id = 1, .job = "job"});
    world.read(first, 0);
    first.close_socket();
    world.turns(5);
    RingClient& second = world.attach({.session_id = 2, .job = "job"});
    world.clock.advance_ns(24 * 3'600'000 * kMillisecond_ns);
    world.read(second, 1);
    EXPECT_EQ(world.job("job").sessions, 1u);
    second.close_socket();
    world.turns(5);
    EXPECT_EQ(world.shard->statistics().jobs.size(), 1u) << "an ended job stays listed for a while";
    world.clock.advance_ns(24 * 3'600'000 * kMillisecond_ns);
    world.turns(5);
    EXPECT_TRUE(world.shard->statistics().jobs.empty());
}

TEST(Shard, OnlyTheLatestEndedJobsAreKept) {
    ShardWorld world({.quota = kDisk});
    world.read_epoch(world.attach({.session_id = 1, .job = "stays"}), 1);
    constexpr std::uint64_t kJobs = 3 * BlockServer::kEndedJobsMax;
    for (std::uint64_t i = 0; i < kJobs; ++i) {
        RingClient& client = world.attach({.session_id = 2 + i, .job = "job-" + std::to_string(i)});
        EXPECT_EQ(world.read(client, static_cast<std::uint32_t>(i % world.content.size())).status, BlockStatus::ok);
        client.close_socket();
        world.turns(5);
    }
    const auto jobs = world.shard->statistics().jobs;
    EXPECT_LE(jobs.size(), BlockServer::kEndedJobsMax + 1);
    EXPECT_EQ(jobs.front().job, "stays");
    EXPECT_EQ(jobs.back().job, "job-" + std::to_string(kJobs - 1));
    EXPECT_EQ(world.dataset().counters.disk_hits, kJobs) << "the dataset's counters keep the hits of dropped jobs";
}

TEST(Shard, ConcurrentMissesOfOneBlockShareOneRemoteRead) {
    for (const Quota quota : {kMemory, kDisk, Quota{}}) {
        ShardWorld world({.quota = quota});
        std::vector<RingClient*> clients;
        for (std::uint64_t id = 1; id <= 4; ++id) {
            clients.push_back(&world.attach({.session_id = id, .job = id % 2 == 0 ? "a" : "b"}));
            clients.back()->fetch(7, 3);
        }
        for (RingClient* client : clients) {
            const auto got = world.completion(*client);
            ASSERT_TRUE(got.has_value());
            EXPECT_EQ(got->source, BlockSource::remote);
            EXPECT_EQ(client->payload(*got), world.content[7]);
        }
        EXPECT_EQ(world.dataset().counters.remote_reads, 1u);
        EXPECT_EQ(world.dataset().counters.misses, 4u);
    }
}

TEST(Shard, JobRateLimitHoldsAcrossItsSessions) {
    ShardWorld world({.blocks = 400});
    auto bucket = std::make_shared<TokenBucket>();
    const double rate = 1e6;
    const std::uint64_t burst = 50'000;
    bucket->set_limit(rate, burst, world.clock.now_ns());
    RingClient& first = world.attach({.session_id = 1, .bucket = bucket});
    RingClient& second = world.attach({.session_id = 2, .bucket = bucket});
    RingClient& unlimited = world.attach({.session_id = 3, .job = "other"});
    const std::int64_t start_ns = world.clock.now_ns();
    for (std::uint32_t i = 0; i < 100; ++i) {
        first.fetch(i, i * 6, i);
        second.fetch(100 + i, i * 6, i);
        unlimited.fetch(200 + i, i * 6, i);
    }
    std::uint64_t bytes = 0;
    std::uint32_t limited_done = 0;
    std::uint32_t unlimited_done = 0;
    while (limited_done < 200) {
        world.turns(1);
        while (const auto got = first.next_completion()) bytes += got->length, ++limited_done;
        while (const auto got = second.next_completion()) bytes += got->length, ++limited_done;
        while (unlimited.next_completion()) ++unlimited_done;
        const double elapsed = static_cast<double>(world.clock.now_ns() - start_ns) * 1e-9;
        ASSERT_LE(static_cast<double>(bytes), rate * elapsed + static_cast<double>(burst) + 20'000);
        ASSERT_LT(elapsed, 60);
        if (elapsed > 0.2) {
            ASSERT_EQ(unlimited_done, 100u) << "a job without a limit does not wait";
        }
    }
    const double elapsed = static_cast<double>(world.clock.now_ns() - start_ns) * 1e-9;
    EXPECT_GE(static_cast<double>(bytes), 0.97 * (rate * elapsed)) << "the limit is used fully";
    EXPECT_EQ(world.job("job").sessions, 2u);
}

TEST(Shard, FetchesThatWaitForTokensStartInOrder) {
    ShardWorld world({});
    auto bucket = std::make_shared<TokenBucket>();
    bucket->set_limit(1e5, 1, world.clock.now_ns());
    RingClient& client = world.attach({.bucket = bucket});
    const std::vector<std::uint32_t> blocks{9, 3, 27, 1, 30, 2};
    for (std::uint32_t i = 0; i < blocks.size(); ++i) client.fetch(blocks[i], i * 6, i);
    for (std::uint32_t i = 0; i < blocks.size(); ++i) {
        const auto got = world.completion(client);
        ASSERT_TRUE(got.has_value());
        EXPECT_EQ(got->tag, i);
        EXPECT_EQ(client.payload(*got), world.content[blocks[i]]);
    }
    EXPECT_EQ(world.job("job").waiting_bytes, 0u);
}

TEST(Shard, BlockWantedByTwoJobsIsPaidByTheJobWithTokens) {
    ShardWorld world({});
    auto slow = std::make_shared<TokenBucket>();
    slow->set_limit(1, 1, world.clock.now_ns());
    ASSERT_TRUE(slow->try_take(1000, world.clock.now_ns()));
    RingClient& poor = world.attach({.session_id = 1, .job = "poor", .bucket = slow});
    RingClient& rich = world.attach({.session_id = 2, .job = "rich"});
    poor.fetch(5, 0);
    world.turns(5);
    rich.fetch(5, 0);
    const auto rich_completion = world.completion(rich);
    const auto poor_completion = world.completion(poor);
    ASSERT_TRUE(rich_completion && poor_completion);
    EXPECT_EQ(poor.payload(*poor_completion), world.content[5]);
    EXPECT_EQ(world.job("rich").counters.remote_read_bytes, world.content[5].size());
    EXPECT_EQ(world.job("poor").counters.remote_read_bytes, 0u);
}

// Returns a bucket from which the next byte can be taken after `wait_ns`.
std::shared_ptr<TokenBucket> indebted_bucket(const ShardWorld& world, std::int64_t wait_ns) {
    auto bucket = std::make_shared<TokenBucket>();
    bucket->set_limit(1e9, 1, world.clock.now_ns());
    bucket->pay(static_cast<std::uint64_t>(wait_ns), world.clock.now_ns());
    return bucket;
}

constexpr std::int64_t kHour_ns = 3'600'000'000'000;

TEST(Shard, FetchOfAnEndedSessionLeavesTheBlockToOthers) {
    ShardWorld world({});
    RingClient& ended = world.attach({.session_id = 1, .job = "ended", .bucket = indebted_bucket(world, kHour_ns)});
    RingClient& other = world.attach({.session_id = 2, .job = "other", .bucket = indebted_bucket(world, 20'000'000)});
    ended.fetch(5, 0);
    other.fetch(5, 0);
    world.turns(3);
    ended.close_socket();
    const auto got = world.completion(other);
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->status, BlockStatus::ok);
    EXPECT_EQ(other.payload(*got), world.content[5]);
}

TEST(Shard, SessionThatEndsWhileItWaitsForTokensLeavesNothing) {
    ShardWorld world({});
    RingClient client(world.manifest, {.bucket = indebted_bucket(world, kHour_ns)});
    SessionSetup setup = client.take_setup();
    const std::weak_ptr<const Mapping> slots = setup.slots;
    world.shard->attach(std::move(setup));
    client.fetch(5, 0);
    world.turns(3);
    client.close_socket();
    world.turns(10);
    EXPECT_TRUE(slots.expired());
}

TEST(Shard, BlockThatAnotherJobReadsHoldsUpNoOtherFetch) {
    ShardWorld world({.device = {.latency_ns = 50'000'000}});
    auto bucket = indebted_bucket(world, kHour_ns);
    RingClient& reading = world.attach({.session_id = 1, .job = "reading"});
    RingClient& waiting = world.attach({.session_id = 2, .job = "waiting", .bucket = bucket});
    waiting.fetch(5, 0);
    waiting.fetch(6, 8);
    world.turns(3);
    reading.fetch(5, 0);
    world.turns(3);
    bucket->set_limit(0, 0, world.clock.now_ns());
    world.turns(3);
    EXPECT_EQ(world.job("reading").counters.remote_reads, 1u);
    EXPECT_EQ(world.job("waiting").counters.remote_reads, 1u) << "the other block";
}

TEST(Shard, WakesWhenTheFirstOfSeveralJobsHasTokens) {
    ShardWorld world({});
    const std::int64_t begun_ns = world.clock.now_ns();
    for (std::uint64_t id = 1; id <= 2; ++id) {
        auto bucket = indebted_bucket(world, static_cast<std::int64_t>(id) * 1'000'000'000);
        RingClient& client =
            world.attach({.session_id = id, .job = "job" + std::to_string(id), .bucket = std::move(bucket)});
        client.fetch(static_cast<std::uint32_t>(id), 0);
    }
    world.turns(3);
    while (world.job("job1").counters.remote_reads == 0) world.shard->turn(world.clock.now_ns() + kHour_ns);
    EXPECT_LT(world.clock.now_ns(), begun_ns + 1'500'000'000);
}

TEST(Shard, CountsUnreadAndEffectiveCacheBytesOfAJob) {
    ShardWorld world({.quota = kMemory});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    EXPECT_EQ(world.job("job").unread_bytes, 0u);
    EXPECT_EQ(world.job("job").effective_cache_bytes, 0u) << "blocks admitted this epoch help only the next";
    std::uint64_t read = 0;
    for (std::uint32_t block = 0; block < 10; ++block) {
        world.read(client, block, 2);
        read += world.content[block].size();
        EXPECT_EQ(world.job("job").epoch, 2u);
        EXPECT_EQ(world.job("job").unread_bytes, world.total_bytes - read);
        EXPECT_EQ(world.job("job").effective_cache_bytes, world.total_bytes - read);
    }
    world.shard->set_quota(test::kDatasetId, {});
    EXPECT_EQ(world.job("job").effective_cache_bytes, 0u);
}

TEST(Shard, ShrunkQuotaFirstDropsSegmentsThatAllJobsHaveRead) {
    // Segments of 16 MiB: two blocks of 7 MB each fill one.
    ShardWorld world({.blocks = 12, .block_bytes_max = 7'000'000, .quota = {.memory_bytes = 200 * kMiB}, .seed = 5});
    RingClient& client = world.attach({.slot_bytes = 64 * kMiB});
    world.read_epoch(client, 1);
    const StoreUsage before = world.dataset().usage;
    ASSERT_GE(before.memory_segments, 3u);
    // In epoch 2 the job has read the blocks admitted last, so their segments must drop first.
    for (std::uint32_t block = 8; block < 12; ++block) world.read(client, block, 2);
    const std::uint64_t unread = world.job("job").effective_cache_bytes;
    world.shard->set_quota(test::kDatasetId, {.memory_bytes = before.memory_bytes - 1});
    EXPECT_EQ(world.job("job").effective_cache_bytes, unread);
    EXPECT_LT(world.dataset().usage.memory_bytes, before.memory_bytes);
    EXPECT_EQ(world.read_epoch(client, 2) > 0, true);
}

TEST(Shard, ClientThatKeepsADroppedSegmentIsDisconnected) {
    for (const bool client_unmaps : {true, false}) {
        ShardWorld world({.quota = kMemory});
        RingClient& client = world.attach();
        world.read_epoch(client, 1);
        const auto kept = world.read(client, 3, 2);
        world.shard->set_quota(test::kDatasetId, {});
        client.read_messages();
        ASSERT_FALSE(client.dropped_segments.empty());
        EXPECT_EQ(world.dataset().usage.draining_segments, client.dropped_segments.size());
        if (client_unmaps) {
            for (const std::uint32_t segment : client.dropped_segments) client.unmap(segment);
        }
        world.turns(5);
        EXPECT_EQ(world.dataset().usage.draining_segments, client_unmaps ? 0u : client.dropped_segments.size());
        world.clock.advance_ns(11'000 * kMillisecond_ns);
        world.turns(5);
        EXPECT_EQ(client.hung_up(), !client_unmaps);
        EXPECT_EQ(world.dataset().usage.draining_segments, 0u);
        if (client_unmaps) {
            EXPECT_EQ(world.read(client, 3, 2).bytes, world.content[3]);
        }
    }
}

TEST(Shard, JobKeepsTheSumsOfItsEndedSessions) {
    ShardWorld world({});
    const auto attach = [&](std::uint64_t id, std::uint64_t seconds) -> RingClient& {
        RingClient& client = world.attach({.session_id = id});
        client.control().stall_ns = seconds * test::kSecond_ns;
        client.control().busy_ns = 10 * seconds * test::kSecond_ns;
        client.control().samples_delivered = 100 * seconds;
        client.control().bytes_delivered = 1000 * seconds;
        return client;
    };
    const auto expect_seconds = [&](std::int64_t seconds, const std::string& when) {
        const JobStatistics job = world.job("job");
        EXPECT_EQ(job.stall_ns, seconds * test::kSecond_ns) << when;
        EXPECT_EQ(job.busy_ns, 10 * seconds * test::kSecond_ns) << when;
        EXPECT_EQ(job.samples_delivered, 100u * seconds) << when;
        EXPECT_EQ(job.bytes_delivered, 1000u * seconds) << when;
    };
    RingClient& first = attach(1, 1);
    RingClient& second = attach(2, 2);
    world.turns(5);
    expect_seconds(3, "both run");
    first.close_socket();
    world.turns(5);
    EXPECT_EQ(world.job("job").sessions, 1u);
    expect_seconds(3, "one has ended");
    second.close_socket();
    world.turns(5);
    EXPECT_EQ(world.job("job").sessions, 0u);
    expect_seconds(3, "both have ended");
    attach(3, 4);
    world.turns(5);
    expect_seconds(7, "the next one runs");
}

TEST(Shard, EndedSessionsThatReportTooMuchOverflowNoSum) {
    ShardWorld world({});
    std::int64_t stall_before_ns = 0;
    std::int64_t busy_before_ns = 0;
    for (std::uint64_t id = 1; id <= 4000; ++id) {
        RingClient& liar = world.attach({.session_id = id, .ring_entries = 8, .slot_bytes = 4096});
        liar.control().stall_ns = ~std::uint64_t{0};
        liar.control().busy_ns = ~std::uint64_t{0};
        liar.close_socket();
        world.turns(2);
        world.clients.clear();
        const JobStatistics job = world.job("job");
        ASSERT_GE(job.stall_ns, stall_before_ns) << id;
        ASSERT_GE(job.busy_ns, busy_before_ns) << id;
        stall_before_ns = job.stall_ns;
        busy_before_ns = job.busy_ns;
    }
}

TEST(Shard, EndedSessionHoldsNoDroppedSegment) {
    for (const bool drops_before_it_ends : {true, false}) {
        ShardWorld world({.quota = kMemory});
        RingClient& client = world.attach();
        world.read_epoch(client, 1);
        world.read(client, 3, 2);
        if (drops_before_it_ends) world.shard->set_quota(test::kDatasetId, {});
        client.close_socket();
        world.turns(5);
        if (!drops_before_it_ends) world.shard->set_quota(test::kDatasetId, {});
        world.turns(5);
        EXPECT_EQ(world.dataset().sessions, 0u);
        EXPECT_EQ(world.dataset().usage.draining_segments, 0u) << drops_before_it_ends;
        EXPECT_EQ(world.shard->statistics().protocol_violations, 0u);
    }
}

TEST(Shard, ChangedObjectFailsWithoutAffectingOthers) {
    ShardWorld world({.quota = kMemory});
    RingClient& client = world.attach();
    world.disk.put(world.path(2), world.content[2] + "x", 1002);
    world.disk.put(world.path(3), world.content[3], 77);
    world.disk.truncate(world.path(4), world.content[4].size() / 2);
    EXPECT_EQ(world.read(client, 2).status, BlockStatus::object_changed);
    EXPECT_EQ(world.read(client, 3).status, BlockStatus::object_changed);
    EXPECT_NE(world.read(client, 4).status, BlockStatus::ok);
    for (std::uint32_t block = 5; block < 20; ++block) {
        EXPECT_EQ(world.read(client, block).bytes, world.content[block]);
    }
    EXPECT_EQ(world.dataset().counters.remote_errors, 3u);
    EXPECT_EQ(world.read(client, 2).status, BlockStatus::object_changed) << "the slot was free again";
}

TEST(Shard, FetchThatJoinedAFailedReadIsRetried) {
    for (const Quota quota : {kMemory, kDisk}) {
        for (const bool first_has_left : {false, true}) {
            ShardWorld world({.quota = quota, .device = {.latency_ns = 10 * kMillisecond_ns}});
            RingClient& first = world.attach({.session_id = 1, .job = "first"});
            RingClient& joined = world.attach({.session_id = 2, .job = "joined"});
            // Makes the remote open its root and the shard poll both rings.
            (void)world.read(first, 0);
            (void)world.read(joined, 0);
            world.device->inject({.path_part = ShardWorld::object_name(7)});
            first.fetch(7, 0, 7);
            while (world.job("first").counters.remote_reads < 2) world.turns(1);
            joined.fetch(7, 0, 7);
            world.turns(1);
            if (first_has_left) first.close_socket();
            const auto got = world.completion(joined);
            ASSERT_TRUE(got.has_value());
            EXPECT_EQ(got->status, BlockStatus::ok);
            EXPECT_TRUE(joined.payload(*got) == world.content[7]) << quota.memory_bytes << first_has_left;
            if (!first_has_left) {
                const auto failed = world.completion(first);
                ASSERT_TRUE(failed.has_value());
                EXPECT_EQ(failed->status, BlockStatus::remote_failed);
            }
            // No fetch joined this read, so the client gets its failure.
            world.device->inject({.path_part = ShardWorld::object_name(8)});
            EXPECT_EQ(world.read(joined, 8, 1, 16).status, BlockStatus::remote_failed);
        }
    }
}

TEST(Shard, ClientDyingMidBatchIsCleanedUpAndDelaysNobody) {
    for (const Quota quota : {kMemory, kDisk}) {
        ShardWorld world({.quota = quota});
        auto bucket = std::make_shared<TokenBucket>();
        bucket->set_limit(100'000, 1000, world.clock.now_ns());
        RingClient& dying = world.attach({.session_id = 1, .job = "dying", .bucket = bucket});
        RingClient& other = world.attach({.session_id = 2, .job = "other"});
        for (std::uint32_t i = 0; i < 30; ++i) dying.fetch(i, i * 6, i);
        world.turns(3);
        dying.close_socket();
        for (std::uint32_t i = 0; i < 30; ++i) {
            EXPECT_EQ(world.read(other, i).bytes, world.content[i]);
        }
        world.turns(50);
        EXPECT_EQ(world.dataset().sessions, 1u);
        EXPECT_EQ(world.job("dying").sessions, 0u);
    }
}

TEST(Shard, WarmUpCachesAUniformSampleWithinTheQuota) {
    ShardWorld world({.blocks = 600, .quota = {.memory_bytes = 2'000'000}});
    auto progress = std::make_shared<ScanProgress>();
    ASSERT_TRUE(world.shard->start_scan(test::kDatasetId, ScanKind::warm, std::make_shared<TokenBucket>(), progress)
                    .has_value());
    EXPECT_FALSE(world.shard->start_scan(test::kDatasetId, ScanKind::warm, std::make_shared<TokenBucket>(), progress)
                     .has_value());
    for (int i = 0; i < 5000 && !progress->finished; ++i) world.turns(1);
    ASSERT_TRUE(progress->finished);
    EXPECT_EQ(progress->blocks_done, world.dataset().usage.blocks);
    EXPECT_LE(world.dataset().usage.memory_bytes, 2'000'000u);
    EXPECT_GT(world.dataset().usage.memory_bytes, 1'600'000u);
    RingClient& client = world.attach();
    std::uint32_t hits_in_first_half = 0;
    for (std::uint32_t block = 0; block < 300; ++block) {
        hits_in_first_half += world.read(client, block).source == BlockSource::memory;
    }
    const auto blocks = static_cast<double>(world.dataset().usage.blocks);
    EXPECT_NEAR(hits_in_first_half / blocks, 0.5, 0.15);
}

TEST(Shard, VerifyDropsAndRepairsBadBlocks) {
    ShardWorld world({.quota = kDisk});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    for (const std::string& path : world.disk.paths()) {
        if (path.find("segment") != std::string::npos) world.disk.flip_bit(path, (4096 + 300) * 8);
    }
    world.disk.put(world.path(9), std::string(world.content[9].size(), 'z'), 1009);
    for (const ScanKind kind : {ScanKind::verify, ScanKind::verify_remote}) {
        auto progress = std::make_shared<ScanProgress>();
        ASSERT_TRUE(
            world.shard->start_scan(test::kDatasetId, kind, std::make_shared<TokenBucket>(), progress).has_value());
        for (int i = 0; i < 5000 && !progress->finished; ++i) world.turns(1);
        ASSERT_TRUE(progress->finished);
        EXPECT_EQ(progress->blocks_done, world.content.size());
        EXPECT_EQ(progress->blocks_bad, 1u);
        EXPECT_EQ(progress->blocks_failed, 0u);
    }
    EXPECT_EQ(world.dataset().counters.crc_failures, 1u);
}

TEST(Shard, VerifyAgainstTheRemoteUsesItsRateFully) {
    ShardWorld world({.quota = kMemory});
    world.read_epoch(world.attach(), 1);
    const std::uint64_t read_before = world.dataset().counters.remote_read_bytes;
    constexpr double kRate = 1e6;
    constexpr std::uint64_t kBurst = 30'000;
    auto bucket = std::make_shared<TokenBucket>();
    const std::int64_t begun_ns = world.clock.now_ns();
    bucket->set_limit(kRate, kBurst, begun_ns);
    auto progress = std::make_shared<ScanProgress>();
    ASSERT_TRUE(world.shard->start_scan(test::kDatasetId, ScanKind::verify_remote, bucket, progress).has_value());
    // Nothing else needs the shard, so only the scan itself can end its turns before the hour.
    for (int i = 0; i < 50'000 && !progress->finished; ++i) {
        world.shard->turn(world.clock.now_ns() + 3'600'000 * kMillisecond_ns);
    }
    ASSERT_TRUE(progress->finished);
    EXPECT_EQ(progress->blocks_done, world.content.size());
    EXPECT_EQ(world.dataset().counters.remote_read_bytes - read_before, world.total_bytes);
    const double elapsed_s = static_cast<double>(world.clock.now_ns() - begun_ns) * 1e-9;
    EXPECT_GE(elapsed_s, static_cast<double>(world.total_bytes - kBurst) / kRate * 0.999);
    EXPECT_LE(elapsed_s, static_cast<double>(world.total_bytes) / kRate * 1.05);
}

TEST(Shard, RemovingADatasetClosesItsSessionsAndDeletesItsFiles) {
    ShardWorld world({.quota = kDisk});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    client.fetch(1, 0, 1, 2);
    world.turns(1);
    world.shard->remove_dataset(test::kDatasetId);
    world.turns(50);
    EXPECT_TRUE(client.hung_up());
    EXPECT_TRUE(world.shard->statistics().datasets.empty());
    for (const std::string& path : world.disk.paths()) EXPECT_EQ(path.find("segment"), std::string::npos) << path;
}

TEST(Shard, StopsWhenTheRemoteNeverAnswers) {
    ShardWorld world({.quota = kDisk, .device = {.latency_ns = 3'600'000'000'000}});
    RingClient& client = world.attach();
    auto progress = std::make_shared<ScanProgress>();
    ASSERT_TRUE(world.shard->start_scan(test::kDatasetId, ScanKind::warm, std::make_shared<TokenBucket>(), progress)
                    .has_value());
    client.fetch(1, 0);
    world.turns(3);
    world.shard->stop(world.clock.now_ns() + 10 * kMillisecond_ns);
    EXPECT_TRUE(client.hung_up());
    world.shard.reset();
    world.device.reset();
}

TEST(Shard, StopsWhenTheRemoteOfARemovedDatasetNeverAnswers) {
    ShardWorld world({.quota = kDisk, .device = {.latency_ns = 3'600'000'000'000}});
    RingClient& client = world.attach();
    client.fetch(1, 0);
    world.turns(3);
    world.shard->remove_dataset(test::kDatasetId);
    world.turns(3);
    EXPECT_TRUE(client.hung_up());
    world.shard->stop(world.clock.now_ns() + 10 * kMillisecond_ns);
    world.shard.reset();
    world.device.reset();
}

}  // namespace
}  // namespace larder::cache
