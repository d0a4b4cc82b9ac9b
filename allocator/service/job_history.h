#pragma once

// Keeps what limits each running job, since when, and its rates of the last hour. People look at it; plans do not use
// it, and it ends with the process. One thread at a time; the caller passes the time.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "allocator/cluster.h"
#include "allocator/service/observed.h"

namespace larder::allocator {

struct JobLimit {
    // compute: the job's own, as it reads at f*. unpredicted: the plan lets it read at f*, but it reads less. unknown:
    // f* is neither measured nor declared.
    enum class Kind : std::uint8_t { compute, unpredicted, remote, network, disk, unknown };
    Kind kind = Kind::unknown;
    std::string node;  // whose network or disk
    std::int64_t since_unix_ms = 0;
};

std::string_view name(JobLimit::Kind kind);

struct RateSample {
    std::int64_t unix_ms = 0;
    // Bytes per second.
    float ideal = 0;
    float predicted = 0;
    float granted = 0;
    float measured = 0;
    float hit_ratio = 0;
    bool is_measured = false;
};

class JobHistory {
public:
    // Looks at the plan in force, unless it did so less than a second ago. Keeps a sample of each job when it comes and
    // then every ten seconds. Forgets jobs that no longer run.
    void update(const Cluster& cluster, const Observed& observed, std::int64_t now_ns, std::int64_t unix_ms);

    // Null: the job does not run.
    const JobLimit* limit_of(const std::string& job) const;
    const std::deque<RateSample>* samples_of(const std::string& job) const;  // oldest first

private:
    struct Known {
        JobLimit limit;
        std::deque<RateSample> samples;
        std::uint64_t seen = 0;  // the number of the update
    };

    static constexpr std::int64_t kUpdate_ns = 1'000'000'000;
    static constexpr std::int64_t kSample_ns = 10'000'000'000;
    static constexpr std::size_t kSamplesMax = 360;

    std::map<std::string, Known> jobs_;
    std::uint64_t updates_ = 0;
    std::optional<std::int64_t> updated_ns_;
    std::optional<std::int64_t> sampled_ns_;
};

}  // namespace larder::allocator
