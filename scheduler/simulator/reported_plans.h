#pragma once

// Makes plans from node reports, as the daemons do, for simulations of minutes. Every node's agent reports once a
// second, or sooner if something waits for a report (cache/control/agent.h), to an allocator::Cluster like the
// daemon's. The answer holds the node's quotas and, under a lease, the rates of its jobs. So one node gets the
// bandwidth of another only after the other has reported that it gave that bandwidth up, plans are kept if a new plan
// would gain little, and grants look one lease ahead. Every node caches for itself, or all nodes are peers that pool
// their caches. In a pool, what is cached of a dataset lies on the nodes in proportion to their quotas.

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "allocator/cluster.h"
#include "scheduler/simulator/running_job.h"

namespace larder::scheduler {

class ReportedPlans {
public:
    ReportedPlans(const SimulationOptions& options, std::span<const DatasetState> datasets, const GpuCluster& cluster);

    // Call it when the job opens its sessions on its nodes.
    void note_start(const SimulatedJob& job, double now_s);
    // Says whether the node is there to report. The allocator keeps the last lease of a silent node in force until it
    // ends. What a silent node has cached in a pool is gone.
    void set_reports(std::uint32_t node, bool reports, double now_s, std::span<const std::unique_ptr<Store>> stores);
    // Returns when the next node reports; kNever if no job that reads data was ever started.
    double next_s() const;
    // Lets the nodes that are due report, and applies the answers: quotas of stores, bandwidth of readers.
    Result<void> report(double now_s, std::span<SimulatedJob* const> running, std::span<SimulatedJob* const> waiting,
                        std::span<const std::unique_ptr<Store>> stores);

private:
    struct Agent {
        double check_phase_s = 0;  // phase of the periodic checks whether to report
        double reported_s = 0;
        double next_s = 0;
        bool silent = false;  // its node is lost
        std::uint64_t lease_applied = 0;
        std::map<std::string, double> rates;     // of the lease, by job
        std::map<std::uint32_t, double> quotas;  // by dataset
    };

    // Schedules the report at the first check that is `period_s` after the last report and not before `now_s`.
    static void report_after(Agent& agent, double period_s, double now_s);
    void update_turns(std::span<SimulatedJob* const> running, std::span<SimulatedJob* const> waiting);
    // Returns the node's part of the store's bytes.
    double part_of(const Store& store, std::uint32_t node) const;
    void set_quota(Store& store, std::uint32_t node, double quota_bytes);
    // Returns the bandwidth that the leases of its nodes grant to the job.
    double leased_bandwidth(const SimulatedJob& job) const;
    allocator::NodeReport report_of(std::uint32_t node, std::span<SimulatedJob* const> running,
                                    std::span<const std::unique_ptr<Store>> stores) const;
    void apply(std::uint32_t node, const allocator::NodePlan& plan, double now_s,
               std::span<SimulatedJob* const> running, std::span<const std::unique_ptr<Store>> stores);

    std::span<const DatasetState> datasets_;
    const GpuCluster& nodes_;
    double node_cache_bytes_;
    double node_disk_bytes_per_second_;
    double node_nic_bytes_per_second_;
    bool epochs_known_;
    bool pools_caches_;
    allocator::Cluster cluster_;
    std::vector<Agent> agents_;
    bool any_started_ = false;
};

}  // namespace larder::scheduler
