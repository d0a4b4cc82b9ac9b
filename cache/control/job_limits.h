#pragma once

// The remote bandwidth that each job may take on this node, and the token bucket that enforces it. A job's limit is the
// first of these that is set: the limit set through the API, the config's limit for the job, the config's default.
// Limits of the API survive restarts, but loading or reloading the config discards them for jobs that the config names.
// Under an allocator the limit is also at most the rate leased to the job. Control thread only; the data plane shares
// the buckets.

#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "cache/control/daemon_config.h"
#include "cache/shard/statistics.h"
#include "cache/shard/token_bucket.h"

namespace larder::cache {

struct JobLimit {
    double rate_bytes_per_second = 0;  // 0: none
    std::uint64_t burst_bytes = 0;     // 0: default_burst_bytes of the rate
};

// The rates that an allocator grants this node's jobs until the lease expires.
struct RateLease {
    std::map<std::string, double> rates;  // bytes per second, by job
    // Before expiry, a job that the lease does not name gets at most this rate. The named jobs give it up in proportion
    // to their own rates, because other nodes rely on the sum. After expiry, the jobs that read share this rate times
    // the number of named jobs (at least 1), and each gets at most this rate. Both are shared by users first, then by
    // the jobs of each user, so that a user gains nothing by many job names.
    double floor_bytes_per_second = 0;
    std::int64_t expires_ns = 0;  // counts the time for which the machine was suspended (TokenBucket::set_expiry)

    // The rate of all jobs together after expiry.
    double expired_bytes_per_second() const {
        return floor_bytes_per_second * static_cast<double>(std::max<std::size_t>(1, rates.size()));
    }
};

// The user whose process opens a session of a job.
struct JobUser {
    uid_t uid = 0;
    bool is_unlimited = false;  // may have any number of jobs
};

// A job name is 1 to 255 printable characters without spaces and parentheses (which mark the daemon's own jobs).
Result<void> check_job_name(std::string_view name);

class JobLimits {
public:
    static constexpr std::size_t kJobsMax = 4096;
    static constexpr std::size_t kJobsOfUserMax = 512;

    JobLimits() : JobLimits(std::function<void()>()) {}
    // `changed` is called after limits were changed from outside: a thread that waits for a job's bandwidth still
    // assumes the old rate.
    // `slept` is for the expiry of leases, as in TokenBucket.
    // `user_name` names users in errors.
    explicit JobLimits(
        std::function<void()> changed, TokenBucket::SleptTime slept = nullptr,
        std::function<std::string(uid_t)> user_name = [](uid_t user) { return std::to_string(user); })
        : changed_(std::move(changed)), slept_(slept), user_name_(std::move(user_name)) {}

    // Reads the text that `to_json` returned in an earlier run; `source` names it in errors.
    Result<void> load(std::string_view json, std::string_view source);
    // Applies the config's limits. For a job that the config names, they replace the API's.
    void apply(const DaemonConfig& config, std::int64_t now_ns);
    void set(const std::string& job, JobLimit limit, std::int64_t now_ns);
    // Removes the limit that the API set.
    void unset(const std::string& job, std::int64_t now_ns);

    // Applies a lease. The first one puts all jobs under an allocator.
    void lease(RateLease lease, std::int64_t now_ns);
    // Call it several times a second. If the lease has expired, shares its floor among the jobs that read and returns
    // true once. Buckets fall to the floor by themselves.
    bool expire(std::int64_t now_ns);
    // Call it several times a second. Gives the scans the tokens that full buckets of jobs could not keep since the
    // last call. So scans use all bandwidth leased to this node, whatever the jobs' parts of it are, and no job has
    // less.
    void share_unused(std::int64_t now_ns);
    // True if the current lease gives some job markedly more than `next` does.
    bool exceeds_lease(const RateLease& next) const;
    // True if a job has started that the current lease does not name.
    bool any_unleased() const { return any_unleased_; }

    // Call it about once a second to record which jobs read. Drops the bucket of an idle job if nobody else holds the
    // bucket and it is full, because a new bucket would be the same.
    void update_idle_jobs(const ShardStatistics& statistics, std::int64_t now_ns);
    // Takes the jobs that `update_idle_jobs` found reading. A job that did not read twice in a row leaves its share to
    // the others.
    void record_reading_jobs(const std::set<std::string>& jobs, std::int64_t now_ns);

    // The bucket of all sessions of a job on this node. The job counts as reading from now on. The name belongs to the
    // user who used it first, until the job's bucket is dropped. Errors: permission_denied if the name belongs to
    // another user; unavailable if the user has kJobsOfUserMax other jobs (unless they may have any number), or if
    // kJobsMax other jobs have buckets.
    Result<std::shared_ptr<TokenBucket>> bucket(const std::string& job, JobUser user, std::int64_t now_ns);
    std::size_t buckets() const { return buckets_.size(); }
    // The user whom the name belongs to; nullopt if the job has no bucket.
    std::optional<uid_t> user_of(const std::string& job) const;

    // The job's limit without an allocator's lease. Rate 0: no limit.
    JobLimit own_limit_of(const std::string& job) const;
    // The limits set by the API and by the config.
    std::map<std::string, JobLimit> explicit_limits() const;
    // The limits set by the API, to be saved.
    std::string to_json() const;

private:
    struct Bucket {
        std::shared_ptr<TokenBucket> bucket;
        uid_t user = 0;
        unsigned idle_checks = 0;  // consecutive checks that found no read; at the maximum, the job does not read

        static constexpr unsigned kIdleChecksMax = 2;
        bool reads() const { return idle_checks < kIdleChecksMax; }
    };

    // The rates that the lease leaves to each job of one user.
    struct UserShare {
        double named = 0;       // jobs that read and that the lease names
        double named_rate = 0;  // the sum of their leased rates
        double newcomers = 0;   // jobs that read and that the lease does not name
        double newcomer_rate = 0;
        double named_share = 1;   // the fraction of their leased rates that named jobs keep
        double expired_rate = 0;  // of every job after the lease has expired

        double give_newcomers(double part, double floor, double unowned) {
            newcomer_rate = std::min(floor, part / (named + newcomers + unowned));
            return newcomers * newcomer_rate;
        }
        void take_from_named(double rate) {
            if (named_rate > 0) named_share = std::max(0.0, 1 - rate / named_rate);
        }
    };

    // The job's own limit, lowered to the leased rate or, if `expired`, to its share of the lease's floor.
    JobLimit limit_of(const std::string& job, const Bucket& bucket, bool expired) const;
    void update_bucket(const std::string& job, std::int64_t now_ns);
    void set_all(std::int64_t now_ns);
    double leased_rate_of(const std::string& job, const Bucket& bucket, bool expired) const;
    void set_bucket(const std::string& job, const Bucket& bucket, std::int64_t now_ns) const;
    void share_lease();
    void tell_changed() const {
        if (changed_) changed_();
    }

    bool has_expired(std::int64_t now_ns) const {
        return lease_->expires_ns <= now_ns + (slept_ == nullptr ? 0 : slept_());
    }

    std::function<void()> changed_;
    TokenBucket::SleptTime slept_ = nullptr;
    std::function<std::string(uid_t)> user_name_;
    std::optional<RateLease> lease_;
    std::map<uid_t, UserShare> user_shares_;
    double idle_share_ = 1;  // the fraction of their leased rates that named jobs keep which do not read
    bool expired_ = false;
    bool any_unleased_ = false;
    JobLimit default_;
    std::map<std::string, JobLimit> from_config_;
    std::map<std::string, JobLimit> from_api_;
    std::map<std::string, Bucket> buckets_;
};

}  // namespace larder::cache
