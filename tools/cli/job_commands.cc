#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <cstdio>

#include "base/server/http.h"
#include "base/server/percent_encoding.h"
#include "base/units.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/context.h"
#include "tools/cli/queue_commands.h"
#include "tools/cli/table.h"
#include "tools/cli/unit_options.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

struct LimitOptions {
    std::string job;
    std::optional<double> rate;
    std::optional<std::uint64_t> burst_bytes;
    bool none = false;
    bool ahead = false;
};

// True if the job has ended and the plan gives it no bandwidth. A token bucket has at least 1 B/s.
bool has_no_share(const json::object& job) {
    return count_at(job, "sessions") == 0 && number_at(job, "remote_rate") == 1;
}

int list_jobs(const Context& context) {
    const auto answer = call(context, "GET", "/v1/jobs");
    if (!answer) return report(context, answer.error());
    const json::array& jobs = array_at(as_object(*answer), "jobs");
    if (context.json) {
        print_json(*answer);
        return kDone;
    }
    if (jobs.empty()) {
        std::puts("no jobs have connected yet");
        return kDone;
    }
    const auto limit_text = [](const json::object& job) {
        return has_no_share(job) ? "-" : format_limit(number_at(job, "remote_rate"));
    };
    Table table({"JOB", "USER", "DATASET", ">SESSIONS", ">EPOCH", ">RATE", ">HITS", ">MEMORY", ">DISK", ">REMOTE",
                 ">LIMIT", ">UNREAD", ">CACHED AHEAD", ">STALL"});
    for (const json::value& value : jobs) {
        const json::object& job = as_object(value);
        const json::object& counters = object_at(job, "counters");
        const double hits = number_at(counters, "memory_hits") + number_at(counters, "disk_hits");
        table.add({text_at(job, "job"), or_dash(text_at(job, "user")), or_dash(text_at(job, "dataset")),
                   text_at(job, "sessions"), text_at(job, "epoch"),
                   format_bytes_per_second(number_at(job, "rate_bytes_per_second")),
                   format_part(hits, hits + number_at(counters, "misses")),
                   format_bytes(count_at(counters, "bytes_memory")), format_bytes(count_at(counters, "bytes_disk")),
                   format_bytes(count_at(counters, "bytes_remote")), limit_text(job),
                   format_bytes(count_at(job, "unread_bytes")), format_bytes(count_at(job, "effective_cache_bytes")),
                   format_seconds(number_at(job, "stall_s"))});
    }
    std::fputs(table.text().c_str(), stdout);
    return kDone;
}

// Returns the job as the node lists it. Rejects a name that no job has: it is most often a typing mistake.
Result<json::object> find_job(const Context& context, const LimitOptions& options) {
    const auto answer = call(context, "GET", "/v1/jobs");
    if (!answer) return std::unexpected(answer.error());
    std::string known;
    for (const json::value& value : array_at(as_object(*answer), "jobs")) {
        const std::string job = text_at(as_object(value), "job");
        if (job == options.job) return as_object(value);
        known += (known.empty() ? "" : ", ") + job;
    }
    return fail(ErrorCode::not_found, "no job \"" + options.job + "\" has connected to this node; there " +
                                          (known.empty() ? "are no jobs yet" : "are: " + known) +
                                          (options.rate ? ". Use --ahead to set the limit before it connects" : ""));
}

void print_limit(const std::string& job, double rate) {
    std::printf("%s may take %s from the remote on this node\n", job.c_str(),
                rate > 0 ? format_bytes_per_second(rate).c_str() : "any rate");
}

int show_limit(const Context& context, const LimitOptions& options) {
    const auto job = find_job(context, options);
    if (!job) return report(context, job.error());
    const double rate = number_at(*job, "remote_rate");
    if (context.json) {
        print_json(json::object{{"job", options.job},
                                {"rate_bytes_per_second", rate},
                                {"burst_bytes", count_at(*job, "remote_burst_bytes")}});
    } else if (has_no_share(*job)) {
        std::printf("%s has ended on this node: the plan gives it a part of the bandwidth when it connects again\n",
                    options.job.c_str());
    } else {
        print_limit(options.job, rate);
    }
    return kDone;
}

int limit_job(const Context& context, const LimitOptions& options) {
    if (!options.ahead) {
        if (auto known = find_job(context, options); !known) return report(context, known.error());
    }
    json::object body{{"rate_bytes_per_second", options.rate.value_or(0)}};
    if (options.burst_bytes) body["burst_bytes"] = *options.burst_bytes;
    const std::string target = "/v1/jobs/" + percent_encode(options.job) + "/limit";
    const auto answer = options.none ? call(context, "DELETE", target) : call(context, "PUT", target, body);
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
    } else if (!options.none) {
        print_limit(options.job, *options.rate);
    } else if (const double rate = number_at(as_object(*answer), "rate_bytes_per_second"); rate > 0) {
        std::printf("%s has the config's limit now: %s from the remote on this node\n", options.job.c_str(),
                    format_bytes_per_second(rate).c_str());
    } else {
        std::printf("%s has no limit now\n", options.job.c_str());
    }
    return kDone;
}

}  // namespace

void add_job_commands(CLI::App& app, Context& context) {
    struct JobsOptions {
        bool queue = false;
        bool history = false;
        unsigned limit = 100;
    };
    auto jobs_options = std::make_shared<JobsOptions>();
    CLI::App* jobs =
        app.add_subcommand("jobs", "Show the jobs on this node: rates, hits, waits; or the submitted jobs");
    CLI::Option* queue =
        jobs->add_flag("--queue", jobs_options->queue, "Show the jobs submitted to the allocator that have not ended");
    CLI::Option* history =
        jobs->add_flag("--history", jobs_options->history, "Show the submitted jobs that have ended, latest first");
    jobs->add_option("--limit", jobs_options->limit, "Show at most this many jobs of the history. Default: 100")
        ->needs(history)
        ->check(CLI::PositiveNumber);
    queue->excludes(history);
    jobs->callback([&context, jobs_options] {
        context.command = [&context, jobs_options] {
            if (jobs_options->queue) return list_queue(context);
            return jobs_options->history ? list_history(context, jobs_options->limit) : list_jobs(context);
        };
    });
    CLI::App* job = app.add_subcommand("job", "Submit and manage jobs of the cluster, and limit a job on this node");
    job->require_subcommand(1);
    add_submit_command(*job, context);
    add_queue_commands(*job, context);
    add_logs_command(*job, context);
    add_job_registration(*job, context);
    auto options = std::make_shared<LimitOptions>();
    CLI::App* limit = job->add_subcommand("limit", "Show or set the limit of a job's remote bandwidth on this node");
    limit->add_option("JOB", options->job, "The job's name, as larder jobs shows it")->required();
    CLI::Option* rate =
        add_rate_option(*limit, "--rate", options->rate, "The limit, such as 200MB/s or 1Gbit; 0 for no limit");
    limit
        ->add_flag("--none", options->none,
                   "Remove the limit set by this command, so that the config's limit applies again")
        ->excludes(rate);
    CLI::Option* ahead =
        limit->add_flag("--ahead", options->ahead, "Set the limit even if the job has not connected to this node yet");
    CLI::Option* burst = add_bytes_option(*limit, "--burst", options->burst_bytes,
                                          "Bytes the job may read at once after a pause, such as 16MiB");
    limit->callback([&context, options, ahead, burst] {
        const bool shows = !options->none && !options->rate;
        if (shows && (!ahead->empty() || !burst->empty())) throw CLI::RequiredError("--rate or --none");
        context.command = [&context, options, shows] {
            return shows ? show_limit(context, *options) : limit_job(context, *options);
        };
    });
}

}  // namespace larder::cli
