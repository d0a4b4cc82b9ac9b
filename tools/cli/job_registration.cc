#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>

#include "allocator/protocol/codec.h"
#include "base/server/http.h"
#include "base/server/percent_encoding.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/context.h"
#include "tools/cli/table.h"
#include "tools/cli/unit_options.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

struct JobOptions {
    std::string name;
    std::optional<double> weight;
    std::optional<double> epochs;
    std::optional<double> ideal;
    std::optional<double> floor;
    std::optional<double> cap;
};

int register_job(const Context& context, const JobOptions& options) {
    // JSON has no such numbers; the codec would leave them out.
    for (const auto& [option, value] : {std::pair{"--weight", options.weight}, {"--epochs", options.epochs}}) {
        if (value && !std::isfinite(*value)) {
            return report(context,
                          Error{ErrorCode::invalid_argument, std::string(option) + " must be a finite number"});
        }
    }
    allocator::JobRegistration job{.name = options.name, .ideal_bytes_per_second = options.ideal};
    job.weight = options.weight.value_or(job.weight);
    job.epochs = options.epochs.value_or(job.epochs);
    job.bandwidth_floor_bytes_per_second = options.floor.value_or(job.bandwidth_floor_bytes_per_second);
    job.bandwidth_cap_bytes_per_second = options.cap.value_or(job.bandwidth_cap_bytes_per_second);
    const auto answer = call_allocator(context, "POST", "/v1/jobs", allocator::to_json(job));
    if (!answer) {
        return report(context,
                      with_option_names(answer.error(), {{"key \"bandwidth_floor_bytes_per_second\"", "--floor"},
                                                         {"key \"bandwidth_cap_bytes_per_second\"", "--cap"},
                                                         {"bandwidth_floor_bytes_per_second", "--floor"},
                                                         {"bandwidth_cap_bytes_per_second", "--cap"},
                                                         {"key \"ideal_bytes_per_second\"", "--ideal"},
                                                         {"key \"weight\"", "--weight"},
                                                         {"key \"epochs\"", "--epochs"}}));
    }
    if (context.json) {
        print_json(*answer);
    } else {
        std::printf("%s is registered\n", options.name.c_str());
    }
    return kDone;
}

int remove_job(const Context& context, const std::string& name) {
    const auto answer = call_allocator(context, "DELETE", "/v1/jobs/" + percent_encode(name));
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
    } else {
        std::printf("%s is no longer registered\n", name.c_str());
    }
    return kDone;
}

int list_registered_jobs(const Context& context) {
    const auto answer = call_allocator(context, "GET", "/v1/jobs");
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
        return kDone;
    }
    const json::array& jobs = array_at(as_object(*answer), "jobs");
    if (jobs.empty()) {
        std::puts("no jobs run and none is registered");
        return kDone;
    }
    Table table({"JOB", "STATE", "DATASET", "NODES", ">RANKS", ">WEIGHT", ">EPOCHS", ">f* DECLARED", ">f* MEASURED",
                 ">FLOOR", ">CAP"});
    for (const json::value& value : jobs) {
        const json::object& job = as_object(value);
        const bool running = flag_at(job, "running");
        const std::string state = !running ? "registered" : flag_at(job, "registered") ? "runs" : "runs, unregistered";
        const auto number = [&](const char* key, const char* otherwise) {
            char text[32];
            std::snprintf(text, sizeof text, "%g", number_at(job, key));
            return job.contains(key) ? std::string(text) : std::string(otherwise);
        };
        table.add({text_at(job, "name"), state, running ? text_at(job, "dataset") : "-", names_at(job, "nodes"),
                   running ? text_at(job, "ranks") : "-", number("weight", "-"), number("remaining_epochs", "no end"),
                   rate_at(job, "declared_ideal_bytes_per_second"), rate_at(job, "measured_ideal_bytes_per_second"),
                   format_limit(number_at(job, "bandwidth_floor_bytes_per_second")),
                   format_limit(number_at(job, "bandwidth_cap_bytes_per_second"))});
    }
    std::fputs(table.text().c_str(), stdout);
    return kDone;
}

}  // namespace

void add_job_registration(CLI::App& job, Context& context) {
    auto options = std::make_shared<JobOptions>();
    CLI::App* add = job.add_subcommand("register", "Tell the allocator what it cannot measure about a job");
    add->add_option("JOB", options->name, "The name the job's loaders connect with; the job need not run yet")
        ->required();
    add->add_option("--weight", options->weight,
                    "Weight of the job's rate against other jobs' rates. Default: 1. Only operators give more");
    add->add_option("--epochs", options->epochs,
                    "Epochs the job still reads, including the current one. Default: no end");
    add_rate_option(*add, "--ideal", options->ideal,
                    "f*: the job's rate when it never waits for data; used until it is measured");
    add_rate_option(*add, "--floor", options->floor,
                    "Least remote bandwidth to grant the job. Only operators give one");
    add_rate_option(*add, "--cap", options->cap, "Most remote bandwidth to grant the job");
    add->callback(
        [&context, options] { context.command = [&context, options] { return register_job(context, *options); }; });
    job.add_subcommand("ls", "List all jobs of the cluster that the allocator knows")
        ->alias("list")
        ->callback([&context] { context.command = [&context] { return list_registered_jobs(context); }; });
    CLI::App* remove = job.add_subcommand("rm", "Remove what you registered for a job; a running job continues");
    remove->alias("remove");
    remove->add_option("JOB", options->name, "The job's name")->required();
    remove->callback(
        [&context, options] { context.command = [&context, options] { return remove_job(context, options->name); }; });
}

}  // namespace larder::cli
