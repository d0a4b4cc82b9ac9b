#include "tests/cluster/rate_watch.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/clock.h"

namespace larder::test {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(100);

}  // namespace

RateWatch::RateWatch(std::function<Result<std::uint64_t>()> counter, double bytes_per_second)
    : counter_(std::move(counter)), rate_(bytes_per_second), thread_([this] { run(); }) {}

RateWatch::~RateWatch() {
    stop();
}

void RateWatch::stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
}

void RateWatch::run() {
    const SteadyClock clock;
    const std::int64_t began_ns = clock.now_ns();
    double lowest = std::numeric_limits<double>::infinity();
    while (!stopping_) {
        // The time is read before and after the counter, so that the reading's own duration never counts as excess.
        const std::int64_t before_ns = clock.now_ns();
        if (const auto bytes = counter_()) {
            const std::int64_t after_ns = clock.now_ns();
            const auto ahead = [&](std::int64_t at_ns) {
                return static_cast<double>(*bytes) - rate_ * static_cast<double>(at_ns - began_ns) * 1e-9;
            };
            excess_ = std::max(excess_, ahead(after_ns) - lowest);
            lowest = std::min(lowest, ahead(before_ns));
        }
        std::this_thread::sleep_for(kPeriod);
    }
}

}  // namespace larder::test
