#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>

#include <cstdio>
#include <memory>

#include "base/clock.h"
#include "scheduler/simulator/guarantee.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/progress.h"
#include "tools/cli/table.h"
#include "tools/simulate/commands.h"
#include "tools/simulate/report.h"
#include "tools/simulate/simulate_options.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

int run(const Context& context, SimulateOptions& options) {
    if (auto settled = options.settle(); !settled) return report(context, settled.error());
    if (!options.tenants.empty() && options.scenario.cells.empty()) {
        return report(context, Error{ErrorCode::invalid_argument,
                                     "--tenants: without cells, nodes are divided among the tenants that have jobs, by "
                                     "--tenant-weights; with --tenants, give the cells too (--cells)"});
    }
    auto scenario = scheduler::make_scenario(options.scenario);
    if (!scenario) return report(context, scenario.error());
    if (!scenario->cells) {
        if (options.scenario.gpus.size() != 1) {
            return report(context, Error{ErrorCode::invalid_argument,
                                         "--gpus: only nodes of one type can be divided among tenants; with more "
                                         "types, give the cells (--cells)"});
        }
        auto cells = scheduler::cells_by_weight(scenario->workload.tenants, options.scenario.gpus.front(),
                                                options.scenario.gpus_per_node);
        if (!cells) return report(context, cells.error());
        scenario->cells = std::move(*cells);
    }
    ProgressLine progress("simulating");
    SteadyClock clock;
    const std::int64_t begin_ns = clock.now_ns();
    const auto guarantees =
        scheduler::check_guarantee(scenario->workload, *scenario->cells, [&](std::size_t done, std::size_t total) {
            progress.show({.done = done,
                           .total = total,
                           .unit = "clusters",
                           .seconds = static_cast<double>(clock.now_ns() - begin_ns) / 1e9});
        });
    progress.finish();
    if (!guarantees) return report(context, guarantees.error());
    std::uint64_t jobs = 0;
    std::uint64_t later = 0;
    json::array rows;
    Table table({"TENANT", ">GPUS", ">JOBS", ">TOO LARGE", ">WAITED SHARED", ">ALONE", ">LATER THAN ALONE",
                 ">BEHIND AN EARLIER ONE"});
    for (const scheduler::TenantGuarantee& tenant : *guarantees) {
        jobs += tenant.jobs;
        later += tenant.later;
        rows.push_back(json::object{{"tenant", tenant.tenant},
                                    {"gpus", tenant.gpus},
                                    {"jobs", tenant.jobs},
                                    {"too_large", tenant.too_large},
                                    {"later", tenant.later},
                                    {"behind_earlier", tenant.behind_earlier},
                                    {"waited_shared_s", tenant.waited_shared_s},
                                    {"waited_alone_s", tenant.waited_alone_s}});
        table.add({or_dash(tenant.tenant), std::to_string(tenant.gpus), std::to_string(tenant.jobs),
                   std::to_string(tenant.too_large), time_text(tenant.waited_shared_s),
                   time_text(tenant.waited_alone_s), std::to_string(tenant.later),
                   std::to_string(tenant.behind_earlier)});
    }
    if (context.json) {
        print_json(json::object{{"jobs", jobs}, {"later", later}, {"tenants", std::move(rows)}});
    } else {
        std::printf("%s%s of %s started later than alone\n", table.text().c_str(), format_count(later).c_str(),
                    format_counted(jobs, "job").c_str());
    }
    return later == 0 ? kDone : kFailed;
}

}  // namespace

void add_guarantee_command(CLI::App& simulate, Context& context) {
    CLI::App* guarantee = simulate.add_subcommand(
        "guarantee", "Check whether any tenant's job waits longer for its guaranteed cells than it would alone");
    auto options = std::make_shared<SimulateOptions>();
    add_trace_options(*guarantee, *options);
    add_arrivals_option(*guarantee, *options);
    guarantee->get_option("TRACE")->required();
    add_gpu_options(*guarantee, *options);
    guarantee->callback(
        [&context, options] { context.command = [&context, options] { return run(context, *options); }; });
}

}  // namespace larder::cli
