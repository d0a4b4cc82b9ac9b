#pragma once

// A placer with guarantees (HiveD, OSDI '20). Each tenant has a virtual cluster: cells of the hierarchies in
// cell_config.h, to use as if the tenant were alone. A job that fits into its virtual cluster always gets a place,
// whatever other tenants do. Cells are bound only while jobs use them. Idle GPUs go to opportunistic jobs, which have
// no claim and may be evicted by any job with one. A tenant without a virtual cluster runs only opportunistic jobs. Bad
// nodes are avoided as long as the healthy cells suffice for all that is owned. If they do not, cells go first come,
// first served, but nobody gets a cell that costs another owner a healthy cell which that owner could still get.
//
// Under decide() (scheduler/decide.h) the policy chooses who stops for whom: the victims give up their claims by
// set_opportunistic() and run on until another job takes their GPUs (lazy preemption).
//
// One thread. Deterministic: the same calls give the same placements.

#include <memory>
#include <string>
#include <unordered_map>

#include "scheduler/cells/gang_plan.h"
#include "scheduler/cells/shared_hierarchy.h"
#include "scheduler/placement/free_gpus.h"

namespace larder::scheduler {

// A virtual cell with its owner and binding, for reports.
struct VirtualCellState {
    std::uint32_t cluster = 0;  // index in CellConfig::virtual_clusters
    std::uint32_t hierarchy = 0;
    VirtualCell cell;
};

class Cells final : public Placer {
public:
    // `config` must be checked. `tenants`: names by index in Snapshot::tenants. invalid_argument: the nodes of the
    // config and of the cluster differ.
    static Result<std::unique_ptr<Cells>> create(const CellConfig& config, const GpuCluster& cluster,
                                                 std::span<const std::string> tenants);

    // Adds a tenant, or renames one.
    void name_tenant(std::uint32_t tenant, std::string_view name);

    std::optional<Placed> place(const PlaceRequest& request) override;
    bool place_at(const PlaceRequest& request, const Placement& placement) override;
    void release(JobId job) override;
    Result<void> check(const PlaceRequest& request) const override;
    std::vector<HeldCell> cells_of(JobId job) const override;
    std::uint32_t free_gpus(std::uint32_t gpu_type) const override { return pool_.count(gpu_type); }
    std::uint64_t free_on(std::uint32_t node) const override { return pool_.usable_at(node); }
    bool is_usable(std::uint32_t node) const override { return pool_.usable(node); }
    void set_usable(std::uint32_t node, bool usable) override;
    void set_node(std::uint32_t node, const GpuNode& now) override;
    bool set_opportunistic(JobId job, bool opportunistic) override;
    std::uint32_t owned_gpus(std::uint32_t tenant, std::uint32_t gpu_type) const override;

    std::vector<DoomedCells> doomed_cells() const override;

    bool is_opportunistic(JobId job) const { return jobs_.at(job).opportunistic; }

    std::vector<VirtualCellState> virtual_cells() const;
    // True if all records agree and each level of each hierarchy has at least as many free cells as may be claimed.
    bool is_sound() const;

private:
    using HierarchyCell = std::pair<std::uint32_t, CellId>;
    struct Job {
        std::uint32_t tenant = 0;
        std::uint32_t cluster = kNone;  // virtual cluster of its tenant
        std::uint32_t gpu_type = 0;
        bool opportunistic = false;
        Placement placement;
        std::vector<HierarchyCell> former_cells;  // cells it held when it gave up its claim
    };
    struct NodeLocation {
        std::uint32_t hierarchy = 0;
        std::uint32_t node = 0;
    };

    Cells(const CellConfig& config, const GpuCluster& cluster);

    std::uint32_t cluster_of_tenant(std::uint32_t tenant) const;
    std::uint32_t to_cluster(std::uint32_t hierarchy, std::uint32_t node) const { return nodes_[hierarchy][node]; }
    SharedHierarchy& at(const NodeLocation& location) { return hierarchies_[location.hierarchy]; }

    // Takes and holds GPUs for the request, even if opportunistic jobs run there.
    std::optional<Placement> take(std::uint32_t cluster, const PlaceRequest& request);
    Placement take_few_nodes(std::uint32_t cluster, const PlaceRequest& request, std::uint32_t gpus);
    Placement take_healthy_cell(std::uint32_t cluster, const PlaceRequest& request);
    Placement take_near(std::uint32_t cluster, const PlaceRequest& request);
    std::vector<OfferTaken> plan(std::span<const NodeOffer> offers, const PlaceRequest& request, std::uint32_t gpus,
                                 bool may_cross) const;
    // True if the gang may use the hierarchy.
    bool allows(const PlaceRequest& request, std::uint32_t hierarchy) const;
    // Returns the level within one cell of which the gang must lie; kNone: none.
    std::uint32_t together_level(const PlaceRequest& request, std::uint32_t hierarchy) const;
    // Returns the number of the only virtual cell that the gang may use; kNone: any.
    std::uint32_t pinned_cell(const PlaceRequest& request, std::uint32_t cluster, std::uint32_t hierarchy) const;
    static std::uint64_t within_one_cell(const Hierarchy& cells, std::uint32_t level, std::uint64_t from,
                                         std::uint64_t avoid, std::uint32_t gpus);
    void offer_idle(std::uint32_t hierarchy, std::uint32_t number, std::uint32_t together,
                    std::vector<NodeOffer>& into) const;
    Result<void> check_names(const PlaceRequest& request) const;
    std::optional<Placement> choose_opportunistic(const PlaceRequest& request);
    template <typename Avoid>
    void collect_free(const PlaceRequest& request, Avoid avoid);
    Placement place_free(std::span<const OfferTaken> plan) const;
    static std::uint32_t near_rank(const PlaceRequest& request, std::uint32_t node);
    std::size_t hierarchies_in(const Placement& placement) const;
    void release_gpus(const Placement& placement);
    double rate(const PlaceRequest& request, const Placement& placement) const;
    // Collects the offers for a gang. Returns false if they have fewer than `gpus` GPUs in all.
    bool collect(std::uint32_t cluster, const PlaceRequest& request, std::uint32_t gpus);
    bool bind_all(std::uint32_t cluster, std::uint32_t gpu_type);
    bool unbind_doomed(std::uint32_t gpu_type);
    void unbind_idle();
    bool claim_at(std::uint32_t cluster, const Placement& placement);

    void drop(const Placement& placement);
    void hold(std::uint32_t node, std::uint64_t gpus);
    void run_opportunistic(JobId id, const Placement& placement);
    void stop_opportunistic(const Placement& placement);
    std::vector<JobId> opportunistic_on(const Placement& placement) const;
    void update_free(std::uint32_t node);
    void update_bindings();

    Job& add(const PlaceRequest& request, Placement placement);
    void forget(JobId id);
    bool promote(Job& job);
    void demote(JobId id, Job& job);
    std::vector<HierarchyCell> cells_under(const Placement& placement) const;
    std::vector<HierarchyCell> cells_named(std::span<const HeldCell> cells) const;
    void bind_again(std::uint32_t cluster, std::span<const HierarchyCell> cells);

    std::vector<std::string> cluster_names_;
    std::vector<std::uint32_t> cluster_by_tenant_;
    std::vector<std::vector<PinnedCell>> pinned_;  // by virtual cluster; numbered in this order in each hierarchy
    std::vector<SharedHierarchy> hierarchies_;
    std::vector<HierarchyConfig> configs_;             // config of each hierarchy, for its names
    std::vector<std::uint32_t> type_of_;               // GPU type of each hierarchy
    std::vector<std::vector<std::uint32_t>> nodes_;    // cluster nodes of each hierarchy
    std::vector<NodeLocation> locations_;              // of each node of the cluster
    std::vector<std::uint32_t> gpus_on_largest_node_;  // by type
    FreeGpus pool_;                                    // GPUs that no job holds or runs on
    std::vector<std::vector<JobId>> opportunistic_;    // by node and GPU
    std::unordered_map<JobId, Job> jobs_;
    std::vector<NodeOffer> offers_;
    std::vector<std::uint32_t> gang_cells_;  // numbers; used by collect(), kept to reuse its memory
    std::vector<bool> scarce_;               // by hierarchy: every cell that could be bound for this gang is bound
};

}  // namespace larder::scheduler
