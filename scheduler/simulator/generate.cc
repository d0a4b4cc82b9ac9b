#include "scheduler/simulator/generate.h"

#include <charconv>
#include <cmath>

#include "scheduler/simulator/random.h"

namespace larder::scheduler {

Result<PoissonOptions> parse_poisson(std::string_view text) {
    constexpr std::string_view kPrefix = "poisson:";
    const auto refuse = [&] {
        return fail(ErrorCode::invalid_argument, "\"" + std::string(text) + "\" is not poisson:JOBS_PER_HOUR,JOBS");
    };
    if (!text.starts_with(kPrefix)) return refuse();
    const std::string_view numbers = text.substr(kPrefix.size());
    PoissonOptions options;
    const char* const begin = numbers.data();
    const char* const end = begin + numbers.size();
    const auto rate = std::from_chars(begin, end, options.jobs_per_hour);
    if (rate.ec != std::errc() || rate.ptr == end || *rate.ptr != ',') return refuse();
    const auto jobs = std::from_chars(rate.ptr + 1, end, options.jobs);
    constexpr std::uint64_t kJobsMax = 10'000'000;
    if (jobs.ec != std::errc() || jobs.ptr != end || options.jobs == 0 || options.jobs > kJobsMax) return refuse();
    if (!(options.jobs_per_hour > 0) || options.jobs_per_hour > 1e9) return refuse();
    return options;
}

Trace generate_poisson(const PoissonOptions& options) {
    Trace trace{.format = "poisson"};
    Random random(options.seed ^ 0x706f6973736f6eU);
    double now_s = 0;
    for (std::uint64_t j = 0; j < options.jobs; ++j) {
        now_s += random.exponential_s(3600 / options.jobs_per_hour);
        const double exponent = random.uniform() < 0.8 ? 1.5 + 1.5 * random.uniform() : 3 + random.uniform();
        TraceJob job;
        job.name = std::to_string(j);
        job.submit_s = now_s;
        job.duration_s = std::round(60 * std::pow(10, exponent));  // whole seconds, so that all machines agree
        job.gpus = job.gpus_min = job.gpus_max = 1;
        trace.jobs.push_back(std::move(job));
    }
    return trace;
}

}  // namespace larder::scheduler
