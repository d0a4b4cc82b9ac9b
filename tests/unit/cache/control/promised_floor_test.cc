// A node takes no more than the allocator counts on before its first lease.

#include "cache/control/promised_floor.h"

#include <gtest/gtest.h>

#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"

namespace larder::cache {
namespace {

TEST(PromisedFloor, NodeThatNeverHadALeaseTakesTheConfiguredFloor) {
    EXPECT_EQ(PromisedFloor(100, std::nullopt).before_first_lease(), 100);
}

TEST(PromisedFloor, RestartedNodeTakesNoMoreThanItWasPromised) {
    EXPECT_EQ(PromisedFloor(100, 30).before_first_lease(), 30);
    EXPECT_EQ(PromisedFloor(100, 300).before_first_lease(), 100);
}

TEST(PromisedFloor, LeaseIsReportedOnceItsPromiseIsSaved) {
    PromisedFloor floor(100, std::nullopt);
    EXPECT_EQ(floor.apply(1, 300), 100);
    EXPECT_EQ(floor.reportable(), 0u);
    EXPECT_EQ(floor.apply(2, 40), 40);
    floor.saved({});
    EXPECT_EQ(floor.reportable(), 0u) << "the lower promise is not on disk";
    floor.saved({});
    EXPECT_EQ(floor.reportable(), 2u);
    EXPECT_EQ(floor.apply(3, 40), std::nullopt);
    EXPECT_EQ(floor.reportable(), 3u);
}

TEST(PromisedFloor, PromiseThatCannotBeSavedIsTriedAgainAtTheNextLease) {
    PromisedFloor floor(100, 100);
    EXPECT_EQ(floor.apply(1, 40), 40);
    floor.saved(fail(ErrorCode::no_space, "the disk is full"));
    EXPECT_EQ(floor.reportable(), 0u);
    EXPECT_EQ(floor.apply(2, 40), 40);
    floor.saved({});
    EXPECT_EQ(floor.reportable(), 2u);
}

TEST(PromisedFloor, FileKeepsItExactly) {
    test::TempDirectory directory;
    const std::string state = directory.path();
    EXPECT_EQ(load_promised_floor(state).value(), std::nullopt);
    for (const double floor : {0.0, 1.0 / 3, 1e300}) {
        ASSERT_TRUE(save_promised_floor(state, floor));
        EXPECT_EQ(load_promised_floor(state).value(), floor);
    }
    for (const char* text : {"", "12", "-1\n", "nan\n", "1 MB\n"}) {
        test::write_file(directory / "promised-floor", text);
        EXPECT_FALSE(load_promised_floor(state)) << text;
    }
}

}  // namespace
}  // namespace larder::cache
