#pragma once

// Plans as the daemons make them, for simulations of minutes: every node's agent reports once a second, sooner where
// something waits for it (cache/control/agent.h), to an allocator::Cluster, the daemon's own; what comes back is the
// node's quotas and, under a lease, its jobs' rates. So bandwidth passes from one node to another only when the first
// has said that it gave it up, plans are kept where little would be gained, and grants look a lease ahead. Every node
// caches for itself.

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

    // A job's sessions open on its nodes.
    void started(const SimulatedJob& job, double now_s);
    // When the next node reports; kNever: no job was ever started.
    double next_s() const;
    // Those report for which it is time, and apply what comes back: quotas of stores, bandwidth of readers.
    Result<void> report(double now_s, std::span<SimulatedJob* const> running, std::span<SimulatedJob* const> waiting,
                        std::span<const std::unique_ptr<Store>> stores);

private:
    struct Agent {
        double look_s = 0;  // one of the moments at which it looks whether to report
        double reported_s = 0;
        double next_s = 0;
        std::uint64_t lease_applied = 0;
        std::map<std::string, double> rates;  // by job, of the lease
    };

    // Its next look that comes so long after its last report, and not before now.
    static void report_after(Agent& agent, double period_s, double now_s);
    void tell_turns(std::span<SimulatedJob* const> running, std::span<SimulatedJob* const> waiting);
    allocator::NodeReport report_of(std::uint32_t node, std::span<SimulatedJob* const> running,
                                    std::span<const std::unique_ptr<Store>> stores) const;
    void apply(std::uint32_t node, const allocator::NodePlan& plan, double now_s,
               std::span<SimulatedJob* const> running, std::span<const std::unique_ptr<Store>> stores);

    std::span<const DatasetState> datasets_;
    const GpuCluster& nodes_;
    double node_cache_bytes_;
    double node_disk_bytes_per_second_;
    double node_nic_bytes_per_second_;
    allocator::Cluster cluster_;
    std::vector<Agent> agents_;
    bool any_started_ = false;
};

}  // namespace larder::scheduler
