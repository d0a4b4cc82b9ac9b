// A client breaks the protocol. The shard closes its session, the log says why, and other sessions are unaffected.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>

#include "tests/support/lingering_socket.h"
#include "tests/support/log_file.h"
#include "tests/unit/cache/shard/shard_fixture.h"

namespace larder::cache {
namespace {

using test::RingClient;
using test::ShardWorld;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Breach {
    const char* name;
    const char* reason;  // part of the log line
    std::function<void(ShardWorld&, RingClient&)> commit;
};

class ShardBreach : public testing::TestWithParam<Breach> {};

TEST_P(ShardBreach, ClosesOnlyTheOffendingSession) {
    ShardWorld world({.quota = {.memory_bytes = 0, .disk_bytes = 64 * test::kMiB}});
    RingClient& good = world.attach({.session_id = 1});
    RingClient& bad = world.attach({.session_id = 2, .job = "bad", .pid = 4711, .uid = 1234});
    const test::LogFile log(LogLevel::warn);
    world.read(good, 0);
    world.read(bad, 1);
    GetParam().commit(world, bad);
    world.turns(20);
    EXPECT_TRUE(bad.hung_up());
    EXPECT_EQ(world.shard->statistics().protocol_violations, 1u);
    for (std::uint32_t block = 0; block < world.content.size(); ++block) {
        EXPECT_EQ(world.read(good, block).bytes, world.content[block]);
    }
    world.turns(50);
    EXPECT_EQ(world.dataset().sessions, 1u);
    EXPECT_THAT(log.lines(), ElementsAre(AllOf(HasSubstr(GetParam().reason),
                                               HasSubstr("session=2 dataset=data job=bad pid=4711 uid=1234"))));
}

TEST(ShardBreachLog, KeepingADroppedSegmentIsLoggedAsABreach) {
    ShardWorld world({.quota = {.memory_bytes = 4 * test::kMiB}});
    RingClient& client = world.attach({.job = "keeper"});
    world.read_epoch(client, 1);
    world.read(client, 3, 2);
    const test::LogFile log(LogLevel::warn);
    world.shard->set_quota(test::kDatasetId, {});
    world.clock.advance_ns(11'000 * test::kMillisecond_ns);
    world.turns(5);
    client.read_messages();
    EXPECT_TRUE(client.hung_up());
    EXPECT_EQ(world.shard->statistics().protocol_violations, 1u);
    EXPECT_THAT(log.lines(), ElementsAre(AllOf(HasSubstr("not unmapped in time"), HasSubstr("job=keeper"))));
}

TEST(ShardBreachLog, ClientDeathBeforeReceivingASegmentIsNoBreach) {
    ShardWorld world({.quota = {.memory_bytes = 4 * test::kMiB}});
    RingClient& other = world.attach({.session_id = 1});
    world.read_epoch(other, 1);
    RingClient& dying = world.attach({.session_id = 2, .job = "dying"});
    const test::LogFile log(LogLevel::warn);
    dying.fetch(0, 0);
    dying.fetch(1, 6);
    dying.close_socket();
    world.turns(20);
    EXPECT_EQ(world.dataset().sessions, 1u);
    EXPECT_EQ(world.shard->statistics().protocol_violations, 0u);
    EXPECT_THAT(log.lines(), IsEmpty());
}

TEST(ShardBreachLog, AllBreachesAreCountedButLoggingIsRateLimited) {
    ShardWorld world({});
    const test::LogFile log(LogLevel::warn);
    const auto break_protocol = [&](int times) {
        for (int i = 0; i < times; ++i) world.attach().release(17);
        world.turns(2);
    };
    break_protocol(50);
    EXPECT_EQ(world.shard->statistics().protocol_violations, 50u);
    EXPECT_EQ(log.lines().size(), 10u);
    world.clock.advance_ns(1'000 * test::kMillisecond_ns);
    break_protocol(3);
    EXPECT_EQ(log.lines().size(), 13u);
}

INSTANTIATE_TEST_SUITE_P(
    All, ShardBreach,
    testing::Values(Breach{"block_beyond_the_manifest", "fetch of block 1000000 beyond the manifest",
                           [](ShardWorld&, RingClient& bad) { bad.fetch(1'000'000, 0); }},
                    Breach{"slot_beyond_slot_memory", "outside slot memory",
                           [](ShardWorld&, RingClient& bad) { bad.fetch(2, 1u << 30); }},
                    Breach{"slot_that_ends_beyond_slot_memory", "outside slot memory",
                           [](ShardWorld& world, RingClient& bad) {
                               std::uint32_t block = 0;
                               while (world.content[block].size() < 9000) ++block;
                               bad.fetch(block, (4u << 20) / 4096 - 1);
                           }},
                    Breach{"slot_still_held", "still held",
                           [](ShardWorld& world, RingClient& bad) {
                               bad.fetch(2, 0);
                               world.completion(bad);
                               bad.fetch(3, 0);
                           }},
                    Breach{"later_page_of_a_slot_still_held", "still held",
                           [](ShardWorld& world, RingClient& bad) {
                               std::uint32_t block = 0;
                               while (world.content[block].size() < 9000) ++block;
                               bad.fetch(block, 63);
                               world.completion(bad);
                               bad.fetch(3, 65);
                           }},
                    Breach{"slot_released_before_its_fetch_is_complete", "release of slot page 0",
                           [](ShardWorld& world, RingClient& bad) {
                               bad.fetch(2, 0);
                               world.shard->turn(0);
                               bad.release(0);
                           }},
                    Breach{"release_of_a_page_not_held", "release of slot page 17, which is not held",
                           [](ShardWorld&, RingClient& bad) { bad.release(17); }},
                    Breach{"release_beyond_slot_memory", "release of slot page 4294967295",
                           [](ShardWorld&, RingClient& bad) { bad.release(0xffffffff); }},
                    Breach{"unknown_operation", "unknown request operation",
                           [](ShardWorld&, RingClient& bad) {
                               protocol::Request request{};
                               request.operation = static_cast<protocol::RequestOperation>(77);
                               bad.submit(request);
                           }},
                    Breach{"request_ring_overrun", "request ring overrun",
                           [](ShardWorld&, RingClient& bad) {
                               bad.fetch(0, 0);
                               bad.control().request_tail.fetch_add(100'000);
                           }},
                    Breach{"completion_index_out_of_range", "completion ring index out of range",
                           [](ShardWorld&, RingClient& bad) {
                               bad.control().completion_head.fetch_add(5000);
                               bad.fetch(0, 0);
                           }},
                    Breach{"more_fetches_than_entries", "more fetches in flight",
                           [](ShardWorld& world, RingClient& bad) {
                               for (std::uint32_t i = 0; i < 257; ++i) {
                                   bad.fetch(0, 3 * i + 3, i);
                                   if (i % 64 == 63) world.shard->turn(0);
                               }
                           }},
                    Breach{"garbage_on_the_socket", "unexpected message",
                           [](ShardWorld&, RingClient& bad) { ::send(bad.socket(), "garbage", 7, MSG_NOSIGNAL); }},
                    Breach{"descriptors_on_the_socket", "descriptors on the session socket",
                           [](ShardWorld&, RingClient& bad) {
                               EXPECT_EQ(test::send_descriptor(bad.socket(), FileDescriptor(::dup(bad.socket()))), 0);
                           }},
                    Breach{"unmapping_a_segment_not_dropped", "unexpected message",
                           [](ShardWorld&, RingClient& bad) { bad.unmap(1); }}),
    [](const testing::TestParamInfo<Breach>& breach) { return std::string(breach.param.name); });

}  // namespace
}  // namespace larder::cache
