#include "scheduler/simulator/trace.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <sstream>

#include "scheduler/simulator/trace_rows.h"

namespace larder::scheduler {
namespace {

std::string chomped(std::string line) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    return line;
}

Result<void> check(const TraceJob& job) {
    const auto refuse = [](const std::string& why) { return fail(ErrorCode::invalid_argument, why); };
    if (job.gpus == 0) return refuse("a job with 0 GPUs");
    if (job.submit_s < 0) return refuse("submitted at a negative time");
    if (job.duration_s < 0) return refuse("a negative duration");
    if (job.duration_s == 0 && job.total_steps <= 0) return refuse("a job without work: neither a duration nor steps");
    if (job.gpus_min > job.gpus || (job.gpus_max != 0 && job.gpus_max < job.gpus)) {
        return refuse("gpus is not within gpus_min and gpus_max");
    }
    if (job.deadline_s <= job.submit_s) return refuse("the deadline is before the submission");
    if (job.opportunistic && job.service != ServiceClass::best_effort) {
        return refuse("an opportunistic job with a deadline: nothing can be promised to it");
    }
    if (job.opportunistic && !job.preemptible) return refuse("an opportunistic job that may not be stopped");
    return {};
}

}  // namespace

Result<Trace> parse_trace(std::istream& text, const TraceOptions& options) {
    Trace trace;
    std::string line;
    std::uint64_t number = 0;
    std::unique_ptr<RowReader> reader;
    while (std::getline(text, line)) {
        ++number;
        line = chomped(std::move(line));
        if (line.empty() || line[0] == '#') continue;
        const std::string where = "line " + std::to_string(number);
        if (!reader) {
            auto made = row_reader(line);
            if (!made) return std::unexpected(made.error().within(where));
            reader = std::move(*made);
            trace.format = reader->format();
            if (reader->has_header()) continue;
        }
        Result<TraceJob> job = reader->read(line);
        if (job) {
            if (const auto good = check(*job); !good) job = std::unexpected(good.error());
        }
        if (!job) {
            const Error error = job.error().within(where);
            if (!options.skip_bad) return std::unexpected(error);
            if (trace.skipped++ == 0) trace.first_skipped = error.message;
            continue;
        }
        if (job->name.empty()) job->name = std::to_string(trace.jobs.size());
        if (job->gpus_min == 0) job->gpus_min = job->gpus;
        if (job->gpus_max == 0) job->gpus_max = job->gpus;
        trace.jobs.push_back(std::move(*job));
    }
    if (trace.jobs.empty()) return fail(ErrorCode::invalid_argument, "the trace has no jobs");
    std::ranges::stable_sort(trace.jobs, {}, &TraceJob::submit_s);
    if (options.jobs_max != 0 && trace.jobs.size() > options.jobs_max) trace.jobs.resize(options.jobs_max);
    return trace;
}

Result<Trace> read_trace(const std::string& path, const TraceOptions& options) {
    std::ifstream file(path);
    if (!file) return fail_errno(errno, "open trace " + path);
    auto trace = parse_trace(file, options);
    if (!trace) return std::unexpected(trace.error().within(path));
    return trace;
}

}  // namespace larder::scheduler
