#include "cache/device/thread_device.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/assert.h"
#include "base/file.h"
#include "cache/device/opened_file.h"

namespace larder::cache {

namespace {

enum class Action : std::uint8_t { open, open_at, stat, read, write, allocate, unlink, close, watch };

struct Task {
    Action action = Action::close;
    Operation* operation = nullptr;  // null for close
    Task* next = nullptr;
    int fd = -1;
    int flags = 0;
    unsigned mode = 0;
    LinkRule links = LinkRule::none;
    const char* path = nullptr;
    void* memory = nullptr;
    std::size_t bytes = 0;
    std::uint64_t offset = 0;
    std::int32_t result = 0;
};

// A queue of tasks, first in, first out.
struct TaskQueue {
    Task* head = nullptr;
    Task* tail = nullptr;

    bool empty() const { return head == nullptr; }
    void push(Task& task) {
        task.next = nullptr;
        (head == nullptr ? head : tail->next) = &task;
        tail = &task;
    }
    Task* pop() {
        Task* task = head;
        if (task != nullptr) head = task->next;
        return task;
    }
    bool remove(Task& task) {
        Task* previous = nullptr;
        for (Task* current = head; current != nullptr; previous = current, current = current->next) {
            if (current != &task) continue;
            (previous == nullptr ? head : previous->next) = current->next;
            if (tail == current) tail = previous;
            return true;
        }
        return false;
    }
};

// After a stop the memory of an operation may be gone, so that an interrupted call is not made again.
std::int32_t perform(Task& task, const std::atomic<bool>& stopped) {
    const auto offset = static_cast<off_t>(task.offset);
    ssize_t result = 0;
    do {
        switch (task.action) {
            case Action::open: result = ::open(task.path, task.flags | O_CLOEXEC | O_NONBLOCK, task.mode); break;
            case Action::open_at:
                result = larder::open_at(task.fd, task.path, task.links, with_nonblock(task.flags));
                return check_opened(static_cast<std::int32_t>(result));
            case Action::stat:
                result = ::statx(task.fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_DIOALIGN,
                                 static_cast<struct statx*>(task.memory));
                break;
            case Action::read: result = ::pread(task.fd, task.memory, task.bytes, offset); break;
            case Action::write: result = ::pwrite(task.fd, task.memory, task.bytes, offset); break;
            case Action::allocate: result = ::fallocate(task.fd, 0, 0, static_cast<off_t>(task.bytes)); break;
            case Action::unlink: result = ::unlink(task.path); break;
            case Action::close: ::close(task.fd); return 0;  // close frees the descriptor even if it fails
            case Action::watch: LARDER_ASSERT(false);
        }
    } while (result < 0 && errno == EINTR && !stopped);
    if (result < 0) return -errno;
    return task.action == Action::open ? check_opened(static_cast<int>(result)) : static_cast<std::int32_t>(result);
}

// Closes the descriptors of opens whose completion nobody takes any more.
void close_opened(TaskQueue& ended) {
    while (Task* task = ended.pop()) {
        const bool opens = task->action == Action::open || task->action == Action::open_at;
        if (opens && task->result >= 0) ::close(task->result);
    }
}

// The state that the owner's thread shares with the others. They keep it if they outlive the device.
struct Shared {
    FileDescriptor wake;
    std::deque<Task> tasks;  // used on the owner's thread only

    std::mutex mutex;  // guards the members below
    std::condition_variable changed;
    std::condition_variable thread_ended;
    TaskQueue waiting_tasks;
    TaskQueue ended_tasks;
    std::size_t waiting_count = 0;  // of waiting_tasks
    std::size_t threads = 0;
    std::size_t idle_threads = 0;
    bool sleeping = false;              // the owner polls; write to wake to wake it
    std::atomic<bool> stopped = false;  // written by the owner only, with `mutex` held
};

void work(Shared& shared) {
    std::unique_lock lock(shared.mutex);
    for (;;) {
        ++shared.idle_threads;
        shared.changed.wait(lock, [&] { return shared.stopped || !shared.waiting_tasks.empty(); });
        --shared.idle_threads;
        if (shared.stopped) break;
        Task& task = *shared.waiting_tasks.pop();
        --shared.waiting_count;
        lock.unlock();
        task.result = perform(task, shared.stopped);
        lock.lock();
        shared.ended_tasks.push(task);
        if (std::exchange(shared.sleeping, false)) ::eventfd_write(shared.wake.get(), 1);
    }
    close_opened(shared.ended_tasks);
    --shared.threads;
    shared.thread_ended.notify_all();
}

class ThreadDevice final : public Device {
public:
    ThreadDevice(const Clock& clock, FileDescriptor wake) : clock_(clock), shared_(std::make_shared<Shared>()) {
        shared_->wake = std::move(wake);
        polled_.push_back({.fd = shared_->wake.get(), .events = POLLIN, .revents = 0});
        watches_.push_back(nullptr);
    }
    ThreadDevice(const ThreadDevice&) = delete;
    ThreadDevice& operator=(const ThreadDevice&) = delete;
    ~ThreadDevice() override { stop(); }

    void start_threads(unsigned count) {
        threads_max_ = count;
        for (unsigned i = 0; i < count; ++i) start_thread();
    }

    void open(const char* path, int flags, unsigned mode, Operation& operation) override {
        start({.action = Action::open, .operation = &operation, .flags = flags, .mode = mode, .path = path});
    }
    void open_at(int directory, const char* path, LinkRule rule, int flags, Operation& operation) override {
        start({.action = Action::open_at,
               .operation = &operation,
               .fd = directory,
               .flags = flags,
               .links = rule,
               .path = path});
    }
    void stat(int fd, struct statx& status, Operation& operation) override {
        start({.action = Action::stat, .operation = &operation, .fd = fd, .memory = &status});
    }
    void read(int fd, std::span<std::byte> target, std::uint64_t offset, Operation& operation) override {
        start({.action = Action::read,
               .operation = &operation,
               .fd = fd,
               .memory = target.data(),
               .bytes = std::min(target.size(), kTransferBytesMax),
               .offset = offset});
    }
    void write(int fd, std::span<const std::byte> source, std::uint64_t offset, Operation& operation) override {
        start({.action = Action::write,
               .operation = &operation,
               .fd = fd,
               .memory = const_cast<std::byte*>(source.data()),
               .bytes = std::min(source.size(), kTransferBytesMax),
               .offset = offset});
    }
    void allocate(int fd, std::uint64_t bytes, Operation& operation) override {
        start({.action = Action::allocate, .operation = &operation, .fd = fd, .bytes = bytes});
    }
    void unlink(const char* path, Operation& operation) override {
        start({.action = Action::unlink, .operation = &operation, .path = path});
    }
    void close(int fd) override {
        if (stopped_)
            ::close(fd);
        else
            start({.action = Action::close, .fd = fd});
    }

    void watch(int fd, Operation& operation) override {
        Task& task = make_task({.action = Action::watch, .operation = &operation, .fd = fd});
        polled_.push_back({.fd = fd, .events = POLLIN, .revents = 0});
        watches_.push_back(&task);
    }

    void cancel(Operation& operation) override {
        auto* task = static_cast<Task*>(operation.device_state);
        if (stopped_ || task == nullptr) return;
        if (const auto watching = std::ranges::find(watches_, task); watching != watches_.end()) {
            drop_watch(static_cast<std::size_t>(watching - watches_.begin()));
        } else {
            const std::scoped_lock lock(shared_->mutex);
            if (!shared_->waiting_tasks.remove(*task)) return;  // the task runs or has ended: deliver its result
            --shared_->waiting_count;
        }
        task->result = -ECANCELED;
        ended_here_.push(*task);
    }

    // Ordinary system calls cannot use registered memory.
    bool add_buffer(std::span<std::byte>) override { return false; }
    void remove_buffer(std::span<std::byte>) override {}

    void add_workers(unsigned count) override { threads_max_ += count; }
    void remove_workers(unsigned count) override { threads_max_ -= count; }  // threads that run stay

    void wait(std::int64_t deadline_ns) override {
        LARDER_ASSERT(!in_wait_ && !stopped_);
        in_wait_ = true;
        bool ready = !ended_here_.empty();
        if (!ready) {
            const std::scoped_lock lock(shared_->mutex);
            ready = !shared_->ended_tasks.empty();
            shared_->sleeping = !ready;
        }
        if (!ready || watches_.size() > 1) poll(ready ? 0 : left_ns(deadline_ns));
        deliver();
        in_wait_ = false;
    }

    bool stop() override {
        if (stopped_) return threads_.empty();
        LARDER_ASSERT(!in_wait_);
        stopped_ = true;
        std::unique_lock lock(shared_->mutex);
        shared_->stopped = true;
        shared_->changed.notify_all();
        const bool all_ended = shared_->thread_ended.wait_for(lock, std::chrono::nanoseconds(kDeviceStopTimeout_ns),
                                                              [this] { return shared_->threads == 0; });
        while (Task* task = shared_->waiting_tasks.pop())
            if (task->action == Action::close) ::close(task->fd);
        close_opened(shared_->ended_tasks);
        lock.unlock();
        for (std::thread& thread : threads_) all_ended ? thread.join() : thread.detach();
        if (all_ended) threads_.clear();
        return all_ended;
    }

    const char* kind() const override { return "threads"; }

private:
    static constexpr std::size_t kTransferBytesMax = std::size_t{1} << 30;

    Task& make_task(const Task& content) {
        LARDER_ASSERT(!stopped_);
        Task* task = free_tasks_.pop();
        if (task == nullptr) task = &shared_->tasks.emplace_back();
        *task = content;
        if (Operation* operation = task->operation) {
            LARDER_ASSERT(operation->device_state == nullptr && operation->done != nullptr);
            operation->device_state = task;
        }
        return *task;
    }

    void start(const Task& content) {
        Task& task = make_task(content);
        bool all_busy = false;
        {
            const std::scoped_lock lock(shared_->mutex);
            shared_->waiting_tasks.push(task);
            all_busy = ++shared_->waiting_count > shared_->idle_threads;
        }
        shared_->changed.notify_one();
        if (!all_busy || threads_.size() >= threads_max_) return;
        try {
            start_thread();
        } catch (const std::system_error&) {
            // The threads that there are take the task.
        }
    }

    void start_thread() {
        const std::scoped_lock lock(shared_->mutex);
        threads_.emplace_back([shared = shared_] { work(*shared); });
        ++shared_->threads;
    }

    std::int64_t left_ns(std::int64_t deadline_ns) const {
        const std::int64_t now_ns = clock_.now_ns();
        return now_ns < deadline_ns ? deadline_ns - now_ns : 0;
    }

    void poll(std::int64_t timeout_ns) {
        const timespec timeout{.tv_sec = timeout_ns / 1'000'000'000, .tv_nsec = timeout_ns % 1'000'000'000};
        const int count = ::ppoll(polled_.data(), polled_.size(), &timeout, nullptr);
        {
            const std::scoped_lock lock(shared_->mutex);
            shared_->sleeping = false;
        }
        if (count <= 0) return;
        if (polled_[0].revents != 0) {
            eventfd_t ignored = 0;
            ::eventfd_read(shared_->wake.get(), &ignored);
        }
        for (std::size_t i = watches_.size(); i-- > 1;) {
            const short events = polled_[i].revents;
            if (events == 0) continue;
            Task& task = *watches_[i];
            task.result = (events & POLLNVAL) != 0 ? -EBADF : events;
            drop_watch(i);
            ended_here_.push(task);
        }
    }

    void drop_watch(std::size_t index) {
        polled_[index] = polled_.back();
        watches_[index] = watches_.back();
        polled_.pop_back();
        watches_.pop_back();
    }

    void deliver() {
        TaskQueue here = std::exchange(ended_here_, {});
        TaskQueue threads;
        {
            const std::scoped_lock lock(shared_->mutex);
            threads = std::exchange(shared_->ended_tasks, {});
        }
        for (TaskQueue* queue : {&here, &threads}) {
            while (Task* task = queue->pop()) {
                Operation* operation = task->operation;
                const std::int32_t result = task->result;
                free_tasks_.push(*task);
                if (operation == nullptr) continue;
                operation->device_state = nullptr;
                operation->done(*operation, result);
            }
        }
    }

    const Clock& clock_;
    const std::shared_ptr<Shared> shared_;

    // Used on the owner's thread only.
    std::vector<std::thread> threads_;
    std::size_t threads_max_ = 0;
    TaskQueue free_tasks_;
    TaskQueue ended_here_;        // ended watches, and tasks cancelled before they ran
    std::vector<pollfd> polled_;  // [0] is shared_->wake
    std::vector<Task*> watches_;  // watches_[i] polls polled_[i]; [0] is null
    bool in_wait_ = false;
    bool stopped_ = false;
};

}  // namespace

Result<std::unique_ptr<Device>> make_thread_device(const Clock& clock, const ThreadOptions& options) {
    LARDER_ASSERT(options.threads > 0);
    FileDescriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake) return fail_errno(errno, "eventfd");
    auto device = std::make_unique<ThreadDevice>(clock, std::move(wake));
    try {
        device->start_threads(options.threads);
    } catch (const std::system_error& error) {
        return fail_errno(error.code().value(), "start an I/O thread");
    }
    return device;
}

}  // namespace larder::cache
