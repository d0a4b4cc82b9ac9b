#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <cstdio>

#include "base/units.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/context.h"
#include "tools/cli/table.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

std::string quota_text(const json::object& dataset, UnitFamily family) {
    std::string text;
    for (const json::value& value : array_at(dataset, "nodes")) {
        const json::object& share = as_object(value);
        const std::uint64_t bytes = count_at(share, "memory_bytes") + count_at(share, "disk_bytes");
        text += (text.empty() ? "" : ", ") + text_at(share, "node") + " " + format_bytes(bytes, family);
    }
    return text.empty() ? "-" : text;
}

int show_plan(const Context& context) {
    const auto answer = call_allocator(context, "GET", "/v1/plan");
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
        return kDone;
    }
    const json::object& plan = as_object(*answer);
    const std::string steady = format_bytes_per_second(number_at(plan, "steady_remote_bytes_per_second"));
    const std::string remote = format_bytes_per_second(number_at(plan, "remote_bytes_per_second"));
    std::fputs(name_value_text({{"plan", text_at(plan, "plan")},
                                {"objective", text_at(plan, "objective")},
                                {"remote", remote + (remote == "no limit" ? "; " : ", of which ") + steady +
                                               " are taken once caches are filled"},
                                {"to fetch", format_bytes(count_at(plan, "moved_bytes"))}})
                   .c_str(),
               stdout);
    Table datasets({"DATASET", ">NEEDS", ">CACHED", ">QUOTA", "ON"});
    for (const json::value& value : array_at(plan, "datasets")) {
        const json::object& row = as_object(value);
        const UnitFamily family = unit_family_of_row(row);
        datasets.add({text_at(row, "name"), bytes_at(row, "size_bytes", family), bytes_at(row, "cached_bytes", family),
                      bytes_at(row, "quota_bytes", family), quota_text(row, family)});
    }
    Table jobs(
        {"JOB", "DATASET", "NODES", ">f*", ">EQUAL SHARE", ">GRANTED", ">HITS", ">PREDICTED", ">THEN HITS", ">THEN"});
    for (const json::value& value : array_at(plan, "jobs")) {
        const json::object& row = as_object(value);
        jobs.add({text_at(row, "name"), text_at(row, "dataset"), names_at(row, "nodes"),
                  rate_at(row, "ideal_bytes_per_second"), rate_at(row, "equal_share_bytes_per_second"),
                  rate_at(row, "bandwidth_bytes_per_second"), part_at(row, "hit_ratio"),
                  rate_at(row, "predicted_bytes_per_second"), part_at(row, "steady_hit_ratio"),
                  rate_at(row, "steady_bytes_per_second")});
    }
    if (!datasets.empty()) std::printf("\n%s", datasets.text().c_str());
    if (!jobs.empty()) std::printf("\n%s\"then\": once the quotas are filled\n", jobs.text().c_str());
    return kDone;
}

}  // namespace

void add_plan_command(CLI::App& app, Context& context) {
    app.add_subcommand("plan", "Show the allocator's current plan: quotas, grants, and the rates it predicts")
        ->callback([&context] { context.command = [&context] { return show_plan(context); }; });
}

}  // namespace larder::cli
