#include "cache/control/tasks.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <system_error>
#include <thread>
#include <utility>

#include "base/server/logging.h"

namespace larder::cache {

struct Tasks::Task {
    Work work;
    TaskProgress progress;
    TaskState state = TaskState::running;
    std::int64_t started_ns = 0;
    std::int64_t ended_ns = 0;
    std::optional<Error> error;
    std::string result;
    std::stop_source stop;
    std::thread thread;
};

// The way to the control thread. Threads that were left behind hold it, too.
struct Tasks::Control {
    std::mutex mutex;
    std::condition_variable ended;
    std::function<void(std::function<void()>)> post;  // empty once the Tasks have stopped
    std::size_t threads = 0;                          // that run `Work::run`
};

std::string_view name(TaskState state) {
    switch (state) {
        case TaskState::running: return "running";
        case TaskState::done: return "done";
        case TaskState::failed: return "failed";
        case TaskState::cancelled: return "cancelled";
    }
    return "unknown";
}

Tasks::Tasks(const Clock& clock, std::function<void(std::function<void()>)> post_control)
    : clock_(clock), control_(std::make_shared<Control>()) {
    control_->post = std::move(post_control);
}

Tasks::~Tasks() {
    stop();
}

Result<std::uint64_t> Tasks::start(Work work) {
    forget_old();
    const auto running =
        std::ranges::count_if(tasks_, [](const auto& item) { return item.second->state == TaskState::running; });
    if (static_cast<std::size_t>(running) >= kRunningMax) {
        return fail(ErrorCode::unavailable,
                    std::to_string(kRunningMax) + " tasks are running, the limit: wait for one to end");
    }
    const std::uint64_t id = next_id_++;
    auto task = std::make_shared<Task>();
    task->work = std::move(work);
    task->started_ns = clock_.now_ns();
    // Only what is posted to the control thread may use `this`.
    const auto run = [this, id, task, control = control_] {
        pthread_setname_np(pthread_self(), "larder-task");
        Outcome outcome = task->work.run(task->progress, task->stop.get_token());
        const std::lock_guard lock(control->mutex);
        --control->threads;
        control->ended.notify_all();
        if (!control->post) return;
        control->post([this, id, outcome = std::move(outcome)]() mutable {
            const auto& finish = tasks_.at(id)->work.finish;
            if (finish) {
                finish(std::move(outcome), [this, id](Outcome final) { settle(id, std::move(final)); });
            } else {
                settle(id, std::move(outcome));
            }
        });
    };
    try {
        const std::lock_guard lock(control_->mutex);
        task->thread = std::thread(run);
        ++control_->threads;
    } catch (const std::system_error& error) {
        return fail_errno(error.code().value(), "start a thread for a task");
    }
    tasks_[id] = std::move(task);
    return id;
}

void Tasks::settle(std::uint64_t id, Outcome outcome) {
    Task& task = *tasks_.at(id);
    task.ended_ns = clock_.now_ns();
    if (outcome) {
        task.state = TaskState::done;
        task.result = std::move(*outcome);
    } else {
        task.state = outcome.error().code == ErrorCode::cancelled ? TaskState::cancelled : TaskState::failed;
        task.error = std::move(outcome.error());
    }
    task.work.run = nullptr;
}

std::optional<TaskView> Tasks::view(std::uint64_t id) const {
    const auto found = tasks_.find(id);
    if (found == tasks_.end()) return std::nullopt;
    const Task& task = *found->second;
    const std::int64_t until_ns = task.state == TaskState::running ? clock_.now_ns() : task.ended_ns;
    return TaskView{.id = id,
                    .kind = task.work.kind,
                    .dataset = task.work.dataset,
                    .unit = task.work.unit,
                    .state = task.state,
                    .done = task.progress.done,
                    .total = task.progress.total,
                    .bytes_done = task.progress.bytes_done,
                    .resumed = task.progress.resumed,
                    .seconds = static_cast<double>(until_ns - task.started_ns) / 1e9,
                    .remote = task.progress.remote(),
                    .plan = task.progress.plan(),
                    .error = task.error,
                    .result = task.result};
}

bool Tasks::cancel(std::uint64_t id) {
    const auto found = tasks_.find(id);
    if (found == tasks_.end()) return false;
    found->second->stop.request_stop();
    return true;
}

void Tasks::stop(std::int64_t timeout_ns) {
    for (const auto& [id, task] : tasks_) task->stop.request_stop();
    std::unique_lock lock(control_->mutex);
    if (!control_->post) return;  // stopped before
    const bool all_ended =
        control_->ended.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] { return control_->threads == 0; });
    control_->post = nullptr;
    lock.unlock();
    if (!all_ended) log_warn("a task has not ended and is left behind: does the mount of its dataset hang?");
    for (const auto& [id, task] : tasks_) {
        if (!task->thread.joinable()) continue;
        if (all_ended) {
            task->thread.join();
        } else {
            task->thread.detach();
        }
    }
}

void Tasks::forget_old() {
    std::size_t remembered = tasks_.size();
    std::erase_if(tasks_, [&](const auto& item) {
        if (item.second->state == TaskState::running) return false;
        const bool expired = clock_.now_ns() - item.second->ended_ns > kRememberedNs || remembered > kRememberedMax;
        if (!expired) return false;
        --remembered;
        item.second->thread.join();  // it has posted its outcome
        return true;
    });
}

}  // namespace larder::cache
