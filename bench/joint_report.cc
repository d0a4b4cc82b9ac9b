#include "bench/joint_report.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "base/units.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

// The smallest rate measured, over the equal share that static measured against.
double min_ratio(const PolicyResult& result, const std::vector<JobResult>& shares) {
    double smallest = std::numeric_limits<double>::infinity();
    for (std::size_t j = 0; j < result.jobs.size(); ++j) {
        smallest = std::min(smallest, result.jobs[j].measured / shares[j].predicted.equal_share);
    }
    return smallest;
}

// The smallest the policy's own plans promised, over the equal share they reckoned with.
double min_ratio_predicted(const PolicyResult& result) {
    double smallest = std::numeric_limits<double>::infinity();
    for (const JobResult& job : result.jobs)
        smallest = std::min(smallest, job.predicted.rate / job.predicted.equal_share);
    return smallest;
}

std::string percent(double part) {
    char text[32];
    std::snprintf(text, sizeof text, "%+.1f %%", part * 100);
    return text;
}

}  // namespace

boost::json::object to_json(const JointScenario& scenario, const std::string& policy, const PolicyResult& result,
                            const std::vector<JobResult>& shares) {
    const bool predicted = result.jobs.front().predicted.rate > 0;
    boost::json::array jobs;
    for (std::size_t j = 0; j < result.jobs.size(); ++j) {
        const JobResult& job = result.jobs[j];
        jobs.push_back(boost::json::object{
            {"name", scenario.jobs[j].name},
            {"equal_share", shares[j].predicted.equal_share},
            {"predicted", predicted ? boost::json::value(job.predicted.rate) : boost::json::value()},
            {"measured", job.measured},
            {"ideal", scenario.jobs[j].ideal_bytes_per_second},
            {"ideal_measured", predicted ? boost::json::value(job.predicted.ideal) : boost::json::value()}});
    }
    boost::json::value model;
    if (predicted) model = min_ratio_predicted(result);
    return {{"policy", policy},
            {"network", result.network.empty() ? boost::json::value() : boost::json::value(result.network)},
            {"remote_bytes", result.remote_bytes},
            {"delivered_bytes", result.delivered_bytes},
            {"remote_per_byte", result.remote_per_byte},
            {"excess_bytes", result.excess_bytes},
            {"min_ratio", min_ratio(result, shares)},
            {"min_ratio_predicted", model},
            {"jobs", std::move(jobs)}};
}

void print_policies(const JointScenario& scenario, const boost::json::array& policies) {
    std::printf("B = %s, %u nodes with %s of cache each, block %s\n\n",
                format_bytes_per_second(scenario.remote_bytes_per_second).c_str(), scenario.nodes,
                format_bytes(scenario.node_cache_bytes).c_str(), format_bytes(scenario.block_bytes).c_str());
    cli::Table jobs({"policy", "job", ">f*", ">f* seen", ">equal share", ">predicted", ">measured", ">off"});
    cli::Table totals({"policy", ">least f/e", ">model's", ">sum of f", ">remote per byte", ">ahead of B by"});
    for (const auto& policy : policies) {
        const std::string name(policy.at("policy").as_string());
        double sum = 0;
        for (const auto& job : policy.at("jobs").as_array()) {
            const double measured = job.at("measured").as_double();
            sum += measured;
            const bool predicted = !job.at("predicted").is_null();
            jobs.add({name, std::string(job.at("name").as_string()),
                      format_bytes_per_second(job.at("ideal").as_double()),
                      predicted ? format_bytes_per_second(job.at("ideal_measured").as_double()) : "-",
                      format_bytes_per_second(job.at("equal_share").as_double()),
                      predicted ? format_bytes_per_second(job.at("predicted").as_double()) : "-",
                      format_bytes_per_second(measured),
                      predicted ? percent(measured / job.at("predicted").as_double() - 1) : "-"});
        }
        char text[3][32] = {"", "-", ""};
        std::snprintf(text[0], sizeof text[0], "%.3f", policy.at("min_ratio").as_double());
        if (!policy.at("min_ratio_predicted").is_null()) {
            std::snprintf(text[1], sizeof text[1], "%.3f", policy.at("min_ratio_predicted").as_double());
        }
        std::snprintf(text[2], sizeof text[2], "%.3f", policy.at("remote_per_byte").as_double());
        totals.add({name, text[0], text[1], format_bytes_per_second(sum), text[2],
                    format_bytes(static_cast<std::uint64_t>(policy.at("excess_bytes").as_double()))});
    }
    std::printf("%s\n%s", jobs.text().c_str(), totals.text().c_str());
}

}  // namespace larder::bench
