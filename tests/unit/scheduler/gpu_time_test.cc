#include "scheduler/gpu_time.h"

#include <gmock/gmock.h>

namespace larder::scheduler {
namespace {

using testing::ElementsAre;

constexpr TimeWindow kWindow{.interval_s = 100, .intervals = 3};

TEST(GpuTime, IsSplitOverTheIntervalsItFallsInto) {
    GpuTime time;
    time.add(150, 320, 2, kWindow);
    EXPECT_EQ(time.interval, 3);
    EXPECT_THAT(time.gpu_s_by_interval, ElementsAre(100, 200, 40));
    EXPECT_EQ(time.sum(320, kWindow), 340);
    EXPECT_EQ(time.sum(400, kWindow), 240);
    EXPECT_EQ(time.sum(10'000, kWindow), 0);
    time.add(510, 520, 1, kWindow);
    EXPECT_THAT(time.gpu_s_by_interval, ElementsAre(40, 0, 10)) << "older GPU time is forgotten";
}

TEST(GpuTime, LongSpanKeepsOnlyTheWindow) {
    GpuTime time;
    time.add(0, 1e6 + 50, 1, kWindow);
    EXPECT_THAT(time.gpu_s_by_interval, ElementsAre(100, 100, 50));
    time.add(2e6, 2e6 + 10, 1, kWindow);
    EXPECT_EQ(time.sum(2e6 + 10, kWindow), 10);
}

TEST(GpuTime, ClockSetBackLosesNothing) {
    GpuTime time;
    time.add(500, 550, 1, kWindow);
    time.add(420, 440, 1, kWindow);
    EXPECT_EQ(time.interval, 5);
    EXPECT_EQ(time.sum(550, kWindow), 70);
    time.add(0, 10, 1, kWindow);
    EXPECT_EQ(time.sum(550, kWindow), 70) << "older than the window";
    time.add(550, 540, 1, kWindow);
    EXPECT_EQ(time.sum(550, kWindow), 70) << "time that ran backwards";
}

TEST(GpuTime, SumsToWhatWasAdded) {
    const TimeWindow window{.interval_s = 3600, .intervals = 24};
    GpuTime time;
    for (int i = 0; i < 100; ++i) time.add(i * 777.7, (i + 1) * 777.7, 8, window);
    EXPECT_NEAR(time.sum(100 * 777.7, window), 100 * 777.7 * 8, 1e-6);
    EXPECT_LE(time.gpu_s_by_interval.size(), 24u);
}

}  // namespace
}  // namespace larder::scheduler
