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

int set_bandwidth(const Context& context, double bytes_per_second) {
    const auto answer =
        call_allocator(context, "PUT", "/v1/remote", json::object{{"bytes_per_second", bytes_per_second}});
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
    } else {
        std::printf("all jobs together may take %s from the remote\n",
                    format_bytes_per_second(bytes_per_second).c_str());
    }
    return kDone;
}

}  // namespace

void add_remote_command(CLI::App& app, Context& context) {
    auto rate = std::make_shared<std::optional<double>>();
    CLI::App* remote = app.add_subcommand("remote", "Set the bandwidth of the cluster's remote");
    remote->require_subcommand(1);
    CLI::App* set = remote->add_subcommand(
        "set", "Change the remote's bandwidth while jobs run; holds until the allocator's config changes it");
    add_rate_option(*set, "--bandwidth", *rate, "Remote bandwidth of all jobs together, such as 10Gbit")->required();
    set->callback([&context, rate] { context.command = [&context, rate] { return set_bandwidth(context, **rate); }; });
}

}  // namespace larder::cli
