#include "cache/control/job_limits.h"

#include <boost/json.hpp>

#include <algorithm>

#include "base/server/json_reader.h"
#include "base/server/json_text.h"
#include "cache/protocol/wire.h"
#include "cache/shard/shard.h"

namespace larder::cache {
namespace json = boost::json;
namespace {

JobLimit limit_from(const JobConfig& config) {
    return {.rate_bytes_per_second = config.remote_bytes_per_second, .burst_bytes = config.remote_burst_bytes};
}

std::uint64_t burst_of(const JobLimit& limit) {
    return limit.burst_bytes != 0 ? limit.burst_bytes : default_burst_bytes(limit.rate_bytes_per_second);
}

}  // namespace

Result<void> check_job_name(std::string_view name) {
    const auto allowed = [](char c) { return c > ' ' && c < 0x7f && c != '(' && c != ')'; };
    if (!name.empty() && name.size() < protocol::kNameBytesMax && std::ranges::all_of(name, allowed)) return {};
    return fail(ErrorCode::invalid_argument,
                "\"" + std::string(name) +
                    "\" is not a job name: give 1 to 255 printable characters without spaces and parentheses");
}

Result<void> JobLimits::load(std::string_view text, std::string_view source) {
    const auto object = parse_json_object(text, source);
    if (!object) return std::unexpected(object.error());
    for (const auto& member : *object) {
        const std::string job = member.key();
        const std::string where = std::string(source) + ": job \"" + job + "\"";
        const json::object* fields = member.value().if_object();
        if (fields == nullptr) return fail(ErrorCode::invalid_argument, where + " is not an object");
        JsonReader reader(*fields, where);
        // Files of earlier versions have a key that ends with _per_s.
        const char* const rate = reader.has("rate_bytes_per_s") ? "rate_bytes_per_s" : "rate_bytes_per_second";
        const JobLimit limit{.rate_bytes_per_second = reader.number(rate),
                             .burst_bytes = reader.unsigned_integer("burst_bytes")};
        if (auto finished = reader.finish(); !finished) return finished;
        from_api_[job] = limit;
    }
    return {};
}

void JobLimits::apply(const DaemonConfig& config, std::int64_t now_ns) {
    default_ = limit_from(config.default_job);
    from_config_.clear();
    for (const auto& [job, limit] : config.jobs) {
        from_config_[job] = limit_from(limit);
        from_api_.erase(job);
    }
    set_all(now_ns);
    tell_changed();
}

void JobLimits::set(const std::string& job, JobLimit limit, std::int64_t now_ns) {
    from_api_[job] = limit;
    update_bucket(job, now_ns);
    tell_changed();
}

void JobLimits::unset(const std::string& job, std::int64_t now_ns) {
    from_api_.erase(job);
    update_bucket(job, now_ns);
    tell_changed();
}

void JobLimits::update_bucket(const std::string& job, std::int64_t now_ns) {
    if (const auto found = buckets_.find(job); found != buckets_.end()) set_bucket(job, found->second, now_ns);
}

void JobLimits::update_idle_jobs(const ShardStatistics& statistics, std::int64_t now_ns) {
    std::set<std::string> reading;
    for (const JobStatistics& job : statistics.jobs) {
        if (job.sessions > 0 || job.waiting_bytes > 0) reading.insert(job.job);
    }
    if (statistics.scans > 0) reading.insert(kScanJob);
    record_reading_jobs(reading, now_ns);
    std::erase_if(buckets_, [now_ns](const auto& item) {
        const Bucket& bucket = item.second;
        return !bucket.reads() && bucket.bucket.use_count() == 1 && bucket.bucket->is_full(now_ns);
    });
}

void JobLimits::record_reading_jobs(const std::set<std::string>& jobs, std::int64_t now_ns) {
    bool changed = false;
    for (auto& [job, bucket] : buckets_) {
        const bool was_reading = bucket.reads();
        bucket.idle_checks = jobs.contains(job) ? 0 : std::min(bucket.idle_checks + 1, Bucket::kIdleChecksMax);
        changed |= bucket.reads() != was_reading;
    }
    if (changed) set_all(now_ns);
}

// A newcomer (a job that the lease does not name) gets the floor rate, or an equal share of its user's part if that is
// less. A user's part is what the lease gives its jobs, and at least an equal part of the lease. So a user with many
// newcomers takes only from its own jobs, and from users who have more than an equal part.
void JobLimits::share_lease() {
    user_shares_.clear();
    const double floor = lease_->floor_bytes_per_second;
    double sum = 0;
    for (const auto& [job, rate] : lease_->rates) sum += rate;
    double idle_rate = sum;                                      // of named jobs that do not read
    double unowned = static_cast<double>(lease_->rates.size());  // named jobs that have no session here yet
    for (const auto& [job, bucket] : buckets_) {
        const auto rate = lease_->rates.find(job);
        const bool is_named = rate != lease_->rates.end();
        if (is_named) unowned -= 1;
        if (!bucket.reads()) continue;
        UserShare& share = user_shares_[bucket.user];
        (is_named ? share.named : share.newcomers) += 1;
        if (!is_named) continue;
        share.named_rate += rate->second;
        idle_rate -= rate->second;
    }
    idle_share_ = 1;
    if (user_shares_.empty()) return;
    const auto named = static_cast<double>(lease_->rates.size());
    const auto users = static_cast<double>(user_shares_.size());
    const double equal_part = (lease_->rates.empty() ? floor : sum) / users;
    double wanted = 0;           // by users below an equal part, beyond what their own jobs have
    double surplus = idle_rate;  // above equal parts
    for (auto& [user, share] : user_shares_) {
        share.expired_rate = std::min(floor, floor * std::max(1.0, named) / users / (share.named + share.newcomers));
        if (share.named_rate > equal_part) {
            surplus += share.named_rate - equal_part;
            continue;
        }
        const double given = share.give_newcomers(equal_part, floor, unowned);
        const double from_others = std::min(given, equal_part - share.named_rate);
        share.take_from_named(given - from_others);
        wanted += from_others;
    }
    const double taken = surplus > 0 ? std::min(1.0, wanted / surplus) : 0;
    idle_share_ = 1 - taken;
    for (auto& [user, share] : user_shares_) {
        if (share.named_rate <= equal_part) continue;
        const double for_others = taken * (share.named_rate - equal_part);
        share.take_from_named(for_others + share.give_newcomers(share.named_rate - for_others, floor, unowned));
    }
}

double JobLimits::leased_rate_of(const std::string& job, const Bucket& bucket, bool expired) const {
    const auto share = user_shares_.find(bucket.user);
    const UserShare of_user = share == user_shares_.end() ? UserShare{} : share->second;
    if (expired) return of_user.expired_rate;
    const auto granted = lease_->rates.find(job);
    if (granted == lease_->rates.end()) return of_user.newcomer_rate;
    return granted->second * (bucket.reads() ? of_user.named_share : idle_share_);
}

void JobLimits::set_all(std::int64_t now_ns) {
    if (lease_) share_lease();
    for (const auto& [job, bucket] : buckets_) set_bucket(job, bucket, now_ns);
}

void JobLimits::set_bucket(const std::string& job, const Bucket& entry, std::int64_t now_ns) const {
    TokenBucket& bucket = *entry.bucket;
    const JobLimit limit = limit_of(job, entry, expired_);
    bucket.set_limit(limit.rate_bytes_per_second, burst_of(limit), now_ns);
    (void)bucket.collect_unused(now_ns);  // unused tokens are counted by limit
    if (!lease_ || expired_) return;
    // The bucket itself switches to these limits at expiry, because this thread may be late.
    const JobLimit expired = limit_of(job, entry, true);
    bucket.set_expiry(lease_->expires_ns, expired.rate_bytes_per_second, burst_of(expired));
}

void JobLimits::lease(RateLease lease, std::int64_t now_ns) {
    share_unused(now_ns);
    lease_ = std::move(lease);
    expired_ = has_expired(now_ns);
    any_unleased_ = false;
    set_all(now_ns);
    tell_changed();
}

void JobLimits::share_unused(std::int64_t now_ns) {
    const auto scan = buckets_.find(kScanJob);
    if (scan == buckets_.end() || !scan->second.reads() || !lease_ || expired_ || has_expired(now_ns)) return;
    std::uint64_t unused_bytes = 0;
    for (const auto& [job, bucket] : buckets_) {
        // The lease's sum has no part for a newcomer that does not read.
        const bool has_part = bucket.reads() || lease_->rates.contains(job);
        if (has_part && job != kScanJob) unused_bytes += bucket.bucket->collect_unused(now_ns);
    }
    if (unused_bytes == 0) return;
    scan->second.bucket->give(unused_bytes);
    tell_changed();
}

bool JobLimits::exceeds_lease(const RateLease& next) const {
    constexpr double kMarkedChange = 0.01;
    if (!lease_ || expired_) return false;
    return std::ranges::any_of(lease_->rates, [&](const auto& rate) {
        const auto next_rate = next.rates.find(rate.first);
        return next_rate == next.rates.end() || next_rate->second < rate.second * (1 - kMarkedChange);
    });
}

bool JobLimits::expire(std::int64_t now_ns) {
    if (!lease_ || expired_ || !has_expired(now_ns)) return false;
    expired_ = true;
    set_all(now_ns);
    tell_changed();
    return true;
}

Result<std::shared_ptr<TokenBucket>> JobLimits::bucket(const std::string& job, JobUser user, std::int64_t now_ns) {
    auto found = buckets_.find(job);
    const bool is_new = found == buckets_.end();
    if (!is_new && found->second.user != user.uid) {
        return fail(ErrorCode::permission_denied, "the job name \"" + job + "\" is in use on this node by " +
                                                      user_name_(found->second.user) + ": give the job another name");
    }
    const auto is_own = [&](const auto& item) { return item.second.user == user.uid; };
    if (is_new && !user.is_unlimited &&
        static_cast<std::size_t>(std::ranges::count_if(buckets_, is_own)) >= kJobsOfUserMax) {
        return fail(ErrorCode::unavailable, "job \"" + job + "\" cannot be added: you have " +
                                                std::to_string(kJobsOfUserMax) +
                                                " jobs on this node, the most that one user may have; give the "
                                                "sessions of one job one name, or try again");
    }
    if (is_new && buckets_.size() >= kJobsMax) {
        return fail(ErrorCode::unavailable,
                    "job \"" + job + "\" cannot be added: this node tracks at most " + std::to_string(kJobsMax) +
                        " jobs, and forgets ended jobs once they have paid for their reads; give the sessions "
                        "of one job one name, or try again");
    }
    if (is_new) {
        found = buckets_.emplace(job, Bucket{.bucket = std::make_shared<TokenBucket>(slept_), .user = user.uid}).first;
    }
    Bucket& entry = found->second;
    const bool starts_reading = is_new || !entry.reads();
    entry.idle_checks = 0;
    if (starts_reading && lease_) {
        any_unleased_ = any_unleased_ || !lease_->rates.contains(job);
        set_all(now_ns);
    } else if (is_new) {
        set_bucket(job, entry, now_ns);
    }
    return entry.bucket;
}

std::optional<uid_t> JobLimits::user_of(const std::string& job) const {
    const auto found = buckets_.find(job);
    return found == buckets_.end() ? std::nullopt : std::optional(found->second.user);
}

JobLimit JobLimits::limit_of(const std::string& job, const Bucket& bucket, bool expired) const {
    JobLimit limit = own_limit_of(job);
    if (!lease_) return limit;
    // At least 1: a rate of 0 means no limit to a bucket.
    const double leased = std::max(1.0, leased_rate_of(job, bucket, expired));
    const double own = limit.rate_bytes_per_second;
    limit.rate_bytes_per_second = own > 0 ? std::min(own, leased) : leased;
    return limit;
}

JobLimit JobLimits::own_limit_of(const std::string& job) const {
    if (const auto found = from_api_.find(job); found != from_api_.end()) return found->second;
    if (const auto found = from_config_.find(job); found != from_config_.end()) return found->second;
    return default_;
}

std::map<std::string, JobLimit> JobLimits::explicit_limits() const {
    std::map<std::string, JobLimit> limits = from_api_;
    limits.insert(from_config_.begin(), from_config_.end());
    return limits;
}

std::string JobLimits::to_json() const {
    json::object limits;
    for (const auto& [job, limit] : from_api_) {
        limits[job] =
            json::object{{"rate_bytes_per_second", limit.rate_bytes_per_second}, {"burst_bytes", limit.burst_bytes}};
    }
    return json_text(limits) + "\n";
}

}  // namespace larder::cache
