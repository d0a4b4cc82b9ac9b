#include "scheduler/simulator/generate.h"

#include <array>
#include <charconv>
#include <cmath>

#include "scheduler/simulator/chronus_trace.h"
#include "scheduler/simulator/python_random.h"
#include "scheduler/simulator/random.h"

namespace larder::scheduler {
namespace {

constexpr std::string_view kPoisson = "poisson:";
constexpr std::string_view kGavel = "gavel:";
constexpr std::string_view kChronus = "chronus:";

// In the order of Gavel's job table, from which it draws by index.
constexpr std::array<std::string_view, 26> kGavelModels{
    "ResNet-18 (batch size 16)",
    "ResNet-18 (batch size 32)",
    "ResNet-18 (batch size 64)",
    "ResNet-18 (batch size 128)",
    "ResNet-18 (batch size 256)",
    "ResNet-50 (batch size 16)",
    "ResNet-50 (batch size 32)",
    "ResNet-50 (batch size 64)",
    "ResNet-50 (batch size 128)",
    "Transformer (batch size 16)",
    "Transformer (batch size 32)",
    "Transformer (batch size 64)",
    "Transformer (batch size 128)",
    "Transformer (batch size 256)",
    "LM (batch size 5)",
    "LM (batch size 10)",
    "LM (batch size 20)",
    "LM (batch size 40)",
    "LM (batch size 80)",
    "Recommendation (batch size 512)",
    "Recommendation (batch size 1024)",
    "Recommendation (batch size 2048)",
    "Recommendation (batch size 4096)",
    "Recommendation (batch size 8192)",
    "A3C",
    "CycleGAN",
};

// Rounded, so that all machines agree.
double to_milliseconds(double seconds) {
    return std::round(seconds * 1e3) / 1e3;
}

double duration_s(double exponent) {
    return 60 * std::pow(10, exponent);
}

TraceJob one_gpu_job(std::uint64_t number, double submit_s) {
    TraceJob job;
    job.name = std::to_string(number);
    job.submit_s = submit_s;
    job.gpus = job.gpus_min = job.gpus_max = 1;
    return job;
}

Trace draw_poisson(const DrawnTrace& options) {
    Trace trace{.format = "poisson"};
    Random random(options.seed ^ 0x706f6973736f6eU);
    double now_s = 0;
    trace.jobs.reserve(options.jobs);
    for (std::uint64_t j = 0; j < options.jobs; ++j) {
        now_s += random.exponential_s(3600 / options.jobs_per_hour);
        const double exponent = random.uniform() < 0.8 ? 1.5 + 1.5 * random.uniform() : 3 + random.uniform();
        TraceJob job = one_gpu_job(j, now_s);
        job.duration_s = std::round(duration_s(exponent));  // whole seconds, so that all machines agree
        trace.jobs.push_back(std::move(job));
    }
    return trace;
}

Trace draw_as_gavel(const DrawnTrace& options) {
    Trace trace{.format = "gavel"};
    PythonRandom jobs(options.seed + 2);
    PythonRandom arrivals(options.seed + 3);
    double now_s = 0;
    trace.jobs.reserve(options.jobs);
    for (std::uint64_t j = 0; j < options.jobs; ++j) {
        TraceJob job = one_gpu_job(j, to_milliseconds(now_s));
        jobs.uniform();  // the number of GPUs, drawn but not used for jobs of one GPU
        const bool is_long = jobs.uniform() >= 0.8;
        job.duration_s = to_milliseconds(duration_s(is_long ? 3 + jobs.uniform() : 1.5 + 1.5 * jobs.uniform()));
        job.model = kGavelModels[jobs.below(kGavelModels.size())];
        now_s -= std::log(1 - arrivals.uniform()) * 3600 / options.jobs_per_hour;
        trace.jobs.push_back(std::move(job));
    }
    return trace;
}

}  // namespace

bool is_drawn(std::string_view trace) {
    return trace.starts_with(kPoisson) || trace.starts_with(kGavel) || trace.starts_with(kChronus);
}

Result<DrawnTrace> parse_drawn(std::string_view text) {
    const auto refuse = [&] {
        return fail(ErrorCode::invalid_argument, "\"" + std::string(text) +
                                                     "\" is none of poisson:JOBS_PER_HOUR,JOBS, "
                                                     "gavel:JOBS_PER_HOUR,JOBS and chronus:FILE,JOBS");
    };
    if (!is_drawn(text)) return refuse();
    DrawnTrace options{.as_gavel = text.starts_with(kGavel)};
    const std::size_t colon = text.find(':');
    const std::size_t comma = text.rfind(',');
    if (comma == std::string_view::npos || comma <= colon + 1) return refuse();
    const std::string_view before = text.substr(colon + 1, comma - colon - 1);
    const char* const end = text.data() + text.size();
    if (text.starts_with(kChronus)) {
        options.file = before;
    } else {
        const auto rate = std::from_chars(before.data(), before.data() + before.size(), options.jobs_per_hour);
        if (rate.ec != std::errc() || rate.ptr != before.data() + before.size()) return refuse();
    }
    const auto jobs = std::from_chars(text.data() + comma + 1, end, options.jobs);
    constexpr std::uint64_t kJobsMax = 10'000'000;
    if (jobs.ec != std::errc() || jobs.ptr != end || options.jobs == 0 || options.jobs > kJobsMax) return refuse();
    if (!(options.jobs_per_hour > 0) || options.jobs_per_hour > 1e9) return refuse();
    return options;
}

Result<Trace> draw(const DrawnTrace& options) {
    if (!options.file.empty()) return draw_as_chronus(options.file, options.jobs, options.seed);
    return options.as_gavel ? draw_as_gavel(options) : draw_poisson(options);
}

}  // namespace larder::scheduler
