#pragma once

// The state of one simulation while simulate() runs it. The event loop is in simulation_run.cc; what happens to one job
// is in simulation_run_jobs.cc.

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "scheduler/decide.h"
#include "scheduler/near_nodes.h"
#include "scheduler/simulator/checkpoints.h"
#include "scheduler/simulator/data_plane.h"
#include "scheduler/simulator/node_failures.h"
#include "scheduler/simulator/tenant_shares.h"
#include "scheduler/simulator/timeline.h"

namespace larder::scheduler {

class SimulationRun {
public:
    SimulationRun(const Workload& workload, const GpuCluster& cluster, Policy& policy, Placer& placer,
                  const SimulationOptions& options);

    Result<SimulationOutcome> run();

private:
    // --- the event loop

    bool is_over() const { return arrived_ == jobs_.size() && live_.empty() && away_.empty(); }
    std::string time_text() const { return "at " + std::to_string(now_s_) + " s"; }
    double next_event_s() const;
    void advance_to(double until_s);
    Result<void> handle_events();
    void node_changed(std::uint32_t node, bool usable);
    Result<void> decide_now();
    // Returns the jobs that wait for their next turns.
    std::span<SimulatedJob* const> waiting();
    Result<void> plan_now();
    // Splits the remote's bandwidth between checkpoints in flight and jobs, if they share it.
    void share_remote_with_checkpoints();
    void report_progress();

    // --- what happens to one job

    std::uint32_t index(const SimulatedJob& job) const { return static_cast<std::uint32_t>(&job - jobs_.data()); }
    void arrive(std::uint32_t j);
    std::uint32_t total_gpus(std::uint32_t type) const;
    // Makes the job visible to the policy.
    void enter(std::uint32_t j);
    void leave(std::uint32_t j);
    void finish(SimulatedJob& job);
    // Leaves the GPUs of a finished host to its guests, or preempts guests that cannot be placed there.
    void leave_gpus_to_guests(const SimulatedJob& host);
    // Drops a waiting job whose strict deadline has passed.
    void expire(std::uint32_t j);
    void stop_running(SimulatedJob& job, bool dataset_is_done = false);
    void unpack(SimulatedJob& job);
    // Stops the job for others. It writes its checkpoint before it may start again.
    void preempt(std::uint32_t j);
    void transfer_ended(std::uint32_t j);
    void start(std::uint32_t j, const Start& start);
    // Stops a job that starts again at once with other GPUs, where it waits until its checkpoint is written and read.
    void stop_to_resize(std::uint32_t j, const Start& start);
    // Stops a job whose node is lost. All work since its last checkpoint is lost too.
    void lose(std::uint32_t j);
    // Adds the job's run so far to what policies see.
    void account(SimulatedJob& job);
    void account_all();

    static constexpr double kShortestRound_s = 1e-3;

    const Workload& workload_;
    const GpuCluster& cluster_;
    Policy& policy_;
    Placer& placer_;
    const SimulationOptions& options_;
    std::vector<DatasetState> datasets_;
    std::vector<Tenant> tenants_;
    TenantShares shares_;
    NodeFailures failures_;
    Checkpoints checkpoints_;
    std::vector<JobSpec> told_;  // the jobs as policies know them, if that differs from the workload
    std::vector<SimulatedJob> jobs_;
    std::vector<std::uint32_t> users_left_;  // by dataset: jobs that have yet to finish
    std::vector<GpuTypeState> gpu_types_;
    std::vector<std::uint32_t> gpus_on_largest_node_;
    std::uint32_t gpus_all_ = 0;
    std::unique_ptr<DataPlane> data_;
    std::unique_ptr<Timeline> timeline_;
    NearNodes near_;
    SimulationOutcome outcome_;

    double now_s_ = 0;
    std::uint32_t arrived_ = 0;
    std::uint64_t done_ = 0;
    std::vector<std::uint32_t> away_;  // neither live nor done: their checkpoints are being written
    std::vector<const JobState*> live_;
    std::vector<JobId> ids_;  // of live_, in the same order
    std::vector<SimulatedJob*> running_;
    std::vector<SimulatedJob*> waiting_;                // returned by waiting(), kept to reuse its memory
    std::map<std::uint32_t, std::uint32_t> packed_on_;  // guest to host
    std::vector<std::uint32_t> transferred_;
    std::size_t planned_transfers_ = 0;  // checkpoints in flight when the plan was made
    bool decide_due_ = false;
    bool plan_due_ = false;
    double decide_again_s_ = kNever;
    double next_refresh_s_ = kNever;
};

}  // namespace larder::scheduler
