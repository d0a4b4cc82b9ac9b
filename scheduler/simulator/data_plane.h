#pragma once

// The simulated data plane: the stores, their readers, and the plan in force. Between two plans all readers have
// constant rates. Changes that need no plan (an epoch's end, a store that fills while several jobs read it) are
// announced to the caller as times.

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "scheduler/near_nodes.h"
#include "scheduler/places_by_plan.h"
#include "scheduler/simulator/equal_shares.h"
#include "scheduler/simulator/reported_plans.h"

namespace larder::scheduler {

class DataPlane {
public:
    DataPlane(const SimulationOptions& options, std::span<const DatasetState> datasets, const GpuCluster& cluster);

    // Call it when the job has its GPUs and begins or resumes reading.
    void start(SimulatedJob& job, std::uint32_t index, double now_s);
    void stop(SimulatedJob& job, bool dataset_is_done, double now_s);
    // Call it when the job was stopped and will not come back.
    void forget(const SimulatedJob& job);
    // Lets all readers read for `seconds`, and adds the bytes read to the jobs and to `outcomes`.
    void advance(double seconds, std::span<SimulatedJob* const> running, std::vector<JobOutcome>& outcomes);
    // Call it when the job's epoch has ended. Returns true if its needs have changed enough to warrant a new plan.
    bool end_epoch(SimulatedJob& job);
    // Sets what jobs may take from the remote together, from the next plan on. At first it is all of the storage's.
    void set_remote(double bytes_per_second) { storage_.remote_bytes_per_second = bytes_per_second; }
    // `waiting`: jobs that wait for their next turns. They keep their part of the cache.
    Result<void> plan(double now_s, std::span<SimulatedJob* const> running, std::span<SimulatedJob* const> waiting);
    // Call it when a job that had its GPUs but was paused begins to read.
    void resume(SimulatedJob& job, double now_s);
    // Returns when the next node reports, if plans come from reports; kNever: they do not. A plan is due then.
    double next_report_s() const { return reported_ == nullptr ? kNever : reported_->next_s(); }
    Result<void> report(double now_s, std::span<SimulatedJob* const> running, std::span<SimulatedJob* const> waiting);
    // Says whether the node is there to report.
    void set_reports(std::uint32_t node, bool reports, double now_s);
    // Updates the rates of jobs that read stores with several readers. Returns true if any hit ratio changed, or a plan
    // is due.
    bool refresh_shared();
    // Returns the time to call refresh_shared() again.
    double next_refresh_s(double now_s) const;

    double remote_rate(std::span<SimulatedJob* const> running) const;
    double cached_bytes(std::uint32_t dataset) const;
    double cached_bytes_all() const;
    void update_cached_bytes(std::span<DatasetState> datasets) const;
    // True if plans depend on where jobs are.
    bool plans_by_place() const;
    // Returns what the next plan would be made from. `live`: the jobs of a snapshot.
    PlanInput plan_input(double now_s, std::span<SimulatedJob* const> running, std::span<SimulatedJob* const> waiting,
                         std::span<const JobState* const> live);
    // Sets which nodes hold which dataset if every node caches for itself; else does nothing.
    void update_near_nodes(NearNodes& near) const;

private:
    // `shared_on`: if each job has a store, the node whose jobs share one; kAllNodes: none.
    Store& store_for(std::uint32_t dataset, std::uint32_t node, std::uint32_t shared_on = kAllNodes);
    void find_stores(SimulatedJob& job);
    void begin_epoch(SimulatedJob& job);
    void find_waiting(std::span<SimulatedJob* const> waiting);
    ReadersState describe(double now_s, std::span<SimulatedJob* const> running, std::span<SimulatedJob* const> waiting);

    const SimulationOptions& options_;
    std::span<const DatasetState> datasets_;
    const GpuCluster& cluster_;
    std::uint32_t gpus_all_ = 0;
    std::unique_ptr<CacheSystem> system_;
    std::unique_ptr<ReportedPlans> reported_;  // null: plans are made immediately
    EqualShares equal_shares_;
    Storage storage_;
    std::uint64_t starts_ = 0;
    std::vector<std::unique_ptr<Store>> stores_;  // one per dataset and node, or per job start (or node)
    std::map<std::pair<std::uint32_t, std::uint32_t>, Store*> by_place_;  // dataset, node
    std::vector<SimulatedJob*> split_;                                    // jobs that read through several stores
    // Buffers of one plan, kept to reuse their memory.
    std::vector<SimulatedJob*> planned_jobs_;
    std::vector<SimulatedReader*> readers_;
    std::vector<std::uint32_t> gpus_;
    std::vector<const Placement*> placements_;
    std::vector<double> time_shares_;
    std::vector<WaitingReader> waiting_;
    std::vector<Store*> planned_;
    std::vector<double> read_;
};

}  // namespace larder::scheduler
