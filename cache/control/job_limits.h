#pragma once

// The remote bandwidth each job may take on this node, and the token bucket that holds it to that. A job's limit is, in
// this order: what the API set since the last (re)load of the config or, for a job the config does not name, in an
// earlier run; what the config says of it; the config's default. Control thread only; the buckets are shared with the
// data plane.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cache/control/config.h"
#include "cache/shard/token_bucket.h"

namespace larder::cache {

struct JobLimit {
    double rate_bytes_per_second = 0;  // 0: none
    std::uint64_t burst_bytes = 0;     // 0: default_burst_bytes of the rate
};

// Printable, without spaces and parentheses (which mark the daemon's own jobs), 1 to 255 characters.
Result<void> check_job_name(std::string_view name);

class JobLimits {
public:
    // Reads what `to_json` gave in an earlier run; `source` names it in errors.
    Result<void> load(std::string_view json, std::string_view source);
    // Takes the config's limits, for jobs it names over whatever was set before.
    void apply(const Config& config, std::int64_t now_ns);
    void set(const std::string& job, JobLimit limit, std::int64_t now_ns);

    // The bucket of all sessions of a job on this node.
    std::shared_ptr<TokenBucket> bucket(const std::string& job, std::int64_t now_ns);

    // Those set by the API and by the config.
    std::map<std::string, JobLimit> explicit_limits() const;
    // What the API set, to be kept.
    std::string to_json() const;

private:
    JobLimit limit_of(const std::string& job) const;

    JobLimit default_;
    std::map<std::string, JobLimit> from_config_;
    std::map<std::string, JobLimit> from_api_;
    std::map<std::string, std::shared_ptr<TokenBucket>> buckets_;
};

}  // namespace larder::cache
