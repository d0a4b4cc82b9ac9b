#pragma once

// One thread that runs posted functions in order: for work that may block and must keep its order, such as writing
// state files. Objects that a function refers to must outlive the WorkThread.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace larder::cache {

class WorkThread {
public:
    explicit WorkThread(const std::string& name);
    // Runs all functions posted before, then ends the thread.
    ~WorkThread();
    WorkThread(const WorkThread&) = delete;
    WorkThread& operator=(const WorkThread&) = delete;

    // Any thread. Does not wait for the work.
    void post(std::function<void()> work);

private:
    void run();

    std::mutex mutex_;
    std::condition_variable posted_;
    std::deque<std::function<void()>> queue_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace larder::cache
