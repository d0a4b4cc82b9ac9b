#include "cache/remote/concurrency_limit.h"

#include <algorithm>

#include "base/assert.h"

namespace larder::cache {
namespace {

constexpr double kWindowAtFirst = 8;
constexpr double kWindowLeast = 1;
constexpr double kWindowWhenSlow = 4;   // slow answers alone do not shrink the window below this
constexpr double kUsedFraction = 0.75;  // the window grows only if this fraction of it is in flight
// The fastest answers of this period and of the one before are remembered.
constexpr std::int64_t kPeriod_ns = 30'000'000'000;
// The least time between halvings, so that answers to requests sent before a halving do not halve again.
constexpr std::int64_t kHalveEvery_ns = 200'000'000;
constexpr std::int64_t kNoise_ns = 2'000'000;

}  // namespace

ConcurrencyLimit::ConcurrencyLimit(std::size_t window_max)
    : window_(std::min(kWindowAtFirst, static_cast<double>(window_max))), window_max_(static_cast<double>(window_max)) {
    LARDER_ASSERT(window_max > 0);
}

void ConcurrencyLimit::note_fastest(std::int64_t first_byte_ns, std::int64_t now_ns) {
    if (now_ns - period_began_ns_ > kPeriod_ns) {
        fastest_before_ns_ = fastest_ns_;
        fastest_ns_ = 0;
        period_began_ns_ = now_ns;
    }
    if (fastest_ns_ == 0 || first_byte_ns < fastest_ns_) fastest_ns_ = first_byte_ns;
}

void ConcurrencyLimit::succeeded(std::int64_t first_byte_ns, std::int64_t now_ns) {
    note_fastest(first_byte_ns, now_ns);
    const std::int64_t fastest_ns = fastest_before_ns_ == 0 ? fastest_ns_ : std::min(fastest_ns_, fastest_before_ns_);
    const bool is_used = static_cast<double>(in_flight_) >= kUsedFraction * window_;
    --in_flight_;
    if (first_byte_ns > 4 * fastest_ns + kNoise_ns) {
        window_ = std::max(std::min(window_, kWindowWhenSlow), window_ * 0.98);
    } else if (is_used && first_byte_ns <= 2 * fastest_ns + kNoise_ns) {
        window_ = std::min(window_max_, window_ + 1 / window_);
    }
}

void ConcurrencyLimit::overloaded(std::int64_t now_ns) {
    --in_flight_;
    if (halved_ns_ != 0 && now_ns - halved_ns_ < kHalveEvery_ns) return;
    halved_ns_ = now_ns;
    window_ = std::max(kWindowLeast, window_ / 2);
}

}  // namespace larder::cache
