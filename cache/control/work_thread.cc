#include "cache/control/work_thread.h"

#include <pthread.h>

namespace larder::cache {

WorkThread::WorkThread(const std::string& name) : thread_([this] { run(); }) {
    pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

WorkThread::~WorkThread() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    posted_.notify_one();
    thread_.join();
}

void WorkThread::post(std::function<void()> work) {
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(work));
    }
    posted_.notify_one();
}

void WorkThread::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        posted_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        auto work = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        work();
        work = nullptr;
        lock.lock();
    }
}

}  // namespace larder::cache
