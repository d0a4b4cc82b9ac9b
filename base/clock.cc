#include "base/clock.h"

#include <ctime>

namespace larder {

std::int64_t SteadyClock::now_ns() const {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::int64_t slept_ns() {
    timespec awake{};
    timespec all{};
    clock_gettime(CLOCK_MONOTONIC, &awake);
    clock_gettime(CLOCK_BOOTTIME, &all);
    return static_cast<std::int64_t>(all.tv_sec - awake.tv_sec) * 1'000'000'000 + (all.tv_nsec - awake.tv_nsec);
}

std::int64_t boot_time_ns() {
    timespec now{};
    clock_gettime(CLOCK_BOOTTIME, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::int64_t unix_time_ns() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

void sleep_ns(std::int64_t duration_ns) {
    const timespec duration{.tv_sec = duration_ns / 1'000'000'000, .tv_nsec = duration_ns % 1'000'000'000};
    nanosleep(&duration, nullptr);
}

}  // namespace larder
