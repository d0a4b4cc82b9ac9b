// A client writes what it should not. Its session is closed, and another's goes on as if nothing had been.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>

#include "tests/unit/cache/shard/shard_fixture.h"

namespace larder::cache {
namespace {

using test::RingClient;
using test::ShardWorld;

struct Breach {
    const char* name;
    std::function<void(ShardWorld&, RingClient&)> commit;
};

class ShardBreach : public testing::TestWithParam<Breach> {};

TEST_P(ShardBreach, ClosesTheSessionAndNoOther) {
    ShardWorld world({.quota = {.memory_bytes = 0, .disk_bytes = 64 * test::kMiB}});
    RingClient& good = world.attach({.session_id = 1});
    RingClient& bad = world.attach({.session_id = 2, .job = "bad"});
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
}

INSTANTIATE_TEST_SUITE_P(
    All, ShardBreach,
    testing::Values(Breach{"block_beyond_the_manifest", [](ShardWorld&, RingClient& bad) { bad.fetch(1'000'000, 0); }},
                    Breach{"slot_beyond_slot_memory", [](ShardWorld&, RingClient& bad) { bad.fetch(2, 1u << 30); }},
                    Breach{"slot_that_ends_beyond_slot_memory",
                           [](ShardWorld& world, RingClient& bad) {
                               std::uint32_t block = 0;
                               while (world.content[block].size() < 9000) ++block;
                               bad.fetch(block, (4u << 20) / 4096 - 1);
                           }},
                    Breach{"slot_still_held",
                           [](ShardWorld& world, RingClient& bad) {
                               bad.fetch(2, 0);
                               world.completion(bad);
                               bad.fetch(3, 0);
                           }},
                    Breach{"slot_released_before_its_fetch_is_complete",
                           [](ShardWorld& world, RingClient& bad) {
                               bad.fetch(2, 0);
                               world.shard->turn(0);
                               bad.release(0);
                           }},
                    Breach{"release_of_what_is_not_held", [](ShardWorld&, RingClient& bad) { bad.release(17); }},
                    Breach{"release_beyond_slot_memory", [](ShardWorld&, RingClient& bad) { bad.release(0xffffffff); }},
                    Breach{"unknown_operation",
                           [](ShardWorld&, RingClient& bad) {
                               protocol::Request request{};
                               request.operation = static_cast<protocol::RequestOperation>(77);
                               bad.submit(request);
                           }},
                    Breach{"request_ring_overrun",
                           [](ShardWorld&, RingClient& bad) {
                               bad.fetch(0, 0);
                               bad.control().request_tail.fetch_add(100'000);
                           }},
                    Breach{"completion_index_out_of_range",
                           [](ShardWorld&, RingClient& bad) {
                               bad.control().completion_head.fetch_add(5000);
                               bad.fetch(0, 0);
                           }},
                    Breach{"more_fetches_than_entries",
                           [](ShardWorld& world, RingClient& bad) {
                               for (std::uint32_t i = 0; i < 257; ++i) {
                                   bad.fetch(0, 3 * i + 3, i);
                                   if (i % 64 == 63) world.shard->turn(0);
                               }
                           }},
                    Breach{"garbage_on_the_socket",
                           [](ShardWorld&, RingClient& bad) { ::send(bad.socket(), "garbage", 7, MSG_NOSIGNAL); }},
                    Breach{"unmapping_what_was_not_dropped", [](ShardWorld&, RingClient& bad) { bad.unmap(1); }}),
    [](const testing::TestParamInfo<Breach>& breach) { return std::string(breach.param.name); });

}  // namespace
}  // namespace larder::cache
