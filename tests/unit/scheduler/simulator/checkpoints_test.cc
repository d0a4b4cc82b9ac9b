#include "scheduler/simulator/checkpoints.h"

#include <gtest/gtest.h>

#include <vector>

namespace larder::scheduler {
namespace {

using Jobs = std::vector<std::uint32_t>;

TEST(Checkpoints, TransfersShareTheBandwidth) {
    Checkpoints checkpoints({.bytes_per_second = 100, .interval_s = 60}, 2);
    EXPECT_EQ(checkpoints.next_s(5), kNever);
    checkpoints.begin_transfer(0, 1000);
    EXPECT_DOUBLE_EQ(checkpoints.next_s(5), 15);
    checkpoints.begin_transfer(1, 500);
    EXPECT_DOUBLE_EQ(checkpoints.next_s(5), 15);
    EXPECT_EQ(checkpoints.advance(10), Jobs{1});
    EXPECT_DOUBLE_EQ(checkpoints.next_s(15), 20);
    EXPECT_EQ(checkpoints.advance(5), Jobs{0});
    EXPECT_EQ(checkpoints.next_s(20), kNever);
}

TEST(Checkpoints, RunningJobWritesOneEveryInterval) {
    Checkpoints checkpoints({.bytes_per_second = 100, .interval_s = 60}, 1);
    checkpoints.note_start(0, 1000, 9000, 5);
    EXPECT_DOUBLE_EQ(checkpoints.next_s(5), 65);
    EXPECT_EQ(checkpoints.due(64), Jobs{});
    EXPECT_EQ(checkpoints.due(65), Jobs{0});
    checkpoints.write(0, 8000, 65);
    EXPECT_DOUBLE_EQ(checkpoints.remaining_bytes(0), 9000) << "an unfinished checkpoint does not count";
    EXPECT_DOUBLE_EQ(checkpoints.next_s(65), 75);
    EXPECT_EQ(checkpoints.advance(10), Jobs{}) << "no job waited for the transfer";
    EXPECT_DOUBLE_EQ(checkpoints.remaining_bytes(0), 8000);
    EXPECT_DOUBLE_EQ(checkpoints.next_s(75), 125);
    checkpoints.note_stop(0);
    EXPECT_EQ(checkpoints.next_s(75), kNever);
}

TEST(Checkpoints, OneIsWrittenAtATime) {
    Checkpoints checkpoints({.bytes_per_second = 10, .interval_s = 60}, 1);
    checkpoints.note_start(0, 1000, 9000, 0);
    checkpoints.write(0, 8000, 60);
    EXPECT_TRUE(checkpoints.advance(60).empty());
    EXPECT_EQ(checkpoints.due(120), Jobs{0});
    checkpoints.write(0, 7000, 120);
    EXPECT_DOUBLE_EQ(checkpoints.next_s(120), 160);
    EXPECT_TRUE(checkpoints.advance(40).empty());
    EXPECT_DOUBLE_EQ(checkpoints.remaining_bytes(0), 8000);
    EXPECT_DOUBLE_EQ(checkpoints.next_s(160), 180);
}

TEST(Checkpoints, TransferLateInTheRunStillEnds) {
    for (const double bytes : {1e-6, 1.0, 1e9 / 3, 1e13 / 7}) {
        Checkpoints checkpoints({.bytes_per_second = 1e10, .interval_s = 60}, 1);
        checkpoints.begin_transfer(0, bytes);
        double now_s = 3e7 + 1.0 / 3;
        Jobs done;
        for (int events = 0; events < 3 && done.empty(); ++events) {
            const double next_s = checkpoints.next_s(now_s);
            ASSERT_GT(next_s, now_s) << "time stands still for " << bytes << " bytes";
            done = checkpoints.advance(next_s - now_s);
            now_s = next_s;
        }
        EXPECT_EQ(done, Jobs{0}) << bytes << " bytes";
    }
}

TEST(Checkpoints, TakeNoTimeWithoutBandwidthBound) {
    Checkpoints checkpoints({.bytes_per_second = kNever, .interval_s = 60}, 1);
    EXPECT_FALSE(checkpoints.take_time(1000));
    checkpoints.note_start(0, 1000, 9000, 0);
    EXPECT_EQ(checkpoints.next_s(0), kNever);
}

TEST(Checkpoints, AreNotedWithoutBandwidthBoundIfJobsMayBeLost) {
    Checkpoints checkpoints({.interval_s = 60, .jobs_may_be_lost = true}, 1);
    const auto left = [](std::uint32_t, double at_s) { return 9000 - at_s; };
    checkpoints.note_start(0, 1000, 9000, 0);
    EXPECT_EQ(checkpoints.next_s(0), kNever) << "noting checkpoints needs no event";
    checkpoints.note_instant(59, left);
    EXPECT_DOUBLE_EQ(checkpoints.remaining_bytes(0), 9000);
    checkpoints.note_instant(200, left);
    EXPECT_DOUBLE_EQ(checkpoints.remaining_bytes(0), 9000 - 180);
    checkpoints.note_instant(240, left);
    EXPECT_DOUBLE_EQ(checkpoints.remaining_bytes(0), 9000 - 240);
    checkpoints.note_stop(0);
    checkpoints.note_instant(400, left);
    EXPECT_DOUBLE_EQ(checkpoints.remaining_bytes(0), 9000 - 240);
}

}  // namespace
}  // namespace larder::scheduler
