#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>

#include <cstdio>
#include <memory>

#include "base/units.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/context.h"
#include "tools/cli/unit_options.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

struct PinOptions {
    std::string dataset;
    std::optional<std::uint64_t> bytes;
    bool release = false;
};

// Says so if this machine's daemon has a quota of the dataset that was set by hand: the pin does not change it.
void print_quota_set_by_hand(const Context& context, const std::string& dataset) {
    const auto answer = call(context, "GET", dataset_target(dataset));
    if (!answer || !flag_at(as_object(*answer), "quota_held")) return;
    const json::object& quota = object_at(as_object(*answer), "quota");
    std::printf("note: on this node it stays %s, as set by hand; `larder quota set %s --auto` lets the pin decide\n",
                format_bytes(count_at(quota, "memory_bytes") + count_at(quota, "disk_bytes")).c_str(), dataset.c_str());
}

int pin(const Context& context, const PinOptions& options) {
    const std::string target = dataset_target(options.dataset, "/pin");
    const auto answer = options.release
                            ? call_allocator(context, "DELETE", target)
                            : call_allocator(context, "PUT", target, json::object{{"bytes", *options.bytes}});
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
    } else if (options.release) {
        std::printf("the allocator plans the quota of %s again\n", options.dataset.c_str());
    } else {
        std::printf("the quota of %s is fixed at %s over all nodes\n", options.dataset.c_str(),
                    format_bytes(*options.bytes).c_str());
        print_quota_set_by_hand(context, options.dataset);
    }
    return kDone;
}

}  // namespace

void add_pin_command(CLI::App& quota, Context& context) {
    auto options = std::make_shared<PinOptions>();
    CLI::App* command =
        quota.add_subcommand("pin", "Fix a dataset's quota over all nodes, or let the allocator plan it");
    command->add_option("DATASET", options->dataset, "The dataset's name")->required();
    auto* what = command->add_option_group("what", "One of");
    add_bytes_option(*what, "SIZE", options->bytes, "The quota over all nodes, such as 2TiB");
    what->add_flag("--release", options->release, "Let the allocator plan it again");
    what->require_option(1);
    command->callback(
        [&context, options] { context.command = [&context, options] { return pin(context, *options); }; });
}

}  // namespace larder::cli
