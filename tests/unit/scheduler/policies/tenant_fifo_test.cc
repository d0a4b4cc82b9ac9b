#include <gmock/gmock.h>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::ElementsAre;

TEST(TenantFifo, WaitingJobBlocksOnlyItsOwnTenant) {
    tests::World world(1);
    world.tenants.push_back({.name = "two"});
    world.add(6);
    world.add(4);             // waits for GPUs
    world.add(1);             // waits behind job 1
    world.add(1).tenant = 1;  // another queue
    const auto policy = std::move(*make_policy("tenant-fifo", {}));
    ASSERT_TRUE(world.step(*policy));
    EXPECT_THAT(world.running(), ElementsAre(0, 3));
    EXPECT_EQ(world.waits[1], WaitsFor::gpus);
    EXPECT_EQ(world.waits[2], WaitsFor::turn);
}

TEST(TenantFifo, LongQueueTakesNothingFromOtherTenants) {
    tests::World world(2);
    world.tenants.push_back({.name = "two"});
    world.add(12);
    for (int i = 0; i < 10; ++i) world.add(8);
    world.add(4).tenant = 1;
    const auto policy = std::move(*make_policy("tenant-fifo", {}));
    ASSERT_TRUE(world.step(*policy));
    EXPECT_THAT(world.running(), ElementsAre(0, 11));
}

}  // namespace
}  // namespace larder::scheduler
