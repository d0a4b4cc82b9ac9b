#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/server/percent_encoding.h"
#include "base/units.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/context.h"
#include "tools/cli/otlp.h"
#include "tools/cli/table.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

constexpr std::size_t kBlocksDrawn = 5;
constexpr std::int64_t kWaterfallColumns = 50;

struct TraceOptions {
    std::string job;
    double seconds = 10;
    std::uint64_t blocks = 1'000;
    std::string otlp;
};

std::int64_t time_at(const json::object& object, std::string_view key, std::int64_t if_null = 0) {
    const json::value* const found = object.if_contains(key);
    return found == nullptr || !found->is_number() ? if_null : found->to_number<std::int64_t>();
}

std::string indented(const json::object& step) {
    return (flag_at(step, "part_of_read") ? "  " : "") + text_at(step, "step");
}

void print_steps(const json::object& trace) {
    Table table({"STEP", ">COUNT", ">MEDIAN", ">P99", ">SHARE"});
    for (const json::value& value : array_at(trace, "steps")) {
        const json::object& step = as_object(value);
        const json::value* const share = step.if_contains("share");
        table.add({indented(step), format_count(count_at(step, "count")),
                   format_duration_ns(time_at(step, "median_ns")), format_duration_ns(time_at(step, "p99_ns")),
                   share == nullptr || share->is_null() ? "-" : format_part(number_at(step, "share"), 1)});
    }
    std::fputs(table.text().c_str(), stdout);
}

// A bar for the part of [from, to) that a step took; at least one column.
std::string bar(std::int64_t from_ns, std::int64_t to_ns, std::int64_t began_ns, std::int64_t ended_ns) {
    const std::int64_t whole_ns = std::max<std::int64_t>(1, to_ns - from_ns);
    const auto column = [&](std::int64_t at_ns) {
        return static_cast<std::int64_t>(static_cast<double>(at_ns - from_ns) / static_cast<double>(whole_ns) *
                                         static_cast<double>(kWaterfallColumns));
    };
    const std::int64_t first = std::clamp<std::int64_t>(column(began_ns), 0, kWaterfallColumns - 1);
    const std::int64_t last = std::clamp<std::int64_t>(column(ended_ns), first + 1, kWaterfallColumns);
    return std::string(static_cast<std::size_t>(first), ' ') + std::string(static_cast<std::size_t>(last - first), '#');
}

void print_waterfall(const json::object& block, std::int64_t trace_ends_ns) {
    const std::int64_t taken_ns = time_at(block, "taken_ns");
    const std::int64_t delivered_ns = time_at(block, "delivered_ns", trace_ends_ns);
    const bool is_delivered = !text_at(block, "status").empty();
    const std::string status = text_at(block, "status");
    std::printf("\nblock %s of %s, %s, %s: %s%s\n", text_at(block, "block").c_str(), text_at(block, "dataset").c_str(),
                format_bytes(count_at(block, "bytes")).c_str(),
                !is_delivered    ? "not delivered yet"
                : status == "ok" ? ("from " + text_at(block, "source")).c_str()
                                 : status.c_str(),
                format_duration_ns(delivered_ns - taken_ns).c_str(),
                text_at(block, "admitted").empty() ? "" : (", admitted to " + text_at(block, "admitted")).c_str());
    std::int64_t last_ns = delivered_ns;
    for (const json::value& value : array_at(block, "steps")) {
        last_ns = std::max(last_ns, time_at(as_object(value), "ended_ns", trace_ends_ns));
    }
    Table table({"", ">", ""});
    for (const json::value& value : array_at(block, "steps")) {
        const json::object& step = as_object(value);
        const std::int64_t began_ns = time_at(step, "began_ns");
        const std::int64_t ended_ns = time_at(step, "ended_ns", trace_ends_ns);
        table.add({"  " + text_at(step, "step"), format_duration_ns(ended_ns - began_ns),
                   "|" + bar(taken_ns, last_ns, began_ns, ended_ns)});
    }
    const std::string text = table.text();
    std::fputs(text.substr(text.find('\n') + 1).c_str(), stdout);
}

void print_slowest(const json::object& trace) {
    const std::int64_t ends_ns = time_at(trace, "duration_ns");
    std::vector<const json::object*> blocks;
    for (const json::value& value : array_at(trace, "blocks")) blocks.push_back(&as_object(value));
    const auto took_ns = [&](const json::object* block) {
        return time_at(*block, "delivered_ns", ends_ns) - time_at(*block, "taken_ns");
    };
    std::ranges::stable_sort(blocks, std::ranges::greater(), took_ns);
    blocks.resize(std::min(blocks.size(), kBlocksDrawn));
    for (const json::object* block : blocks) print_waterfall(*block, ends_ns);
}

void print_trace(const json::object& trace) {
    const std::size_t count = array_at(trace, "blocks").size();
    if (count == 0) {
        std::printf("%s asked for no block in %s\n", text_at(trace, "job").c_str(),
                    format_duration_ns(time_at(trace, "duration_ns")).c_str());
        return;
    }
    std::printf("%s of %s in %s\n", format_counted(count, "block").c_str(), text_at(trace, "job").c_str(),
                format_duration_ns(time_at(trace, "duration_ns")).c_str());
    print_steps(trace);
    print_slowest(trace);
}

int trace_job(const Context& context, const TraceOptions& options) {
    const json::object body{{"seconds", options.seconds}, {"blocks", options.blocks}};
    const auto timeout_ms = static_cast<std::int64_t>(options.seconds * 1000) + 30'000;
    const auto answer =
        call(context, "POST", "/v1/jobs/" + percent_encode(options.job) + "/trace", body, {.timeout_ms = timeout_ms});
    if (!answer) return report(context, answer.error());
    const json::object& trace = as_object(*answer);
    if (!options.otlp.empty()) {
        if (auto done = export_otlp(otlp_requests(trace), options.otlp); !done) return report(context, done.error());
    }
    context.json ? print_json(*answer) : print_trace(trace);
    return kDone;
}

}  // namespace

void add_trace_command(CLI::App& app, Context& context) {
    auto options = std::make_shared<TraceOptions>();
    CLI::App* trace =
        app.add_subcommand("trace", "Record what happens to the blocks of a job on this node, step by step");
    trace->add_option("JOB", options->job, "The job's name, as larder jobs shows it")->required();
    trace->add_option("--seconds", options->seconds, "Record for so many seconds at most: 60 or fewer. Default: 10")
        ->check(CLI::Range(0.001, 60.0));
    trace->add_option("--blocks", options->blocks, "Record so many blocks at most: 5000 or fewer. Default: 1000")
        ->check(CLI::Range(1, 5000));
    trace->add_option(
        "--otlp", options->otlp,
        "Also write the trace as OTLP/JSON to this file, or send it to the collector at this http(s) URL");
    trace->callback(
        [&context, options] { context.command = [&context, options] { return trace_job(context, *options); }; });
}

}  // namespace larder::cli
