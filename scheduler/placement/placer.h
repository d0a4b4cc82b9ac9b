#pragma once

// Decides which GPUs a job gets: the layer under every policy. A placer keeps account of the free GPUs. FreePool hands
// out any of them (free_pool.h), Cells only those that a tenant's guarantees allow (cells.h). One thread.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "scheduler/gpu_cluster.h"
#include "scheduler/job_spec.h"

namespace larder::scheduler {

using JobId = std::uint64_t;  // chosen by the caller of the placer; never reused

// A bound cell under GPUs that a job holds: the cell of level `level` that contains GPU `gpu` of the node.
struct HeldCell {
    std::uint32_t node = 0;
    std::uint32_t gpu = 0;
    std::string level;

    bool operator==(const HeldCell&) const = default;
};

struct PlaceRequest {
    JobId job = 0;
    std::uint32_t tenant = 0;
    std::uint32_t gpus = 0;
    std::uint32_t gpu_type = 0;
    std::int32_t priority = 0;
    bool opportunistic = false;
    // Preferred nodes: those that hold the job's data. Empty: no preference.
    std::span<const std::uint32_t> near;
    // The part of its full rate that the job makes with none of its data near: below 1 if the NIC or the remote limits
    // it.
    double rate_far = 1;
    // JobSpec::rate_by_nodes: the cost of communication.
    std::span<const double> rate_by_nodes = {};
    // For place_at(): the cells by which the job held the GPUs before, from cells_of(). Other cells are used if these
    // cannot be bound.
    std::span<const HeldCell> cells = {};
    const GangShape* shape = nullptr;  // JobSpec::shape; null: free
    // For place_at(): the job runs there, so the nodes may be lost or drained, and those of an open cluster may have
    // fewer GPUs than their jobs hold.
    bool runs_there = false;

    std::span<const std::uint32_t> pods() const {
        return shape == nullptr ? std::span<const std::uint32_t>() : shape->pods_of(gpus);
    }
};

struct Placed {
    Placement placement;
    std::vector<JobId> evicted;  // opportunistic jobs to stop first; already released
};

// Cells that their owner cannot have until nodes are back, regardless of other tenants.
struct DoomedCells {
    std::string tenant;
    std::string hierarchy;
    std::string level;
    std::uint32_t count = 0;

    bool operator==(const DoomedCells&) const = default;
};

class Placer {
public:
    virtual ~Placer() = default;
    // Takes GPUs for the job; a request with a claim may evict opportunistic jobs. nullopt: there is no room at
    // present.
    virtual std::optional<Placed> place(const PlaceRequest& request) = 0;
    // Takes exactly these GPUs, if all are free, on usable nodes, and the job may have them.
    virtual bool place_at(const PlaceRequest& request, const Placement& placement) = 0;
    virtual void release(JobId job) = 0;
    // Checks that the gang could be placed if no other job ran and all nodes were usable. not_found: its hierarchy,
    // level or pinned cell is unknown; unsupported: there are no cells; no_space.
    virtual Result<void> check(const PlaceRequest& request) const = 0;
    // Returns the cells by which the job holds its GPUs, or held them when it gave up its claim; empty if there are no
    // cells. The answer may change when other jobs are placed.
    virtual std::vector<HeldCell> cells_of(JobId) const { return {}; }
    // Returns the GPUs of the type on usable nodes that no job has.
    virtual std::uint32_t free_gpus(std::uint32_t gpu_type) const = 0;
    // Returns those on one node, as bits; 0 if the node is not usable.
    virtual std::uint64_t free_on(std::uint32_t node) const = 0;
    virtual bool is_usable(std::uint32_t node) const = 0;
    // Records that a node was lost or drained, or is back. Jobs on the node keep their GPUs until released.
    virtual void set_usable(std::uint32_t node, bool usable) = 0;
    // Handles that a node of an open cluster has come, at the end of the list, or has other GPUs than before. Jobs
    // there keep theirs.
    virtual void set_node(std::uint32_t node, const GpuNode& now) = 0;
    // Makes a running job give up its claim to the GPUs it has (it runs on until another job takes them), or take one.
    // Returns false, with nothing changed, if this placer has no claims or other jobs have them.
    virtual bool set_opportunistic(JobId job, bool opportunistic) = 0;
    // Returns the GPUs of the type that the tenant has a claim to when all nodes are usable; kAllGpus: all GPUs.
    virtual std::uint32_t owned_gpus(std::uint32_t tenant, std::uint32_t gpu_type) const = 0;
    // Returns the doomed cells by tenant, hierarchy and level, sorted as in the configuration. For operators.
    virtual std::vector<DoomedCells> doomed_cells() const { return {}; }
};

}  // namespace larder::scheduler
