#pragma once

// The Snapshot a live decision is made on: the queue's records and the allocator's view, put side by side by index. It
// fills in each schedulable job's spec and state, to which the snapshot points; so it holds until the queue changes.

#include <span>
#include <vector>

#include "scheduler/decide.h"
#include "scheduler/live/queue.h"
#include "scheduler/live/storage_view.h"
#include "scheduler/near_nodes.h"

namespace larder::scheduler {

class LiveSnapshot {
public:
    // All must outlive it.
    LiveSnapshot(JobQueue& queue, const GpuCluster& cluster, const StorageView& view, std::span<const Tenant> tenants,
                 bool storage_aware, double now_s);
    LiveSnapshot(const LiveSnapshot&) = delete;
    LiveSnapshot& operator=(const LiveSnapshot&) = delete;

    const Snapshot& snapshot() const { return snapshot_; }
    std::span<const JobId> ids() const { return ids_; }
    DecideInput input() const;

private:
    void fill(JobRecord& job, std::span<const Tenant> tenants, const StorageView& view);
    static std::span<const std::uint32_t> near(const void* self, std::uint32_t job);

    JobQueue& queue_;
    const GpuCluster& cluster_;
    std::vector<JobId> ids_;
    std::vector<const JobState*> jobs_;
    std::vector<GpuTypeState> types_;
    std::vector<DatasetState> datasets_;
    NearNodes near_;
    Snapshot snapshot_;
};

// The spec decisions are made with. `datasets`: by index in the snapshot.
JobSpec spec_of(const JobRecord& job, const GpuCluster& cluster, std::span<const Tenant> tenants,
                const StorageView& view);

}  // namespace larder::scheduler
