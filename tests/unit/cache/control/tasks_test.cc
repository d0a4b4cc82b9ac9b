#include "cache/control/tasks.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <future>
#include <latch>
#include <memory>
#include <mutex>

namespace larder::cache {
namespace {

// Stands in for the control thread. The test runs the posted work.
class ControlQueue {
public:
    void post(std::function<void()> work) {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(work));
        posted_.notify_one();
    }
    void run_one() {
        std::unique_lock lock(mutex_);
        posted_.wait(lock, [this] { return !queue_.empty(); });
        auto work = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        work();
    }

private:
    std::mutex mutex_;
    std::condition_variable posted_;
    std::deque<std::function<void()>> queue_;
};

class TasksTest : public testing::Test {
protected:
    std::uint64_t start(std::function<Tasks::Outcome(TaskProgress&, std::stop_token)> run,
                        std::function<void(Tasks::Outcome, std::function<void(Tasks::Outcome)>)> finish = {}) {
        auto id = tasks.start(
            {.kind = "index", .dataset = "d", .unit = "objects", .run = std::move(run), .finish = std::move(finish)});
        EXPECT_TRUE(id.has_value());
        return *id;
    }

    static Tasks::Outcome wait_for_stop(TaskProgress&, const std::stop_token& stop) {
        std::mutex mutex;
        std::condition_variable_any stopped;
        std::unique_lock lock(mutex);
        stopped.wait(lock, stop, [] { return false; });
        return fail(ErrorCode::cancelled, "cancelled");
    }

    ManualClock clock;
    ControlQueue control;
    Tasks tasks{clock, [this](std::function<void()> work) { control.post(std::move(work)); }};
};

// As of a task that reads from a mount that hangs.
TEST_F(TasksTest, TaskThatDoesNotEndIsLeftBehind) {
    auto hung = std::make_shared<std::latch>(1);
    auto ended = std::make_shared<std::promise<bool>>();
    std::future<bool> was_stopped = ended->get_future();
    start([hung, ended](TaskProgress& progress, const std::stop_token& stop) -> Tasks::Outcome {
        hung->wait();
        progress.done = 1;
        ended->set_value(stop.stop_requested());
        return "{}";
    });
    tasks.stop(1'000'000);
    hung->count_down();
    EXPECT_TRUE(was_stopped.get());
}

TEST_F(TasksTest, RunningTaskReportsProgress) {
    std::latch half_done(1);
    std::latch go_on(1);
    const auto id = start([&](TaskProgress& progress, std::stop_token) -> Tasks::Outcome {
        progress.total = 4;
        progress.done = 2;
        progress.bytes_done = 77;
        half_done.count_down();
        go_on.wait();
        return "{}";
    });
    half_done.wait();
    clock.advance_ns(3'000'000'000);
    auto view = tasks.view(id);
    EXPECT_EQ(view->state, TaskState::running);
    EXPECT_EQ(view->done, 2u);
    EXPECT_EQ(view->total, 4u);
    EXPECT_EQ(view->bytes_done, 77u);
    EXPECT_DOUBLE_EQ(view->seconds, 3);
    go_on.count_down();
    control.run_one();
    clock.advance_ns(1'000'000'000);
    view = tasks.view(id);
    EXPECT_EQ(view->state, TaskState::done);
    EXPECT_EQ(view->result, "{}");
    EXPECT_DOUBLE_EQ(view->seconds, 3);
}

TEST_F(TasksTest, TaskIsDoneOnlyAfterTheControlThreadFinishesIt) {
    std::function<void(Tasks::Outcome)> settle;
    const auto id = start([](TaskProgress&, std::stop_token) -> Tasks::Outcome { return "1"; },
                          [&](Tasks::Outcome outcome, std::function<void(Tasks::Outcome)> settle_task) {
                              EXPECT_EQ(outcome.value(), "1");
                              settle = std::move(settle_task);
                          });
    control.run_one();
    EXPECT_EQ(tasks.view(id)->state, TaskState::running);
    settle(fail(ErrorCode::no_space, "no room"));
    EXPECT_EQ(tasks.view(id)->state, TaskState::failed);
    EXPECT_EQ(tasks.view(id)->error->message, "no room");
}

TEST_F(TasksTest, RunningTaskCanBeCancelled) {
    const auto id = start(wait_for_stop);
    EXPECT_TRUE(tasks.cancel(id));
    control.run_one();
    EXPECT_EQ(tasks.view(id)->state, TaskState::cancelled);
    EXPECT_TRUE(tasks.cancel(id));
    EXPECT_FALSE(tasks.cancel(id + 1));
    EXPECT_FALSE(tasks.view(id + 1).has_value());
}

TEST_F(TasksTest, StopEndsAllTasks) {
    start(wait_for_stop);
    start(wait_for_stop);
    tasks.stop();
}

TEST_F(TasksTest, ExcessTaskIsRefused) {
    for (std::size_t i = 0; i < Tasks::kRunningMax; ++i) start(wait_for_stop);
    const auto refused = tasks.start({.run = wait_for_stop});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
}

TEST_F(TasksTest, FinishedTaskIsForgottenAfterAWhile) {
    const auto id = start([](TaskProgress&, std::stop_token) -> Tasks::Outcome { return "{}"; });
    control.run_one();
    clock.advance_ns(Tasks::kRememberedNs);
    start(wait_for_stop);
    EXPECT_TRUE(tasks.view(id).has_value());
    clock.advance_ns(1);
    start(wait_for_stop);
    EXPECT_FALSE(tasks.view(id).has_value());
}

}  // namespace
}  // namespace larder::cache
