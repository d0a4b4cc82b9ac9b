#include "cache/control/blocking_calls.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace larder::cache {
namespace asio = boost::asio;

// Shared with the threads, which may outlive the BlockingCalls.
struct BlockingCalls::State {
    asio::io_context* control = nullptr;  // null once the BlockingCalls is gone
    std::string thread_name;
    std::size_t threads_max = 0;

    std::mutex mutex;  // guards `control` and the members below
    std::condition_variable ended;
    std::deque<Call> waiting;
    std::size_t threads = 0;

    static void work(const std::shared_ptr<State>& state) {
        pthread_setname_np(pthread_self(), state->thread_name.c_str());
        std::unique_lock lock(state->mutex);
        while (!state->waiting.empty() && state->control != nullptr) {
            Call call = std::move(state->waiting.front());
            state->waiting.pop_front();
            lock.unlock();
            Then then = call();
            call = nullptr;
            lock.lock();
            if (then && state->control != nullptr) asio::post(*state->control, std::move(then));
        }
        --state->threads;
        state->ended.notify_all();
    }
};

BlockingCalls::BlockingCalls(asio::io_context& control, const std::string& thread_name, std::size_t threads_max)
    : state_(std::make_shared<State>()) {
    state_->control = &control;
    state_->thread_name = thread_name.substr(0, 15);
    state_->threads_max = threads_max;
}

BlockingCalls::~BlockingCalls() {
    const std::lock_guard lock(state_->mutex);
    state_->control = nullptr;
    state_->waiting.clear();
}

void BlockingCalls::run(Call call) {
    const std::lock_guard lock(state_->mutex);
    state_->waiting.push_back(std::move(call));
    if (state_->threads == state_->threads_max) return;
    // The thread inherits this mask, so that other threads handle the signals.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        std::thread([state = state_] { State::work(state); }).detach();
        ++state_->threads;
    } catch (const std::system_error&) {
        // A running thread takes the call. If there is none, the next call starts one.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void BlockingCalls::run(Call call, std::int64_t timeout_ns, Then late) {
    struct Waiting {
        explicit Waiting(asio::io_context& control) : timer(control) {}
        asio::steady_timer timer;
        bool over = false;  // used on the control thread only
    };
    auto waiting = std::make_shared<Waiting>(*state_->control);
    waiting->timer.expires_after(std::chrono::nanoseconds(timeout_ns));
    waiting->timer.async_wait([waiting, late = std::move(late)](const boost::system::error_code& error) {
        if (error || std::exchange(waiting->over, true)) return;
        late();
    });
    run([call = std::move(call), weak = std::weak_ptr(waiting)]() -> Then {
        return [then = call(), weak] {
            const auto still_waiting = weak.lock();
            if (still_waiting == nullptr || std::exchange(still_waiting->over, true)) return;
            still_waiting->timer.cancel();
            then();
        };
    });
}

bool BlockingCalls::wait(std::int64_t timeout_ns) {
    std::unique_lock lock(state_->mutex);
    return state_->ended.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                                  [&] { return state_->threads == 0 && state_->waiting.empty(); });
}

}  // namespace larder::cache
