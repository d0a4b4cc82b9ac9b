// How fast does the simulator go through months of a cluster? Simulates a trace (or, without one, as many jobs drawn at
// random) under each policy, each in its own process, so that memory is measured separately.

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <sys/resource.h>

#include <cstdio>

#include "base/server/json_text.h"
#include "bench/bench_options.h"
#include "scheduler/simulator/scenario.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/table.h"
#include "tools/simulate/parallel.h"

namespace larder::bench {
namespace {

namespace json = boost::json;

// The size of the Philly extract, and of its cluster.
constexpr const char* kDrawn = "poisson:38,82247";
constexpr const char* kDrawnQuick = "poisson:38,500";
constexpr std::uint32_t kGpus = 2474;

Result<std::string> run_policy(const BenchOptions& options, const std::string& policy) {
    scheduler::ScenarioOptions scenario_options;
    scenario_options.trace = !options.trace.empty() ? options.trace : options.quick ? kDrawnQuick : kDrawn;
    scenario_options.gpus = {{.type = "v100", .gpus = kGpus}};
    scenario_options.policy = policy;
    scenario_options.simulation.storage = {.cache_bytes = 20e12, .remote_bytes_per_second = 4e9};
    auto scenario = scheduler::make_scenario(scenario_options);
    if (!scenario) return std::unexpected(scenario.error());
    const auto ran = scheduler::run_scenario(std::move(*scenario), scenario_options);
    if (!ran) return std::unexpected(ran.error().within(policy));
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    constexpr double kKibibytesOfMebibyte = 1024;
    const auto events = static_cast<double>(ran->outcome.events);
    return json_text(json::object{{"policy", policy},
                                  {"jobs", ran->summary.jobs},
                                  {"finished", ran->summary.finished},
                                  {"wall_s", ran->wall_s},
                                  {"events", ran->outcome.events},
                                  {"events_per_s", events / std::max(ran->wall_s, 1e-9)},
                                  {"rss_mib", static_cast<double>(usage.ru_maxrss) / kKibibytesOfMebibyte}});
}

void print_simulated(const json::array& rows) {
    cli::Table table({"POLICY", ">JOBS", ">SECONDS", ">EVENTS/S", ">PEAK MEMORY"});
    for (const json::value& row : rows) {
        const json::object& fields = row.as_object();
        char seconds[32];
        std::snprintf(seconds, sizeof seconds, "%.1f", cli::number_at(fields, "wall_s"));
        table.add({cli::text_at(fields, "policy"),
                   cli::format_count(static_cast<std::uint64_t>(cli::number_at(fields, "jobs"))), seconds,
                   cli::format_count(static_cast<std::uint64_t>(cli::number_at(fields, "events_per_s"))),
                   std::to_string(static_cast<std::uint64_t>(cli::number_at(fields, "rss_mib"))) + " MiB"});
    }
    std::printf("%s", table.text().c_str());
}

}  // namespace

Result<json::value> simulate(const BenchOptions& options) {
    std::vector<std::string> policies = options.policies;
    if (policies.empty()) {
        for (const std::string_view name : scheduler::policy_names()) policies.emplace_back(name);
    }
    const auto texts = cli::run_in_processes(
        policies.size(), [&](std::size_t i) { return run_policy(options, policies[i]); }, [](std::size_t) {});
    if (!texts) return std::unexpected(texts.error());
    json::array rows;
    for (const std::string& text : *texts) rows.push_back(json::parse(text));
    if (!options.json) print_simulated(rows);
    return rows;
}

}  // namespace larder::bench
