#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>

#include <cstdio>
#include <memory>
#include <span>

#include "base/clock.h"
#include "base/server/json_text.h"
#include "base/units.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/progress.h"
#include "tools/cli/table.h"
#include "tools/simulate/commands.h"
#include "tools/simulate/parallel.h"
#include "tools/simulate/report.h"
#include "tools/simulate/simulate_options.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

struct CompareOptions {
    SimulateOptions simulate;
    std::vector<std::string> policies{"fifo"};
    std::vector<std::string> caches{"uniform+joint", "lru", "static-per-job", "whole-dataset", "none"};
    std::vector<std::string> cache_sizes;
    std::vector<std::string> bandwidths;
    std::vector<std::string> arrivals;
    std::uint32_t seeds = 1;
    std::string plot;
};

// One combination of a policy, a cache system and a cluster.
struct Choice {
    std::string policy;
    std::string cache;
    double cache_bytes = 0;
    double remote_bytes_per_second = 0;
    double arrival_speedup = 1;
    bool epochs_known = true;
    std::size_t baseline = 0;  // the first choice that differs in policy and cache only
};

Result<std::vector<Choice>> choices_of(const CompareOptions& options) {
    std::vector<Choice> choices;
    const bool both = options.simulate.epochs_known == "both";
    for (const bool epochs_known :
         both ? std::vector{true, false} : std::vector{options.simulate.epochs_known == "yes"}) {
        for (const std::string& arrivals : options.arrivals) {
            for (const std::string& size : options.cache_sizes) {
                for (const std::string& bandwidth : options.bandwidths) {
                    const std::size_t baseline = choices.size();
                    const auto bytes = parse_bytes(size);
                    if (!bytes) return std::unexpected(bytes.error().within("--cache-sizes"));
                    const auto rate = parse_bytes_per_second(bandwidth);
                    if (!rate) return std::unexpected(rate.error().within("--bandwidths"));
                    const double faster = std::atof(arrivals.c_str());
                    if (!(faster > 0))
                        return fail(ErrorCode::invalid_argument,
                                    "--arrivals: \"" + arrivals + "\" is not a number above 0");
                    for (const std::string& policy : options.policies) {
                        for (const std::string& cache : options.caches) {
                            choices.push_back({.policy = policy,
                                               .cache = cache,
                                               .cache_bytes = static_cast<double>(*bytes),
                                               .remote_bytes_per_second = *rate,
                                               .arrival_speedup = faster,
                                               .epochs_known = epochs_known,
                                               .baseline = baseline});
                        }
                    }
                }
            }
        }
    }
    return choices;
}

// Returns the options of "fifo", or of "fifo/blind" for policies that ignore storage.
scheduler::ScenarioOptions scenario_of(const CompareOptions& options, const Choice& choice) {
    scheduler::ScenarioOptions scenario = options.simulate.scenario;
    scenario.policy = choice.policy;
    if (scenario.policy.ends_with("/blind")) {
        scenario.policy.resize(scenario.policy.size() - 6);
        scenario.simulation.storage_aware = false;
    }
    scenario.cache = choice.cache;
    scenario.simulation.storage = {.cache_bytes = choice.cache_bytes,
                                   .remote_bytes_per_second = choice.remote_bytes_per_second};
    scenario.simulation.cache.epochs_known = choice.epochs_known;
    scenario.workload_options.arrival_speedup = choice.arrival_speedup;
    scenario.simulation.samples = 0;
    return scenario;
}

Result<std::string> run_one(const CompareOptions& options, const Choice& choice, std::uint32_t seeds_before) {
    scheduler::ScenarioOptions scenario_options = scenario_of(options, choice);
    scenario_options.workload_options.seed += seeds_before;
    scenario_options.simulation.seed = scenario_options.workload_options.seed;
    auto scenario = scheduler::make_scenario(scenario_options);
    if (!scenario) return std::unexpected(scenario.error());
    const auto ran = scheduler::run_scenario(std::move(*scenario), scenario_options);
    if (!ran) return std::unexpected(ran.error());
    json::object row = summary_json(*ran, scenario_options);
    row["policy"] = choice.policy;
    row["cache_system"] = choice.cache;
    row["arrivals_faster"] = choice.arrival_speedup;
    row["epochs_known"] = choice.epochs_known;
    row["seed"] = scenario_options.workload_options.seed;
    return json_text(row);
}

// The figures of which a row shows the spread over seeds.
double mean_jct_s(const json::object& row) {
    return number_at(object_at(row, "jct_s"), "mean");
}
double utilisation(const json::object& row) {
    return number_at(row, "gpu_utilisation");
}
double fairness(const json::object& row) {
    return number_at(object_at(row, "fairness"), "mean");
}

// Returns the values of all numbers of an object, as means over objects of the same shape.
json::value mean_of(std::span<const json::value* const> values) {
    const json::value& first = *values.front();
    if (const auto* const object = first.if_object()) {
        json::object means;
        for (const auto& member : *object) {
            std::vector<const json::value*> members;
            members.reserve(values.size());
            for (const json::value* value : values) members.push_back(&value->as_object().at(member.key()));
            means[member.key()] = mean_of(members);
        }
        return means;
    }
    if (!first.is_number()) return first;
    double sum = 0;
    for (const json::value* value : values) sum += value->to_number<double>();
    return sum / static_cast<double>(values.size());
}

json::object spread_json(const scheduler::Spread& spread) {
    return {{"mean", spread.mean}, {"deviation", spread.deviation}, {"min", spread.least}, {"max", spread.most}};
}

// Returns the row of a choice over all seeds. `base` has the rows of its baseline, seed by seed.
json::object row_over_seeds(std::span<const json::value> seeds, std::span<const json::value> base) {
    json::object row;
    if (seeds.size() == 1) {
        row = seeds.front().as_object();
    } else {
        std::vector<const json::value*> all;
        all.reserve(seeds.size());
        for (const json::value& one : seeds) all.push_back(&one);
        row = mean_of(all).as_object();
        row.erase("seed");
        row["seeds"] = json::array(seeds.begin(), seeds.end());
    }
    const auto over_seeds = [&](auto value) {
        std::vector<double> values;
        values.reserve(seeds.size());
        for (std::size_t i = 0; i < seeds.size(); ++i)
            values.push_back(value(seeds[i].as_object(), base[i].as_object()));
        return spread_json(scheduler::spread(values));
    };
    using Row = const json::object&;
    row["spread"] = {
        {"jct_s", over_seeds([](Row own, Row) { return mean_jct_s(own); })},
        {"gpu_utilisation", over_seeds([](Row own, Row) { return utilisation(own); })},
        {"fairness", over_seeds([](Row own, Row) { return fairness(own); })},
        {"deadline_value", over_seeds([](Row own, Row) { return number_at(own, "deadline_value"); })},
        {"jct_ratio", over_seeds([](Row own, Row to) { return mean_jct_s(own) / mean_jct_s(to); })},
        {"utilisation_ratio", over_seeds([](Row own, Row to) { return utilisation(to) / utilisation(own); })},
        {"fairness_ratio", over_seeds([](Row own, Row to) { return fairness(to) / fairness(own); })}};
    return row;
}

std::string ratio_text(double ratio) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f", ratio);
    return text;
}

// Returns the family of units for all sizes of the table: that of the first cache.
UnitFamily family_of(const std::vector<Choice>& choices) {
    const auto cache = std::ranges::find_if(choices, [](const Choice& choice) { return choice.cache_bytes > 0; });
    return size_family(cache == choices.end() ? 0 : cache->cache_bytes);
}

// Returns "1.31", or "1.31 (1.20..1.45)" if there are several seeds.
std::string ratio_text(const json::object& row, const char* key, bool several) {
    const json::object& ratio = object_at(object_at(row, "spread"), key);
    std::string text = ratio_text(number_at(ratio, "mean"));
    if (several) text += " (" + ratio_text(number_at(ratio, "min")) + ".." + ratio_text(number_at(ratio, "max")) + ")";
    return text;
}

void print_table(const json::array& rows, const std::vector<Choice>& choices, std::uint32_t seeds) {
    const auto size = [family = family_of(choices)](double bytes) {
        return format_bytes(static_cast<std::uint64_t>(bytes), family);
    };
    const bool shows_epochs = !choices.empty() && choices.front().epochs_known != choices.back().epochs_known;
    std::vector<std::string> headings({"POLICY", "CACHE", ">ARRIVALS", ">LOAD", ">CACHE SIZE", ">BANDWIDTH",
                                       ">MEAN JCT", ">P99 JCT", ">MAKESPAN", ">UTILISATION", ">FAIRNESS", ">TENANTS",
                                       ">REMOTE", ">MISSED", ">STRICT", ">VALUE", ">JCT RATIO", ">UTIL RATIO",
                                       ">FAIR RATIO"});
    if (shows_epochs) headings.insert(headings.begin() + 2, "EPOCHS KNOWN");
    Table table(std::move(headings));
    const auto fixed = [](double value, int digits) {
        char text[32];
        std::snprintf(text, sizeof text, "%.*f", digits, value);
        return std::string(text);
    };
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const json::object& row = rows[i].as_object();
        const json::object& spread = object_at(row, "spread");
        const auto deviation = [&](const char* key, auto text) {
            return seeds > 1 ? " ±" + text(number_at(object_at(spread, key), "deviation")) : std::string();
        };
        std::vector<std::string> cells(
            {text_at(row, "policy"), choices[i].cache, ratio_text(choices[i].arrival_speedup),
             ratio_text(number_at(row, "offered_load")), size(choices[i].cache_bytes),
             format_bytes_per_second(choices[i].remote_bytes_per_second),
             time_text(mean_jct_s(row)) + deviation("jct_s", time_text),
             time_text(number_at(object_at(row, "jct_s"), "p99")), time_text(number_at(row, "makespan_s")),
             fixed(100 * utilisation(row), 1) +
                 deviation("gpu_utilisation", [&](double part) { return fixed(100 * part, 1); }) + " %",
             fixed(fairness(row), 3) + deviation("fairness", [&](double value) { return fixed(value, 3); }),
             fixed(number_at(object_at(row, "tenant_fairness"), "mean"), 3), size(number_at(row, "remote_bytes")),
             fixed(number_at(row, "deadlines_missed"), 0),
             number_at(row, "strict_deadlines") > 0
                 ? fixed(number_at(row, "strict_missed"), 0) + " of " + fixed(number_at(row, "strict_deadlines"), 0)
                 : "",
             number_at(row, "deadlines") > 0
                 ? fixed(number_at(row, "deadline_value"), 3) +
                       deviation("deadline_value", [&](double value) { return fixed(value, 3); })
                 : "",
             ratio_text(row, "jct_ratio", seeds > 1), ratio_text(row, "utilisation_ratio", seeds > 1),
             ratio_text(row, "fairness_ratio", seeds > 1)});
        if (shows_epochs) cells.insert(cells.begin() + 2, choices[i].epochs_known ? "yes" : "no");
        table.add(std::move(cells));
    }
    std::fputs(table.text().c_str(), stdout);
    std::puts("JCT: the completion time of a job, from its submission to its end.");
    std::puts("Ratios say how much better the first row of each cluster is than this row.");
    if (seeds > 1) {
        std::printf("Means over %u seeds, ± the standard deviation; in brackets the least and the most.\n", seeds);
    }
    // All rows reject the same jobs: they have the same GPUs.
    if (!rows.empty()) std::fputs(rejected_text(rows.front().as_object()).c_str(), stdout);
}

int run(const Context& context, CompareOptions& options) {
    if (auto settled = options.simulate.settle(); !settled) return report(context, settled.error());
    const auto choices = choices_of(options);
    if (!choices) return report(context, choices.error());
    if (!options.plot.empty()) {
        if (auto writable = check_writable(options.plot); !writable) return report(context, writable.error());
    }
    ProgressLine progress("simulating");
    SteadyClock clock;
    const std::int64_t begin_ns = clock.now_ns();
    const std::size_t seeds = options.seeds;
    const std::size_t simulations = choices->size() * seeds;
    const auto texts = run_in_processes(
        simulations,
        [&](std::size_t i) { return run_one(options, (*choices)[i / seeds], static_cast<std::uint32_t>(i % seeds)); },
        [&](std::size_t finished) {
            progress.show({.done = finished,
                           .total = simulations,
                           .unit = "simulations",
                           .seconds = static_cast<double>(clock.now_ns() - begin_ns) / 1e9});
        });
    progress.finish();
    if (!texts) return report(context, texts.error());
    std::vector<json::value> simulated;
    simulated.reserve(texts->size());
    for (const std::string& text : *texts) simulated.push_back(json::parse(text));
    const auto of_choice = [&](std::size_t choice) { return std::span(simulated).subspan(choice * seeds, seeds); };
    json::array rows;
    rows.reserve(choices->size());
    for (std::size_t i = 0; i < choices->size(); ++i) {
        rows.push_back(row_over_seeds(of_choice(i), of_choice((*choices)[i].baseline)));
    }
    if (context.json) {
        print_json(rows);
    } else {
        print_table(rows, *choices, options.seeds);
    }
    if (options.plot.empty()) return kDone;
    const auto drawn = plot_comparison(rows, options.simulate.scenario.trace, options.plot);
    return drawn ? static_cast<int>(kDone) : report(context, drawn.error());
}

}  // namespace

void add_compare_command(CLI::App& simulate, Context& context) {
    CLI::App* compare = simulate.add_subcommand("compare", "Compare policies, cache systems and clusters in one table");
    auto options = std::make_shared<CompareOptions>();
    add_trace_options(*compare, options->simulate);
    add_measure_option(*compare, options->simulate);
    compare->get_option("TRACE")->required();
    add_cluster_options(*compare, options->simulate);
    add_policy_options(*compare, options->simulate);
    add_knowledge_options(*compare, options->simulate, true);
    compare->add_option("--policies", options->policies, "Policies, separated by commas; NAME/blind ignores storage")
        ->delimiter(',')
        ->allow_extra_args(false);
    compare->add_option("--caches", options->caches, "Cache systems, separated by commas: SYSTEM or uniform+joint")
        ->delimiter(',')
        ->allow_extra_args(false);
    compare->add_option("--cache-sizes", options->cache_sizes, "Cache sizes of the whole cluster, separated by commas")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->required();
    compare->add_option("--bandwidths", options->bandwidths, "Bandwidths of the remote, separated by commas")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->required();
    compare->add_option("--arrivals", options->arrivals, "Divide submission times by each of these")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->default_str("1");
    compare
        ->add_option("--seeds", options->seeds,
                     "Run each row with this many seeds, --seed and those after it, and print means and spreads")
        ->check(CLI::Range(1U, 1000U))
        ->capture_default_str();
    compare->add_option("--plot", options->plot, "Draw completion times and GPU utilisation in this SVG file");
    compare->callback([&context, options] {
        if (options->arrivals.empty()) options->arrivals = {"1"};
        context.command = [&context, options] { return run(context, *options); };
    });
}

}  // namespace larder::cli
