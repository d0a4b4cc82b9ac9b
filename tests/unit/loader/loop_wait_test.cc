#include "loader/loop_wait.h"

#include <gtest/gtest.h>

namespace larder::detail {
namespace {

TEST(LoopWait, BusyIsTheTimeBetweenReportsLessWaits) {
    LoopWait wait;
    EXPECT_EQ(wait.report(1000).busy_ns, 0) << "time before the first report does not count";
    wait.begin(1300);
    EXPECT_EQ(wait.end(1500), 200);
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
    EXPECT_EQ(wait.end(2500), 1000);
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
