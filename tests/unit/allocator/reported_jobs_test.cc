// The jobs that nodes report, as the cluster's state lists them: whatever becomes of nodes, names and registrations,
// each report counts for the job whose name it has.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "allocator/cluster.h"
#include "tests/support/test_units.h"

namespace larder::allocator {

using test::kGB;
using test::kSecond_ns;
namespace {

constexpr ClusterOptions kOptions{.remote_bytes_per_second = 1e9, .nodes_max = 4};

JobReport job_of(const std::string& name, std::optional<std::uint32_t> user) {
    JobReport job{.name = name, .dataset = "images"};
    job.user = user;
    return job;
}

NodeReport node_with(const std::string& name, std::vector<JobReport> jobs) {
    return {.node = name,
            .instance = 1,
            .memory_bytes = kGB,
            .datasets = {{.name = "images", .size_bytes = 9 * kGB}},
            .jobs = std::move(jobs)};
}

class ReportedJobs : public testing::Test {
protected:
    ReportedJobs() { restart(); }

    // Starts the allocator again from its record.
    void restart() {
        cluster = std::make_unique<Cluster>(kOptions);
        const auto restored = cluster->restore(record, now_ns);
        EXPECT_TRUE(restored) << restored.error().message;
        cluster->set_save([this](const ClusterRecord& change) -> Result<void> {
            const auto put = [](const auto& from, auto& into) {
                for (const auto& [key, value] : from) {
                    if (value) {
                        into.insert_or_assign(key, value);
                    } else {
                        into.erase(key);
                    }
                }
            };
            put(change.jobs, record.jobs);
            put(change.nodes, record.nodes);
            put(change.ideals, record.ideals);
            put(change.epochs, record.epochs);
            return {};
        });
    }

    // Compares the state with the reports, which know jobs by name.
    void check_state() const {
        std::map<std::string, std::map<std::string, std::uint32_t>> expected;  // ranks by node, by job
        for (const auto& [name, node] : cluster->nodes()) {
            if (!cluster->is_alive(node, now_ns)) continue;
            for (const JobReport& job : node.last.jobs) expected[job.name][name] += job.ranks;
        }
        const ClusterState state = cluster->state(now_ns);
        std::map<std::string, std::map<std::string, std::uint32_t>> found;
        for (const ClusterJob& job : state.jobs) {
            for (const GpuShare& share : job.placement) found[job.name][state.nodes[share.node].name] += share.gpus;
            ASSERT_EQ(job.user, cluster->user_of(job.name)) << job.name;
            const auto measured = cluster->measured_ideal(job.name);
            ASSERT_EQ(job.ideal_is_measured, measured.has_value()) << job.name;
            ASSERT_EQ(measured.value_or(job.ideal_bytes_per_second), job.ideal_bytes_per_second) << job.name;
            const JobRegistration* const spec = cluster->registered(job.name);
            ASSERT_EQ(job.weight, spec == nullptr ? 1 : spec->weight) << job.name;
        }
        ASSERT_EQ(found, expected);
    }

    ClusterRecord record;
    std::unique_ptr<Cluster> cluster;
    std::int64_t now_ns = 0;
};

TEST_F(ReportedJobs, StateFollowsReportsAsNodesNamesAndRegistrationsChange) {
    std::mt19937_64 random(11);
    const std::vector<std::string> names{"x", "y", "z"};
    const auto any_name = [&] { return names[random() % names.size()]; };
    const auto any_user = [&]() -> std::optional<std::uint32_t> {
        if (random() % 4 == 0) return std::nullopt;
        return 1 + static_cast<std::uint32_t>(random() % 3);
    };
    std::map<std::string, NodeReport> nodes;
    for (int step = 0; step < 20'000; ++step) {
        now_ns += static_cast<std::int64_t>(random() % kSecond_ns);
        const std::string node = "n" + std::to_string(random() % 6);
        std::string what;
        switch (random() % 12) {
            case 0:
                what = "registered";
                static_cast<void>(cluster->register_job(
                    {.name = any_name(), .weight = 1 + static_cast<double>(random() % 4), .user = any_user()}));
                break;
            case 1:
            case 2:
                what = "unregistered";
                static_cast<void>(cluster->remove_job(any_name()));
                break;
            case 3:
                what = "takes turns";
                cluster->set_turns(random() % 2 == 0 ? std::vector<Turn>() : std::vector<Turn>{{.job = any_name()}});
                break;
            case 4:
                what = "node removed";
                static_cast<void>(cluster->remove_node(node, now_ns));
                break;
            case 5:
                if (random() % 8 == 0) {
                    what = "nodes silent";
                    now_ns += 11 * kSecond_ns;
                } else if (random() % 8 == 0) {
                    what = "allocator restarted";
                    restart();
                }
                break;
            default: {
                what = "report";
                NodeReport& report = nodes.try_emplace(node, node_with(node, {})).first->second;
                std::map<std::string, JobReport> before;
                for (JobReport& job : report.jobs) before[job.name] = job;
                if (random() % 3 == 0) {
                    report.jobs.clear();
                    for (const std::string& name : names) {
                        if (random() % 2 == 0) report.jobs.push_back(job_of(name, any_user()));
                    }
                }
                for (JobReport& job : report.jobs) {
                    job.bytes = before[job.name].bytes + 100'000'000;
                    job.busy_s = before[job.name].busy_s + 1;
                }
                if (random() % 20 == 0) ++report.instance;
                static_cast<void>(cluster->report(report, now_ns));  // refused if there are too many nodes
            }
        }
        SCOPED_TRACE(what + " in step " + std::to_string(step));
        ASSERT_NO_FATAL_FAILURE(check_state());
        if (random() % 4 == 0) {
            ASSERT_TRUE(cluster->replan(now_ns));
        }
    }
}

// Renaming leaves one of the jobs with the name that the other has had.
TEST_F(ReportedJobs, DamagedReportOnRecordMayHaveTwoJobsWhoseNamesBecomeTheSame) {
    record.nodes["n0"] = node_with("n0", {job_of("x (user 5)", 5), job_of("x", 7)});
    record.plan_number = 1;
    record.quotas["n0"] = std::vector<DatasetQuota>{};
    restart();
    ASSERT_TRUE(cluster->register_job({.name = "x", .user = 5}));
    ASSERT_NO_FATAL_FAILURE(check_state());
    ASSERT_TRUE(cluster->remove_job("x"));
    ASSERT_NO_FATAL_FAILURE(check_state());
    EXPECT_EQ(cluster->user_of("x"), 5u) << "it still runs";
}

}  // namespace
}  // namespace larder::allocator
