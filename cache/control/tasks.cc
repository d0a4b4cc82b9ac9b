#include "cache/control/tasks.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace larder::cache {

struct Tasks::Task {
    Work work;
    TaskProgress progress;
    TaskState state = TaskState::running;
    std::int64_t started_ns = 0;
    std::int64_t ended_ns = 0;
    std::optional<Error> error;
    std::string result;
    std::jthread thread;  // last member: the thread uses the others
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
    : clock_(clock), post_control_(std::move(post_control)) {}

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
    auto& task = tasks_[id] = std::make_unique<Task>();
    task->work = std::move(work);
    task->started_ns = clock_.now_ns();
    task->thread = std::jthread([this, id, &task = *task](std::stop_token stop) {
        pthread_setname_np(pthread_self(), "larder-task");
        Outcome outcome = task.work.run(task.progress, std::move(stop));
        post_control_([this, id, outcome = std::move(outcome)]() mutable {
            const auto& finish = tasks_.at(id)->work.finish;
            if (finish) {
                finish(std::move(outcome), [this, id](Outcome final) { settle(id, std::move(final)); });
            } else {
                settle(id, std::move(outcome));
            }
        });
    });
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
    found->second->thread.request_stop();
    return true;
}

void Tasks::stop() {
    for (const auto& [id, task] : tasks_) task->thread.request_stop();
    for (const auto& [id, task] : tasks_) {
        if (task->thread.joinable()) task->thread.join();
    }
}

void Tasks::forget_old() {
    std::size_t remembered = tasks_.size();
    std::erase_if(tasks_, [&](const auto& item) {
        if (item.second->state == TaskState::running) return false;
        const bool expired = clock_.now_ns() - item.second->ended_ns > kRememberedNs || remembered > kRememberedMax;
        if (expired) --remembered;
        return expired;
    });
}

}  // namespace larder::cache
