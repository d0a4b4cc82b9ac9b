#include <gmock/gmock.h>

#include "scheduler/live/queue_api.h"
#include "tests/unit/scheduler/live/live_fixture.h"

namespace larder::scheduler {
namespace {

using ::testing::HasSubstr;

TEST_F(Live, MetricsCountJobsAndTheirGpus) {
    submit_and_start(job_with_gpus(3));
    submit_and_start(job_with_gpus(1));
    Submission of_small = job_with_gpus(2);
    of_small.tenant = "small";
    submit_and_start(of_small);
    submit(job_with_gpus(4));
    tick();
    const std::string metrics = queue_metrics(*live);
    EXPECT_THAT(metrics, HasSubstr("larder_queue_jobs{state=\"running\"} 3\n"));
    EXPECT_THAT(metrics, HasSubstr("larder_queue_jobs{state=\"waiting\"} 1\n"));
    EXPECT_THAT(metrics, HasSubstr("larder_queue_gpus{tenant=\"default\"} 4\n"));
    EXPECT_THAT(metrics, HasSubstr("larder_queue_gpus{tenant=\"small\"} 2\n"));
    EXPECT_THAT(metrics, HasSubstr("larder_queue_submitted_total 4\n"));
    EXPECT_THAT(metrics, HasSubstr("larder_queue_starts_total 3\n"));
}

TEST_F(Live, MetricsCountAttemptsThatWereLostOrPreempted) {
    use_shortest_first();
    const JobId first = submit_and_start(job_reading_images("slow", 1000));
    engine.tell(EngineEvent::Kind::lost, {first, 1});
    tick();
    EXPECT_THAT(queue_metrics(*live), HasSubstr("larder_queue_lost_total 1\n"));
    EngineEvent stopped_by_operator{.kind = EngineEvent::Kind::lost, .job = first, .attempt = 2};
    stopped_by_operator.was_stopping = true;
    engine.tell(stopped_by_operator);
    tick();
    EXPECT_THAT(queue_metrics(*live), HasSubstr("larder_queue_lost_total 2\n"));
    engine.tell(EngineEvent::Kind::started, {first, 3});
    tick();
    const JobId second = submit(job_reading_images("quick", 1));
    tick();
    engine.tell_ended({first, 3}, 0, true);
    tick();
    EXPECT_THAT(queue_metrics(*live), HasSubstr("larder_queue_preemptions_total 1\n"));
    engine.tell_ended({second, 1}, 0);
    tick();
    EXPECT_THAT(queue_metrics(*live), HasSubstr("larder_queue_ended_total{state=\"succeeded\"} 1\n"));
}

}  // namespace
}  // namespace larder::scheduler
