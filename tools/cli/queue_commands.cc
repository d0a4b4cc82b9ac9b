#include "tools/cli/queue_commands.h"

#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <cstdio>
#include <memory>

#include "base/clock.h"
#include "base/server/http.h"
#include "base/server/percent_encoding.h"
#include "base/units.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/context.h"
#include "tools/cli/table.h"
#include "tools/cli/when.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

std::string target_of(const std::string& job, const char* rest = "") {
    return "/v1/queue/" + percent_encode(job) + rest;
}

std::string duration(double seconds) {
    return format_seconds(std::max(0.0, seconds));
}

std::string placement_text(const json::object& job, const char* allotment = "holds") {
    std::string text;
    for (const json::value& share : array_at(object_at(job, allotment), "placement")) {
        text += (text.empty() ? "" : " ") + text_at(as_object(share), "node");
    }
    return text.empty() ? "-" : text;
}

// Returns what the cluster manager has granted, for example "n1 (0,1), n2 (3)"; empty: it does not tell.
std::string devices_text(const json::object& job) {
    std::string text;
    for (const json::value& value : array_at(job, "devices")) {
        const json::object& granted = as_object(value);
        std::string names;
        for (const json::value& name : array_at(granted, "devices")) {
            names += (names.empty() ? "" : ",") + std::string(name.as_string());
        }
        text += (text.empty() ? "" : ", ") + text_at(granted, "node") + " (" + names + ")";
    }
    return text;
}

// Returns the GPUs a job has, or for a waiting job the GPUs it needs.
std::string gpus_text(const json::object& job) {
    return text_at(job.contains("holds") ? object_at(job, "holds") : job, "gpus");
}

std::string ran_text(const json::object& job) {
    const double ran_s = number_at(job, "ran_s");
    return ran_s > 0 ? duration(ran_s) : "-";
}

std::string read_text(const json::object& job) {
    return job.contains("total_bytes") ? format_part(number_at(job, "read_bytes"), number_at(job, "total_bytes"))
                                       : format_bytes(static_cast<std::uint64_t>(number_at(job, "read_bytes")));
}

// Returns the time from a job's submission to its first start; without a start, to its end or to now.
std::string waited_text(const json::object& job, double now_s) {
    const double until_s = job.contains("first_started_unix_s") ? number_at(job, "first_started_unix_s")
                           : job.contains("ended_unix_s")       ? number_at(job, "ended_unix_s")
                                                                : now_s;
    return duration(until_s - number_at(job, "submitted_unix_s"));
}

int cancel_job(const Context& context, const std::string& job) {
    const auto answer = call_allocator(context, "DELETE", target_of(job));
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
    } else {
        std::printf("job %s is cancelled\n", job.c_str());
    }
    return kDone;
}

int explain_job(const Context& context, const std::string& job) {
    const auto answer = call_allocator(context, "GET", target_of(job, "/why"));
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
    } else {
        std::puts(text_at(as_object(*answer), "why").c_str());
    }
    return kDone;
}

int show_job(const Context& context, const std::string& name) {
    const auto answer = call_allocator(context, "GET", target_of(name));
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
        return kDone;
    }
    const json::object& job = as_object(*answer);
    std::string command;
    for (const json::value& word : array_at(job, "command")) {
        command += (command.empty() ? "" : " ") + std::string(word.as_string());
    }
    std::vector<std::pair<std::string, std::string>> values{
        {"job", text_at(job, "id") + " (" + text_at(job, "name") + ")"},
        {"state", text_at(job, "state")},
        {"command", command},
        {"directory", text_at(job, "directory")},
        {"tenant", text_at(job, "tenant")},
        {"submitter", or_dash(text_at(job, "submitter"))},
        {"gpus", text_at(job, "gpus")},
        {"runs on", placement_text(job)},
        {"dataset", or_dash(text_at(job, "dataset"))},
        {"read", read_text(job)},
        {"attempt", text_at(job, "attempt")},
        {"output", or_dash(text_at(job, "output"))}};
    if (const std::string devices = devices_text(job); !devices.empty())
        values.insert(values.begin() + 8, {"devices", devices});
    if (job.contains("resizes_to"))
        values.insert(values.begin() + 8, {"resizes to", placement_text(job, "resizes_to")});
    std::fputs(name_value_text(values).c_str(), stdout);
    std::puts("");
    for (const json::value& entry : array_at(job, "log")) {
        std::printf("%s  %s\n", local_time(number_at(as_object(entry), "unix_s")).c_str(),
                    text_at(as_object(entry), "text").c_str());
    }
    return kDone;
}

}  // namespace

int list_queue(const Context& context) {
    const auto answer = call_allocator(context, "GET", "/v1/queue");
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
        return kDone;
    }
    const double now_s = static_cast<double>(unix_time_ns()) * 1e-9;
    Table table({">ID", "JOB", "STATE", "TENANT", ">GPUS", ">PRIORITY", "DATASET", ">WAITED", ">RAN", ">READ", "ON"});
    for (const json::value& value : array_at(as_object(*answer), "jobs")) {
        const json::object& job = as_object(value);
        table.add({text_at(job, "id"), text_at(job, "name"), text_at(job, "state"), text_at(job, "tenant"),
                   gpus_text(job), text_at(job, "priority"), or_dash(text_at(job, "dataset")), waited_text(job, now_s),
                   ran_text(job), read_text(job), placement_text(job)});
    }
    std::fputs(table.empty() ? "no jobs wait or run\n" : table.text().c_str(), stdout);
    for (const json::value& value : array_at(as_object(*answer), "doomed_cells")) {
        const json::object& cells = as_object(value);
        std::printf("doomed: tenant %s cannot have %s of its cells of level %s of %s until nodes are back\n",
                    text_at(cells, "tenant").c_str(), text_at(cells, "count").c_str(), text_at(cells, "level").c_str(),
                    text_at(cells, "hierarchy").c_str());
    }
    return kDone;
}

int list_history(const Context& context, unsigned limit) {
    const auto answer = call_allocator(context, "GET", "/v1/history?limit=" + std::to_string(limit));
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
        return kDone;
    }
    Table table({">ID", "JOB", "STATE", "TENANT", ">GPUS", "ENDED", ">WAITED", ">RAN", ">STARTS", ">PREEMPTED", "WHY"});
    for (const json::value& value : array_at(as_object(*answer), "jobs")) {
        const json::object& job = as_object(value);
        table.add({text_at(job, "id"), text_at(job, "name"), text_at(job, "state"), text_at(job, "tenant"),
                   text_at(job, "gpus"), local_time(number_at(job, "ended_unix_s")), waited_text(job, 0), ran_text(job),
                   text_at(job, "attempt"), text_at(job, "preemptions"), text_at(job, "end_reason")});
    }
    std::fputs(table.empty() ? "no job has ended yet\n" : table.text().c_str(), stdout);
    return kDone;
}

void add_queue_commands(CLI::App& job, Context& context) {
    const auto add = [&](const char* verb, const char* help, int (*run)(const Context&, const std::string&)) {
        auto name = std::make_shared<std::string>();
        CLI::App* command = job.add_subcommand(verb, help);
        command->add_option("JOB", *name, "The job's number or name, as submitted")->required();
        command->callback(
            [&context, name, run] { context.command = [&context, name, run] { return run(context, *name); }; });
    };
    add("cancel", "Cancel a submitted job, and stop it if it runs", cancel_job);
    add("why", "Show why a submitted job waits, or what limits its speed", explain_job);
    add("show", "Show a submitted job, its decision log, and where its output is", show_job);
}

}  // namespace larder::cli
