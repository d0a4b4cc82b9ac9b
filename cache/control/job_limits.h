#pragma once

// The remote bandwidth each job may take on this node, and the token bucket that holds it to that. A job's limit is, in
// this order: what the API set since the last (re)load of the config or, for a job the config does not name, in an
// earlier run; what the config says of it; the config's default. Under an allocator it is also no more than what is
// leased to the job. Control thread only; the buckets are shared with the data plane.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cache/control/config.h"
#include "cache/shard/statistics.h"
#include "cache/shard/token_bucket.h"

namespace larder::cache {

struct JobLimit {
    double rate_bytes_per_second = 0;  // 0: none
    std::uint64_t burst_bytes = 0;     // 0: default_burst_bytes of the rate
};

// What an allocator lets this node's jobs take, for a while.
struct RateLease {
    std::map<std::string, double> rates;  // bytes per second, by job
    // Once it has expired each job it names may take so much, shared by those that run then; a lease for no job is for
    // those that come. What a job it does not name takes before, others give up: the sum is what others count on.
    double floor_bytes_per_second = 0;
    std::int64_t expires_ns = 0;
};

// Printable, without spaces and parentheses (which mark the daemon's own jobs), 1 to 255 characters.
Result<void> check_job_name(std::string_view name);

class JobLimits {
public:
    static constexpr std::size_t kJobsMax = 4096;

    // Reads what `to_json` gave in an earlier run; `source` names it in errors.
    Result<void> load(std::string_view json, std::string_view source);
    // Takes the config's limits, for jobs it names over whatever was set before.
    void apply(const Config& config, std::int64_t now_ns);
    void set(const std::string& job, JobLimit limit, std::int64_t now_ns);
    // What the API set holds no more.
    void unset(const std::string& job, std::int64_t now_ns);

    // The lease in force from now on. With the first one jobs are under an allocator.
    void lease(RateLease lease, std::int64_t now_ns);
    // To be called several times a second: shares the floor of a lease that has expired among the jobs that read.
    // Buckets fall to it by themselves. Returns true if the lease just expired.
    bool expire(std::int64_t now_ns);
    // The lease in force gives some job markedly more than this one does.
    bool leases_more_than(const RateLease& next) const;
    // A job came that the lease in force does not name.
    bool any_unleased() const { return any_unleased_; }

    // To be called about once a second: who reads. The buckets of those that nobody holds any more go once they are
    // full, when a new one would be no other.
    void look(const ShardStatistics& statistics, std::int64_t now_ns);
    // What `look` found. Who has not read twice in a row leaves its part to the others.
    void seen_reading(const std::set<std::string>& jobs, std::int64_t now_ns);

    // The bucket of all sessions of a job on this node, which reads from now on. An error where there are
    // kJobsMax others.
    Result<std::shared_ptr<TokenBucket>> bucket(const std::string& job, std::int64_t now_ns);
    std::size_t buckets() const { return buckets_.size(); }

    // Those set by the API and by the config.
    std::map<std::string, JobLimit> explicit_limits() const;
    // What the API set, to be kept.
    std::string to_json() const;

private:
    struct Bucket {
        std::shared_ptr<TokenBucket> bucket;
        unsigned looks_idle = 0;  // in a row; kLooksIdle and no more: it does not read

        static constexpr unsigned kLooksIdle = 2;
        bool reads() const { return looks_idle < kLooksIdle; }
    };

    JobLimit own_limit_of(const std::string& job) const;
    // The job's own limit, lowered to its part of the lease in force or, if `expired`, of the lease's floor.
    JobLimit limit_of(const std::string& job, bool expired) const;
    void renew(const std::string& job, std::int64_t now_ns);
    void set_all(std::int64_t now_ns);
    double leased_rate_of(const std::string& job, bool expired) const;
    void set_bucket(const std::string& job, TokenBucket& bucket, std::int64_t now_ns) const;
    void share_lease();

    std::optional<RateLease> lease_;
    double newcomer_rate_ = 0;  // of a job that the lease does not name
    double part_left_ = 1;      // of the rates of those that it does
    double expired_rate_ = 0;   // of every job once the lease has expired
    bool expired_ = false;
    bool any_unleased_ = false;
    JobLimit default_;
    std::map<std::string, JobLimit> from_config_;
    std::map<std::string, JobLimit> from_api_;
    std::map<std::string, Bucket> buckets_;
};

}  // namespace larder::cache
