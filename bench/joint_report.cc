#include "bench/joint_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/units.h"
#include "tools/cli/table.h"

namespace larder::bench {
namespace {

// The smallest rate over equal share, which max-min raises, among jobs below f*. Jobs at f* are left out: a job whose
// equal share is f* would hold the smallest ratio at 1 under every policy. If all jobs are at f*, all of them count.
class SmallestRatio {
public:
    // `at_ideal`: the part of f* from which a job counts as being at f*.
    explicit SmallestRatio(double at_ideal) : at_ideal_(at_ideal) {}

    void add(double rate, double equal_share, double ideal) {
        const double ratio = rate / equal_share;
        over_all_ = std::min(over_all_, ratio);
        if (rate < at_ideal_ * ideal) below_ideal_ = std::min(below_ideal_, ratio);
    }
    double value() const { return std::isinf(below_ideal_) ? over_all_ : below_ideal_; }

private:
    double at_ideal_;
    double over_all_ = std::numeric_limits<double>::infinity();
    double below_ideal_ = std::numeric_limits<double>::infinity();
};

// Returns the smallest ratio of a measured rate to the equal share in `shares`.
double min_ratio(const JointScenario& scenario, const PolicyResult& result, const std::vector<JobResult>& shares) {
    SmallestRatio smallest(0.95);
    for (std::size_t j = 0; j < result.jobs.size(); ++j) {
        smallest.add(result.jobs[j].measured, shares[j].predicted.equal_share, scenario.jobs[j].ideal_bytes_per_second);
    }
    return smallest.value();
}

// Returns the smallest ratio of a rate to the equal share, both as the policy's own plans predict them.
double min_ratio_predicted(const PolicyResult& result) {
    SmallestRatio smallest(0.99);
    for (const JobResult& job : result.jobs) {
        smallest.add(job.predicted.rate, job.predicted.equal_share, job.predicted.ideal);
    }
    return smallest.value();
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
            {"min_ratio", min_ratio(scenario, result, shares)},
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
