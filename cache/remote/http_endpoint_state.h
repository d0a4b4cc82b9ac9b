#pragma once

// The state that the transfers keep for one endpoint: the limit of requests in flight, the requests that wait for a
// turn, the durations from which a late request is recognised, and the time since which the endpoint has not answered.
// An endpoint that answers nothing for a second has an outage. After several failures without an answer, all requests
// to the endpoint share one back-off: an outage costs the endpoint and this node a few tries a second, however many
// blocks wait. One thread; pure bookkeeping.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "cache/remote/concurrency_limit.h"
#include "cache/remote/http_outage.h"

namespace larder::cache {

struct HttpGet;

// The 99th percentile of the last few hundred durations.
class LatencyPercentile {
public:
    void add(std::int64_t duration_ns);
    // Returns nullopt until kDurationsNeeded durations are known.
    std::optional<std::int64_t> ns() const;

private:
    static constexpr std::size_t kDurationsKept = 512;
    static constexpr std::size_t kDurationsNeeded = 100;
    std::array<std::int64_t, kDurationsKept> durations_ns_{};
    std::size_t count_ = 0;  // durations added so far
};

struct HttpEndpointState {
    explicit HttpEndpointState(std::size_t connections_max) : limit(connections_max) {}

    // Call when the endpoint has answered. Returns the outage that this ended, if any.
    std::optional<HttpOutage> answered(std::int64_t now_ns);
    void failed(std::string why, int why_errno, std::int64_t now_ns);
    // Returns the outage once, as soon as the silence counts as an outage.
    std::optional<HttpOutage> begin_outage_if_silent(std::int64_t now_ns);
    // Ends the outage and returns it once, if no request is in flight and the last failure is kOutageForgotten_ns ago.
    // Without requests, no answer can come to end the outage.
    std::optional<HttpOutage> end_forgotten_outage(std::int64_t now_ns);
    std::optional<HttpOutage> outage() const;
    // True if tries share the back-off: kFailuresBeforeBackoff tries have failed since the last answer.
    bool backs_off() const { return failures >= kFailuresBeforeBackoff; }
    // The earliest time of the next try; 0: now.
    std::int64_t next_try_ns() const { return backs_off() ? next_try_ns_ : 0; }
    // Call when a try starts. `draw`: uniform random bits.
    void try_started(std::uint64_t draw, std::int64_t now_ns);
    // True if a waiting request must fail: tries of the endpoint have failed for longer than `retry_for_ns`, and one
    // has failed more than `retry_for_ns` after the request was submitted. Time in which nothing was tried does not
    // count: the endpoint may be well again by the next try.
    bool is_given_up(std::int64_t submitted_ns, std::int64_t retry_for_ns) const;

    ConcurrencyLimit limit;
    std::deque<HttpGet*> waiting;
    LatencyPercentile late_after;
    std::int64_t silent_since_ns = 0;  // the first failure after the last answer; 0: none
    std::string last_failure;
    int last_errno = 0;
    std::int64_t last_failed_ns = 0;
    std::uint64_t failures = 0;  // since silent_since_ns
    bool is_outage = false;
    bool has_answered = false;  // since the start

    // A flaky endpoint, too, fails a few times in a row.
    static constexpr std::uint64_t kFailuresBeforeBackoff = 8;
    // The longest back-off, so that the end of an outage is noticed within this time.
    static constexpr std::int64_t kBackoffMost_ns = 1'000'000'000;
    static constexpr std::int64_t kOutageAfter_ns = 1'000'000'000;
    // Longer than any delay between two tries of a request.
    static constexpr std::int64_t kOutageForgotten_ns = 120'000'000'000;

private:
    std::optional<HttpOutage> end_silence(std::int64_t now_ns, bool ended_by_answer);

    std::int64_t next_try_ns_ = 0;
    unsigned tries_in_backoff_ = 0;
};

}  // namespace larder::cache
