#include "tools/simulate/report.h"

#include <boost/json/array.hpp>

#include <cmath>
#include <cstdio>

#include "tools/cli/admin_calls.h"
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

json::object summary_json(const scheduler::ScenarioReport& report, const scheduler::ScenarioOptions& options) {
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
            {"rejected_larger_than_cluster", summary.larger_than_cluster},
            {"expired", summary.expired},
            {"unfinished", summary.unfinished},
            {"rows_skipped", report.scenario.trace.skipped},
            {"makespan_s", summary.makespan_s},
            {"offered_load", summary.offered_load},
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
            {"strict_deadlines", summary.strict_deadlines},
            {"strict_missed", summary.strict_missed},
            {"deadline_value", summary.deadline_value},
            {"preemptions", summary.preemptions},
            {"jobs_stopped_by_lost_nodes", summary.failures},
            {"node_failures", report.outcome.node_failures},
            {"events", report.outcome.events},
            {"decisions", report.outcome.decisions},
            {"plans", report.outcome.plans}};
}

std::string rejected_text(const json::object& summary) {
    const std::uint64_t rejected = count_at(summary, "rejected");
    const std::uint64_t cluster = count_at(summary, "rejected_larger_than_cluster");
    if (rejected == 0) return "";
    std::string why = "larger than the cluster";
    if (cluster == 0) why = "larger than their tenant's cells";
    if (cluster > 0 && cluster < rejected) {
        why = format_count(cluster) + " larger than the cluster, " + format_count(rejected - cluster) +
              " larger than their tenant's cells";
    }
    return format_count(rejected) + " of " + format_counted(count_at(summary, "jobs"), "job") +
           (rejected == 1 ? " was" : " were") + " rejected: " + why + "\n";
}

UnitFamily size_family(double cache_bytes) {
    return cache_bytes > 0 ? unit_family_of(static_cast<std::uint64_t>(cache_bytes)) : UnitFamily::decimal;
}

void print_summary(const scheduler::ScenarioReport& report, const scheduler::ScenarioOptions& options) {
    const scheduler::Summary& summary = report.summary;
    const auto size = [&](double bytes) {
        return format_bytes(static_cast<std::uint64_t>(bytes), size_family(options.simulation.storage.cache_bytes));
    };
    std::printf("%s under %s with %s%s: %s on %s\n", options.trace.c_str(), options.policy.c_str(),
                name(report.cache).c_str(), options.simulation.storage_aware ? "" : ", storage-blind",
                format_counted(summary.jobs, "job").c_str(), format_counted(report.scenario.gpus, "GPU").c_str());
    if (const std::uint64_t skipped = report.scenario.trace.skipped; skipped > 0) {
        std::printf("%s %s left out; the first: %s\n", format_counted(skipped, "row").c_str(),
                    skipped == 1 ? "was" : "were", report.scenario.trace.first_skipped.c_str());
    }
    std::fputs(rejected_text(summary_json(report, options)).c_str(), stdout);
    Table times({"", ">MEAN", ">P50", ">P90", ">P99", ">MAX"});
    const auto row = [&](const char* what, const Quantiles& values, auto text) {
        times.add({what, text(values.mean), text(values.p50), text(values.p90), text(values.p99), text(values.most)});
    };
    row("completion time", summary.jct_s, time_text);
    row("of it queueing", summary.queueing_s, time_text);
    std::printf("%s\n", times.text().c_str());
    std::vector<std::pair<std::string, std::string>> figures;
    const auto add = [&](const char* what, std::string value) { figures.emplace_back(what, std::move(value)); };
    add("finished, rejected, expired, unfinished",
        format_count(summary.finished) + ", " + format_count(summary.rejected) + ", " + format_count(summary.expired) +
            ", " + format_count(summary.unfinished));
    add("makespan", time_text(summary.makespan_s));
    add("GPU utilisation (useful of allocated)", percent(summary.gpu_utilisation));
    add("GPUs allocated", percent(summary.gpu_allocation));
    add("read over equal share: least, median, mean", fixed(summary.fairness.least, 3) + ", " +
                                                          fixed(summary.fairness.p50, 3) + ", " +
                                                          fixed(summary.fairness.mean, 3));
    if (report.scenario.workload.tenants.size() > 1) {
        add("tenants' GPU time over their shares: least, mean",
            fixed(summary.tenant_fairness.least, 3) + ", " + fixed(summary.tenant_fairness.mean, 3));
    }
    add("read", size(summary.read_bytes));
    add("of it from the remote", size(summary.remote_bytes));
    if (summary.deadlines > 0) {
        add("deadlines missed", format_count(summary.deadlines_missed) + " of " + format_count(summary.deadlines));
        add("strict deadlines missed",
            format_count(summary.strict_missed) + " of " + format_count(summary.strict_deadlines));
        add("value of results by their deadlines", percent(summary.deadline_value));
    }
    add("preemptions", format_count(summary.preemptions));
    if (report.outcome.node_failures > 0) {
        add("nodes lost, jobs stopped by that",
            format_count(report.outcome.node_failures) + ", " + format_count(summary.failures));
    }
    add("simulated in", fixed(report.wall_s, 1) + " s, " +
                            fixed(static_cast<double>(report.outcome.events) / std::max(report.wall_s, 1e-9), 0) +
                            " events/s");
    std::fputs(name_value_text(figures).c_str(), stdout);
}

}  // namespace larder::cli
