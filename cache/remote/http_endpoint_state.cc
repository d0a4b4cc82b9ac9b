#include "cache/remote/http_endpoint_state.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cache/remote/retry_delay.h"

namespace larder::cache {

void LatencyPercentile::add(std::int64_t duration_ns) {
    durations_ns_[count_ % kDurationsKept] = duration_ns;
    ++count_;
}

std::optional<std::int64_t> LatencyPercentile::ns() const {
    if (count_ < kDurationsNeeded) return std::nullopt;
    const std::size_t duration_count = std::min(count_, kDurationsKept);
    std::array<std::int64_t, kDurationsKept> sorted = durations_ns_;
    const auto at = sorted.begin() + static_cast<std::ptrdiff_t>(duration_count * 99 / 100);
    std::nth_element(sorted.begin(), at, sorted.begin() + static_cast<std::ptrdiff_t>(duration_count));
    return *at;
}

void HttpEndpointState::failed(std::string why, int why_errno, std::int64_t now_ns) {
    if (silent_since_ns == 0) silent_since_ns = now_ns;
    last_failure = std::move(why);
    last_errno = why_errno;
    last_failed_ns = now_ns;
    ++failures;
}

std::optional<HttpOutage> HttpEndpointState::outage() const {
    if (!is_outage) return std::nullopt;
    return HttpOutage{.began_ns = silent_since_ns, .failures = failures, .why = last_failure};
}

std::optional<HttpOutage> HttpEndpointState::begin_outage_if_silent(std::int64_t now_ns) {
    // A single failure is not an outage.
    const bool begins =
        silent_since_ns != 0 && !is_outage && failures > 1 && now_ns - silent_since_ns >= kOutageAfter_ns;
    if (!begins) return std::nullopt;
    is_outage = true;
    return outage();
}

std::optional<HttpOutage> HttpEndpointState::end_forgotten_outage(std::int64_t now_ns) {
    if (!is_outage || limit.in_flight() > 0 || now_ns - last_failed_ns < kOutageForgotten_ns) return std::nullopt;
    return end_silence(now_ns, false);
}

std::optional<HttpOutage> HttpEndpointState::answered(std::int64_t now_ns) {
    has_answered = true;
    return end_silence(now_ns, true);
}

std::optional<HttpOutage> HttpEndpointState::end_silence(std::int64_t now_ns, bool ended_by_answer) {
    auto ended = outage();
    if (ended) {
        ended->ended_ns = now_ns;
        ended->ended_by_answer = ended_by_answer;
    }
    silent_since_ns = 0;
    failures = 0;
    next_try_ns_ = 0;
    tries_in_backoff_ = 0;
    is_outage = false;
    return ended;
}

void HttpEndpointState::try_started(std::uint64_t draw, std::int64_t now_ns) {
    if (backs_off()) next_try_ns_ = now_ns + std::min(retry_delay_ns(++tries_in_backoff_, draw), kBackoffMost_ns);
}

bool HttpEndpointState::is_given_up(std::int64_t submitted_ns, std::int64_t retry_for_ns) const {
    return silent_since_ns != 0 && last_failed_ns - std::max(silent_since_ns, submitted_ns) > retry_for_ns;
}

}  // namespace larder::cache
