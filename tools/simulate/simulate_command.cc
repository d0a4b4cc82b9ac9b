#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/clock.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/progress.h"
#include "tools/cli/table.h"
#include "tools/cli/usage_error.h"
#include "tools/simulate/commands.h"
#include "tools/simulate/report.h"
#include "tools/simulate/simulate_options.h"

namespace larder::cli {
namespace {

struct RunOptions {
    SimulateOptions simulate;
    std::string jobs_csv;
    std::string timeline_csv;
    std::string plot_directory;
};

Result<scheduler::ScenarioReport> run_with_progress(scheduler::ScenarioOptions options) {
    auto scenario = scheduler::make_scenario(options);
    if (!scenario) return std::unexpected(scenario.error());
    ProgressLine progress("simulating");
    SteadyClock clock;
    const std::int64_t begin_ns = clock.now_ns();
    options.simulation.progress = [&](const scheduler::SimulationProgress& now) {
        const double seconds = static_cast<double>(clock.now_ns() - begin_ns) / 1e9;
        const auto speed = static_cast<std::uint64_t>(static_cast<double>(now.events) / seconds);
        progress.show({.done = now.jobs_done,
                       .total = now.jobs,
                       .unit = "jobs",
                       .seconds = seconds,
                       .speed = format_count(speed) + " events/s"});
    };
    return scheduler::run_scenario(std::move(*scenario), options);
}

int run(const Context& context, RunOptions& options) {
    if (auto settled = options.simulate.settle(); !settled) return report(context, settled.error());
    for (const std::string* path : {&options.jobs_csv, &options.timeline_csv}) {
        if (path->empty()) continue;
        if (auto writable = check_writable(*path); !writable) return report(context, writable.error());
    }
    const auto ran = run_with_progress(options.simulate.scenario);
    if (!ran) return report(context, ran.error());
    if (context.json) {
        print_json(summary_json(*ran, options.simulate.scenario));
    } else {
        print_summary(*ran, options.simulate.scenario);
    }
    Result<void> written;
    if (!options.jobs_csv.empty()) written = write_jobs_csv(*ran, options.jobs_csv);
    if (written && !options.timeline_csv.empty()) written = write_timeline_csv(*ran, options.timeline_csv);
    if (written && !options.plot_directory.empty())
        written = plot(*ran, options.simulate.scenario, options.plot_directory);
    return written ? static_cast<int>(kDone) : report(context, written.error());
}

}  // namespace

void add_simulate_command(CLI::App& app, Context& context) {
    CLI::App* simulate =
        app.add_subcommand("simulate", "Simulate a trace under a policy, a cache system and a cluster");
    simulate->require_subcommand(0, 1);
    auto options = std::make_shared<RunOptions>();
    add_trace_options(*simulate, options->simulate);
    add_arrivals_option(*simulate, options->simulate);
    add_measure_option(*simulate, options->simulate);
    add_cluster_options(*simulate, options->simulate);
    add_policy_options(*simulate, options->simulate);
    add_knowledge_options(*simulate, options->simulate);
    add_choice_options(*simulate, options->simulate);
    simulate->add_option("--jobs-csv", options->jobs_csv, "Write a row per job to this CSV file");
    simulate->add_option("--timeline-csv", options->timeline_csv,
                         "Write the cluster's state over time to this CSV file");
    simulate->add_option("--plot", options->plot_directory,
                         "Draw jct.svg, utilisation.svg and datasets.svg in this directory");
    simulate->callback([&context, simulate, options] {
        if (const auto subcommands = simulate->get_subcommands(); !subcommands.empty()) {
            // Options that a subcommand does not know come here, where nothing would be done with them.
            for (const CLI::Option* option : simulate->get_options()) {
                if (option->count() == 0) continue;
                if (option->get_positional())
                    throw CLI::ArgumentMismatch("unexpected argument \"" + option->results().front() + "\"");
                throw CLI::ValidationError(
                    option->get_name(), "simulate " + subcommands.front()->get_name() + " does not take this option");
            }
            return;
        }
        const std::string& trace = options->simulate.scenario.trace;
        if (trace.empty()) throw CLI::RequiredError("TRACE");
        if (is_misspelt_command(*simulate, trace) && !std::filesystem::exists(trace)) throw CLI::ExtrasError({trace});
        context.command = [&context, options] { return run(context, *options); };
    });

    CLI::App* workload =
        simulate->add_subcommand("workload", "Print the workload table that is used when none is named");
    workload->callback([&context] {
        context.command = [] {
            std::fputs(std::string(scheduler::default_workload()).c_str(), stdout);
            return static_cast<int>(kDone);
        };
    });
    add_compare_command(*simulate, context);
    add_capacity_command(*simulate, context);
    add_guarantee_command(*simulate, context);
}

}  // namespace larder::cli
