#include "tests/campaign/seeds/event_queue.h"

#include <algorithm>
#include <cstdio>

namespace larder::campaign {

void Events::at(std::int64_t time_ns, std::function<void()> run) {
    queue_.push({.time_ns = std::max(time_ns, now_ns_), .sequence = ++sequence_, .run = std::move(run)});
}

void Events::run_until(std::int64_t time_ns) {
    while (!failed() && !queue_.empty() && queue_.top().time_ns <= time_ns) {
        // Only `run` is moved; the order of the queue does not depend on it.
        std::function<void()> run = std::move(const_cast<TimedEvent&>(queue_.top()).run);
        now_ns_ = queue_.top().time_ns;
        queue_.pop();
        ++count_;
        run();
    }
    if (!failed()) now_ns_ = std::max(now_ns_, time_ns);
}

void Events::fail(const std::string& what) {
    if (failed()) return;
    char time[32];
    std::snprintf(time, sizeof time, "at %.6f s: ", static_cast<double>(now_ns_) * 1e-9);
    failure_ = time + what;
    if (prints_) print("FAILED: " + what);
}

void Events::print(const std::string& text) const {
    std::printf("%12.6f  %s\n", static_cast<double>(now_ns_) * 1e-9, text.c_str());
}

}  // namespace larder::campaign
