#pragma once

// Which GPUs a job gets: the layer under every policy. A placer keeps account of what is free; FreePool hands out
// whatever is (free_pool.h), Cells only what a tenant's guarantees allow (cells.h). One thread.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "scheduler/gpu_cluster.h"

namespace larder::scheduler {

using JobId = std::uint64_t;  // of whoever drives the placer; never given twice

// A cell that is bound for GPUs somebody holds: the one of that level that has this GPU of the node.
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
    // Nodes it would rather have: those that hold its data. Others are as good where this is empty.
    std::span<const std::uint32_t> near;
    // Part of its full rate that it makes with none of its data near: below 1 where the NIC or the remote binds.
    double rate_far = 1;
    // JobSpec::rate_by_nodes: what communication costs it.
    std::span<const double> rate_by_nodes = {};
    // For place_at(): by which cells it held the GPUs before, as cells_of() told; others do where these cannot be had.
    std::span<const HeldCell> cells = {};
};

struct Placed {
    Placement placement;
    std::vector<JobId> evicted;  // opportunistic jobs that have to go first; they are released already
};

// Cells that their owner cannot have until nodes are back, whatever the others want.
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
    // Takes the GPUs; a request with a claim takes those of opportunistic jobs, too. Nothing: there is no room for it
    // as things are.
    virtual std::optional<Placed> place(const PlaceRequest& request) = 0;
    // Takes just these, if they are all free and the job may have them.
    virtual bool place_at(const PlaceRequest& request, const Placement& placement) = 0;
    virtual void release(JobId job) = 0;
    // By which cells it holds its GPUs, or did when it gave up its claim; none where there are no cells. It may change
    // with whatever else is placed.
    virtual std::vector<HeldCell> cells_of(JobId) const { return {}; }
    // GPUs of the type on usable nodes that nobody has.
    virtual std::uint32_t free_gpus(std::uint32_t gpu_type) const = 0;
    // A node was lost or drained, or is back. Jobs on it keep what they have until released.
    virtual void set_usable(std::uint32_t node, bool usable) = 0;
    // A running job gives up its claim to the GPUs it has (it runs on until somebody takes them), or takes one. False:
    // nothing has changed, because claims mean nothing here, or others have them.
    virtual bool set_opportunistic(JobId job, bool opportunistic) = 0;
    // GPUs of the type that the tenant has a claim to when all nodes are usable; kAnyGpuType: to all there are.
    virtual std::uint32_t owned_gpus(std::uint32_t tenant, std::uint32_t gpu_type) const = 0;
    // By tenant, hierarchy and level, as configured; for operators.
    virtual std::vector<DoomedCells> doomed_cells() const { return {}; }
};

}  // namespace larder::scheduler
