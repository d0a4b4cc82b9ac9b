// The datasets that nodes report, as the cluster's state lists them: as if each report were looked up by names,
// whatever datasets nodes take up and leave, and whatever nodes come, fall silent and are forgotten.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "allocator/cluster.h"
#include "tests/support/test_units.h"

namespace larder::allocator {

using test::kGB;
using test::kSecond_ns;
namespace {

ClusterDataset& dataset_named(std::vector<ClusterDataset>& datasets, const std::string& name) {
    const auto found = std::ranges::find(datasets, name, &ClusterDataset::name);
    return found != datasets.end() ? *found : datasets.emplace_back(ClusterDataset{.name = name});
}

TEST(ReportedDatasets, AreListedAsByNames) {
    std::mt19937_64 random(11);
    const ClusterOptions options{.remote_bytes_per_second = 1e9, .nodes_max = 6};
    Cluster cluster(options);
    std::int64_t now_ns = 0;
    std::size_t jobs_seen = 0;
    for (int step = 0; step < 2000; ++step) {
        now_ns += static_cast<std::int64_t>(random() % 3) * kSecond_ns;
        NodeReport report{.node = "n" + std::to_string(random() % 8),
                          .instance = 1,
                          .memory_bytes = 10 * kGB,
                          .disk_bytes = 90 * kGB};
        std::vector<std::uint32_t> datasets(10);
        for (std::uint32_t d = 0; d < datasets.size(); ++d) datasets[d] = d;
        std::ranges::shuffle(datasets, random);
        datasets.resize(random() % 5);
        for (const std::uint32_t d : datasets) {
            const std::string name = "d" + std::to_string(d);
            report.datasets.push_back({.name = name,
                                       .size_bytes = kGB * (1 + random() % 9),
                                       .quota_memory_bytes = random() % kGB,
                                       .cached_disk_bytes = random() % kGB});
            if (random() % 2 == 0) continue;
            report.jobs.push_back({.name = "of-" + name + "-on-" + report.node, .dataset = name});
        }
        const auto taken = cluster.report(report, now_ns);
        if (!taken) continue;  // too many nodes

        std::vector<ClusterDataset> expected;
        std::vector<std::string> datasets_of_jobs;
        std::uint32_t node = 0;
        for (const auto& [_, known] : cluster.nodes()) {
            if (!cluster.is_alive(known, now_ns)) continue;
            for (const DatasetReport& reported : known.last.datasets) {
                ClusterDataset& dataset = dataset_named(expected, reported.name);
                dataset.size_bytes = std::max(dataset.size_bytes, reported.size_bytes);
                dataset.quotas.push_back({node, reported.quota_memory_bytes, reported.quota_disk_bytes});
                dataset.cached.push_back({node, reported.cached_memory_bytes, reported.cached_disk_bytes});
            }
            for (const JobReport& job : known.last.jobs) datasets_of_jobs.push_back(job.dataset);
            ++node;
        }
        const ClusterState state = cluster.state(now_ns);
        ASSERT_EQ(state.datasets.size(), expected.size()) << "step " << step;
        for (std::size_t i = 0; i < expected.size(); ++i) {
            ASSERT_EQ(state.datasets[i].name, expected[i].name) << "step " << step;
            ASSERT_EQ(state.datasets[i].size_bytes, expected[i].size_bytes) << "step " << step;
            ASSERT_EQ(state.datasets[i].quotas, expected[i].quotas) << "step " << step;
            ASSERT_EQ(state.datasets[i].cached, expected[i].cached) << "step " << step;
        }
        ASSERT_EQ(state.jobs.size(), datasets_of_jobs.size()) << "step " << step;
        for (std::size_t j = 0; j < state.jobs.size(); ++j) {
            ASSERT_EQ(state.datasets[state.jobs[j].dataset].name, datasets_of_jobs[j]) << "step " << step;
        }
        jobs_seen += state.jobs.size();
    }
    EXPECT_GT(jobs_seen, 1000u);
}

}  // namespace
}  // namespace larder::allocator
