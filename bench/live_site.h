#pragma once

// A large cluster as the allocator's daemon sees it: nodes that report, a queue of jobs, and an engine that starts what
// it is told to. The daemon's own objects decide and plan; nothing is left out but HTTP and the disk.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/cluster.h"
#include "base/error.h"
#include "bench/cost.h"
#include "scheduler/cells/cells.h"
#include "scheduler/live/live_scheduler.h"
#include "scheduler/simulator/random.h"

namespace larder::bench {

struct DecideSize {
    std::uint32_t nodes = 4000;
    std::uint32_t running = 10'000;
    std::uint32_t waiting = 1000;
    std::uint32_t datasets = 1000;
    std::uint32_t datasets_per_node = 8;
    std::uint32_t ended = 100;  // jobs that end before each later decision
    int decisions = 7;
};

// Longer than a round, so many leases have expired at each decision.
inline constexpr double kBetweenDecisions_s = 400;

enum class Setting : std::uint8_t { one_type, three_types, cells, tight_deadlines };

// Puts the cluster's nodes into racks of ten; tenant 0 owns nearly all of them, node by node.
scheduler::CellConfig make_cells_config(const scheduler::GpuCluster& cluster);
// Returns the GPUs of the setting, on nodes of 8.
scheduler::GpuCluster cluster_of(const DecideSize& size, Setting setting);

// The costs of one decision.
struct DecisionCosts {
    Cost state;     // Cluster::state(), once
    Cost view;      // the scheduler's view of the allocator's state, once; part of `decision`
    Cost decision;  // a tick of the scheduler: view, snapshot, choice, places, records, turns
    Cost plan;      // Cluster::replan(): state, plan, comparison with the plan in force

    Cost all() const { return decision + plan; }
};

class LiveSite {
public:
    LiveSite(const DecideSize& size, Setting setting, std::unique_ptr<scheduler::Policy> policy);
    ~LiveSite();

    // Ends some jobs, submits as many, advances time, and lets every node report. Then decides and plans.
    Result<DecisionCosts> step();
    std::size_t running() const;
    // Returns the quotas in force: one for each dataset and node.
    std::size_t quotas() const;

private:
    class StartingEngine;

    void end_jobs();
    Result<void> submit(std::uint32_t count);
    scheduler::Submission make_job();
    Result<void> report_all();
    scheduler::Moment now() const;

    const DecideSize size_;
    const Setting setting_;
    scheduler::Random random_;
    double now_s_ = 1e6;
    std::uint32_t jobs_made_ = 0;
    std::size_t gpu_types_ = 1;
    std::vector<std::uint64_t> dataset_bytes_;
    allocator::Cluster cluster_;
    std::unique_ptr<StartingEngine> engine_;
    std::unique_ptr<scheduler::LiveScheduler> live_;
};

}  // namespace larder::bench
