#pragma once

// Runs works on a thread of its own, so that the data plane keeps serving. In each turn the shard starts works and
// collects finished ones; the thread wakes the shard's device when a work is done. Without a thread (for deterministic
// tests, or because the system has none to give) `collect` runs the works itself.
//
// A Background belongs to its shard's thread. The first work starts the other thread.

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>

#include "base/file.h"
#include "cache/device.h"

namespace larder::cache {

// The caller owns the work and all it uses, and keeps both until `done` has run.
struct BackgroundWork {
    void (*run)(BackgroundWork& work) noexcept = nullptr;   // on the other thread
    void (*done)(BackgroundWork& work) noexcept = nullptr;  // on the shard's thread

private:
    friend class Background;
    BackgroundWork* next_ = nullptr;
};

class Background {
public:
    // `device` must outlive the Background, or have been stopped.
    Background(Device& device, std::string thread_name, bool threaded);
    ~Background();
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    void start(BackgroundWork& work);
    // Joins the thread. Works that are not done never will be, and may be freed.
    void stop();
    // Runs `done` of each finished work.
    void collect();

private:
    struct Watch {
        Operation operation;
        Device* device = nullptr;
        int fd = -1;
    };
    struct List {
        BackgroundWork* first = nullptr;
        BackgroundWork* last = nullptr;
        void push(BackgroundWork& work);
        BackgroundWork* pop();
    };

    void start_thread();
    void run(const std::stop_token& stop);

    Device& device_;
    const std::string thread_name_;
    bool threaded_;
    std::size_t in_flight_ = 0;
    FileDescriptor done_event_;
    Watch watch_;
    std::mutex mutex_;  // guards the lists
    std::condition_variable_any ready_;
    List waiting_;
    List done_;
    std::jthread thread_;
};

}  // namespace larder::cache
