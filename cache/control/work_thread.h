#pragma once

// One thread that does what it is given, in order: for what may block and must keep its order, such as writing state
// files. Whoever gives work makes sure that what it refers to outlives the WorkThread.

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
    // Does what was given before, then ends.
    ~WorkThread();
    WorkThread(const WorkThread&) = delete;
    WorkThread& operator=(const WorkThread&) = delete;

    // Any thread. Never waits for the work.
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
