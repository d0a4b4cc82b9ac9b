#pragma once

// A simulated cluster of one GPU type for tests, and its jobs.

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "scheduler/placement/free_pool.h"
#include "scheduler/simulator/scenario.h"
#include "scheduler/simulator/simulation.h"

namespace larder::scheduler {

inline constexpr double kSize = 100e9;   // bytes of each dataset
inline constexpr double kIdeal = 100e6;  // f* of one GPU

// Builds a workload, one line per job.
class SimulatedCluster {
public:
    explicit SimulatedCluster(std::uint32_t gpus) : gpus_(gpus) { workload.tenants.push_back({.name = "one"}); }

    JobSpec& add(double submit_s, std::uint32_t gpus, double epochs, std::uint32_t dataset = 0) {
        while (workload.datasets.size() <= dataset) {
            workload.datasets.push_back({.name = "d" + std::to_string(workload.datasets.size()), .size_bytes = kSize});
        }
        JobSpec& job = workload.jobs.emplace_back();
        job.name = std::to_string(workload.jobs.size() - 1);
        job.submit_s = submit_s;
        job.gpus = job.gpus_min = job.gpus_max = gpus;
        job.ideal_bytes_per_second = {kIdeal * gpus};
        job.dataset = dataset;
        job.total_bytes = epochs * kSize;
        workload.models.emplace_back("m");
        return job;
    }

    SimulationOutcome run(std::string_view policy_name, double cache_bytes, double remote,
                          std::string_view cache = "uniform+joint") {
        options.storage = {.cache_bytes = cache_bytes, .remote_bytes_per_second = remote};
        options.cache = *parse_cache(cache, "");
        const auto policy = make_policy(policy_name, options.policy);
        EXPECT_TRUE(policy);
        return run(**policy);
    }

    // Uses the storage and the cache of `options`.
    SimulationOutcome run(Policy& policy) {
        const GpuGroup group{.type = "a", .gpus = gpus_};
        const GpuCluster cluster = make_cluster(std::span(&group, 1), 8);
        FreePool pool(cluster);
        auto outcome = simulate(workload, cluster, policy, pool, options);
        EXPECT_TRUE(outcome) << outcome.error().message;
        return outcome ? std::move(*outcome) : SimulationOutcome{};
    }

    Workload workload;
    SimulationOptions options;

private:
    std::uint32_t gpus_;
};

}  // namespace larder::scheduler
