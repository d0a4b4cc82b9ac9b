#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value_from.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/file.h"
#include "base/server/json_reader.h"
#include "base/units.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/context.h"
#include "tools/cli/when.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

struct SubmitOptions {
    std::string name;
    std::vector<std::string> command;
    std::string file;
    std::string directory;
    std::vector<std::string> environment;
    std::vector<std::string> engine_parameters;
    std::string tenant;
    std::optional<unsigned> gpus;
    std::optional<unsigned> gpus_min;
    std::optional<unsigned> gpus_max;
    std::string gpu_type;
    std::string dataset;
    std::optional<double> epochs;
    std::vector<std::string> ideal_rates;
    std::optional<int> priority;
    std::string deadline;
    std::string service;
    std::vector<std::string> after;
    std::optional<double> grace_s;
    bool no_preempt = false;
    bool opportunistic = false;
    bool elastic = false;
    std::optional<double> weight;
    std::optional<double> restart_s;
    std::optional<double> packed_rate;
    std::optional<double> gpu_memory_part;
    std::vector<double> scaling;
    std::vector<double> rate_by_nodes;
    std::vector<unsigned> pods;
    std::string hierarchy;
    std::string together;
    std::string cell;
};

std::string current_directory() {
    std::error_code error;
    return std::filesystem::current_path(error).string();
}

// Parses "R" for all GPU types or "TYPE=R" for one.
Result<void> put_ideals(json::object& job, const std::vector<std::string>& rates) {
    json::object by_type;
    for (const std::string& text : rates) {
        const std::size_t equals = text.find('=');
        const auto rate = parse_bytes_per_second(equals == std::string::npos ? text : text.substr(equals + 1));
        if (!rate) return std::unexpected(rate.error().within("--ideal-rate"));
        if (*rate <= 0)
            return fail(ErrorCode::invalid_argument, "--ideal-rate: \"" + text + "\" is not a rate above 0");
        if (equals == std::string::npos) {
            job["ideal_bytes_per_second"] = *rate;
        } else {
            by_type[text.substr(0, equals)] = *rate;
        }
    }
    if (!by_type.empty()) job["ideal_bytes_per_second_by_type"] = std::move(by_type);
    return {};
}

// Returns the job's environment: PATH, HOME, USER and LANG of the submitter, and other variables only if named.
Result<json::object> environment_of(const std::vector<std::string>& requested) {
    json::object environment;
    for (const char* name : {"PATH", "HOME", "USER", "LANG"}) {
        if (const char* value = std::getenv(name)) environment[name] = value;
    }
    for (const std::string& text : requested) {
        const std::size_t equals = text.find('=');
        const std::string name = text.substr(0, equals);
        if (name.empty()) return fail(ErrorCode::invalid_argument, "--env: \"" + text + "\" names no variable");
        if (equals != std::string::npos) {
            environment[name] = text.substr(equals + 1);
        } else if (const char* value = std::getenv(name.c_str())) {
            environment[name] = value;
        } else {
            return fail(ErrorCode::invalid_argument,
                        "--env: the variable " + name + " is not set; give --env " + name + "=VALUE");
        }
    }
    return environment;
}

Result<json::object> parameters_of(const std::vector<std::string>& given) {
    json::object parameters;
    for (const std::string& text : given) {
        const std::size_t equals = text.find('=');
        if (equals == std::string::npos || equals == 0) {
            return fail(ErrorCode::invalid_argument, "--engine-parameter: \"" + text + "\" is not KEY=VALUE");
        }
        parameters[text.substr(0, equals)] = text.substr(equals + 1);
    }
    return parameters;
}

Result<json::object> job_of(const SubmitOptions& options) {
    auto environment = environment_of(options.environment);
    if (!environment) return std::unexpected(environment.error());
    json::array command;
    for (const std::string& word : options.command) command.push_back(json::value(word));
    json::object job{{"command", std::move(command)},
                     {"directory", options.directory.empty() ? current_directory() : options.directory},
                     {"environment", std::move(*environment)}};
    auto parameters = parameters_of(options.engine_parameters);
    if (!parameters) return std::unexpected(parameters.error());
    if (!parameters->empty()) job["engine_parameters"] = std::move(*parameters);
    const auto put_text = [&](const char* key, const std::string& text) {
        if (!text.empty()) job[key] = text;
    };
    const auto put = [&](const char* key, const auto& value) {
        if (value) job[key] = *value;
    };
    put_text("name", options.name);
    put_text("tenant", options.tenant);
    put_text("gpu_type", options.gpu_type);
    put_text("dataset", options.dataset);
    put("gpus", options.gpus);
    put("gpus_min", options.gpus_min);
    put("gpus_max", options.gpus_max);
    put("epochs", options.epochs);
    put("priority", options.priority);
    put("grace_s", options.grace_s);
    put("weight", options.weight);
    put("restart_s", options.restart_s);
    put("packed_rate", options.packed_rate);
    put("gpu_memory_part", options.gpu_memory_part);
    if (!options.scaling.empty()) job["scaling"] = json::value_from(options.scaling);
    if (!options.rate_by_nodes.empty()) job["rate_by_nodes"] = json::value_from(options.rate_by_nodes);
    if (!options.pods.empty()) job["pods"] = json::value_from(options.pods);
    put_text("hierarchy", options.hierarchy);
    put_text("together", options.together);
    put_text("cell", options.cell);
    if (options.no_preempt) job["preemptible"] = false;
    if (options.opportunistic) job["opportunistic"] = true;
    if (options.elastic) job["elastic"] = true;
    if (auto ideals = put_ideals(job, options.ideal_rates); !ideals) return std::unexpected(ideals.error());
    if (!options.deadline.empty()) {
        const auto when = parse_when(options.deadline, static_cast<double>(unix_time_ns()) * 1e-9);
        if (!when) return std::unexpected(when.error().within("--deadline"));
        job["deadline_unix_s"] = *when;
        // A job without a known number of epochs cannot be promised an end.
        const char* service = options.epochs ? "strict" : "soft";
        job["service"] = options.service.empty() ? service : options.service;
    } else {
        put_text("service", options.service);
    }
    if (!options.after.empty()) {
        json::array after;
        for (const std::string& name : options.after) after.push_back(json::value(name));
        job["after"] = std::move(after);
    }
    return job;
}

// Returns {"jobs": [...]} for the API; a job without a directory gets the current one.
Result<json::object> jobs_of_file(const SubmitOptions& options) {
    const auto text = read_file(options.file);
    if (!text) return std::unexpected(text.error());
    auto body = parse_json_object(*text, options.file);
    if (!body) return body;
    const auto environment = environment_of(options.environment);
    if (!environment) return std::unexpected(environment.error());
    json::value* const jobs = body->if_contains("jobs");
    if (jobs == nullptr || !jobs->is_array()) {
        return fail(ErrorCode::invalid_argument, options.file + ": expected {\"jobs\": [...]}");
    }
    for (json::value& job : jobs->get_array()) {
        if (!job.is_object()) continue;
        json::object& object = job.get_object();
        if (!object.contains("directory")) object["directory"] = current_directory();
        if (!object.contains("environment")) object["environment"] = *environment;
    }
    return body;
}

int submit(const Context& context, const SubmitOptions& options) {
    Result<json::object> body = json::object();
    if (options.file.empty()) {
        auto job = job_of(options);
        if (!job) return report(context, job.error());
        (*body)["jobs"] = json::array{std::move(*job)};
    } else {
        body = jobs_of_file(options);
        if (!body) return report(context, body.error());
    }
    const auto answer = call_allocator(context, "POST", "/v1/queue", *body);
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
        return kDone;
    }
    for (const json::value& job : array_at(as_object(*answer), "jobs")) {
        std::printf("job %s (%s) is submitted\n", text_at(as_object(job), "id").c_str(),
                    text_at(as_object(job), "name").c_str());
    }
    return kDone;
}

}  // namespace

void add_submit_command(CLI::App& job, Context& context) {
    auto options = std::make_shared<SubmitOptions>();
    CLI::App* command = job.add_subcommand("submit", "Submit a command that the cluster runs as a job");
    const CLI::Option* const words = command->add_option(
        "COMMAND", options->command,
        "The command to run and its arguments: the first word that is no option, and all words after it. "
        "-- may stand before it");
    command->positionals_at_end();
    command->add_option("--gpus", options->gpus, "GPUs the job needs at once. Default: 1")->check(CLI::PositiveNumber);
    command->add_option("--gpus-min", options->gpus_min, "Fewest GPUs the job can run with. Default: --gpus")
        ->check(CLI::PositiveNumber);
    command->add_option("--gpus-max", options->gpus_max, "Most GPUs the job can use. Default: --gpus")
        ->check(CLI::PositiveNumber);
    command->add_flag("--elastic", options->elastic,
                      "The training goes on when tasks, one on each node, come and go, as torchrun's do: the number of "
                      "GPUs may change without a restart. Needs a range of GPUs");
    command->add_option("--gpu-type", options->gpu_type, "GPU type the job needs. Default: any");
    command->add_option("--dataset", options->dataset, "Dataset the job reads, by its name at the node daemons");
    command
        ->add_option("--epochs", options->epochs,
                     "Times the job reads the dataset. Default: unknown, so the job's end is unknown")
        ->check(CLI::PositiveNumber);
    command
        ->add_option("--ideal-rate", options->ideal_rates,
                     "f*: the job's read rate with --gpus when it never waits for data; TYPE=RATE for one GPU type")
        ->allow_extra_args(false);
    command->add_option("--name", options->name, "Job name that the loaders get in LARDER_JOB. Default: job-NUMBER");
    command->add_option("--tenant", options->tenant,
                        "Tenant the job counts for. Default: the tenant \"default\", or the only one");
    command->add_option("--priority", options->priority, "Jobs of higher priority go first. Default: 0")
        ->check(CLI::Range(-1000000, 1000000));
    command->add_option("--deadline", options->deadline,
                        std::string("Time by which the job must have ended: ") + kWhenForm);
    command
        ->add_option("--service", options->service,
                     "strict: the deadline is promised, or the job fails; soft: the deadline is tried. Default: strict "
                     "with --epochs, soft without")
        ->check(CLI::IsMember({"strict", "soft"}));
    command->add_option("--after", options->after, "Jobs, by number or name, that must succeed before this job starts")
        ->delimiter(',')
        ->allow_extra_args(false);
    command
        ->add_option("--grace", options->grace_s,
                     "Seconds from SIGTERM to SIGKILL when the job is stopped. Default: 30")
        ->check(CLI::Range(0.0, 86400.0));
    command
        ->add_option("--weight", options->weight,
                     "Weight of the job's share, under policies that give shares. Default: 1")
        ->check(CLI::PositiveNumber);
    command
        ->add_option("--restart-cost", options->restart_s,
                     "Seconds of its GPUs' time that each restart costs the job. Default: 0")
        ->check(CLI::Range(0.0, 86400.0));
    command
        ->add_option("--scaling", options->scaling,
                     "The job's rates with --gpus-min to --gpus-max GPUs, relative to its rate with --gpus, such as "
                     "0.55,1,1.8. Default: in proportion to the GPUs")
        ->delimiter(',')
        ->allow_extra_args(false);
    command
        ->add_option("--rate-by-nodes", options->rate_by_nodes,
                     "The job's rates on the fewest nodes possible, one node more, and so on, relative to the first, "
                     "such as 1,0.9,0.7. Default: all 1")
        ->delimiter(',')
        ->allow_extra_args(false);
    command
        ->add_option("--packed-rate", options->packed_rate,
                     "Fraction of the job's rate that is left when another job shares its GPUs (gandiva). Default: "
                     "0, it may not share")
        ->check(CLI::Range(0.0, 1.0));
    command
        ->add_option("--gpu-memory-part", options->gpu_memory_part,
                     "Part of each GPU's memory that the job uses at most, such as 0.4. --packed-rate needs it: jobs "
                     "share GPUs only if the memory of both fits")
        ->check(CLI::Range(0.0, 1.0));
    command
        ->add_option(
            "--pods", options->pods,
            "GPUs of each pod of the gang, such as 7,5: a pod lies on one node. With --gpus-min or --gpus-max, "
            "the pods must be equal. Default: the GPUs may be on any nodes")
        ->delimiter(',')
        ->allow_extra_args(false);
    command
        ->add_option("--engine-parameter", options->engine_parameters,
                     "KEY=VALUE for the cluster manager that runs the job, such as image=pytorch:2.4")
        ->allow_extra_args(false);
    command->add_option("--hierarchy", options->hierarchy, "The only hierarchy of the cells that the job may use");
    command->add_option("--together", options->together,
                        "A level of the cells, such as rack: all GPUs lie within one cell of this level");
    command->add_option("--cell", options->cell, "The name of the tenant's pinned cell that the job runs in");
    command->add_flag("--no-preempt", options->no_preempt, "Never stop the job for other jobs once it runs");
    command->add_flag("--opportunistic", options->opportunistic,
                      "Run without a claim, on GPUs that others leave free, in any tenant's cells; the job is stopped "
                      "when they are claimed");
    command->add_option("--directory", options->directory, "Directory the job runs in. Default: the current directory");
    command
        ->add_option("--env", options->environment,
                     "Environment variable of the job: NAME=VALUE, or NAME to pass on the current value")
        ->allow_extra_args(false);
    CLI::Option* file = command->add_option(
        "--file", options->file,
        "JSON file of jobs, which may name each other in \"after\"; all of them are submitted, or none");
    command->callback([&context, options, file, command, words] {
        // CLI11 takes a word in brackets for a list, so the words are taken as they were given: they are the last ones.
        const auto count = std::ranges::count(command->parse_order(), words);
        const auto given = context.arguments.last(static_cast<std::size_t>(count));
        options->command.assign(given.begin(), given.end());
        if (options->command.empty() == file->empty()) {
            throw CLI::ValidationError(command->get_name(), "needs a COMMAND, or else --file");
        }
        context.command = [&context, options] { return submit(context, *options); };
    });
}

}  // namespace larder::cli
