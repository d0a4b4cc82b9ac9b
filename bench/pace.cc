#include "bench/pace.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace larder::bench {
namespace {

// The most a consumer catches up. A thread that waited longer for a processor must not read above f* for long after.
constexpr std::int64_t kMostCredit_ns = 50'000'000;

}  // namespace

PacedConsumer::PacedConsumer(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

void PacedConsumer::consume(std::uint64_t bytes, std::int64_t done_ns) {
    if (bytes_per_second_ <= 0) return;
    // Credits oversleeping to the next batch; otherwise the timer's slack would keep the rate below f*.
    const std::int64_t start_ns = clock_.now_ns();
    const auto compute_ns =
        static_cast<std::int64_t>(static_cast<double>(bytes) / bytes_per_second_ * 1e9) - done_ns - overslept_ns_;
    if (compute_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(compute_ns));
    overslept_ns_ = std::min(clock_.now_ns() - start_ns - compute_ns, kMostCredit_ns);
}

}  // namespace larder::bench
