// Jobs that take turns: what the allocator is told about jobs that are not running now.

#include <gtest/gtest.h>

#include "scheduler/live/storage_view.h"
#include "tests/unit/scheduler/live/live_fixture.h"

namespace larder::scheduler {
namespace {

TEST_F(Live, JobWaitingForItsTurnKeepsItsCache) {
    use_shortest_first();
    const JobId first = submit_and_start(job_reading_images("slow", 1000));
    report("slow", 5'000);
    tick();
    const JobId second = submit(job_reading_images("quick", 1));
    tick();
    engine.tell_ended({first, 1}, 0, true);
    tick();
    ASSERT_EQ(phase(first), Phase::waiting);
    // Returns the f* of "slow" if it waits for its turn.
    const auto waiting_rate = [&] {
        for (const allocator::ClusterJob& job : cluster.state(now().steady_ns).jobs) {
            if (job.name == "slow" && job.waits_for_turn()) return job.ideal_bytes_per_second;
        }
        return 0.0;
    };
    EXPECT_EQ(waiting_rate(), 5e5);
    report("slow", 5'000);
    EXPECT_EQ(waiting_rate(), 5e5) << "its node still reports the job, which has read nothing since";
    const std::vector<allocator::ClusterJob>& planned = cluster.planned_state().jobs;
    const auto slow = std::ranges::find(planned, "slow", &allocator::ClusterJob::name);
    ASSERT_NE(slow, planned.end());
    EXPECT_FALSE(cluster.plan().jobs[static_cast<std::size_t>(slow - planned.begin())].running);
    report("quick", 0);
    EXPECT_EQ(waiting_rate(), 5e5);
    EXPECT_FALSE(storage_view(cluster, now().steady_ns).jobs.contains("slow")) << "a waiting job has no rate";
    cluster.set_turns({});  // as in a new process
    restart();
    EXPECT_EQ(waiting_rate(), 5e5) << "the record says where it ran, even before the first plan";
    tick();
    EXPECT_EQ(waiting_rate(), 5e5);
    ASSERT_TRUE(cancel(first, "its owner"));
    tick();
    EXPECT_EQ(waiting_rate(), 0);
    EXPECT_EQ(phase(second), Phase::starting);
}

TEST_F(Live, JobWithGpusButNoReportKeepsItsCache) {
    use_shortest_first();
    const JobId id = submit(job_reading_images("slow", 1000));
    tick();
    tick(20);
    ASSERT_EQ(phase(id), Phase::starting);
    // Returns the f* of the only job if it waits for its turn.
    const auto waiting_rate = [&] {
        const allocator::ClusterState state = cluster.state(now().steady_ns);
        return state.jobs.size() == 1 && state.jobs[0].waits_for_turn() ? state.jobs[0].ideal_bytes_per_second : 0.0;
    };
    report("", 0);
    EXPECT_EQ(waiting_rate(), 5e5) << "its process starts up";
    engine.tell(EngineEvent::Kind::started, {id, 1});
    report("slow", 5'000);
    tick();
    EXPECT_EQ(waiting_rate(), 0) << "a node's report takes precedence";
    (void)submit(job_reading_images("quick", 1));
    tick();
    ASSERT_EQ(phase(id), Phase::stopping);
    tick(20);
    report("", 0);
    EXPECT_EQ(waiting_rate(), 5e5) << "its loaders have ended, but its process has not";
}

}  // namespace
}  // namespace larder::scheduler
