#include "cache/shard/background.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <system_error>
#include <utility>

namespace larder::cache {

void Background::List::push(BackgroundWork& work) {
    work.next_ = nullptr;
    (last != nullptr ? last->next_ : first) = &work;
    last = &work;
}

BackgroundWork* Background::List::pop() {
    BackgroundWork* work = first;
    if (work == nullptr) return nullptr;
    first = work->next_;
    if (first == nullptr) last = nullptr;
    return work;
}

Background::Background(Device& device, std::string thread_name, bool threaded)
    : device_(device), thread_name_(std::move(thread_name)), threaded_(threaded) {}

Background::~Background() {
    stop();
}

void Background::stop() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    thread_.join();
}

void Background::start_thread() {
    done_event_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    try {
        if (done_event_) thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
    } catch (const std::system_error&) {
        done_event_.reset();
    }
    threaded_ = thread_.joinable();
    if (!threaded_) return;
    pthread_setname_np(thread_.native_handle(), thread_name_.c_str());
    watch_.device = &device_;
    watch_.fd = done_event_.get();
    watch_.operation.done = [](Operation& operation, std::int32_t result) noexcept {
        auto& watch = reinterpret_cast<Watch&>(operation);
        if (result < 0) return;
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = ::read(watch.fd, &count, sizeof count);
        watch.device->watch(watch.fd, watch.operation);
    };
    static_assert(offsetof(Watch, operation) == 0);
    device_.watch(watch_.fd, watch_.operation);
}

void Background::start(BackgroundWork& work) {
    ++in_flight_;
    if (threaded_ && !thread_.joinable()) start_thread();
    {
        const std::lock_guard lock(mutex_);
        waiting_.push(work);
    }
    ready_.notify_one();
}

void Background::run(const std::stop_token& stop) {
    for (;;) {
        BackgroundWork* work = nullptr;
        {
            std::unique_lock lock(mutex_);
            if (!ready_.wait(lock, stop, [&] { return waiting_.first != nullptr; })) return;
            work = waiting_.pop();
        }
        work->run(*work);
        {
            const std::lock_guard lock(mutex_);
            done_.push(*work);
        }
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = ::write(done_event_.get(), &one, sizeof one);
    }
}

void Background::collect() {
    if (in_flight_ == 0) return;
    List done;
    {
        const std::lock_guard lock(mutex_);
        if (!threaded_) {
            while (BackgroundWork* work = waiting_.pop()) {
                work->run(*work);
                done_.push(*work);
            }
        }
        done = std::exchange(done_, {});
    }
    while (BackgroundWork* work = done.pop()) {
        --in_flight_;
        work->done(*work);
    }
}

}  // namespace larder::cache
