#include "loader/prefetch_depth.h"

#include <algorithm>

namespace larder::detail {
namespace {

constexpr std::uint64_t kPlannedSamplesMin = 64;    // so that small batches share a wake-up of the daemon
constexpr std::uint64_t kPlannedSamplesMax = 8192;  // unless two batches have more

}  // namespace

std::uint64_t prefetch_batches(std::int64_t latency_ns, std::int64_t period_ns, std::uint64_t batch_size) {
    const std::uint64_t batches_min = std::max<std::uint64_t>(2, (kPlannedSamplesMin + batch_size - 1) / batch_size);
    const std::uint64_t batches_max = std::max<std::uint64_t>(batches_min, kPlannedSamplesMax / batch_size);
    if (period_ns <= 0) return batches_min;
    const auto covering_batches = static_cast<std::uint64_t>(latency_ns * 3 / 2 / period_ns) + 2;
    return std::clamp(covering_batches, batches_min, batches_max);
}

}  // namespace larder::detail
