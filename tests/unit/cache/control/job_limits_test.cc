#include "cache/control/job_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cache/shard/shard.h"

namespace larder::cache {
namespace {

DaemonConfig config_with(std::map<std::string, JobConfig> jobs, JobConfig fallback = {}) {
    DaemonConfig config;
    config.default_job = fallback;
    config.jobs = std::move(jobs);
    return config;
}

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr JobUser kUser{.uid = 7, .is_unlimited = true};

TEST(JobLimits, JobNameBelongsToTheUserWhoUsedItFirst) {
    JobLimits limits;
    const auto own = *limits.bucket("train", kUser, 0);
    const auto refused = limits.bucket("train", {.uid = 8, .is_unlimited = true}, 0);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::permission_denied);
    EXPECT_THAT(refused.error().message, testing::HasSubstr("in use on this node by "));
    EXPECT_EQ(*limits.bucket("train", kUser, 0), own);
}

TEST(JobLimits, OneUserHasAPartOfAllJobs) {
    JobLimits limits;
    const JobUser user{.uid = 8};
    for (std::size_t i = 0; i < JobLimits::kJobsOfUserMax; ++i) {
        ASSERT_TRUE(limits.bucket("job-" + std::to_string(i), user, 0));
    }
    const auto refused = limits.bucket("another", user, 0);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, testing::HasSubstr("you have 512 jobs"));
    EXPECT_TRUE(limits.bucket("job-3", user, 0)) << "a job that is known goes on";
    EXPECT_TRUE(limits.bucket("theirs", {.uid = 9}, 0));
}

TEST(JobLimits, UserGainsNothingByManyJobNames) {
    JobLimits limits;
    limits.lease({.rates = {{"train", 90e3}}, .floor_bytes_per_second = 1e3, .expires_ns = 10 * kSecond}, 0);
    const auto train = *limits.bucket("train", kUser, 0);
    const auto next = *limits.bucket("next", kUser, 0);
    for (int i = 0; i < 500; ++i) (void)limits.bucket("idle-" + std::to_string(i), {.uid = 8}, 0);
    EXPECT_EQ(next->rate_bytes_per_second(0), 1e3) << "a new job has the floor";
    EXPECT_GE(train->rate_bytes_per_second(0), 90e3 / 2 - 1e3) << "the other user gets half at most";
    EXPECT_NEAR(train->rate_bytes_per_second(10 * kSecond), 1e3 / 2 / 2, 1) << "half of the floor, shared by two jobs";
}

TEST(JobLimits, NewJobsOfOneUserTakeNothingFromTheEqualPartsOfOthers) {
    JobLimits limits;
    limits.lease({.rates = {{"victim", 50e3}, {"a", 25e3}, {"b", 25e3}},
                  .floor_bytes_per_second = 1e3,
                  .expires_ns = 10 * kSecond},
                 0);
    const auto victim = *limits.bucket("victim", kUser, 0);
    for (const char* job : {"a", "b"}) (void)limits.bucket(job, {.uid = 8}, 0);
    for (int i = 0; i < 500; ++i) (void)limits.bucket("new-" + std::to_string(i), {.uid = 8}, 0);
    EXPECT_DOUBLE_EQ(victim->rate_bytes_per_second(0), 50e3);
}

TEST(JobLimits, AnyUsersShareALeaseWithoutExceedingIt) {
    std::mt19937_64 random(1);
    for (int round = 0; round < 2000; ++round) {
        RateLease lease{
            .rates = {}, .floor_bytes_per_second = static_cast<double>(random() % 10'000), .expires_ns = 10 * kSecond};
        double sum = 0;
        for (std::uint64_t job = 0; job < 1 + random() % 6; ++job) {
            const double rate = random() % 4 == 0 ? 0 : static_cast<double>(random() % 100'000);
            lease.rates["named-" + std::to_string(job)] = rate;
            sum += rate;
        }
        JobLimits limits;
        limits.lease(lease, 0);
        std::vector<std::tuple<uid_t, std::string, std::shared_ptr<TokenBucket>>> buckets;
        const auto add = [&](const std::string& job) {
            const auto uid = static_cast<uid_t>(1 + random() % 3);
            if (const auto bucket = limits.bucket(job, {.uid = uid}, 0)) buckets.emplace_back(uid, job, *bucket);
        };
        for (const auto& [job, rate] : lease.rates) {
            if (random() % 3 != 0) add(job);
        }
        for (std::uint64_t job = 0; job < random() % 20; ++job) add("new-" + std::to_string(job));
        std::set<std::string> reading;
        for (const auto& [uid, job, bucket] : buckets) {
            if (random() % 4 != 0) reading.insert(job);
        }
        if (random() % 2 == 0) {
            for (int check = 0; check < 2; ++check) limits.record_reading_jobs(reading, 0);
        } else {
            for (const auto& [uid, job, bucket] : buckets) reading.insert(job);
        }
        double given = 0;
        std::map<uid_t, double> rates, named_rates;
        for (const auto& [uid, job, bucket] : buckets) {
            // The lease has no part for a new job that does not read.
            if (!reading.contains(job) && !lease.rates.contains(job)) continue;
            given += bucket->rate_bytes_per_second(0);
            if (!reading.contains(job)) continue;
            rates[uid] += bucket->rate_bytes_per_second(0);
            const auto named = lease.rates.find(job);
            named_rates[uid] += named == lease.rates.end() ? 0 : named->second;
        }
        // A bucket has at least 1 byte/s.
        ASSERT_LE(given, sum + static_cast<double>(buckets.size()) + 1e-6) << "round " << round;
        for (const auto& [uid, rate] : rates) {
            const double equal_part = sum / static_cast<double>(rates.size());
            ASSERT_GE(rate, std::min(named_rates[uid], equal_part) - 1e-6) << "round " << round << ", user " << uid;
        }
    }
}

std::int64_t slept_in_test_ns = 0;

TEST(JobLimits, LeaseExpiresWhileTheMachineSleeps) {
    slept_in_test_ns = 0;
    JobLimits limits({}, [] { return slept_in_test_ns; });
    const auto a = *limits.bucket("a", kUser, 0);
    limits.lease({.rates = {{"a", 100}}, .floor_bytes_per_second = 8, .expires_ns = 10 * kSecond}, 0);
    slept_in_test_ns = 20 * kSecond;
    // Neither another job nor a change of limits makes the lease longer.
    const auto b = *limits.bucket("b", kUser, kSecond);
    limits.set("b", {.rate_bytes_per_second = 1000}, kSecond);
    EXPECT_EQ(a->rate_bytes_per_second(kSecond), 4) << "without the control thread";
    EXPECT_TRUE(limits.expire(kSecond));
    EXPECT_EQ(a->rate_bytes_per_second(kSecond), 4);
    EXPECT_EQ(b->rate_bytes_per_second(kSecond), 4);
}

TEST(JobLimits, ApiLimitOverridesConfigAndConfigOverridesDefault) {
    JobLimits limits;
    limits.apply(config_with({{"named", {.remote_bytes_per_second = 100, .remote_burst_bytes = 7}}},
                             {.remote_bytes_per_second = 50, .remote_burst_bytes = 5}),
                 0);
    EXPECT_EQ((*limits.bucket("named", kUser, 0))->rate_bytes_per_second(0), 100);
    EXPECT_EQ((*limits.bucket("named", kUser, 0))->burst_bytes(), 7u);
    EXPECT_EQ((*limits.bucket("other", kUser, 0))->rate_bytes_per_second(0), 50);
    limits.set("other", {.rate_bytes_per_second = 10}, 0);
    limits.set("named", {.rate_bytes_per_second = 20}, 0);
    EXPECT_EQ((*limits.bucket("other", kUser, 0))->rate_bytes_per_second(0), 10);
    EXPECT_EQ((*limits.bucket("named", kUser, 0))->rate_bytes_per_second(0), 20);
}

TEST(JobLimits, ChangesFromOutsideAreToldAndNewJobsAreNot) {
    int told = 0;
    JobLimits limits([&] { ++told; });
    const auto bucket = *limits.bucket("a", kUser, 0);
    EXPECT_EQ(told, 0);
    limits.apply(config_with({}, {.remote_bytes_per_second = 50}), 0);
    limits.set("a", {.rate_bytes_per_second = 10}, 0);
    limits.unset("a", 0);
    limits.lease({.rates = {{"a", 5}}, .floor_bytes_per_second = 1, .expires_ns = 100}, 0);
    EXPECT_EQ(told, 4);
    EXPECT_FALSE(limits.expire(99));
    EXPECT_EQ(told, 4) << "the lease has not expired";
    EXPECT_TRUE(limits.expire(100));
    EXPECT_EQ(told, 5);
}

TEST(JobLimits, ReloadOverridesApiLimitsOfNamedJobsOnly) {
    JobLimits limits;
    const auto named = *limits.bucket("named", kUser, 0);
    const auto other = *limits.bucket("other", kUser, 0);
    const auto third = *limits.bucket("third", kUser, 0);
    limits.set("named", {.rate_bytes_per_second = 20}, 0);
    limits.set("other", {.rate_bytes_per_second = 10}, 0);
    limits.apply(config_with({{"named", {.remote_bytes_per_second = 100}}}, {.remote_bytes_per_second = 50}), 0);
    EXPECT_EQ(named->rate_bytes_per_second(0), 100);
    EXPECT_EQ(other->rate_bytes_per_second(0), 10);
    EXPECT_EQ(third->rate_bytes_per_second(0), 50);
}

TEST(JobLimits, EachJobHasOneBucket) {
    JobLimits limits;
    EXPECT_EQ(*limits.bucket("a", kUser, 0), *limits.bucket("a", kUser, 0));
    EXPECT_NE(*limits.bucket("a", kUser, 0), *limits.bucket("b", kUser, 0));
}

TEST(JobLimits, ApiLimitsSurviveSaveAndLoad) {
    JobLimits before;
    before.set("a", {.rate_bytes_per_second = 1.5e8, .burst_bytes = 1 << 20}, 0);
    before.set("b", {}, 0);
    before.apply(config_with({{"c", {.remote_bytes_per_second = 1}}}), 0);
    JobLimits after;
    const auto loaded = after.load(before.to_json(), "limits.json");
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    EXPECT_EQ(after.explicit_limits().size(), 2u);
    EXPECT_EQ((*after.bucket("a", kUser, 0))->rate_bytes_per_second(0), 1.5e8);
    EXPECT_EQ((*after.bucket("a", kUser, 0))->burst_bytes(), 1u << 20);
}

TEST(JobLimits, FileOfAnEarlierVersionIsRead) {
    JobLimits limits;
    ASSERT_TRUE(limits.load(R"({"a": {"rate_bytes_per_s": 1000, "burst_bytes": 7}})", "limits.json"));
    EXPECT_EQ((*limits.bucket("a", kUser, 0))->rate_bytes_per_second(0), 1000);
}

TEST(JobLimits, BrokenFileErrorNamesTheFile) {
    for (const char* text :
         {"", "[]", R"({"a": 3})", R"({"a": {"rate_bytes_per_second": "fast", "burst_bytes": 1}})",
          R"({"a": {"rate_bytes_per_second": 1}})", R"({"a": {"rate_bytes_per_second": -1, "burst_bytes": 1}})"}) {
        JobLimits limits;
        const auto loaded = limits.load(text, "limits.json");
        ASSERT_FALSE(loaded.has_value()) << text;
        EXPECT_NE(loaded.error().message.find("limits.json"), std::string::npos);
    }
}

TEST(JobLimits, JobNamesAreValidated) {
    for (const char* good : {"a", "resnet50/run-3", "1234.batch", "user@host:job"})
        EXPECT_TRUE(check_job_name(good)) << good;
    for (const std::string& bad : {std::string(), std::string("(scan)"), std::string("a b"), std::string("a\n"),
                                   std::string(256, 'x'), std::string("\x7f")}) {
        EXPECT_FALSE(check_job_name(bad)) << bad;
    }
}

// --- under an allocator

TEST(JobLimits, LeaseSetsJobRatesUntilItExpires) {
    JobLimits limits;
    const auto leased = *limits.bucket("leased", kUser, 0);
    limits.lease({.rates = {{"leased", 100}}, .floor_bytes_per_second = 8, .expires_ns = 5 * kSecond}, 0);
    EXPECT_EQ(leased->rate_bytes_per_second(0), 100);
    EXPECT_FALSE(limits.expire(5 * kSecond - 1));
    EXPECT_EQ(leased->rate_bytes_per_second(0), 100);
    EXPECT_TRUE(limits.expire(5 * kSecond));
    EXPECT_FALSE(limits.expire(6 * kSecond)) << "an expiry is reported once";
    EXPECT_EQ(leased->rate_bytes_per_second(0), 8);
    limits.lease({.rates = {{"leased", 50}}, .floor_bytes_per_second = 8, .expires_ns = 9 * kSecond}, 6 * kSecond);
    EXPECT_EQ(leased->rate_bytes_per_second(0), 50);
}

// Other nodes get the bandwidth from the expiry on, so a late control thread must not matter.
TEST(JobLimits, BucketsFallToTheFloorOnTimeWhenNobodyCallsExpire) {
    JobLimits limits;
    const auto a = *limits.bucket("a", kUser, 0);
    const auto b = *limits.bucket("b", kUser, 0);
    limits.lease({.rates = {{"a", 100e6}}, .floor_bytes_per_second = 8e6, .expires_ns = 5 * kSecond}, 0);
    EXPECT_EQ(a->rate_bytes_per_second(5 * kSecond - 1), 92e6);
    EXPECT_EQ(b->rate_bytes_per_second(5 * kSecond - 1), 8e6);
    EXPECT_EQ(a->rate_bytes_per_second(5 * kSecond), 4e6) << "one floor was leased, and two jobs read";
    EXPECT_EQ(b->rate_bytes_per_second(5 * kSecond), 4e6);
    std::uint64_t taken_bytes = 0;
    for (std::int64_t now_ns = 5 * kSecond; now_ns < 6 * kSecond; now_ns += kSecond / 1000) {
        while (a->try_take(1000, now_ns)) taken_bytes += 1000;
    }
    EXPECT_LE(taken_bytes, 4'000'000u + (1u << 20));
    limits.lease({.rates = {{"a", 50e6}}, .floor_bytes_per_second = 8e6, .expires_ns = 9 * kSecond}, 6 * kSecond);
    EXPECT_GT(a->rate_bytes_per_second(7 * kSecond), 40e6);
}

TEST(JobLimits, UnleasedJobGetsTheFloor) {
    JobLimits limits;
    EXPECT_FALSE(limits.any_unleased());
    limits.lease({.rates = {{"leased", 100}}, .floor_bytes_per_second = 8, .expires_ns = kSecond}, 0);
    (void)limits.bucket("leased", kUser, 0);
    EXPECT_FALSE(limits.any_unleased());
    EXPECT_EQ((*limits.bucket("new", kUser, 0))->rate_bytes_per_second(0), 8);
    EXPECT_TRUE(limits.any_unleased()) << "so that it is reported soon";
    limits.lease({.rates = {{"leased", 60}, {"new", 40}}, .floor_bytes_per_second = 8, .expires_ns = kSecond}, 0);
    EXPECT_EQ((*limits.bucket("new", kUser, 0))->rate_bytes_per_second(0), 40);
    EXPECT_FALSE(limits.any_unleased());
}

double sum_of(JobLimits& limits, const std::vector<std::string>& jobs) {
    double sum = 0;
    for (const std::string& job : jobs) sum += (*limits.bucket(job, kUser, 0))->rate_bytes_per_second(0);
    return sum;
}

TEST(JobLimits, NewJobsShareTheLeasedRate) {
    JobLimits limits;
    limits.lease({.rates = {{"a", 100e3}, {"b", 60e3}}, .floor_bytes_per_second = 8e3, .expires_ns = kSecond}, 0);
    EXPECT_DOUBLE_EQ(sum_of(limits, {"a", "b"}), 160e3);
    EXPECT_EQ((*limits.bucket("c", kUser, 0))->rate_bytes_per_second(0), 8e3);
    EXPECT_DOUBLE_EQ(sum_of(limits, {"a", "b", "c"}), 160e3);
    std::vector<std::string> jobs = {"a", "b", "c"};
    for (int i = 0; i < 100; ++i) jobs.push_back("new-" + std::to_string(i));
    (void)sum_of(limits, jobs);
    EXPECT_NEAR(sum_of(limits, jobs), 160e3, 1e-6);
    limits.expire(kSecond);
    EXPECT_NEAR(sum_of(limits, jobs), 2 * 8e3, 1e-6) << "one floor for each of the two leased jobs";

    // An ended job leaves its share to the others.
    limits.record_reading_jobs({"c"}, kSecond);
    EXPECT_NEAR((*limits.bucket("c", kUser, 0))->rate_bytes_per_second(0), 16e3 / 103, 1e-6)
        << "it may be between two sessions";
    limits.record_reading_jobs({"c"}, kSecond);
    EXPECT_EQ((*limits.bucket("c", kUser, 0))->rate_bytes_per_second(0), 8e3);
    (void)limits.bucket("d", kUser, 0);
    EXPECT_DOUBLE_EQ(sum_of(limits, {"c", "d"}), 16e3);
    (void)limits.bucket("e", kUser, 0);
    EXPECT_DOUBLE_EQ(sum_of(limits, {"c", "d", "e"}), 16e3);
}

TEST(JobLimits, RunningScanSharesTheLeasedRate) {
    JobLimits limits;
    limits.lease({.rates = {{"a", 100e3}}, .floor_bytes_per_second = 8e3, .expires_ns = kSecond}, 0);
    const auto job = *limits.bucket("a", kUser, 0);
    const auto scan = *limits.bucket(kScanJob, kUser, 0);
    const auto sum = [&] { return job->rate_bytes_per_second(0) + scan->rate_bytes_per_second(0); };
    EXPECT_DOUBLE_EQ(sum(), 100e3);
    const JobStatistics reads{.job = "a", .sessions = 1};
    for (int i = 0; i < 5; ++i) limits.update_idle_jobs({.jobs = {reads}, .scans = 1}, 0);
    EXPECT_DOUBLE_EQ(sum(), 100e3);
    for (int i = 0; i < 2; ++i) limits.update_idle_jobs({.jobs = {reads}}, 0);
    EXPECT_EQ(job->rate_bytes_per_second(0), 100e3) << "the scan has ended";
}

// A job reads `batch` bytes every two seconds from a part of the lease that is far above its need, and a scan reads all
// that it can.
TEST(JobLimits, ScanUsesWhatJobsLeaveAndJobsLoseNothing) {
    constexpr std::int64_t kStep_ns = 10'000'000;
    constexpr int kSeconds = 60;
    constexpr std::uint64_t kBlock = 256 << 10;
    constexpr std::uint64_t kBatch = 17 * kBlock;
    const auto lease_at = [](std::int64_t now_ns) {
        return RateLease{
            .rates = {{"a", 7e6}, {kScanJob, 1e6}}, .floor_bytes_per_second = 1e6, .expires_ns = now_ns + 10 * kSecond};
    };
    JobLimits limits;
    limits.lease(lease_at(0), 0);
    const auto job = *limits.bucket("a", kUser, 0);
    const auto scan = *limits.bucket(kScanJob, kUser, 0);
    TokenBucket alone;
    alone.set_limit(7e6, job->burst_bytes(), 0);
    std::uint64_t wanted = 0;
    for (std::int64_t now_ns = 0; now_ns < kSeconds * kSecond; now_ns += kStep_ns) {
        if (now_ns % (2 * kSecond) == 0) wanted += kBatch;
        while (job->taken_bytes() < wanted) {
            const bool takes = job->try_take(kBlock, now_ns);
            ASSERT_EQ(takes, alone.try_take(kBlock, now_ns)) << "at " << now_ns;
            if (!takes) break;
        }
        while (scan->try_take(kBlock, now_ns)) {
        }
        if (now_ns % (kSecond / 10) == 0) limits.share_unused(now_ns);
        if (now_ns % kSecond == kSecond / 2) limits.lease(lease_at(now_ns), now_ns);
        const double most = 8e6 * static_cast<double>(now_ns) * 1e-9;
        const auto burst = static_cast<double>(job->burst_bytes() + scan->burst_bytes());
        ASSERT_LE(static_cast<double>(job->taken_bytes() + scan->taken_bytes()), most + burst) << "at " << now_ns;
    }
    const double all = static_cast<double>(job->taken_bytes() + scan->taken_bytes());
    EXPECT_GE(all, 8e6 * kSeconds * 0.99);
}

TEST(JobLimits, EndedJobIsForgottenOnceItsBucketIsFull) {
    JobLimits limits;
    limits.apply(config_with({}, {.remote_bytes_per_second = 1000, .remote_burst_bytes = 4000}), 0);
    auto held = *limits.bucket("a", kUser, 0);
    ASSERT_TRUE(held->try_take(4000, 0));
    for (int i = 0; i < 5; ++i) limits.update_idle_jobs({}, 10 * kSecond);
    EXPECT_EQ(limits.buckets(), 1u) << "a session holds the bucket";
    ASSERT_TRUE(held->try_take(4000, 10 * kSecond));
    held.reset();
    for (int i = 0; i < 5; ++i) limits.update_idle_jobs({}, 12 * kSecond);
    ASSERT_EQ(limits.buckets(), 1u) << "its bucket is not full again";
    EXPECT_FALSE((*limits.bucket("a", kUser, 12 * kSecond))->try_take(4000, 12 * kSecond))
        << "a returning job gets no new burst";
    limits.update_idle_jobs({}, 14 * kSecond);
    EXPECT_EQ(limits.buckets(), 1u) << "it may be between two sessions";
    limits.update_idle_jobs({}, 14 * kSecond);
    EXPECT_EQ(limits.buckets(), 0u);
}

TEST(JobLimits, ExcessJobsAreRefusedUntilIdleOnesAreForgotten) {
    JobLimits limits;
    for (std::size_t i = 0; i < JobLimits::kJobsMax; ++i)
        ASSERT_TRUE(limits.bucket("job-" + std::to_string(i), kUser, 0));
    const auto refused = limits.bucket("another", kUser, 0);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
    EXPECT_NE(refused.error().message.find("job \"another\" cannot be added"), std::string::npos);
    EXPECT_TRUE(limits.bucket("job-7", kUser, 0)) << "known jobs go on";
    for (int i = 0; i < 2; ++i) limits.update_idle_jobs({.jobs = {{.job = "job-7", .sessions = 1}}}, kSecond);
    EXPECT_EQ(limits.buckets(), 1u);
    EXPECT_TRUE(limits.bucket("another", kUser, kSecond));
}

TEST(JobLimits, JobsUnderAnEmptyLeaseShareItsFloor) {
    JobLimits limits;
    limits.lease({.floor_bytes_per_second = 8e3, .expires_ns = kSecond}, 0);
    EXPECT_EQ((*limits.bucket("a", kUser, 0))->rate_bytes_per_second(0), 8e3);
    EXPECT_TRUE(limits.any_unleased());
    (void)limits.bucket("b", kUser, 0);
    EXPECT_DOUBLE_EQ(sum_of(limits, {"a", "b"}), 8e3);
    limits.expire(kSecond);
    EXPECT_DOUBLE_EQ(sum_of(limits, {"a", "b"}), 8e3);
}

TEST(JobLimits, ReducedLeaseIsDetected) {
    JobLimits limits;
    const RateLease lease{.rates = {{"a", 100}, {"b", 100}}, .expires_ns = kSecond};
    EXPECT_FALSE(limits.exceeds_lease(lease));
    limits.lease(lease, 0);
    EXPECT_FALSE(limits.exceeds_lease({.rates = {{"a", 100}, {"b", 99.5}}}));
    EXPECT_TRUE(limits.exceeds_lease({.rates = {{"a", 120}, {"b", 80}}}));
    EXPECT_TRUE(limits.exceeds_lease({.rates = {{"a", 200}}}));
    limits.expire(kSecond);
    EXPECT_FALSE(limits.exceeds_lease({.rates = {{"a", 1}}})) << "all have fallen to the floor already";
}

TEST(JobLimits, OperatorLimitCapsTheLeasedRate) {
    JobLimits limits;
    limits.set("a", {.rate_bytes_per_second = 30, .burst_bytes = 7}, 0);
    limits.set("b", {.rate_bytes_per_second = 300}, 0);
    limits.lease({.rates = {{"a", 100}, {"b", 100}}, .floor_bytes_per_second = 8, .expires_ns = kSecond}, 0);
    EXPECT_EQ((*limits.bucket("a", kUser, 0))->rate_bytes_per_second(0), 30);
    EXPECT_EQ((*limits.bucket("a", kUser, 0))->burst_bytes(), 7u);
    EXPECT_EQ((*limits.bucket("b", kUser, 0))->rate_bytes_per_second(0), 100);
    limits.set("a", {.rate_bytes_per_second = 500}, 0);
    EXPECT_EQ((*limits.bucket("a", kUser, 0))->rate_bytes_per_second(0), 100);
}

TEST(JobLimits, ZeroRateLeaseStillLimits) {
    JobLimits limits;
    limits.lease({.rates = {{"a", 0}}, .floor_bytes_per_second = 0, .expires_ns = kSecond}, 0);
    EXPECT_TRUE((*limits.bucket("a", kUser, 0))->limited());
    EXPECT_TRUE((*limits.bucket("b", kUser, 0))->limited());
}

TEST(JobLimits, ExpiredLeaseGivesTheFloor) {
    JobLimits limits;
    limits.lease({.rates = {{"a", 100}}, .floor_bytes_per_second = 8, .expires_ns = kSecond}, 2 * kSecond);
    EXPECT_EQ((*limits.bucket("a", kUser, 2 * kSecond))->rate_bytes_per_second(0), 8);
}

}  // namespace
}  // namespace larder::cache
