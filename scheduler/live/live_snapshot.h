#pragma once

// Builds the Snapshot of a live decision: matches the queue's records with the allocator's view, by index. It fills in
// each schedulable job's spec and state, to which the snapshot points, so it is valid only until the queue changes.

#include <boost/unordered/unordered_flat_map.hpp>

#include <span>
#include <string_view>
#include <vector>

#include "scheduler/decide.h"
#include "scheduler/live/queue.h"
#include "scheduler/live/storage_view.h"
#include "scheduler/near_nodes.h"

namespace larder::scheduler {

// Maps the names in records to indices. It refers to the names in the view and the list of tenants, which must outlive
// it.
class LiveNames {
public:
    LiveNames(const StorageView& view, std::span<const Tenant> tenants);

    std::uint32_t tenant(std::string_view name) const;  // the first one if the config has no such tenant
    std::uint32_t dataset(std::string_view name) const { return index_of(datasets_, name, kNoDataset); }
    void add_dataset(std::string_view name, std::uint32_t index) { datasets_.emplace(name, index); }

private:
    using Indices = boost::unordered_flat_map<std::string_view, std::uint32_t>;
    static std::uint32_t index_of(const Indices& indices, std::string_view name, std::uint32_t otherwise) {
        const auto found = indices.find(name);
        return found == indices.end() ? otherwise : found->second;
    }

    Indices datasets_;
    Indices tenants_;
};

class LiveSnapshot {
public:
    // The arguments must outlive this object. `engine_resizes`: Engine::can_resize().
    LiveSnapshot(JobQueue& queue, const GpuCluster& cluster, const StorageView& view, std::span<const Tenant> tenants,
                 bool storage_aware, double now_s, std::optional<bool> engine_resizes = {});
    LiveSnapshot(const LiveSnapshot&) = delete;
    LiveSnapshot& operator=(const LiveSnapshot&) = delete;

    const Snapshot& snapshot() const { return snapshot_; }
    std::span<const JobId> ids() const { return ids_; }
    // `objective` is that of the plans, `state` what they are made from. A decision may take the contents of `state`,
    // which must outlive the input.
    DecideInput input(allocator::ObjectiveKind objective, allocator::ClusterState& state) const;

private:
    // Returns the index of the job in the state that plans are made from; kUnknown: it is not there, or waits for its
    // turn.
    std::uint32_t fill(JobRecord& job, const StorageView& view, std::optional<bool> engine_resizes, double now_s);
    static std::span<const std::uint32_t> near(const void* self, std::uint32_t job);
    std::span<const std::uint32_t> near(std::uint32_t dataset) const;
    PlanInput plan_input(allocator::ObjectiveKind objective, allocator::ClusterState state) const;

    JobQueue& queue_;
    const GpuCluster& cluster_;
    std::vector<JobId> ids_;
    std::vector<const JobState*> jobs_;
    std::vector<std::uint32_t> planned_;  // by job: what fill() has returned
    std::vector<GpuTypeState> types_;
    std::vector<DatasetState> datasets_;
    const StorageView& view_;
    std::vector<std::span<const std::uint32_t>> nodes_of_;  // nodes of the cluster, by node of the view
    // Filled only for datasets that were asked for: those of the few jobs that are placed.
    mutable NearNodes near_;
    mutable std::vector<bool> looked_up_;
    LiveNames names_;
    Snapshot snapshot_;
};

// Returns the spec that decisions use. Its dataset is kNoDataset if no node has the dataset at present.
JobSpec spec_of(const JobRecord& job, const GpuCluster& cluster, const LiveNames& names, const StorageView& view);

}  // namespace larder::scheduler
