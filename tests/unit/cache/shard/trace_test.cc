// Traces of a job's blocks: each step with its exact times, and recordings that end by themselves.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/shard/tracer.h"
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

constexpr std::int64_t kLatency_ns = 5 * kMillisecond_ns;
constexpr std::int64_t kMinute_ns = 60'000 * kMillisecond_ns;
// An uncached object of a file:// remote: open, read, stat.
constexpr std::int64_t kRemoteRead_ns = 3 * kLatency_ns;

// A step of a block, as times since the block was taken.
struct Step {
    TraceStep step;
    std::int64_t began_ns;
    std::int64_t ended_ns;
    bool operator==(const Step&) const = default;
};
[[maybe_unused]] void PrintTo(const Step& step, std::ostream* out) {
    *out << name(step.step) << " " << step.began_ns << " to " << step.ended_ns;
}

std::vector<Step> steps_of(const BlockTrace& block) {
    std::vector<Step> steps;
    for (std::size_t i = 0; i < block.span_count; ++i) {
        const TraceSpan& span = block.spans[i];
        const std::int64_t ended_ns = span.ended_ns == 0 ? -1 : span.ended_ns - block.taken_ns;
        steps.push_back({span.step, span.began_ns - block.taken_ns, ended_ns});
    }
    return steps;
}

class Trace : public testing::Test {
protected:
    // Starts a recording, which is in `ended` once it has ended.
    Result<void> start(ShardWorld& world, std::size_t blocks, std::int64_t limit_ns = kMinute_ns,
                       const std::string& job = "job") {
        auto recording = std::make_shared<TraceRecording>(job, blocks);
        recording->done = [this](const std::shared_ptr<TraceRecording>& done) { ended.push_back(done); };
        return world.shard->start_trace(recording, limit_ns);
    }

    const BlockTrace& only_block(ShardWorld& world) {
        world.turns(100);
        EXPECT_EQ(ended.size(), 1u);
        if (ended.empty() || ended[0]->count != 1) {
            ADD_FAILURE() << "no block was recorded";
            static const BlockTrace kNone{};
            return kNone;
        }
        return ended[0]->blocks[0];
    }

    std::vector<std::shared_ptr<TraceRecording>> ended;
};

TEST_F(Trace, MemoryHitHasNoSteps) {
    ShardWorld world({.quota = kMemory});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    ASSERT_TRUE(start(world, 1));
    world.read(client, 3, 2);
    const BlockTrace& block = only_block(world);
    EXPECT_EQ(block.dataset_id, test::kDatasetId);
    EXPECT_EQ(block.block, 3u);
    EXPECT_EQ(block.payload_bytes, world.content[3].size());
    EXPECT_EQ(block.epoch, 2u);
    EXPECT_EQ(block.source, BlockSource::memory);
    EXPECT_EQ(block.delivered_ns, block.taken_ns);
    EXPECT_EQ(steps_of(block), std::vector<Step>());
}

TEST_F(Trace, DiskHitShowsItsReadAndCheck) {
    ShardWorld world({.quota = kDisk, .device = {.latency_ns = kLatency_ns}});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    ASSERT_TRUE(start(world, 1));
    world.read(client, 3, 2);
    const BlockTrace& block = only_block(world);
    EXPECT_EQ(block.source, BlockSource::disk);
    EXPECT_EQ(block.delivered_ns, block.taken_ns + kLatency_ns);
    EXPECT_EQ(steps_of(block), (std::vector<Step>{{TraceStep::disk_read, 0, kLatency_ns},
                                                  {TraceStep::check, kLatency_ns, kLatency_ns}}));
}

TEST_F(Trace, DiskReadAboveTheLimitWaitsForItsPlace) {
    ShardWorld world({.quota = kDisk, .device = {.latency_ns = kLatency_ns}, .shard = {.disk_reads_in_flight_max = 1}});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    ASSERT_TRUE(start(world, 2));
    client.fetch(3, 0, 3, 2);
    client.fetch(4, 10, 4, 2);
    world.turns(100);
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_EQ(steps_of(ended[0]->blocks[1]), (std::vector<Step>{{TraceStep::disk_wait, 0, kLatency_ns},
                                                                {TraceStep::disk_read, kLatency_ns, 2 * kLatency_ns},
                                                                {TraceStep::check, 2 * kLatency_ns, 2 * kLatency_ns}}));
}

TEST_F(Trace, MissShowsItsWaitForTokensItsReadAndItsWrite) {
    ShardWorld world({.quota = kDisk, .device = {.latency_ns = kLatency_ns}});
    RingClient& other = world.attach({.session_id = 1, .job = "other"});
    world.read(other, 0);  // makes the segment
    world.turns(100);
    auto bucket = std::make_shared<TokenBucket>();
    bucket->set_limit(1e6, 30'000, world.clock.now_ns());
    bucket->pay(50'000, world.clock.now_ns());
    RingClient& client = world.attach({.session_id = 2, .bucket = bucket});
    world.turns(1);
    ASSERT_TRUE(start(world, 1));
    const std::int64_t asked_ns = world.clock.now_ns();
    const std::int64_t wait_ns = bucket->ready_at_ns(world.content[3].size()) - asked_ns;
    ASSERT_GT(wait_ns, kMillisecond_ns);
    world.read(client, 3);
    const BlockTrace& block = only_block(world);
    EXPECT_EQ(block.taken_ns, asked_ns);
    EXPECT_EQ(block.source, BlockSource::remote);
    EXPECT_EQ(block.admitted, Admitted::disk);
    const std::int64_t read_ns = wait_ns + kRemoteRead_ns;
    EXPECT_EQ(block.delivered_ns, asked_ns + read_ns);
    EXPECT_EQ(steps_of(block), (std::vector<Step>{{TraceStep::token_wait, 0, wait_ns},
                                                  {TraceStep::remote_read, wait_ns, read_ns},
                                                  {TraceStep::check, read_ns, read_ns},
                                                  {TraceStep::disk_write, read_ns, read_ns + kLatency_ns}}));
}

TEST_F(Trace, MissAdmittedToMemorySaysSo) {
    ShardWorld world({.quota = kMemory});
    RingClient& client = world.attach();
    world.turns(1);
    ASSERT_TRUE(start(world, 1));
    world.read(client, 3);
    EXPECT_EQ(only_block(world).admitted, Admitted::memory);
}

TEST_F(Trace, RequestThatJoinsAReadWaitsForTheRestOfIt) {
    ShardWorld world({.device = {.latency_ns = kLatency_ns}});
    RingClient& first = world.attach({.session_id = 1, .job = "first"});
    RingClient& second = world.attach({.session_id = 2});
    world.turns(1);
    ASSERT_TRUE(start(world, 1));
    first.fetch(3, 0, 3);
    world.turns(5);
    const std::int64_t before_ns = world.clock.now_ns();
    ASSERT_TRUE(world.read(second, 3).status == BlockStatus::ok);
    const BlockTrace& block = only_block(world);
    EXPECT_TRUE(block.joined);
    const std::int64_t left_ns = block.delivered_ns - before_ns;
    EXPECT_GT(left_ns, 0);
    EXPECT_LT(left_ns, kRemoteRead_ns);
    EXPECT_EQ(steps_of(block),
              (std::vector<Step>{{TraceStep::remote_read, 0, left_ns}, {TraceStep::check, left_ns, left_ns}}));
}

TEST_F(Trace, FetchShowsItsWaitForSlotMemory) {
    ShardWorld world({.quota = kMemory});
    RingClient& client =
        world.attach({.session_id = 7, .slot_bytes = 64 * kMiB, .populate_slots = [](std::uint64_t) {}});
    world.turns(1);
    ASSERT_TRUE(start(world, 1));
    client.fetch(3, 0, 3);
    world.turns(1);
    const std::int64_t taken_ns = world.clock.now_ns();
    world.turns(9);
    const std::int64_t populated_ns = world.clock.now_ns();
    world.shard->slots_populated(7, 2 * kMiB, true);
    const BlockTrace& block = only_block(world);
    ASSERT_GE(block.span_count, 1u);
    EXPECT_LE(block.taken_ns, taken_ns);
    EXPECT_EQ(steps_of(block)[0], (Step{TraceStep::slot_wait, 0, populated_ns - block.taken_ns}));
    EXPECT_GE(populated_ns - block.taken_ns, 7 * kMillisecond_ns);
}

TEST_F(Trace, BadRecordOnDiskShowsBothReads) {
    ShardWorld world({.quota = kDisk});
    RingClient& client = world.attach();
    world.read_epoch(client, 1);
    for (const std::string& path : world.disk.paths()) {
        if (path.find("segment") != std::string::npos) world.disk.flip_bit(path, (4096 + 300) * 8);
    }
    ASSERT_TRUE(start(world, world.content.size()));
    world.read_epoch(client, 2);
    world.turns(100);
    ASSERT_EQ(ended.size(), 1u);
    std::vector<TraceStep> steps;
    for (const BlockTrace& block : ended[0]->blocks) {
        if (block.source != BlockSource::remote) continue;
        for (const Step& step : steps_of(block)) steps.push_back(step.step);
    }
    EXPECT_EQ(steps, (std::vector{TraceStep::disk_read, TraceStep::check, TraceStep::token_wait, TraceStep::remote_read,
                                  TraceStep::check, TraceStep::disk_write}));
}

TEST_F(Trace, DigestAndCompressionAreSteps) {
    ShardWorld world({.block_bytes_max = 60'000,
                      .quota = kDisk,
                      .shard = {.takes_digests = true},
                      .compression = {CompressionKind::zstd, 3},
                      .compressible = true});
    RingClient& client = world.attach();
    world.turns(1);
    ASSERT_TRUE(start(world, 1));
    std::uint32_t block_index = 0;
    while (world.content[block_index].size() < protocol::kPageBytes) block_index += 2;
    world.read(client, block_index);
    const BlockTrace& block = only_block(world);
    std::vector<TraceStep> steps;
    for (const Step& step : steps_of(block)) {
        steps.push_back(step.step);
        EXPECT_GE(step.ended_ns, step.began_ns);
    }
    EXPECT_EQ(steps, (std::vector{TraceStep::token_wait, TraceStep::remote_read, TraceStep::check, TraceStep::digest,
                                  TraceStep::compress, TraceStep::disk_write}));
    EXPECT_EQ(block.admitted, Admitted::disk);
}

TEST_F(Trace, FailedBlockTellsItsStatus) {
    ShardWorld world({});
    world.disk.unlink(world.path(3));
    RingClient& client = world.attach();
    world.turns(1);
    ASSERT_TRUE(start(world, 1));
    EXPECT_EQ(world.read(client, 3).status, BlockStatus::object_missing);
    const BlockTrace& block = only_block(world);
    EXPECT_EQ(block.status, BlockStatus::object_missing);
    EXPECT_EQ(block.source, BlockSource::none);
}

TEST_F(Trace, RecordingEndsAtItsTimeWithBlocksInMidCourse) {
    ShardWorld world({.device = {.latency_ns = 1000 * kMillisecond_ns}});
    RingClient& client = world.attach();
    world.turns(1);
    ASSERT_TRUE(start(world, 10, 20 * kMillisecond_ns));
    client.fetch(3, 0, 3);
    world.turns(15);
    EXPECT_TRUE(ended.empty());
    world.turns(10);
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_EQ(ended[0]->ended_ns, ended[0]->deadline_ns);
    ASSERT_EQ(ended[0]->count, 1u);
    const BlockTrace& block = ended[0]->blocks[0];
    EXPECT_EQ(block.delivered_ns, 0);
    EXPECT_EQ(steps_of(block), (std::vector<Step>{{TraceStep::token_wait, 0, 0}, {TraceStep::remote_read, 0, -1}}));
    const auto completion = world.completion(client);
    ASSERT_TRUE(completion.has_value());
    EXPECT_EQ(block.delivered_ns, 0) << "nothing is written to a recording that has ended";
}

TEST_F(Trace, FullRecordingEndsOnceItsBlocksDo) {
    ShardWorld world({.quota = kDisk});
    RingClient& client = world.attach();
    world.turns(1);
    ASSERT_TRUE(start(world, 5));
    world.read_epoch(client, 1);
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_EQ(ended[0]->count, 5u);
    for (const BlockTrace& block : ended[0]->blocks) EXPECT_EQ(block.admitted, Admitted::disk);
    ASSERT_TRUE(start(world, 5)) << "the job can be traced again";
    world.read_epoch(client, 2);
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_EQ(ended[1]->blocks[4].source, BlockSource::disk);
}

TEST_F(Trace, JobIsRecordedOnceAtATimeAndJobsIndependently) {
    ShardWorld world({.quota = kMemory});
    RingClient& a = world.attach({.session_id = 1, .job = "a"});
    RingClient& b = world.attach({.session_id = 2, .job = "b"});
    world.turns(1);
    EXPECT_EQ(start(world, 1, kMinute_ns, "c").error().code, ErrorCode::not_found);
    ASSERT_TRUE(start(world, 1, kMinute_ns, "a"));
    EXPECT_EQ(start(world, 1, kMinute_ns, "a").error().code, ErrorCode::already_exists);
    ASSERT_TRUE(start(world, 1, kMinute_ns, "b"));
    world.read(b, 5);
    world.read(a, 6);
    world.turns(2);
    ASSERT_EQ(ended.size(), 2u);
    EXPECT_EQ(ended[0]->job, "b");
    EXPECT_EQ(ended[0]->blocks[0].block, 5u);
    EXPECT_EQ(ended[1]->job, "a");
    EXPECT_EQ(ended[1]->blocks[0].block, 6u);
}

TEST_F(Trace, JobThatEndsInMidTraceLeavesWhatWasRecorded) {
    ShardWorld world({.quota = kMemory});
    RingClient& client = world.attach();
    world.turns(1);
    ASSERT_TRUE(start(world, 10, 50 * kMillisecond_ns));
    world.read(client, 3);
    client.fetch(4, 0, 4);
    client.close_socket();
    world.turns(100);
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_EQ(ended[0]->blocks[0].block, 3u);
    EXPECT_EQ(ended[0]->open, 0u);
}

TEST_F(Trace, StoppedRecordingEndsAtOnce) {
    ShardWorld world({.quota = kMemory});
    world.attach();
    world.turns(1);
    auto recording = std::make_shared<TraceRecording>("job", 5);
    recording->done = [this](const std::shared_ptr<TraceRecording>& done) { ended.push_back(done); };
    ASSERT_TRUE(world.shard->start_trace(recording, kMinute_ns));
    world.shard->stop_trace(*recording);
    world.turns(1);
    EXPECT_EQ(ended.size(), 1u);
}

TEST(Tracer, PartsOfAReadBeginWhereTheRequestJoinedIt) {
    const ManualClock clock(0);
    Tracer tracer(clock);
    auto recording = std::make_shared<TraceRecording>("job", 2);
    ASSERT_TRUE(tracer.start(recording, 1000));
    const RemoteTimes times{.tries = 2,
                            .is_new_connection = true,
                            .first_try_ns = 20,
                            .last_try_ns = 50,
                            .sent_ns = 60,
                            .first_byte_ns = 90,
                            .ended_ns = 100};
    const TraceId whole = tracer.begin(recording->number, {});
    tracer.add_parts(whole, 10, times);
    EXPECT_EQ(steps_of(*tracer.find(whole)), (std::vector<Step>{{TraceStep::transfer_wait, 10, 20},
                                                                {TraceStep::earlier_tries, 20, 50},
                                                                {TraceStep::connect, 50, 60},
                                                                {TraceStep::first_byte, 60, 90},
                                                                {TraceStep::body, 90, 100}}));
    EXPECT_EQ(tracer.find(whole)->tries, 2u);
    const TraceId joined = tracer.begin(recording->number, {});
    tracer.add_parts(joined, 70, times);
    EXPECT_EQ(steps_of(*tracer.find(joined)),
              (std::vector<Step>{{TraceStep::first_byte, 70, 90}, {TraceStep::body, 90, 100}}));
}

TEST(Tracer, SpansAboveTheLimitAreCounted) {
    const ManualClock clock(0);
    Tracer tracer(clock);
    auto recording = std::make_shared<TraceRecording>("job", 1);
    ASSERT_TRUE(tracer.start(recording, 1000));
    const TraceId id = tracer.begin(recording->number, {});
    for (std::size_t i = 0; i < BlockTrace::kSpansMax + 3; ++i) tracer.open(id, TraceStep::token_wait);
    EXPECT_EQ(tracer.find(id)->span_count, BlockTrace::kSpansMax);
    EXPECT_EQ(tracer.find(id)->spans_lost, 3u);
}

}  // namespace
}  // namespace larder::cache
