#include "base/server/blocking_calls.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/server/logging.h"

namespace larder {
namespace asio = boost::asio;
namespace {

// The time that a call waits for a thread that could not be started.
constexpr std::chrono::milliseconds kThreadRetry{200};

}  // namespace

// Shared with the threads, which may outlive the BlockingCalls.
struct BlockingCalls::State {
    asio::io_context* control = nullptr;  // null once the BlockingCalls is gone
    std::string thread_name;
    std::size_t threads_max = 0;

    std::mutex mutex;  // guards `control` and the members below
    std::condition_variable ended;
    std::deque<Call> waiting;
    std::size_t threads = 0;
    bool retrying = false;
    bool has_warned = false;

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

    // With `mutex` held. Starts a thread for a waiting call. A running thread would take the call, too, but may block
    // for ever; so without a new one this is tried again.
    static void start_thread(const std::shared_ptr<State>& state) {
        if (state->waiting.empty() || state->threads == state->threads_max) return;
        // The thread inherits this mask, so that other threads handle the signals.
        sigset_t all;
        sigset_t before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            std::thread([state] { work(state); }).detach();
            ++state->threads;
        } catch (const std::system_error& error) {
            if (!std::exchange(state->has_warned, true)) {
                log_warn("a thread cannot be started; its work waits",
                         {{"thread", state->thread_name}, {"error", error.code().message()}});
            }
            if (!std::exchange(state->retrying, true)) retry_later(state);
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    static void retry_later(const std::shared_ptr<State>& state) {
        auto timer = std::make_shared<asio::steady_timer>(*state->control, kThreadRetry);
        timer->async_wait([timer, state](const boost::system::error_code&) {
            const std::lock_guard lock(state->mutex);
            state->retrying = false;
            if (state->control == nullptr) return;
            for (std::size_t calls = state->waiting.size(); calls > 0 && !state->retrying; --calls) start_thread(state);
        });
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
    State::start_thread(state_);
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
    const SteadyClock clock;
    const std::int64_t until_ns = clock.now_ns() + timeout_ns;
    const auto all_returned = [&] { return state_->threads == 0 && state_->waiting.empty(); };
    std::unique_lock lock(state_->mutex);
    while (!all_returned() && clock.now_ns() < until_ns) {
        // The control thread may be the one that waits here, so that no timer starts the thread.
        if (state_->threads == 0) State::start_thread(state_);
        const std::chrono::nanoseconds left(until_ns - clock.now_ns());
        state_->ended.wait_for(lock, std::min<std::chrono::nanoseconds>(left, kThreadRetry), all_returned);
    }
    return all_returned();
}

}  // namespace larder
