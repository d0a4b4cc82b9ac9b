#pragma once

// What the transfers know of one endpoint: how much may be under way there, who waits for that, how long requests take,
// from which it follows when one is late, and since when none has had an answer: after a second of that it is an
// outage. One thread; pure bookkeeping.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "cache/remote/concurrency_limit.h"
#include "cache/remote/http_outage.h"

namespace larder::cache {

struct HttpFlight;

// The 99th percentile of the last few hundred durations.
class LateAfter {
public:
    void add(std::int64_t duration_ns);
    // Nothing before there is enough to go by.
    std::optional<std::int64_t> ns() const;

private:
    static constexpr std::size_t kKept = 512;
    static constexpr std::size_t kEnough = 100;
    std::array<std::int64_t, kKept> durations_ns_{};
    std::size_t count_ = 0;  // ever
};

struct HttpEndpoint {
    explicit HttpEndpoint(std::size_t connections_max) : limit(connections_max) {}

    // The outage that this ends, if there was one.
    std::optional<HttpOutage> answered(std::int64_t now_ns);
    void failed(std::string why, int why_errno, std::int64_t now_ns);
    // The outage, once, when it has lasted long enough to be one.
    std::optional<HttpOutage> outage_begins(std::int64_t now_ns);
    // The outage, once, when nobody has asked for so long that it is not known to last.
    std::optional<HttpOutage> outage_forgotten(std::int64_t now_ns);
    std::optional<HttpOutage> outage() const;
    // Whether what was submitted then and still waits is to be told so: nothing that was tried all that time has had an
    // answer.
    bool is_given_up(std::int64_t submitted_ns, std::int64_t retry_for_ns, std::int64_t now_ns) const;

    ConcurrencyLimit limit;
    std::deque<HttpFlight*> waiting;
    LateAfter late_after;
    std::int64_t silent_since_ns = 0;  // the first failure after the last answer; 0: none
    std::string last_failure;
    int last_errno = 0;
    std::int64_t last_failed_ns = 0;
    std::uint64_t failures = 0;  // since then
    bool is_outage = false;

    static constexpr std::int64_t kOutageAfter_ns = 1'000'000'000;
    // Longer than any delay between two tries.
    static constexpr std::int64_t kOutageForgotten_ns = 120'000'000'000;

private:
    std::optional<HttpOutage> end_silence(std::int64_t now_ns, bool answers);
};

}  // namespace larder::cache
