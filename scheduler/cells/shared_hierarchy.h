#pragma once

// One hierarchy and the virtual cells on it: which virtual cell is bound to which physical cell. A virtual cell is
// bound while jobs with a claim hold GPUs of it, or while it is doomed. It is doomed if bad nodes leave its virtual
// cluster too few healthy cells for all it owns, whatever other tenants do; it is then bound to a bad cell. A pinned
// cell is always bound. A physical cell is chosen by these criteria, in order: it has no bad node, and taking it leaves
// no owner short because of bad nodes; few opportunistic jobs are evicted; the cell is near the preferred nodes; little
// is split.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "scheduler/cells/hierarchy.h"

namespace larder::scheduler {

// The use of one node's GPUs, one bit for each.
struct NodeUse {
    std::uint64_t claimed = 0;        // by jobs with a claim, also by those that wait for victims
    std::uint64_t opportunistic = 0;  // by jobs without a claim
};

struct VirtualCell {
    std::uint32_t cluster = 0;  // virtual cluster
    std::uint32_t level = 0;
    std::uint32_t index = kNone;  // the physical cell it is bound to; kNone: unbound
    std::uint32_t claimed_gpus = 0;
    bool pinned = false;
    bool doomed = false;
};

class SharedHierarchy {
public:
    // Node numbers are those of the hierarchy.
    SharedHierarchy(const CellConfig& config, std::uint32_t hierarchy);

    const Hierarchy& cells() const { return cells_; }
    // The numbers of a virtual cluster's cells are those from first_of() to before end_of().
    std::uint32_t first_of(std::uint32_t cluster) const { return first_of_[cluster]; }
    std::uint32_t end_of(std::uint32_t cluster) const { return first_of_[cluster + 1]; }
    const VirtualCell& virtual_cell(std::uint32_t number) const { return virtual_cells_[number]; }
    std::uint32_t unbound(std::uint32_t cluster, std::uint32_t level) const {
        return static_cast<std::uint32_t>(unbound_[cluster][level].size());
    }
    // Sets `into` to the numbers of the virtual cells that matter to a gang: bound cells with GPUs that no job holds
    // and, if `fresh`, at each level as many unbound cells as the gang could use. `pods`: how many it has.
    void list_for_gang(std::uint32_t cluster, std::uint32_t gpus, std::size_t pods, bool fresh,
                       std::vector<std::uint32_t>& into) const;
    // Returns the GPUs of one node that lie in the virtual cluster's bound cells.
    std::uint64_t gpus_owned(std::uint32_t cluster, std::uint32_t node) const;
    // Returns the GPUs of one node that lie in any virtual cluster's bound cells.
    std::uint64_t gpus_bound(std::uint32_t node) const;

    struct BindPreference {
        std::span<const std::uint32_t> near;  // preferred nodes
        std::uint32_t beside = kNone;         // a node to be close to; kNone: none
        bool only_healthy = false;            // no cell with a bad node will do
    };
    // Binds one more virtual cell of the level to the best physical cell. Returns its number; kNone: none can be bound.
    std::uint32_t bind(std::uint32_t cluster, std::uint32_t level, const BindPreference& preference);
    // Binds cells until the virtual cluster owns these GPUs of a node. It may bind more than needed, and new bindings
    // stay even on failure; unbind_unused() undoes them.
    bool cover(std::uint32_t cluster, std::uint32_t node, std::uint64_t gpus);
    // Binds cells so that the virtual cluster owns as much of a node as it may without leaving other owners short.
    void cover_node(std::uint32_t cluster, std::uint32_t node);
    // Returns a free cell that contains the whole node and can be bound without leaving other owners short; nullopt:
    // none.
    std::optional<CellId> cell_to_cover(std::uint32_t cluster, std::uint32_t node) const;

    // cells_of() returns the bound cells that contain these GPUs of a node. rebind() binds a cell that cells_of()
    // returned before.
    std::vector<CellId> cells_of(std::uint32_t node, std::uint64_t gpus) const;
    bool rebind(std::uint32_t cluster, CellId cell) { return bind_over(cluster, cell); }

    void hold(std::uint32_t node, std::uint64_t gpus);
    void drop(std::uint32_t node, std::uint64_t gpus);
    void add_opportunistic(std::uint32_t node, std::uint64_t gpus);
    void remove_opportunistic(std::uint32_t node, std::uint64_t gpus);
    const NodeUse& use(std::uint32_t node) const { return use_[node]; }
    void set_bad(std::uint32_t node, bool bad);

    // Unbinds virtual cells of which no job holds GPUs.
    void unbind_unused();
    // Binds virtual cells to bad cells where too few healthy ones are left, and unbinds those that can be served again.
    void bind_bad_cells();
    // Unbinds all doomed cells. Call it before asking for specific cells.
    void unbind_bad_cells();
    bool has_doomed_cells() const { return !doomed_.empty(); }

    bool is_sound() const;

private:
    struct Rank;
    std::optional<Rank> rank(CellId cell) const;
    std::uint32_t opportunistic_in(CellId cell) const;
    std::optional<CellId> find(std::uint32_t level, const BindPreference& preference) const;
    std::uint32_t bind_at(std::uint32_t cluster, CellId cell);
    bool bind_over(std::uint32_t cluster, CellId cell);
    bool bind_back(std::uint32_t number, CellId cell);
    void unbind(std::uint32_t number);
    std::vector<std::uint32_t> virtual_cells_in(CellId cell) const;
    // True if the cell can be bound, has no bad node and leaves no owner short.
    bool is_harmless(CellId cell) const;
    std::uint32_t highest_short_level(std::uint32_t cluster) const;
    // Call it whenever a cell was bound or unbound, or its claimed GPUs changed.
    void note_room(std::uint32_t number);
    bool has_room(std::uint32_t number) const { return (with_room_[number / 64] >> number % 64 & 1) != 0; }
    bool bind_bad_cell(std::uint32_t cluster, std::uint32_t level);

    Hierarchy cells_;
    std::vector<NodeUse> use_;                               // by node
    std::vector<std::vector<std::uint32_t>> opportunistic_;  // GPUs, by level from the node's up, then cell
    std::vector<VirtualCell> virtual_cells_;                 // sorted by virtual cluster
    std::vector<std::uint32_t> first_of_;
    std::vector<std::uint64_t> with_room_;                       // one bit per virtual cell: bound, with free GPUs
    std::vector<std::vector<std::set<std::uint32_t>>> unbound_;  // by virtual cluster and level
    std::vector<std::vector<std::int64_t>> unbound_counts_;      // the size of each set in unbound_
    std::vector<std::uint32_t> bound_lately_;                    // for unbind_unused()
    std::vector<std::uint32_t> doomed_;
    std::set<std::uint32_t> bad_nodes_;
};

}  // namespace larder::scheduler
