#include "loader/loop_wait.h"

#include <gtest/gtest.h>

namespace larder::detail {
namespace {

constexpr std::int64_t kSlot_ns = std::int64_t{1} << protocol::TakeLog::kSlotBits;

TEST(LoopWait, BusyIsTheTimeBetweenReportsLessWaits) {
    LoopWait wait;
    EXPECT_EQ(wait.report(1000).busy_ns, 0) << "time before the first report does not count";
    wait.begin(1300);
    const LoopWait::Taken taken = wait.end(1500);
    EXPECT_EQ(taken.end_ns - taken.begin_ns, 200);
    const LoopWait::Report report = wait.report(2000);
    EXPECT_EQ(report.busy_ns, 800);
    EXPECT_EQ(report.stall_ns, 200);
    EXPECT_EQ(report.training_loops, 1U);
}

TEST(LoopWait, OngoingWaitIsNotBusy) {
    LoopWait wait;
    (void)wait.report(1000);
    wait.begin(1100);
    wait.begin(1200);
    const LoopWait::Report report = wait.report(5000);
    EXPECT_EQ(report.busy_ns, 100);
    EXPECT_EQ(report.waiting_since_ns, 1100);
    EXPECT_EQ(report.stall_ns, 0);
}

TEST(LoopWait, NewSessionResetsBusyTime) {
    LoopWait wait;
    (void)wait.report(1000);
    wait.begin(1500);
    wait.begin_session();
    EXPECT_EQ(wait.report(2000).busy_ns, 0);
    const LoopWait::Taken taken = wait.end(2500);
    EXPECT_EQ(taken.end_ns - taken.begin_ns, 1000);
    const LoopWait::Report report = wait.report(3000);
    EXPECT_EQ(report.busy_ns, 500);
    EXPECT_EQ(report.stall_ns, 1000);
}

TEST(LoopWait, FollowedLoopIsBusySinceTheLastReport) {
    auto loop = std::make_shared<TrainingLoopWait>();
    LoopWait wait;
    loop->waited_ns = 70;
    loop->waiting_since_ns = 900;
    wait.follow(loop);
    EXPECT_EQ(wait.report(1000).busy_ns, 0) << "the loop is waiting";
    loop->waited_ns = 370;  // a wait until 1200
    loop->waiting_since_ns = 0;
    EXPECT_EQ(wait.report(1500).busy_ns, 300);
    // The loop works until 2000, then waits. A late report finds the same busy time as a timely one.
    loop->waiting_since_ns = 2000;
    EXPECT_EQ(wait.report(9000).busy_ns, 800);
}

TEST(LoopWait, WaitEndingDuringAReportIsNotCountedAsBusy) {
    auto loop = std::make_shared<TrainingLoopWait>();
    LoopWait wait;
    wait.follow(loop);
    (void)wait.report(1000);
    loop->waiting_since_ns = 1200;
    loop->waited_ns = 800;  // the wait ended at 2000, but waiting_since_ns is still set
    EXPECT_EQ(wait.report(2000).busy_ns, 0);
    loop->waiting_since_ns = 0;
    EXPECT_EQ(wait.report(2000).busy_ns, 200);
}

TEST(LoopWait, BatchThatWasThereIsTakenAfterNoWait) {
    LoopWait wait;
    const LoopWait::Taken taken = wait.end(1500);
    EXPECT_EQ(taken.begin_ns, 1500);
    EXPECT_EQ(taken.end_ns, 1500);
    EXPECT_EQ(wait.stall_ns(), 0);
}

TEST(LoopWait, FollowedLoopsTakesAreCopiedToEachSession) {
    auto loop = std::make_shared<TrainingLoop>();
    LoopWait wait;
    wait.follow({loop, &loop->wait}, {loop, &loop->takes});
    loop->begin_wait(kSlot_ns);
    loop->end_wait(100);
    protocol::TakeLog first{};
    wait.copy_takes(first);
    loop->begin_wait(kSlot_ns + 500);  // in the same slot
    loop->end_wait(120);
    loop->begin_wait(2 * kSlot_ns);
    loop->end_wait(150);
    loop->end_wait(150);  // no wait has begun
    wait.copy_takes(first);
    wait.begin_session();
    protocol::TakeLog second{};
    wait.copy_takes(second);
    for (const protocol::TakeLog* log : {&first, &second}) {
        EXPECT_EQ(log->count, 2U);
        EXPECT_EQ(log->entries[0].begin_ns, kSlot_ns);
        EXPECT_EQ(log->entries[0].end_ns, kSlot_ns + 120);
        EXPECT_EQ(log->entries[1].begin_ns, 2 * kSlot_ns);
        EXPECT_EQ(log->entries[1].end_ns, 2 * kSlot_ns + 30);
    }
    EXPECT_EQ(wait.report(3 * kSlot_ns).loop_is_elsewhere, true);
}

TEST(LoopWait, WithoutALoopNothingIsReported) {
    LoopWait wait;
    wait.follow(nullptr);
    wait.begin(1000);
    (void)wait.end(2000);
    const LoopWait::Report report = wait.report(3000);
    EXPECT_EQ(report.training_loops, 0U);
    EXPECT_EQ(report.busy_ns, 0);
    EXPECT_EQ(report.stall_ns, 0);
}

}  // namespace
}  // namespace larder::detail
