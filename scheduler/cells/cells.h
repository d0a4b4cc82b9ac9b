#pragma once

// A placer with guarantees (HiveD, OSDI '20). Each tenant has a virtual cluster: cells of the hierarchies that
// cell_config.h describes, to use as if it were alone. What a virtual cluster has room for always gets a place,
// whatever the others do; cells are bound only while jobs use them, and what nobody uses at present goes to
// opportunistic jobs, which have no claim and may be evicted by any job that has one. Tenants without a virtual cluster
// run opportunistically only. Bad nodes are avoided as long as healthy cells are left for all that is owned; with
// fewer, first come first served, but never at the cost of a healthy cell that another one could still be given.
//
// Under decide() (scheduler/decide.h) the policy says who should stop for whom: those give up their claims by
// set_opportunistic() and run on until somebody takes their GPUs (lazy preemption). reserve() is for a driver that lets
// the victims run for a while: the gang has its cells at once and starts when the last victim was released; releasing
// the gang before cancels the preemption, and the victims take up their claims again.
//
// One thread. Deterministic: the same calls give the same placements.

#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "scheduler/cells/gang_plan.h"
#include "scheduler/cells/shared_hierarchy.h"
#include "scheduler/placement/free_gpus.h"

namespace larder::scheduler {

struct Reservation {
    Placement placement;
    std::vector<JobId> victims;    // run on GPUs of it; it starts when all of them are released. None: at once.
    std::vector<JobId> demoted;    // gave up their claims for it; those that are no victims run on as opportunistic
    std::vector<JobId> cancelled;  // reservations of lower priority that were given up for it; they are released
};

// For reports: a virtual cell and what it stands for.
struct VirtualCellState {
    std::uint32_t cluster = 0;  // index in CellConfig::virtual_clusters
    std::uint32_t hierarchy = 0;
    VirtualCell cell;
};

class Cells final : public Placer {
public:
    // `config` was checked. `tenants`: their names, by index in Snapshot::tenants. invalid_argument: the config's nodes
    // are not those of the cluster.
    static Result<std::unique_ptr<Cells>> create(const CellConfig& config, const GpuCluster& cluster,
                                                 std::span<const std::string> tenants);

    // One more tenant, or another name for one.
    void name_tenant(std::uint32_t tenant, std::string_view name);

    std::optional<Placed> place(const PlaceRequest& request) override;
    bool place_at(const PlaceRequest& request, const Placement& placement) override;
    void release(JobId job) override;
    std::vector<HeldCell> cells_of(JobId job) const override;
    std::uint32_t free_gpus(std::uint32_t gpu_type) const override { return pool_.count(gpu_type); }
    void set_usable(std::uint32_t node, bool usable) override;
    bool set_opportunistic(JobId job, bool opportunistic) override;
    std::uint32_t owned_gpus(std::uint32_t tenant, std::uint32_t gpu_type) const override;

    std::vector<DoomedCells> doomed_cells() const override;

    // Like place(), but jobs of the same tenant with lower priority make room where nothing else does, and who has to
    // go runs on until released.
    std::optional<Reservation> reserve(const PlaceRequest& request);
    // Whether it still waits for victims.
    bool is_reserved(JobId job) const { return reserved_.contains(job); }

    bool is_opportunistic(JobId job) const { return jobs_.at(job).opportunistic; }

    std::vector<VirtualCellState> virtual_cells() const;
    // Whether all that is kept agrees, and no level of any hierarchy has fewer free cells than may be claimed.
    bool sound() const;

private:
    using HierarchyCell = std::pair<std::uint32_t, CellId>;
    struct Job {
        std::uint32_t tenant = 0;
        std::uint32_t cluster = kNone;  // of its tenant
        std::uint32_t gpu_type = 0;
        std::int32_t priority = 0;
        bool opportunistic = false;
        std::uint64_t arrival = 0;
        Placement placement;
        std::vector<HierarchyCell> had;  // when it gave up its claim
    };
    struct Waiting {
        std::vector<JobId> victims;
        std::vector<JobId> demoted;
    };
    struct Where {
        std::uint32_t hierarchy = 0;
        std::uint32_t node = 0;
    };
    // By node of the cluster, GPUs that are held but may be taken.
    using Preemptible = std::unordered_map<std::uint32_t, std::uint64_t>;

    Cells(const CellConfig& config, const GpuCluster& cluster);

    std::uint32_t cluster_of_tenant(std::uint32_t tenant) const;
    std::uint32_t to_cluster(std::uint32_t hierarchy, std::uint32_t node) const { return nodes_[hierarchy][node]; }
    SharedHierarchy& at(const Where& where) { return hierarchies_[where.hierarchy]; }

    // Holds a place for it, without regard to who runs there opportunistically.
    std::optional<Placement> take(std::uint32_t cluster, const PlaceRequest& request);
    Placement take_few_nodes(std::uint32_t cluster, const PlaceRequest& request, std::uint32_t gpus);
    Placement take_near(std::uint32_t cluster, const PlaceRequest& request);
    void give_back(const Placement& placement);
    double rate(const PlaceRequest& request, const Placement& placement) const;
    // False: fewer than that in all.
    bool collect(std::uint32_t cluster, const PlaceRequest& request, std::uint32_t gpus,
                 const Preemptible* preemptible);
    bool bind_all(std::uint32_t cluster, std::uint32_t gpu_type);
    void unbind_idle();
    bool claim_at(std::uint32_t cluster, const Placement& placement);

    void drop(const Placement& placement);
    void hold(std::uint32_t node, std::uint64_t gpus);
    void run_opportunistic(JobId id, const Placement& placement);
    void stop_opportunistic(const Placement& placement);
    std::vector<JobId> opportunistic_on(const Placement& placement) const;
    void show_free(std::uint32_t node);
    void settle();

    Job& add(const PlaceRequest& request, Placement placement);
    void forget(JobId id);
    struct Cancelled {
        JobId id = 0;
        Job job;
        std::vector<JobId> demoted;
    };
    Cancelled cancel(JobId id);
    void revive(const Cancelled& cancelled);
    bool promote(JobId id, Job& job);
    void demote(JobId id, Job& job);
    std::vector<HierarchyCell> cells_under(const Placement& placement) const;
    std::vector<HierarchyCell> cells_named(std::span<const HeldCell> cells) const;
    void bind_again(std::uint32_t cluster, std::span<const HierarchyCell> cells);
    // Who would have to make room, the lowest priority first; empty: there is no room even so.
    std::vector<JobId> victims_for(std::uint32_t cluster, const PlaceRequest& request);
    std::vector<JobId> victims_up_to(std::int32_t highest, std::uint32_t cluster, const PlaceRequest& request);
    void restore(std::vector<JobId>& demoted);

    std::vector<std::string> cluster_names_;
    std::vector<std::uint32_t> cluster_by_tenant_;
    std::vector<SharedHierarchy> hierarchies_;
    std::vector<HierarchyConfig> named_;             // each hierarchy, for its names
    std::vector<std::uint32_t> type_of_;             // of each hierarchy
    std::vector<std::vector<std::uint32_t>> nodes_;  // in the cluster, of each hierarchy
    std::vector<Where> where_;                       // of each node of the cluster
    std::vector<std::uint32_t> node_gpus_at_most_;   // by type
    FreeGpus pool_;                                  // what nobody holds or runs on
    std::vector<std::vector<JobId>> opportunistic_;  // by node and GPU
    std::unordered_map<JobId, Job> jobs_;
    std::map<JobId, Waiting> reserved_;
    std::uint64_t arrivals_ = 0;
    std::vector<NodeOffer> offers_;
    std::vector<std::uint32_t> roots_;  // of collect(), kept for its memory
    std::vector<bool> scarce_;          // by hierarchy: all that could be bound for the gang in hand is bound
};

}  // namespace larder::scheduler
