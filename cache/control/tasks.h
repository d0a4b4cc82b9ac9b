#pragma once

// Runs long work: indexing, verifying, warming. Each task has its own thread (at most one task per dataset), reports
// progress, can be cancelled, and is remembered for a while after its end. When `run` has ended, `finish` takes over
// its result on the control thread; only then is the task done. Control thread only, except `run`.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/error.h"

namespace larder::cache {

enum class TaskState : std::uint8_t { running, done, failed, cancelled };
std::string_view name(TaskState state);

// Written by the task's thread.
struct TaskProgress {
    std::atomic<std::uint64_t> done{0};
    std::atomic<std::uint64_t> total{0};  // 0: not known yet
    std::atomic<std::uint64_t> bytes_done{0};
    std::atomic<std::uint64_t> resumed{0};  // part of `done` that an earlier, interrupted run did

    // The remote that the task reads, shown while it runs. Any thread.
    void set_remote(std::string endpoint) {
        const std::scoped_lock lock(mutex_);
        remote_ = std::move(endpoint);
    }
    void set_plan(std::string json) {
        const std::scoped_lock lock(mutex_);
        plan_ = std::move(json);
    }
    std::string remote() const {
        const std::scoped_lock lock(mutex_);
        return remote_;
    }
    std::string plan() const {
        const std::scoped_lock lock(mutex_);
        return plan_;
    }

private:
    mutable std::mutex mutex_;
    std::string remote_;
    std::string plan_;
};

struct TaskView {
    std::uint64_t id = 0;
    std::string kind;  // "add", "index", "verify", "warm"
    std::string dataset;
    std::string unit;  // "objects", "blocks"
    TaskState state = TaskState::running;
    std::uint64_t done = 0;
    std::uint64_t total = 0;
    std::uint64_t bytes_done = 0;
    std::uint64_t resumed = 0;
    double seconds = 0;
    std::string remote;  // endpoint of the remote; empty: not over HTTP, or unknown yet
    std::string plan;    // JSON: the planned work; empty: unknown yet
    std::optional<Error> error;
    std::string result;  // JSON; empty while it runs
};

class Tasks {
public:
    static constexpr std::size_t kRunningMax = 16;
    static constexpr std::size_t kRememberedMax = 256;
    static constexpr std::int64_t kRememberedNs = std::int64_t{3600} * 1'000'000'000;
    static constexpr std::int64_t kStopTimeout_ns = std::int64_t{5} * 1'000'000'000;

    using Outcome = Result<std::string>;  // JSON
    struct Work {
        std::string kind;
        std::string dataset;
        std::string unit;
        // Runs on the task's thread. After a stop request it should soon end with ErrorCode::cancelled. If a mount
        // hangs, it may end when all else is gone: it must own all that it uses after it has read a file.
        std::function<Outcome(TaskProgress& progress, std::stop_token stop)> run;
        // Runs on the control thread with the result of `run`, and calls `settle` then or later. Empty: the outcome
        // stands.
        std::function<void(Outcome outcome, std::function<void(Outcome)> settle)> finish;
    };

    // `post_control` runs a function on the control thread; any thread may call it.
    Tasks(const Clock& clock, std::function<void(std::function<void()>)> post_control);
    ~Tasks();

    Result<std::uint64_t> start(Work work);
    std::optional<TaskView> view(std::uint64_t id) const;
    // False for an unknown task. A finished task stays as it is.
    bool cancel(std::uint64_t id);
    // Cancels all tasks and waits for their threads, but leaves those behind that have not ended within this time. No
    // `finish` runs after this.
    void stop(std::int64_t timeout_ns = kStopTimeout_ns);

private:
    struct Task;
    struct Control;
    void settle(std::uint64_t id, Outcome outcome);
    void forget_old();

    const Clock& clock_;
    const std::shared_ptr<Control> control_;
    std::map<std::uint64_t, std::shared_ptr<Task>> tasks_;
    std::uint64_t next_id_ = 1;
};

}  // namespace larder::cache
