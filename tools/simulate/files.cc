#include <boost/json/array.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/server/json_text.h"
#include "scheduler/simulator/generate.h"
#include "tools/cli/data_file.h"
#include "tools/cli/run_program.h"
#include "tools/simulate/report.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

Result<File> open_for_writing(const std::string& path, const char* mode = "w") {
    File file(std::fopen(path.c_str(), mode));
    if (!file) return fail_errno(errno, "write " + path);
    return file;
}

Result<void> check_written(File file, const std::string& path) {
    if (std::fflush(file.get()) != 0 || std::ferror(file.get()) != 0) return fail_errno(errno, "write " + path);
    return {};
}

const char* end_name(scheduler::JobEnd end) {
    switch (end) {
        case scheduler::JobEnd::finished: return "finished";
        case scheduler::JobEnd::rejected: return "rejected";
        case scheduler::JobEnd::expired: return "expired";
        case scheduler::JobEnd::unfinished: return "unfinished";
    }
    return "";
}

std::string seconds_or_nothing(double seconds) {
    if (seconds == scheduler::kNever) return "";
    char text[48];
    std::snprintf(text, sizeof text, "%.3f", seconds);
    return text;
}

// Returns the names of the sampled series, in order.
std::vector<std::string> sampled_names(const scheduler::ScenarioReport& report) {
    std::vector<std::string> names;
    names.reserve(report.outcome.sampled_datasets.size() + 1);
    for (const std::uint32_t dataset : report.outcome.sampled_datasets) {
        names.push_back(report.scenario.workload.datasets[dataset].name);
    }
    if (report.outcome.others_sampled) names.emplace_back("others");
    return names;
}

}  // namespace

Result<void> check_writable(const std::string& path) {
    const auto file = open_for_writing(path, "a");
    if (!file) return std::unexpected(file.error());
    return {};
}

Result<void> write_jobs_csv(const scheduler::ScenarioReport& report, const std::string& path) {
    auto file = open_for_writing(path);
    if (!file) return std::unexpected(file.error());
    std::fprintf(file->get(),
                 "name,tenant,model,gpus,end,submit_s,start_s,finish_s,jct_s,queueing_s,ran_s,read_bytes,remote_bytes,"
                 "gpu_utilisation,fairness,deadline_s,preemptions,failures\n");
    const scheduler::Workload& workload = report.scenario.workload;
    for (std::size_t j = 0; j < workload.jobs.size(); ++j) {
        const scheduler::JobSpec& spec = workload.jobs[j];
        const scheduler::JobOutcome& job = report.outcome.jobs[j];
        const bool finished = job.end == scheduler::JobEnd::finished;
        const double jct_s = finished ? job.finish_s - spec.submit_s : scheduler::kNever;
        std::fprintf(file->get(), "%s,%s,%s,%u,%s,%.3f,%s,%s,%s,%s,%.3f,%.0f,%.0f,%.4f,%.4f,%s,%u,%u\n",
                     spec.name.c_str(), workload.tenants[spec.tenant].name.c_str(), workload.models[j].c_str(),
                     spec.gpus, end_name(job.end), spec.submit_s, seconds_or_nothing(job.start_s).c_str(),
                     seconds_or_nothing(job.finish_s).c_str(), seconds_or_nothing(jct_s).c_str(),
                     seconds_or_nothing(finished ? jct_s - job.ran_s : scheduler::kNever).c_str(), job.ran_s,
                     job.read_bytes, job.remote_bytes,
                     job.allocated_gpu_s > 0 ? job.useful_gpu_s / job.allocated_gpu_s : 0,
                     job.equal_bytes > 0 ? job.read_bytes / job.equal_bytes : 0,
                     seconds_or_nothing(spec.deadline_s).c_str(), job.preemptions, job.failures);
    }
    return check_written(std::move(*file), path);
}

Result<void> write_timeline_csv(const scheduler::ScenarioReport& report, const std::string& path) {
    auto file = open_for_writing(path);
    if (!file) return std::unexpected(file.error());
    std::fprintf(file->get(), "at_s,running,waiting,gpus_allocated,gpus_useful,remote_bytes_per_second,cached_bytes");
    for (const std::string& name : sampled_names(report)) {
        std::fprintf(file->get(), ",%s_cached_bytes,%s_remote_bytes_per_second", name.c_str(), name.c_str());
    }
    std::fprintf(file->get(), "\n");
    for (const scheduler::TimelineSample& sample : report.outcome.timeline) {
        std::fprintf(file->get(), "%.3f,%u,%u,%.0f,%.2f,%.0f,%.0f", sample.at_s, sample.running, sample.waiting,
                     sample.gpus_allocated, sample.gpus_useful, sample.remote_bytes_per_second,
                     sample.cached_bytes_all);
        for (std::size_t d = 0; d < sample.cached_bytes.size(); ++d) {
            std::fprintf(file->get(), ",%.0f,%.0f", sample.cached_bytes[d], sample.dataset_bytes_per_second[d]);
        }
        std::fprintf(file->get(), "\n");
    }
    return check_written(std::move(*file), path);
}

namespace {

// Returns the trace's file name: a drawing needs no path.
std::string trace_name(const std::string& trace) {
    return scheduler::is_drawn(trace) ? trace : std::filesystem::path(trace).filename().string();
}

Result<void> draw(const std::string& path, const json::object& drawn) {
    const auto done =
        run_program({"/usr/bin/python3", data_file("tools/simulate/plot_simulation.py"), path}, json_text(drawn));
    if (!done) return std::unexpected(done.error().within("draw " + path));
    return {};
}

}  // namespace

Result<void> plot_comparison(const json::array& rows, const std::string& trace, const std::string& svg_path) {
    return draw(svg_path, {{"title", "trace " + trace_name(trace)}, {"comparison", rows}});
}

Result<void> plot(const scheduler::ScenarioReport& report, const scheduler::ScenarioOptions& options,
                  const std::string& directory) {
    std::error_code failed;
    std::filesystem::create_directories(directory, failed);
    if (failed) return fail_errno(failed.value(), "create " + directory);
    json::array jct_s;
    for (std::size_t j = 0; j < report.outcome.jobs.size(); ++j) {
        const scheduler::JobOutcome& job = report.outcome.jobs[j];
        if (job.end == scheduler::JobEnd::finished)
            jct_s.emplace_back(job.finish_s - report.scenario.workload.jobs[j].submit_s);
    }
    json::array samples;
    for (const scheduler::TimelineSample& sample : report.outcome.timeline) {
        json::array cached(sample.cached_bytes.begin(), sample.cached_bytes.end());
        json::array rates(sample.dataset_bytes_per_second.begin(), sample.dataset_bytes_per_second.end());
        samples.push_back(json::object{{"at_s", sample.at_s},
                                       {"gpus_allocated", sample.gpus_allocated},
                                       {"gpus_useful", sample.gpus_useful},
                                       {"cached_bytes", std::move(cached)},
                                       {"dataset_bytes_per_second", std::move(rates)}});
    }
    json::array datasets;
    for (const std::string& name : sampled_names(report)) datasets.push_back(json::value(name));
    const std::string title = "policy " + options.policy + (options.simulation.storage_aware ? "" : "/blind") +
                              ", cache " + std::string(name(report.cache)) + ", trace " + trace_name(options.trace);
    const json::object drawn{{"title", title},
                             {"jct_s", std::move(jct_s)},
                             {"samples", std::move(samples)},
                             {"datasets", std::move(datasets)},
                             {"gpus", report.scenario.gpus}};
    return draw(directory, drawn);
}

}  // namespace larder::cli
