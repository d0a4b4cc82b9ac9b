#include "cache/remote/http_endpoint.h"

#include <algorithm>
#include <vector>

namespace larder::cache {

void LateAfter::add(std::int64_t duration_ns) {
    durations_ns_[count_ % kKept] = duration_ns;
    ++count_;
}

std::optional<std::int64_t> LateAfter::ns() const {
    if (count_ < kEnough) return std::nullopt;
    const std::size_t kept = std::min(count_, kKept);
    std::array<std::int64_t, kKept> sorted = durations_ns_;
    const auto at = sorted.begin() + static_cast<std::ptrdiff_t>(kept * 99 / 100);
    std::nth_element(sorted.begin(), at, sorted.begin() + static_cast<std::ptrdiff_t>(kept));
    return *at;
}

}  // namespace larder::cache
