#include "cache/remote/renewed_value.h"

#include <algorithm>

namespace larder::cache {
namespace {

constexpr std::int64_t kRenewalSecond_ns = 1'000'000'000;
constexpr std::int64_t kBeforeExpiry_ns = 300 * kRenewalSecond_ns;
constexpr std::int64_t kRetryMost_ns = 60 * kRenewalSecond_ns;
constexpr std::int64_t kRenewalDelayMax_ns = std::int64_t{24} * 3600 * kRenewalSecond_ns;

}  // namespace

std::int64_t renewal_delay_ns(std::int64_t remaining_ns, bool failed) {
    if (failed)
        return std::clamp(remaining_ns > 0 ? remaining_ns / 4 : -remaining_ns, kRenewalSecond_ns, kRetryMost_ns);
    const std::int64_t early_ns = std::max(remaining_ns - kBeforeExpiry_ns, remaining_ns / 2);
    return std::clamp(early_ns, kRenewalSecond_ns, kRenewalDelayMax_ns);
}

}  // namespace larder::cache
