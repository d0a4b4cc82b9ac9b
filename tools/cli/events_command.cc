#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <cstdio>
#include <memory>

#include "tools/cli/admin_calls.h"
#include "tools/cli/allocator.h"
#include "tools/cli/context.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/when.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

// How long the allocator waits for new events before it answers; Ctrl-C is checked between two answers.
constexpr int kWait_s = 1;

struct EventsOptions {
    std::uint64_t after = 0;
    bool follow = false;
};

void print_event(const Context& context, const json::object& event) {
    if (context.json) return print_json(event);
    std::printf("%s  %-14s  %s\n", local_time(number_at(event, "unix_ms") / 1000).c_str(),
                text_at(event, "kind").c_str(), text_at(event, "message").c_str());
}

int show_events(Context context, const EventsOptions& options) {
    context.allocator.waits_for_leader = false;  // Ctrl-C would not end the wait
    const InterruptWatch interrupt;
    std::uint64_t after = options.after;
    for (;;) {
        const std::string wait = options.follow ? "&wait_s=" + std::to_string(kWait_s) : "";
        const auto answer = call_allocator(context, "GET", "/v1/events?after=" + std::to_string(after) + wait);
        if (!answer) return report(context, answer.error());
        for (const json::value& event : array_at(as_object(*answer), "events")) print_event(context, as_object(event));
        std::fflush(stdout);
        after = count_at(as_object(*answer), "last");
        if (!options.follow || interrupt.pressed_within(0)) return kDone;
    }
}

}  // namespace

void add_events_command(CLI::App& app, Context& context) {
    auto options = std::make_shared<EventsOptions>();
    CLI::App* command = app.add_subcommand("events", "Show what has happened in the cluster, as the allocator saw it");
    command->add_flag("--follow", options->follow, "Print new events as they happen, until Ctrl-C");
    command->add_option("--after", options->after,
                        "Show only events after this number; --json shows each event's number");
    command->callback(
        [&context, options] { context.command = [&context, options] { return show_events(context, *options); }; });
}

}  // namespace larder::cli
