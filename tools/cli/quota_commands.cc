#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "base/units.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/context.h"
#include "tools/cli/table.h"
#include "tools/cli/unit_options.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

struct QuotaOptions {
    std::string name;
    std::optional<std::uint64_t> memory_bytes;
    std::optional<std::uint64_t> disk_bytes;
    bool automatic = false;
};

int show(const Context& context, const json::value& quota) {
    if (context.json) {
        print_json(quota);
        return kDone;
    }
    const json::object& fields = as_object(quota);
    std::fputs(name_value_text({{"memory", format_bytes(count_at(fields, "memory_bytes"))},
                                {"disk", format_bytes(count_at(fields, "disk_bytes"))}})
                   .c_str(),
               stdout);
    return kDone;
}

int get_quota(const Context& context, const std::string& name) {
    const auto quota = call(context, "GET", dataset_target(name, "/quota"));
    return quota ? show(context, *quota) : report(context, quota.error());
}

// Returns the allocator's pins by dataset; none if no allocator answers.
std::map<std::string, std::uint64_t> pins_of(const Context& context) {
    std::map<std::string, std::uint64_t> pins;
    const auto answer = call_allocator(context, "GET", "/v1/datasets");
    if (!answer) return pins;
    for (const json::value& value : array_at(as_object(*answer), "datasets")) {
        const json::object& dataset = as_object(value);
        if (dataset.contains("pinned_bytes")) pins[text_at(dataset, "name")] = count_at(dataset, "pinned_bytes");
    }
    return pins;
}

std::string set_by(bool is_held, bool is_set, std::optional<std::uint64_t> pin_bytes) {
    if (is_held) return "by hand";
    if (pin_bytes) return "by a pin of " + format_bytes(*pin_bytes);
    return is_set ? "by the allocator" : "not yet";
}

int list_quotas(const Context& context) {
    const auto answer = call(context, "GET", "/v1/datasets");
    if (!answer) return report(context, answer.error());
    const json::array& datasets = array_at(as_object(*answer), "datasets");
    json::array quotas;
    Table table({"DATASET", ">MEMORY", ">DISK", "SET"});
    const bool are_all_held =
        std::ranges::all_of(datasets, [](const json::value& value) { return flag_at(as_object(value), "quota_held"); });
    const auto pins = are_all_held ? std::map<std::string, std::uint64_t>() : pins_of(context);
    for (const json::value& value : datasets) {
        const json::object& dataset = as_object(value);
        const json::object& quota = object_at(dataset, "quota");
        const bool is_held = flag_at(dataset, "quota_held");
        const bool is_set = count_at(quota, "memory_bytes") + count_at(quota, "disk_bytes") > 0;
        const std::string name = text_at(dataset, "name");
        const auto pin = pins.find(name);
        const auto pin_bytes = pin == pins.end() ? std::nullopt : std::optional(pin->second);
        quotas.push_back(json::object{{"name", name}, {"quota", quota}, {"quota_held", is_held}});
        if (pin_bytes) quotas.back().get_object()["pinned_bytes"] = *pin_bytes;
        table.add({name, format_bytes(count_at(quota, "memory_bytes")), format_bytes(count_at(quota, "disk_bytes")),
                   set_by(is_held, is_set, pin_bytes)});
    }
    if (context.json) {
        print_json(json::object{{"quotas", std::move(quotas)}});
    } else if (datasets.empty()) {
        std::puts("no datasets yet: larder dataset add NAME URL");
    } else {
        std::fputs(table.text().c_str(), stdout);
    }
    return kDone;
}

// Sets a quota. A tier that is not named keeps its quota.
int set_quota(const Context& context, const QuotaOptions& options) {
    const std::string target = dataset_target(options.name, "/quota");
    const auto current = call(context, "GET", target);
    if (!current) return report(context, current.error());
    const json::object& fields = as_object(*current);
    json::object new_quota{{"memory_bytes", options.memory_bytes.value_or(count_at(fields, "memory_bytes"))},
                           {"disk_bytes", options.disk_bytes.value_or(count_at(fields, "disk_bytes"))}};
    if (options.automatic) new_quota = {{"auto", true}};
    const auto answer = call(context, "PUT", target, new_quota);
    if (!answer) return report(context, answer.error());
    if (options.automatic && !context.json) {
        std::printf("the allocator sets the quota of %s from its next plan on\n", options.name.c_str());
        return kDone;
    }
    return show(context, *answer);
}

}  // namespace

void add_quota_commands(CLI::App& app, Context& context) {
    CLI::App* quota = app.add_subcommand("quota", "Show or change what a dataset may use of this node, while jobs run");
    quota->require_subcommand(1);
    add_pin_command(*quota, context);
    auto options = std::make_shared<QuotaOptions>();
    quota->add_subcommand("ls", "List the datasets' quotas and who set each")->alias("list")->callback([&context] {
        context.command = [&context] { return list_quotas(context); };
    });
    CLI::App* get = quota->add_subcommand("get", "Show a dataset's quota");
    get->add_option("NAME", options->name, "The dataset")->required();
    get->callback(
        [&context, options] { context.command = [&context, options] { return get_quota(context, options->name); }; });

    CLI::App* set =
        quota->add_subcommand("set", "Change a dataset's quota: more admits blocks at once, less drops whole segments");
    set->add_option("NAME", options->name, "The dataset")->required();
    auto* tiers = set->add_option_group("tiers", "At least one of");
    add_bytes_option(*tiers, "--memory", options->memory_bytes, "Quota in memory, such as 2GiB");
    add_bytes_option(*tiers, "--disk", options->disk_bytes, "Quota on local disk, such as 200GiB");
    auto* automatic =
        tiers->add_flag("--auto", options->automatic, "Let the allocator set the quota, until it is set by hand again");
    for (CLI::Option* tier : tiers->get_options([&](const CLI::Option* option) { return option != automatic; }))
        automatic->excludes(tier);
    tiers->require_option(1, 2);
    set->callback(
        [&context, options] { context.command = [&context, options] { return set_quota(context, *options); }; });
}

}  // namespace larder::cli
