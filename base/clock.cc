#include "base/clock.h"

#include <ctime>

namespace larder {

std::int64_t SteadyClock::now_ns() const {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace larder
