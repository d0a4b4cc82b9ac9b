#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <cstdio>
#include <memory>
#include <vector>

#include "allocator/protocol/objective.h"
#include "base/units.h"
#include "tools/cli/added_job.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/context.h"
#include "tools/cli/table.h"
#include "tools/cli/unit_options.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

struct WhatIfOptions {
    std::optional<double> remote;
    std::int64_t cache_bytes = 0;
    json::array add_jobs;
    std::vector<std::string> remove_jobs;
    std::string objective;
};

json::object body_of(const WhatIfOptions& options) {
    json::object body;
    if (options.remote) body["remote_bytes_per_second"] = *options.remote;
    if (options.cache_bytes != 0) body["cache_bytes"] = options.cache_bytes;
    if (!options.add_jobs.empty()) body["add_jobs"] = options.add_jobs;
    if (!options.objective.empty()) body["objective"] = options.objective;
    if (!options.remove_jobs.empty()) {
        json::array names;
        for (const std::string& name : options.remove_jobs) names.push_back(json::value(name));
        body["remove_jobs"] = std::move(names);
    }
    return body;
}

// Formats a change: "+25.0 %"; "-" if there is nothing to compare.
std::string change(const json::object& row, const char* key) {
    const double before = number_at(object_at(row, "before"), key);
    if (!row.contains("before") || !row.contains("after") || !(before > 0)) return "-";
    char text[32];
    std::snprintf(text, sizeof text, "%+.1f %%", 100 * (number_at(object_at(row, "after"), key) / before - 1));
    return text;
}

void print_tables(const json::object& answer) {
    const json::object& before = object_at(answer, "before");
    const json::object& after = object_at(answer, "after");
    Table sums({"", ">NOW", ">THEN"});
    sums.add({"objective", text_at(before, "objective"), text_at(after, "objective")});
    sums.add(
        {"remote bandwidth", rate_at(before, "remote_bytes_per_second"), rate_at(after, "remote_bytes_per_second")});
    sums.add({"of it taken", rate_at(before, "steady_remote_bytes_per_second"),
              rate_at(after, "steady_remote_bytes_per_second")});
    sums.add({"cache", bytes_at(before, "cache_bytes"), bytes_at(after, "cache_bytes")});
    sums.add({"to fetch", bytes_at(before, "moved_bytes"), bytes_at(after, "moved_bytes")});
    std::printf("%s\n", sums.text().c_str());

    Table datasets({"DATASET", ">NEEDS", ">QUOTA NOW", ">THEN", ">CHANGE"});
    for (const json::value& value : array_at(answer, "datasets")) {
        const json::object& row = as_object(value);
        const json::object& quota_before = object_at(row, "before");
        const json::object& quota_after = object_at(row, "after");
        const std::uint64_t quota_bytes = count_at(quota_before, "quota_bytes");
        const UnitFamily family = unit_family_of(quota_bytes > 0 ? quota_bytes : count_at(row, "size_bytes"));
        datasets.add({text_at(row, "name"), bytes_at(row, "size_bytes", family),
                      bytes_at(quota_before, "quota_bytes", family), bytes_at(quota_after, "quota_bytes", family),
                      change(row, "quota_bytes")});
    }
    if (!datasets.empty()) std::printf("%s\n", datasets.text().c_str());

    Table jobs(
        {"JOB", "DATASET", ">f*", ">RATE NOW", ">THEN", ">CHANGE", ">HITS NOW", ">THEN", ">GRANTED NOW", ">THEN"});
    for (const json::value& value : array_at(answer, "jobs")) {
        const json::object& row = as_object(value);
        const json::object& job_before = object_at(row, "before");
        const json::object& job_after = object_at(row, "after");
        jobs.add({text_at(row, "name"), text_at(row, "dataset"), rate_at(row, "ideal_bytes_per_second"),
                  rate_at(job_before, "steady_bytes_per_second"), rate_at(job_after, "steady_bytes_per_second"),
                  change(row, "steady_bytes_per_second"), part_at(job_before, "steady_hit_ratio"),
                  part_at(job_after, "steady_hit_ratio"), rate_at(job_before, "bandwidth_bytes_per_second"),
                  rate_at(job_after, "bandwidth_bytes_per_second")});
    }
    if (!jobs.empty())
        std::printf("%srates and hits hold once caches are filled, grants from now on; nothing was changed\n",
                    jobs.text().c_str());
}

int what_if(const Context& context, const WhatIfOptions& options) {
    const json::object body = body_of(options);
    if (body.empty()) {
        return report(context, {ErrorCode::invalid_argument,
                                "name a change, such as --cache +2TiB; see `larder whatif --help`", 0});
    }
    const auto answer = call_allocator(context, "POST", "/v1/whatif", body);
    if (!answer) {
        return report(context, with_option_names(answer.error(), {{"remote_bytes_per_second", "--remote-bandwidth"},
                                                                  {"give dataset_size_bytes", "give size="},
                                                                  {"cache_bytes", "--cache"},
                                                                  {"add_jobs[0]", "--add-job"},
                                                                  {"add_jobs[", "--add-job ["},
                                                                  {"remove_jobs", "--remove-job"},
                                                                  {"key \"objective\"", "--objective"}}));
    }
    if (context.json) {
        print_json(*answer);
    } else {
        print_tables(as_object(*answer));
    }
    return kDone;
}

}  // namespace

void add_whatif_command(CLI::App& app, Context& context) {
    auto options = std::make_shared<WhatIfOptions>();
    CLI::App* command = app.add_subcommand("whatif", "Predict what a change would do to each job; changes nothing");
    command->footer(std::string("--add-job takes ") + kAddedJobForm);
    add_rate_option(*command, "--remote-bandwidth", options->remote, "Assume this remote bandwidth, such as 10Gbit");
    const auto take_cache = [options](const CLI::results_t& given) {
        const auto bytes = parse_signed_bytes(given.back());
        if (!bytes) throw CLI::ValidationError("--cache", bytes.error().message);
        options->cache_bytes = *bytes;
        return true;
    };
    command
        ->add_option("--cache", take_cache,
                     "Assume this much more or less cache over all nodes; begins with + or -, such as +2TiB")
        ->type_name("SIZE")
        ->expected(1);
    const auto take_jobs = [options](const CLI::results_t& given) {
        for (const std::string& text : given) {
            auto job = parse_added_job(text);
            if (!job) throw CLI::ValidationError("--add-job", job.error().message);
            options->add_jobs.push_back(std::move(*job));
        }
        return true;
    };
    command->add_option("--add-job", take_jobs, "Assume that this job runs too; may be given several times")
        ->type_name("JOB")
        ->expected(1)
        ->take_all();
    command
        ->add_option("--remove-job", options->remove_jobs, "Assume that this job has ended; may be given several times")
        ->type_name("NAME")
        ->expected(1)
        ->take_all();
    command->add_option("--objective", options->objective, "One of " + allocator::objective_names());
    command->callback(
        [&context, options] { context.command = [&context, options] { return what_if(context, *options); }; });
}

}  // namespace larder::cli
