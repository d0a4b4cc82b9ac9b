// Jobs that take turns: what the allocator is told about jobs that are not running now.

#include <gtest/gtest.h>

#include "scheduler/live/storage_view.h"
#include "tests/unit/scheduler/live/live_fixture.h"

namespace larder::scheduler {
namespace {

TEST_F(Live, JobWaitingForItsTurnKeepsItsCache) {
    shortest_first();
    const JobId first = submit_and_start(reads_images("slow", 1000));
    report("slow", 5'000);
    tick();
    const JobId second = submit(reads_images("quick", 1));
    tick();
    engine.tell_ended({first, 1}, 0, true);
    tick();
    ASSERT_EQ(phase(first), Phase::waiting);
    const auto waiting = [&] {
        for (const allocator::ClusterJob& job : cluster.state(now().steady_ns).jobs) {
            if (job.name == "slow" && job.waits_for_turn()) return job.ideal_bytes_per_second;
        }
        return 0.0;
    };
    EXPECT_EQ(waiting(), 0) << "the node still reports that it runs";
    report("quick", 0);
    EXPECT_EQ(waiting(), 5e5);
    EXPECT_FALSE(storage_view(cluster, now().steady_ns).jobs.contains("slow")) << "it has no rate";
    cluster.set_turns({});  // as in a new process
    restart();
    EXPECT_EQ(waiting(), 5e5) << "where it ran is on record, and known before the first plan";
    tick();
    EXPECT_EQ(waiting(), 5e5);
    ASSERT_TRUE(cancel(first, "its owner"));
    tick();
    EXPECT_EQ(waiting(), 0);
    EXPECT_EQ(phase(second), Phase::starting);
}

TEST_F(Live, JobWithGpusButNoReportKeepsItsCache) {
    shortest_first();
    const JobId id = submit(reads_images("slow", 1000));
    tick();
    tick(20);
    ASSERT_EQ(phase(id), Phase::starting);
    const auto counted = [&] {
        const allocator::ClusterState state = cluster.state(now().steady_ns);
        return state.jobs.size() == 1 && state.jobs[0].waits_for_turn() ? state.jobs[0].ideal_bytes_per_second : 0.0;
    };
    report("", 0);
    EXPECT_EQ(counted(), 5e5) << "its process starts up";
    engine.tell(EngineEvent::Kind::started, {id, 1});
    report("slow", 5'000);
    tick();
    EXPECT_EQ(counted(), 0) << "what a node reports counts";
    (void)submit(reads_images("quick", 1));
    tick();
    ASSERT_EQ(phase(id), Phase::stopping);
    tick(20);
    report("", 0);
    EXPECT_EQ(counted(), 5e5) << "its loaders are gone, its process is not";
}

}  // namespace
}  // namespace larder::scheduler
