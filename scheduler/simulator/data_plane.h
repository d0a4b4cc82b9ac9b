#pragma once

// The simulated data plane: the stores, who reads them, and the plan in force. Between two plans everybody reads at
// constant rates; what changes them by itself (an epoch's end, a store that fills while several read it) is told to the
// caller as a time.

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "scheduler/near_nodes.h"
#include "scheduler/simulator/reported_plans.h"

namespace larder::scheduler {

class DataPlane {
public:
    DataPlane(const SimulationOptions& options, std::span<const DatasetState> datasets, const GpuCluster& cluster);

    // The job has its GPUs and begins to read, or to read on. `users_left`: whether later jobs read the dataset, too.
    void start(SimulatedJob& job, std::uint32_t index, double now_s);
    void stop(SimulatedJob& job, bool dataset_is_done, double now_s);
    // It was stopped, and will not be back.
    void forget(const SimulatedJob& job);
    // Everybody reads for so long. Adds what was read to the jobs and `outcomes`.
    void advance(double seconds, std::span<SimulatedJob* const> running, std::vector<JobOutcome>& outcomes);
    // The job's epoch is over: true if a new plan should be made of what it needs now.
    bool end_epoch(SimulatedJob& job);
    // `waiting`: for their next turns; they keep their part of the cache.
    Result<void> plan(double now_s, std::span<SimulatedJob* const> running, std::span<SimulatedJob* const> waiting);
    // It had its GPUs, and now begins to read.
    void resume(SimulatedJob& job, double now_s);
    // When the next node reports, where plans come from reports; then a plan is due.
    double next_report_s() const { return reported_ == nullptr ? kNever : reported_->next_s(); }
    Result<void> report(double now_s, std::span<SimulatedJob* const> running, std::span<SimulatedJob* const> waiting);
    // Rates of the jobs that read stores which several fill at a time; true if any changed, or a plan is due.
    bool refresh_shared();
    // When that is worth doing again.
    double next_refresh_s(double now_s) const;

    double remote_rate(std::span<SimulatedJob* const> running) const;
    double cached_bytes(std::uint32_t dataset) const;
    double cached_bytes_all() const;
    void describe(std::span<DatasetState> datasets) const;
    // Where every node caches for itself: who holds what; else nobody is near anything.
    void describe(NearNodes& near) const;

private:
    Store& store_for(std::uint32_t dataset, std::uint32_t node);
    void find_stores(SimulatedJob& job);
    void begin_epoch(SimulatedJob& job);
    void find_waiting(std::span<SimulatedJob* const> waiting);

    const SimulationOptions& options_;
    std::span<const DatasetState> datasets_;
    const GpuCluster& cluster_;
    std::uint32_t gpus_all_ = 0;
    std::unique_ptr<CacheSystem> system_;
    std::unique_ptr<ReportedPlans> reported_;  // null: plans are made at once
    std::uint64_t starts_ = 0;
    std::vector<std::unique_ptr<Store>> stores_;                          // by dataset and, per job, by start
    std::map<std::pair<std::uint32_t, std::uint32_t>, Store*> by_place_;  // dataset, node
    std::vector<SimulatedJob*> split_;                                    // read through several stores
    // Of one plan, kept for their memory.
    std::vector<SimulatedJob*> planned_jobs_;
    std::vector<Reader*> readers_;
    std::vector<std::uint32_t> gpus_;
    std::vector<const Placement*> placements_;
    std::vector<double> time_shares_;
    std::vector<WaitingReader> waiting_;
    std::vector<Store*> planned_;
    std::vector<double> read_;
};

}  // namespace larder::scheduler
