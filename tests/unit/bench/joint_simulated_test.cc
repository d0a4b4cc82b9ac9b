#include "bench/joint_simulated.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace larder::test {
namespace {

using bench::joint_scenario;
using bench::JointScenario;
using bench::simulate_joint;

std::vector<double> simulated_s(const std::string& policy, const std::vector<double>& report_ages_s) {
    const auto times = simulate_joint(joint_scenario(true), policy, report_ages_s);
    EXPECT_TRUE(times.has_value()) << times.error().message;
    return times.value_or(std::vector<double>{});
}

// The duration of each job at f*, without any wait for data.
std::vector<double> ideal_s(const JointScenario& scenario) {
    std::vector<double> times;
    for (const bench::JointJob& job : scenario.jobs) {
        const auto bytes = static_cast<double>(scenario.datasets[job.dataset].blocks * scenario.block_bytes);
        times.push_back(scenario.epochs * bytes / job.ideal_bytes_per_second);
    }
    return times;
}

TEST(JointSimulated, JobsEndAndNoneExceedsIdealRateAtAnyReportAge) {
    const std::vector<double> ideal = ideal_s(joint_scenario(true));
    for (const std::string& policy : bench::reality_policies()) {
        for (const std::vector<double>& ages_s :
             {std::vector<double>{0, 0, 0, 0}, {0.1, 0.9, 0.5, 0.3}, {0.9, 0.1, 0.2, 0.8}, {0.5, 3, 0, 0.7}}) {
            const std::vector<double> times = simulated_s(policy, ages_s);
            ASSERT_EQ(times.size(), ideal.size());
            for (std::size_t job = 0; job < times.size(); ++job) {
                EXPECT_GE(times[job], 0.999 * ideal[job]) << policy << ", job " << job;
                EXPECT_LT(times[job], 10 * ideal[job]) << policy << ", job " << job;
            }
        }
    }
}

TEST(JointSimulated, LastJobEndsAtSimilarTimeAtAnyReportAge) {
    for (const std::string policy : {"equal-shares", "max-min", "efficiency"}) {
        const auto first = simulated_s(policy, {0, 0, 0, 0});
        const auto second = simulated_s(policy, {0.9, 0.1, 0.2, 0.8});
        EXPECT_NEAR(*std::ranges::max_element(first), *std::ranges::max_element(second), 2) << policy;
    }
}

}  // namespace
}  // namespace larder::test
