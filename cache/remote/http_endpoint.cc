#include "cache/remote/http_endpoint.h"

#include <algorithm>
#include <utility>
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

void HttpEndpoint::failed(std::string why, int why_errno, std::int64_t now_ns) {
    if (silent_since_ns == 0) silent_since_ns = now_ns;
    last_failure = std::move(why);
    last_errno = why_errno;
}

bool HttpEndpoint::is_given_up(std::int64_t submitted_ns, std::int64_t retry_for_ns, std::int64_t now_ns) const {
    return silent_since_ns != 0 && now_ns - silent_since_ns > retry_for_ns && now_ns - submitted_ns > retry_for_ns;
}

}  // namespace larder::cache
