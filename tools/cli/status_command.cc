#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <cstdio>
#include <string>

#include "base/units.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/context.h"
#include "tools/cli/table.h"
#include "tools/cli/unit_options.h"
#include "tools/cli/when.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

std::string in_brackets(const std::string& text) {
    return text.empty() ? "" : " (" + text + ")";
}

// Prints a line for each node whose cache is read.
void print_peers(const json::object& peers) {
    const std::string endpoint = text_at(peers, "endpoint");
    std::printf("lends cached blocks   %s\n", endpoint.empty() ? "no" : ("at " + endpoint).c_str());
    Table table({"reads from", "at", ">blocks there", ">room there", "problem"});
    for (const json::value& other : array_at(peers, "others")) {
        const json::object& peer = other.as_object();
        table.add({text_at(peer, "node").empty() ? "?" : text_at(peer, "node"), text_at(peer, "endpoint"),
                   format_count(count_at(peer, "held_blocks")), format_bytes(count_at(peer, "room_bytes")),
                   text_at(peer, "problem")});
    }
    std::fputs(table.text().c_str(), stdout);
}

// Describes the daemon's allocator: "/run/a.sock, up for 3 h since 2026-01-01 10:00:00; jobs waiting: 2, running: 1".
// `known` is what the daemon says of its allocator; empty: it has none. Asks that allocator even if --allocator names
// another one.
std::string allocator_text(Context context, const json::object& known) {
    if (known.empty()) return "none: quotas and limits are set by hand";
    context.allocator.endpoint = text_at(known, "endpoint");
    context.allocator.waits_for_leader = false;  // that none leads is what the user wants to know
    const std::string& endpoint = context.allocator.endpoint;
    const auto answer =
        call_allocator(context, "GET", "/v1/status", nullptr, "set allocator.endpoint of this daemon to another");
    if (answer) {
        const json::object& status = as_object(*answer);
        std::string text = endpoint + ", up for " + format_seconds(number_at(status, "uptime_s")) + " since " +
                           local_time(number_at(status, "started_unix_ms") / 1e3);
        if (status.contains("jobs_running")) {
            text +=
                "; jobs waiting: " + text_at(status, "jobs_waiting") + ", running: " + text_at(status, "jobs_running");
        }
        if (status.contains("warning")) text += "; warning: " + text_at(status, "warning");
        // Empty until this node has reported.
        const std::string problem = text_at(known, "problem");
        if (!problem.empty()) text += "; this node has no plan from it: " + problem;
        return text;
    }
    if (answer.error().code != ErrorCode::unavailable) {
        return endpoint + ", up, but does not tell its status: " + answer.error().message;
    }
    const double left_s = number_at(known, "lease_left_s");
    return endpoint + ", DOES NOT ANSWER: " + answer.error().message + "; quotas stay as they are until it does" +
           (left_s > 0 ? ", rates stay for another " + format_seconds(left_s)
                       : ", rates of leased jobs are at their floors");
}

int status(const Context& context) {
    const auto answer = call(context, "GET", "/v1/status");
    if (!answer) return report(context, answer.error());
    if (context.json) {
        print_json(*answer);
        return kDone;
    }
    const json::object& fields = as_object(*answer);
    std::fputs(name_value_text({{"version", text_at(fields, "version")},
                                {"pid", text_at(fields, "pid")},
                                {"up for", format_seconds(number_at(fields, "uptime_s"))},
                                {"io", text_at(fields, "io") + in_brackets(text_at(fields, "io_reason"))},
                                {"data-plane threads", text_at(fields, "data_plane_threads")},
                                {"memory for datasets", format_bytes(count_at(fields, "memory_bytes"))},
                                {"disk for datasets", format_bytes(count_at(fields, "disk_bytes"))},
                                {"datasets", text_at(fields, "datasets")},
                                {"sessions", text_at(fields, "sessions") + ", slots of " +
                                                 format_bytes(count_at(fields, "slot_bytes"))},
                                {"allocator", allocator_text(context, object_at(fields, "allocator"))}})
                   .c_str(),
               stdout);
    if (const json::value* peers = fields.if_contains("peers"); peers != nullptr && peers->is_object()) {
        print_peers(peers->get_object());
    }
    for (const json::value& outage : array_at(fields, "outages")) {
        std::printf("remote away: %s\n", outage_text(as_object(outage)).c_str());
    }
    for (const json::value& found : array_at(fields, "problems")) {
        std::printf("problem: %s\n", std::string(found.as_string()).c_str());
    }
    const std::string problem = text_at(fields, "index_problem");
    if (!problem.empty()) {
        std::printf(
            "problem: the index of cached blocks was not saved: %s; after a restart some blocks are fetched again\n",
            problem.c_str());
    }
    return kDone;
}

}  // namespace

void add_status_command(CLI::App& app, Context& context) {
    app.add_subcommand("status", "Show the daemon and its allocator: version, sizes, what they serve")
        ->callback([&context] { context.command = [&context] { return status(context); }; });
}

}  // namespace larder::cli
