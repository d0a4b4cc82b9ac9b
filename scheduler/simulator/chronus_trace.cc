#include "scheduler/simulator/chronus_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "scheduler/simulator/random.h"

namespace larder::scheduler {
namespace {

constexpr double kMinute_s = 60;
constexpr double kShortest_s = 20 * kMinute_s;
constexpr double kLongest_s = 3 * 24 * 60 * kMinute_s;
constexpr double kPeriod_s = 14 * 24 * 60 * kMinute_s;
constexpr double kSoftPart = 0.6;
constexpr double kStrictPart = 0.3;

// A later time of a soft job, and the value by then.
struct LaterStep {
    double durations;  // after the time before
    double value;
};
constexpr double kValue = 10;
constexpr std::array kLaterSteps{LaterStep{0.12, 8}, LaterStep{0.12, 5}, LaterStep{0.4, 2}};

void draw_deadlines(TraceJob& job, Random& random) {
    const double kind = random.uniform();
    if (kind >= kSoftPart + kStrictPart) return;
    const bool soft = kind < kSoftPart;
    job.service = soft ? ServiceClass::soft_deadline : ServiceClass::strict_deadline;
    const double factor = 1.1 + 0.9 * random.uniform();
    job.deadline_s = job.submit_s + std::round(factor * job.duration_s + 60 * kMinute_s * random.uniform());
    job.values.push_back({.until_s = job.deadline_s, .value = kValue});
    if (!soft) return;
    for (const LaterStep& step : kLaterSteps) {
        const double least_s = kMinute_s * (20 + 40 * random.uniform());
        const double later_s = std::round(std::max(step.durations * job.duration_s, least_s));
        job.values.push_back({.until_s = job.values.back().until_s + later_s, .value = step.value});
    }
}

}  // namespace

Result<Trace> draw_as_chronus(const std::string& path, std::uint64_t jobs, std::uint64_t seed) {
    auto read = read_trace(path, {});
    if (!read) return std::unexpected(read.error());
    std::vector<TraceJob>& all = read->jobs;
    std::erase_if(all, [](const TraceJob& job) { return job.duration_s < kShortest_s || job.duration_s > kLongest_s; });
    if (all.size() < jobs) {
        return fail(ErrorCode::invalid_argument, path + " has " + std::to_string(all.size()) +
                                                     " jobs of 20 minutes to 3 days, fewer than " +
                                                     std::to_string(jobs));
    }
    Trace trace{.format = "chronus"};
    trace.jobs.reserve(jobs);
    Random random(seed ^ 0x6368726f6e7573U);
    for (std::uint64_t j = 0; j < jobs; ++j) {
        std::swap(all[j], all[j + random.below(all.size() - j)]);
        TraceJob job = std::move(all[j]);
        job.submit_s = std::fmod(job.submit_s, kPeriod_s);
        job.deadline_s = kNever;
        job.service = ServiceClass::best_effort;
        job.values.clear();
        job.opportunistic = false;
        draw_deadlines(job, random);
        trace.jobs.push_back(std::move(job));
    }
    std::ranges::stable_sort(trace.jobs, {}, &TraceJob::submit_s);
    return trace;
}

}  // namespace larder::scheduler
