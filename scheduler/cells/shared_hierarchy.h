#pragma once

// One hierarchy and the virtual cells that live on it: which virtual cell is bound to which physical one. A virtual
// cell is bound while jobs with a claim hold GPUs of it, or while it is doomed: bad nodes have left its virtual cluster
// too few healthy cells for all it owns, whatever the others do, so that some of its virtual cells stand for bad ones.
// A pinned one is always bound. Whom to bind to is chosen so that no bad node is in it and nobody is left short by the
// bad ones, that few opportunistic jobs have to go, that it is near, and that little is split; in this order.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "scheduler/cells/hierarchy.h"

namespace larder::scheduler {

// Of one node of the cluster, bit by GPU.
struct NodeUse {
    std::uint64_t held = 0;           // by jobs with a claim, also such as wait for others to go
    std::uint64_t opportunistic = 0;  // run on by jobs without one
};

struct VirtualCell {
    std::uint32_t cluster = 0;  // virtual cluster
    std::uint32_t level = 0;
    std::uint32_t index = kNone;  // the physical cell it is bound to
    std::uint32_t held_gpus = 0;
    bool pinned = false;
    bool doomed = false;
};

class SharedHierarchy {
public:
    // `use` is by node of the hierarchy.
    SharedHierarchy(const CellConfig& config, std::uint32_t hierarchy);

    const Hierarchy& cells() const { return cells_; }
    // A virtual cluster's cells, by number.
    std::uint32_t first_of(std::uint32_t cluster) const { return first_of_[cluster]; }
    std::uint32_t end_of(std::uint32_t cluster) const { return first_of_[cluster + 1]; }
    const VirtualCell& root(std::uint32_t number) const { return roots_[number]; }
    std::uint32_t unbound(std::uint32_t cluster, std::uint32_t level) const {
        return static_cast<std::uint32_t>(unbound_[cluster][level].size());
    }
    // In place of all of a virtual cluster's cells, those that matter to a gang, by number: bound ones with GPUs that
    // nobody holds (with `full` the others, too), and, with `fresh`, of each level no more unbound ones than it could
    // use.
    void list_for_gang(std::uint32_t cluster, std::uint32_t gpus, bool full, bool fresh,
                       std::vector<std::uint32_t>& into) const;
    // Of one node, those that lie in the virtual cluster's bound cells.
    std::uint64_t gpus_owned(std::uint32_t cluster, std::uint32_t node) const;

    struct Wish {
        std::span<const std::uint32_t> near;  // nodes
        std::uint32_t beside = kNone;         // a node
    };
    // Binds one more virtual cell of the level to the best physical one. kNone: none can be had.
    std::uint32_t bind(std::uint32_t cluster, std::uint32_t level, const Wish& wish);
    // Has the virtual cluster own these GPUs of a node, by binding what is needed for it. What was bound newly may be
    // more, and stays when this fails: settle().
    bool cover(std::uint32_t cluster, std::uint32_t node, std::uint64_t gpus);
    // Binds what makes the virtual cluster own as much of a node as it may, unless that would leave others short.
    void cover_node(std::uint32_t cluster, std::uint32_t node);
    // The cell that does so by itself, which is free as a whole; nothing: there is none.
    std::optional<CellId> cell_to_cover(std::uint32_t cluster, std::uint32_t node) const;

    // The bound cells in which these GPUs of a node lie, and binding just such a cell again.
    std::vector<CellId> cells_of(std::uint32_t node, std::uint64_t gpus) const;
    bool rebind(std::uint32_t cluster, CellId cell) { return bind_over(cluster, cell); }

    void hold(std::uint32_t node, std::uint64_t gpus);
    void drop(std::uint32_t node, std::uint64_t gpus);
    void add_opportunistic(std::uint32_t node, std::uint64_t gpus);
    void remove_opportunistic(std::uint32_t node, std::uint64_t gpus);
    const NodeUse& use(std::uint32_t node) const { return use_[node]; }
    void set_bad(std::uint32_t node, bool bad);

    // Unbinds virtual cells that nobody holds GPUs of.
    void settle();
    // Binds to bad cells what cannot be had otherwise, unbinds what can be again.
    void doom();
    // Unbinds all that is bound to bad cells for want of healthy ones, before just certain cells are asked for.
    void undoom();

    bool sound() const;

private:
    struct Rank;
    std::optional<Rank> rank(CellId cell) const;
    std::uint32_t opportunistic_in(CellId cell) const;
    std::optional<CellId> find(std::uint32_t level, const Wish& wish) const;
    std::uint32_t bind_at(std::uint32_t cluster, CellId cell);
    bool bind_over(std::uint32_t cluster, CellId cell);
    bool bind_back(std::uint32_t root, CellId cell);
    void unbind(std::uint32_t root);
    std::vector<std::uint32_t> roots_in(CellId cell) const;
    // Whether it may be bound with no bad node in it, and nobody left short.
    bool is_harmless(CellId cell) const;
    std::uint32_t short_at(std::uint32_t cluster) const;
    // To be told whenever a cell was bound, unbound, or others of its GPUs are held.
    void note_room(std::uint32_t root);
    bool has_room(std::uint32_t root) const { return (with_room_[root / 64] >> root % 64 & 1) != 0; }
    bool doom_one(std::uint32_t cluster, std::uint32_t level);

    Hierarchy cells_;
    std::vector<NodeUse> use_;                               // by node
    std::vector<std::vector<std::uint32_t>> opportunistic_;  // GPUs, by level from the node's up and cell
    std::vector<VirtualCell> roots_;                         // by virtual cluster
    std::vector<std::uint32_t> first_of_;
    std::vector<std::uint64_t> with_room_;                       // bit by root: bound, with GPUs that nobody holds
    std::vector<std::vector<std::set<std::uint32_t>>> unbound_;  // by virtual cluster and level
    std::vector<std::vector<std::int64_t>> claims_;              // their number, likewise
    std::vector<std::uint32_t> bound_lately_;                    // may have to be unbound when things settle
    std::vector<std::uint32_t> doomed_;
    std::set<std::uint32_t> bad_nodes_;
};

}  // namespace larder::scheduler
