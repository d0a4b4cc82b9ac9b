#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>

#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/units.h"
#include "tools/cli/admin_calls.h"
#include "tools/cli/progress.h"
#include "tools/cli/table.h"
#include "tools/simulate/commands.h"
#include "tools/simulate/report.h"
#include "tools/simulate/simulate_options.h"

namespace larder::cli {
namespace {

namespace json = boost::json;

struct CapacityOptions {
    SimulateOptions simulate;
    std::string resource = "cache";  // or "bandwidth"
    std::string most;
    std::string metric = "mean-jct";
    double within = 0.05;
    std::optional<double> reach;
};

// The names of a metric in the table and in the sentence below it.
struct MetricNames {
    const char* heading;
    const char* sentence;
};

MetricNames names_of(const std::string& metric) {
    if (metric == "utilisation") return {">GPU UTILISATION", "a GPU utilisation"};
    if (metric == "makespan") return {">MAKESPAN", "a makespan"};
    if (metric == "p99-jct") return {">P99 COMPLETION TIME", "a p99 completion time"};
    return {">MEAN COMPLETION TIME", "a mean completion time"};
}

struct Point {
    double amount = 0;
    double value = 0;
};

double metric_of(const scheduler::Summary& summary, const std::string& metric) {
    if (metric == "utilisation") return summary.gpu_utilisation;
    if (metric == "makespan") return summary.makespan_s;
    return metric == "p99-jct" ? summary.jct_s.p99 : summary.jct_s.mean;
}

bool more_is_better(const std::string& metric) {
    return metric == "utilisation";
}

std::string value_text(const std::string& metric, double value) {
    if (!more_is_better(metric)) return time_text(value);
    char text[32];
    std::snprintf(text, sizeof text, "%.1f %%", 100 * value);
    return text;
}

// Searches between nothing and `most` for the least amount that reaches the target, to 2 %, and records the tries.
class Search {
public:
    Search(const CapacityOptions& options, double most) : options_(options), most_(most) {}

    Result<void> run() {
        const auto best = simulate_with(most_);
        if (!best) return std::unexpected(best.error());
        const bool higher_is_better = more_is_better(options_.metric);
        target_ =
            options_.reach ? *options_.reach : *best * (higher_is_better ? 1 - options_.within : 1 + options_.within);
        if (!reaches(*best)) {
            return fail(ErrorCode::invalid_argument, "even --most, " + amount_text(most_) + ", gives " +
                                                         value_text(options_.metric, *best) + ", not " +
                                                         value_text(options_.metric, target_));
        }
        double high = most_;
        double low = 0;
        constexpr double kPrecision = 0.02;
        constexpr int kTriesMax = 24;
        for (int i = 0; i < kTriesMax && high - low > kPrecision * high; ++i) {
            const double middle = (low + high) / 2;
            const auto value = simulate_with(middle);
            if (!value) return std::unexpected(value.error());
            (reaches(*value) ? high : low) = middle;
        }
        least_ = high;
        progress_.finish();
        return {};
    }

    std::string amount_text(double amount) const {
        return options_.resource == "cache" ? format_bytes(static_cast<std::uint64_t>(amount), size_family(most_))
                                            : format_bytes_per_second(amount);
    }
    double least() const { return least_; }
    double target() const { return target_; }
    const std::vector<Point>& points() const { return points_; }
    const json::object& last_summary() const { return last_summary_; }

private:
    bool reaches(double value) const { return more_is_better(options_.metric) ? value >= target_ : value <= target_; }

    Result<double> simulate_with(double amount) {
        scheduler::ScenarioOptions scenario_options = options_.simulate.scenario;
        scheduler::Storage& storage = scenario_options.simulation.storage;
        (options_.resource == "cache" ? storage.cache_bytes : storage.remote_bytes_per_second) = amount;
        scenario_options.simulation.samples = 0;
        const double begin_s = now_s();
        scenario_options.simulation.progress = [&](const scheduler::SimulationProgress& now) {
            progress_.show({.done = now.jobs_done,
                            .total = now.jobs,
                            .unit = "jobs",
                            .seconds = now_s() - begin_s,
                            .speed = amount_text(amount) + ", try " + std::to_string(points_.size() + 1)});
        };
        auto scenario = scheduler::make_scenario(scenario_options);
        if (!scenario) return std::unexpected(scenario.error());
        const auto ran = scheduler::run_scenario(std::move(*scenario), scenario_options);
        if (!ran) return std::unexpected(ran.error());
        last_summary_ = summary_json(*ran, scenario_options);
        points_.push_back({.amount = amount, .value = metric_of(ran->summary, options_.metric)});
        return points_.back().value;
    }

    double now_s() const { return static_cast<double>(clock_.now_ns()) / 1e9; }

    const CapacityOptions& options_;
    SteadyClock clock_;
    ProgressLine progress_{"simulating"};
    double most_;
    double target_ = 0;
    double least_ = 0;
    std::vector<Point> points_;
    json::object last_summary_;
};

Result<double> parse_most(const CapacityOptions& options) {
    if (options.resource == "bandwidth") return parse_bytes_per_second(options.most);
    const auto bytes = parse_bytes(options.most);
    if (!bytes) return std::unexpected(bytes.error());
    return static_cast<double>(*bytes);
}

int run(const Context& context, CapacityOptions& options) {
    const bool is_given = options.resource == "cache" ? options.simulate.cache_bytes.has_value()
                                                      : options.simulate.remote_bytes_per_second.has_value();
    if (is_given) {
        return report(context, Error{ErrorCode::invalid_argument,
                                     (options.resource == "cache" ? "--cache-size" : "--bandwidth") +
                                         std::string(": --of searches for this value; give its maximum with --most")});
    }
    if (auto settled = options.simulate.settle(); !settled) return report(context, settled.error());
    const auto most = parse_most(options);
    if (!most) return report(context, most.error().within("--most"));
    Search search(options, *most);
    if (auto searched = search.run(); !searched) return report(context, searched.error());
    if (context.json) {
        json::array points;
        for (const Point& point : search.points())
            points.push_back(json::object{{"amount", point.amount}, {"value", point.value}});
        print_json(json::object{{"of", options.resource},
                                {"metric", options.metric},
                                {"target", search.target()},
                                {"least", search.least()},
                                {"points", std::move(points)}});
        return kDone;
    }
    const MetricNames names = names_of(options.metric);
    Table table({options.resource == "cache" ? ">CACHE" : ">BANDWIDTH", names.heading});
    auto points = search.points();
    std::ranges::sort(points, {}, &Point::amount);
    for (const Point& point : points)
        table.add({search.amount_text(point.amount), value_text(options.metric, point.value)});
    std::printf("%s%s of %s reaches %s of %s\n", table.text().c_str(), search.amount_text(search.least()).c_str(),
                options.resource.c_str(), names.sentence, value_text(options.metric, search.target()).c_str());
    std::fputs(rejected_text(search.last_summary()).c_str(), stdout);
    return kDone;
}

}  // namespace

void add_capacity_command(CLI::App& simulate, Context& context) {
    CLI::App* capacity = simulate.add_subcommand("capacity", "Find how much cache or bandwidth reaches a target");
    auto options = std::make_shared<CapacityOptions>();
    add_trace_options(*capacity, options->simulate);
    add_arrivals_option(*capacity, options->simulate);
    add_measure_option(*capacity, options->simulate);
    capacity->get_option("TRACE")->required();
    add_cluster_options(*capacity, options->simulate);
    add_policy_options(*capacity, options->simulate);
    add_knowledge_options(*capacity, options->simulate);
    add_choice_options(*capacity, options->simulate);
    capacity->add_option("--of", options->resource, "Resource to search for: cache or bandwidth")
        ->check(CLI::IsMember({"cache", "bandwidth"}))
        ->capture_default_str();
    capacity->add_option("--most", options->most, "The largest amount to consider")->required();
    capacity
        ->add_option("--metric", options->metric,
                     "The metric of the target: mean-jct or p99-jct, the mean or 99th percentile of the jobs' "
                     "completion times; makespan or utilisation")
        ->check(CLI::IsMember({"mean-jct", "p99-jct", "makespan", "utilisation"}))
        ->capture_default_str();
    auto* reach = capacity->add_option("--reach", options->reach, "The target: seconds, or utilisation from 0 to 1");
    capacity
        ->add_option("--within", options->within,
                     "Without --reach: the target is the result with --most, worse by at most this fraction")
        ->capture_default_str()
        ->excludes(reach);
    capacity->callback(
        [&context, options] { context.command = [&context, options] { return run(context, *options); }; });
}

}  // namespace larder::cli
