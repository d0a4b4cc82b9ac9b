#include "tools/simulate/report.h"

#include <boost/json/array.hpp>

#include <cmath>
#include <cstdio>

#include "base/units.h"
#include "tools/cli/table.h"

namespace larder::cli {
namespace {

namespace json = boost::json;
using scheduler::Quantiles;

json::object quantiles_json(const Quantiles& values) {
    return {{"mean", values.mean}, {"p50", values.p50},   {"p90", values.p90},
            {"p99", values.p99},   {"min", values.least}, {"max", values.most}};
}

std::string fixed(double value, int digits) {
    char text[48];
    std::snprintf(text, sizeof text, "%.*f", digits, value);
    return text;
}

std::string percent(double part) {
    return fixed(100 * part, 1) + " %";
}

}  // namespace

std::string time_text(double seconds) {
    char text[48];
    if (seconds >= 86400) {
        std::snprintf(text, sizeof text, "%.0fd %02.0fh", std::floor(seconds / 86400),
                      std::floor(std::fmod(seconds, 86400) / 3600));
    } else if (seconds >= 3600) {
        std::snprintf(text, sizeof text, "%.0fh %02.0fm", std::floor(seconds / 3600),
                      std::floor(std::fmod(seconds, 3600) / 60));
    } else if (seconds >= 60) {
        std::snprintf(text, sizeof text, "%.0fm %02.0fs", std::floor(seconds / 60), std::floor(std::fmod(seconds, 60)));
    } else {
        std::snprintf(text, sizeof text, "%.1f s", seconds);
    }
    return text;
}

json::object summary_json(const scheduler::Report& report, const scheduler::ScenarioOptions& options) {
    const scheduler::Summary& summary = report.summary;
    return {{"policy", options.policy},
            {"cache", name(report.cache)},
            {"storage_aware", options.simulation.storage_aware},
            {"gpus", report.scenario.gpus},
            {"cache_bytes", options.simulation.storage.cache_bytes},
            {"remote_bytes_per_second", options.simulation.storage.remote_bytes_per_second},
            {"jobs", summary.jobs},
            {"jobs_measured", summary.measured},
            {"finished", summary.finished},
            {"rejected", summary.rejected},
            {"expired", summary.expired},
            {"unfinished", summary.unfinished},
            {"rows_skipped", report.scenario.trace.skipped},
            {"makespan_s", summary.makespan_s},
            {"jct_s", quantiles_json(summary.jct_s)},
            {"queueing_s", quantiles_json(summary.queueing_s)},
            {"gpu_utilisation", summary.gpu_utilisation},
            {"gpu_allocation", summary.gpu_allocation},
            {"fairness", quantiles_json(summary.fairness)},
            {"tenant_fairness", quantiles_json(summary.tenant_fairness)},
            {"read_bytes", summary.read_bytes},
            {"remote_bytes", summary.remote_bytes},
            {"deadlines", summary.deadlines},
            {"deadlines_missed", summary.deadlines_missed},
            {"preemptions", summary.preemptions},
            {"jobs_stopped_by_lost_nodes", summary.failures},
            {"node_failures", report.outcome.node_failures},
            {"events", report.outcome.events},
            {"decisions", report.outcome.decisions},
            {"plans", report.outcome.plans}};
}

void print_summary(const scheduler::Report& report, const scheduler::ScenarioOptions& options) {
    const scheduler::Summary& summary = report.summary;
    const auto count = [](std::uint64_t number) { return std::to_string(number); };
    std::printf("%s under %s with %s%s: %llu jobs on %u GPUs\n", options.trace.c_str(), options.policy.c_str(),
                name(report.cache).c_str(), options.simulation.storage_aware ? "" : ", storage-blind",
                static_cast<unsigned long long>(summary.jobs), report.scenario.gpus);
    if (report.scenario.trace.skipped > 0) {
        std::printf("%llu rows were left out; the first: %s\n",
                    static_cast<unsigned long long>(report.scenario.trace.skipped),
                    report.scenario.trace.first_skipped.c_str());
    }
    Table times({"", ">MEAN", ">P50", ">P90", ">P99", ">MAX"});
    const auto row = [&](const char* what, const Quantiles& values, auto text) {
        times.add({what, text(values.mean), text(values.p50), text(values.p90), text(values.p99), text(values.most)});
    };
    row("completion time", summary.jct_s, time_text);
    row("of it queueing", summary.queueing_s, time_text);
    std::printf("%s\n", times.text().c_str());
    Table figures({"", ""});
    figures.add({"finished, rejected, expired, unfinished", count(summary.finished) + ", " + count(summary.rejected) +
                                                                ", " + count(summary.expired) + ", " +
                                                                count(summary.unfinished)});
    figures.add({"makespan", time_text(summary.makespan_s)});
    figures.add({"GPU utilisation (useful of allocated)", percent(summary.gpu_utilisation)});
    figures.add({"GPUs allocated", percent(summary.gpu_allocation)});
    figures.add({"read over equal share: least, median, mean", fixed(summary.fairness.least, 3) + ", " +
                                                                   fixed(summary.fairness.p50, 3) + ", " +
                                                                   fixed(summary.fairness.mean, 3)});
    if (report.scenario.workload.tenants.size() > 1) {
        figures.add({"tenants' GPU time over their shares: least, mean",
                     fixed(summary.tenant_fairness.least, 3) + ", " + fixed(summary.tenant_fairness.mean, 3)});
    }
    figures.add({"read", format_bytes(static_cast<std::uint64_t>(summary.read_bytes))});
    figures.add({"of it from the remote", format_bytes(static_cast<std::uint64_t>(summary.remote_bytes))});
    if (summary.deadlines > 0) {
        figures.add({"deadlines missed", count(summary.deadlines_missed) + " of " + count(summary.deadlines)});
    }
    figures.add({"preemptions", count(summary.preemptions)});
    if (report.outcome.node_failures > 0) {
        figures.add(
            {"nodes lost, jobs stopped by that", count(report.outcome.node_failures) + ", " + count(summary.failures)});
    }
    figures.add(
        {"simulated in", fixed(report.wall_s, 1) + " s, " +
                             fixed(static_cast<double>(report.outcome.events) / std::max(report.wall_s, 1e-9), 0) +
                             " events/s"});
    std::printf("%s", figures.text().c_str());
}

}  // namespace larder::cli
