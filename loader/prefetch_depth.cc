#include "loader/prefetch_depth.h"

#include <algorithm>

namespace larder::detail {
namespace {

constexpr std::uint64_t kPlannedSamplesMin = 64;    // so that small batches share a wake-up of the daemon
constexpr std::uint64_t kPlannedSamplesMax = 8192;  // unless two batches have more

}  // namespace

std::uint64_t prefetch_batches(std::int64_t latency_ns, std::int64_t period_ns, std::uint64_t batch_size) {
    const std::uint64_t least = std::max<std::uint64_t>(2, (kPlannedSamplesMin + batch_size - 1) / batch_size);
    const std::uint64_t most = std::max<std::uint64_t>(least, kPlannedSamplesMax / batch_size);
    const auto covering = static_cast<std::uint64_t>(latency_ns * 3 / 2 / std::max<std::int64_t>(1, period_ns)) + 2;
    return std::clamp(covering, least, most);
}

}  // namespace larder::detail
