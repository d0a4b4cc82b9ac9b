#include "bench/pace.h"

#include <chrono>
#include <thread>

namespace larder::bench {

PacedConsumer::PacedConsumer(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

void PacedConsumer::consume(std::uint64_t bytes, std::int64_t done_ns) {
    if (bytes_per_second_ <= 0) return;
    // Credits oversleeping to the next batch; otherwise the timer's slack would keep the rate below f*.
    const std::int64_t start_ns = clock_.now_ns();
    const auto compute_ns =
        static_cast<std::int64_t>(static_cast<double>(bytes) / bytes_per_second_ * 1e9) - done_ns - overslept_ns_;
    if (compute_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(compute_ns));
    overslept_ns_ = clock_.now_ns() - start_ns - compute_ns;
}

}  // namespace larder::bench
