#include <CLI/CLI.hpp>
#include <boost/json/object.hpp>

#include <cstdio>
#include <memory>

#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/context.h"
#include "tools/cli/unit_options.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

int change_bandwidth(const Context& context, const char* method, const json::value& body) {
    const auto answer = call_allocator(context, method, "/v1/remote", body);
    if (!answer) {
        return report(context, with_option_names(answer.error(), {{"remote_bytes_per_second", "--bandwidth"}}));
    }
    if (context.json) {
        print_json(*answer);
        return kDone;
    }
    const auto status = call_allocator(context, "GET", "/v1/status");
    if (!status) return report(context, status.error());
    std::printf("remote bandwidth of all jobs together: %s\n",
                rate_at(as_object(*status), "remote_bytes_per_second").c_str());
    return kDone;
}

int set_bandwidth(const Context& context, double bytes_per_second) {
    if (bytes_per_second == 0) {
        return report(context, {ErrorCode::invalid_argument,
                                "--bandwidth must be above 0; `larder remote reset` goes back to the bandwidth that "
                                "the allocator was started with",
                                0});
    }
    return change_bandwidth(context, "PUT", json::object{{"bytes_per_second", bytes_per_second}});
}

}  // namespace

void add_remote_command(CLI::App& app, Context& context) {
    auto rate = std::make_shared<std::optional<double>>();
    CLI::App* remote = app.add_subcommand("remote", "Set the bandwidth of the cluster's remote, or reset it");
    remote->require_subcommand(1);
    CLI::App* set = remote->add_subcommand(
        "set",
        "Change the remote's bandwidth while jobs run; holds until `remote reset` or a change of the "
        "allocator's config");
    add_rate_option(*set, "--bandwidth", *rate, "Remote bandwidth of all jobs together, such as 10Gbit")->required();
    set->callback([&context, rate] { context.command = [&context, rate] { return set_bandwidth(context, **rate); }; });
    remote->add_subcommand("reset", "Go back to the bandwidth that the allocator was started with")
        ->callback(
            [&context] { context.command = [&context] { return change_bandwidth(context, "DELETE", nullptr); }; });
}

}  // namespace larder::cli
