// A million random operations on random configurations. After each operation, every invariant is recomputed from the
// configuration and from the GPUs that were handed out.

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/support/property_cases.h"
#include "tests/unit/scheduler/cells/counted_world.h"

namespace larder::scheduler::tests {
namespace {

constexpr std::uint32_t kOperations = test::property_cases(1'000'000, 25);
constexpr std::uint32_t kWorlds = 250;

// How often each tested situation occurred.
struct SituationCounts {
    std::uint64_t placed = 0;
    std::uint64_t refused = 0;
    std::uint64_t evicted = 0;
    std::uint64_t opportunistic = 0;
    std::uint64_t scarce = 0;  // placed or refused while healthy cells were too few for all claims
    std::uint64_t doomed = 0;
    std::uint64_t claims_changed = 0;
    std::uint64_t placed_again = 0;
    std::uint64_t shaped = 0;  // gangs placed with a GangShape
};

class World : public CountedWorld {
public:
    World(std::uint64_t seed, SituationCounts& seen) : World(Dice(seed), seen) {}
    ~World() { seen_.doomed += doomed_; }

    void step() {
        const std::uint32_t operation = dice_.between(1, 100);
        if (operation <= 34) {
            place(false);
        } else if (operation <= 46) {
            place(true);
        } else if (operation <= 78) {
            release();
        } else if (operation <= 90) {
            change_claim();
        } else if (operation <= 96) {
            place_again();
        } else if (nodes_fail_) {
            fail_or_recover();
        }
        ASSERT_TRUE(cells_->is_sound());
        ASSERT_NO_FATAL_FAILURE(check_shares());
    }

private:
    World(Dice dice, SituationCounts& seen) : CountedWorld(random_config(dice)), seen_(seen), dice_(dice) {
        nodes_fail_ = dice_.chance(60);
        prefers_nodes_ = dice_.chance(40);
    }

    PlaceRequest request(bool opportunistic) {
        const std::uint32_t cluster = dice_.between(0, tenants_ - 1);
        near_.clear();
        PlaceRequest asked{.job = next_job_++,
                           .tenant = cluster,
                           .gpus = dice_.chance(60) ? dice_.between(1, 4) : dice_.between(1, 24),
                           .gpu_type = dice_.between(0, static_cast<std::uint32_t>(cluster_.gpu_types.size()) - 1),
                           .priority = static_cast<std::int32_t>(dice_.between(0, 3)),
                           .opportunistic = opportunistic,
                           .near = {}};
        if (prefers_nodes_ && dice_.chance(50)) {
            for (std::uint32_t i = dice_.between(1, 4); i > 0; --i) {
                const std::uint32_t node = dice_.between(0, static_cast<std::uint32_t>(cluster_.nodes.size()) - 1);
                if (std::ranges::find(near_, node) == near_.end()) near_.push_back(node);
            }
            asked.near = near_;
            asked.rate_far = dice_.chance(50) ? 0.3 : 1;
        }
        shape_ = dice_.chance(35) ? random_shape(asked) : GangShape{};
        asked.shape = &shape_;
        return asked;
    }

    GangShape random_shape(const PlaceRequest& asked) {
        GangShape shape;
        const auto hierarchies = static_cast<std::uint32_t>(config_.hierarchies.size());
        const HierarchyConfig& any = config_.hierarchies[dice_.between(0, hierarchies - 1)];
        if (dice_.chance(50)) {
            for (std::uint32_t left = asked.gpus; left > 0; left -= shape.pods.back()) {
                shape.pods.push_back(dice_.between(1, std::min(left, 5U)));
            }
        }
        if (dice_.chance(30)) shape.hierarchy = any.name;
        if (dice_.chance(40)) {
            const auto levels = static_cast<std::uint32_t>(any.levels.size());
            shape.together = any.levels[dice_.between(0, levels - 1)].name;
        }
        if (asked.opportunistic || asked.tenant + 1 == tenants_ || !dice_.chance(20)) return shape;
        const auto& pinned = config_.virtual_clusters[asked.tenant].pinned;
        if (!pinned.empty()) shape.cell = pinned[dice_.between(0, static_cast<std::uint32_t>(pinned.size()) - 1)].name;
        return shape;
    }

    // Checks a gang's place by the config alone.
    void check_shape(const PlaceRequest& asked, const Placement& placement) {
        if (asked.shape == nullptr || asked.shape->is_free()) return;
        ++seen_.shaped;
        const GangShape& shape = *asked.shape;
        if (!shape.pods.empty()) {
            std::vector<std::uint32_t> gpus;
            for (const NodeGpus& share : placement) gpus.push_back(share.count());
            std::ranges::sort(gpus, std::ranges::greater{});
            ASSERT_FALSE(pack_pods(gpus, shape.pods).empty()) << "a pod is split";
        }
        std::set<std::pair<std::uint32_t, std::uint32_t>> cells;
        for (const NodeGpus& share : placement) {
            const std::uint32_t h = hierarchy_of(share.node);
            const HierarchyConfig& hierarchy = config_.hierarchies[h];
            if (!shape.hierarchy.empty()) {
                ASSERT_EQ(hierarchy.name, shape.hierarchy);
            }
            const std::uint32_t per_node = hierarchy.gpus_in(hierarchy.node_level);
            for (std::uint32_t gpu = 0; gpu < per_node; ++gpu) {
                if ((share.gpus >> gpu & 1) == 0) continue;
                const std::uint32_t number = (share.node - first_node_[h]) * per_node + gpu;
                if (!shape.together.empty()) {
                    const auto level = hierarchy.level_named(shape.together);
                    ASSERT_TRUE(level);
                    cells.emplace(h, number / hierarchy.gpus_in(*level));
                }
                if (shape.cell.empty()) continue;
                const auto& pinned = config_.virtual_clusters[asked.tenant].pinned;
                const auto pin = std::ranges::find(pinned, shape.cell, &PinnedCell::name);
                ASSERT_EQ(pin->hierarchy, h);
                ASSERT_EQ(number / hierarchy.gpus_in(pin->level), pin->index);
            }
        }
        ASSERT_LE(cells.size(), 1U) << "the gang is not together";
    }

    void check_placement(const PlaceRequest& asked, const Placement& placement) {
        ASSERT_EQ(gpu_count(placement), asked.gpus);
        ASSERT_NO_FATAL_FAILURE(check_shape(asked, placement));
        std::int64_t last = -1;
        for (const NodeGpus& share : placement) {
            ASSERT_GT(std::int64_t{share.node}, last);
            last = share.node;
            const GpuNode& node = cluster_.nodes[share.node];
            ASSERT_FALSE(bad_[share.node]);
            ASSERT_EQ(node.gpu_type, asked.gpu_type);
            ASSERT_EQ(node.gpus == 64 ? 0 : share.gpus >> node.gpus, 0U);
            ASSERT_EQ(claimed_gpus(share.node) & share.gpus, 0U);
        }
    }

    std::set<JobId> opportunistic_on(const Placement& placement) const {
        std::set<JobId> found;
        for (const auto& [id, job] : jobs_) {
            if (!job.opportunistic) continue;
            for (const NodeGpus& mine : job.placement) {
                for (const NodeGpus& share : placement) {
                    if (mine.node == share.node && (mine.gpus & share.gpus) != 0) found.insert(id);
                }
            }
        }
        return found;
    }

    void add(const PlaceRequest& asked, const Placement& placement) {
        jobs_[asked.job] = {.tenant = asked.tenant,
                            .gpu_type = asked.gpu_type,
                            .priority = asked.priority,
                            .opportunistic = asked.opportunistic,
                            .placement = placement};
    }

    // Checks that the answer keeps the guarantee.
    void check_answer(const PlaceRequest& asked, CountedRoom room, const Placement* placement) {
        if (asked.tenant + 1 == tenants_) {
            ASSERT_EQ(placement, nullptr);
            return;
        }
        const bool fits = asked.gpus <= room.gpus;
        const bool free_shape = asked.shape->is_free();
        ++(placement != nullptr ? seen_.placed : seen_.refused);
        seen_.scarce += room.all_served ? 0 : 1;
        if (placement != nullptr) {
            ASSERT_TRUE(fits);
        } else {
            ASSERT_FALSE(fits && room.all_served && free_shape) << asked.gpus << " GPUs fit among " << room.gpus;
            if (free_shape) {
                ASSERT_GT(asked.gpus, room.bound_gpus);
            }
            const bool only_pods = asked.shape->needs_no_cells();
            ASSERT_FALSE(room.all_served && only_pods && !free_shape && room.holds_pods(asked.pods()));
            ASSERT_FALSE(could_bind_healthy_cell(asked))
                << asked.gpus << " GPUs were refused, but a healthy cell is free";
        }
        if (placement != nullptr && room.all_served && asked.near.empty() && free_shape) {
            ASSERT_LE(placement->size(), room.least_nodes(asked.gpus));
            if (room.fits_one_hierarchy(asked.gpus)) {
                ASSERT_EQ(hierarchy_of(placement->front().node), hierarchy_of(placement->back().node));
            }
        }
    }

    void place(bool opportunistic) {
        const PlaceRequest asked = request(opportunistic);
        if (opportunistic) {
            const std::uint32_t free = cells_->free_gpus(asked.gpu_type);
            const auto placed = cells_->place(asked);
            if (asked.shape->is_free()) {
                ASSERT_EQ(placed.has_value(), asked.gpus <= free);
            }
            if (!placed) return;
            ASSERT_NO_FATAL_FAILURE(check_placement(asked, placed->placement));
            ASSERT_TRUE(placed->evicted.empty() && opportunistic_on(placed->placement).empty());
            ++seen_.opportunistic;
            add(asked, placed->placement);
            return;
        }
        const CountedRoom left = states_.empty() ? CountedRoom{} : room(asked.tenant, asked.gpu_type);
        const bool room_is_known = !states_.empty();
        const auto placed = cells_->place(asked);
        if (room_is_known) {
            ASSERT_NO_FATAL_FAILURE(check_answer(asked, left, placed ? &placed->placement : nullptr));
        }
        if (!placed) return;
        ASSERT_NO_FATAL_FAILURE(check_placement(asked, placed->placement));
        ASSERT_EQ(std::set<JobId>(placed->evicted.begin(), placed->evicted.end()), opportunistic_on(placed->placement));
        seen_.evicted += placed->evicted.size();
        for (const JobId id : placed->evicted) jobs_.erase(id);
        add(asked, placed->placement);
        const bool doomed = std::ranges::any_of(states_, [](const auto& state) { return state.cell.doomed; });
        if (!room_is_known || !left.all_served || doomed) return;
        ASSERT_NO_FATAL_FAILURE(check_shares());
        ASSERT_TRUE(room(asked.tenant, asked.gpu_type).all_served) << "too few cells are left for other tenants";
    }

    JobId any_job() {
        auto job = jobs_.begin();
        std::advance(job, dice_.between(0, static_cast<std::uint32_t>(jobs_.size()) - 1));
        return job->first;
    }

    void release() {
        if (jobs_.empty()) return;
        const JobId id = any_job();
        cells_->release(id);
        jobs_.erase(id);
        read_claims();
    }

    // Updates which jobs have taken up their claims again.
    void read_claims() {
        for (auto& [id, job] : jobs_) {
            if (job.opportunistic) job.opportunistic = cells_->is_opportunistic(id);
            ASSERT_EQ(job.opportunistic, cells_->is_opportunistic(id));
        }
    }

    void change_claim() {
        if (jobs_.empty()) return;
        const JobId id = any_job();
        PlacedJob& job = jobs_.at(id);
        const bool done = cells_->set_opportunistic(id, !job.opportunistic);
        if (done) job.opportunistic = !job.opportunistic;
        seen_.claims_changed += done ? 1 : 0;
        if (!done) {
            ASSERT_TRUE(job.opportunistic);
        }
        read_claims();
    }

    // As after a restart: releases all GPUs and places every job again on the same GPUs, in the same cells.
    void place_again() {
        std::map<JobId, std::vector<HeldCell>> held;
        for (const auto& [id, job] : jobs_) held[id] = cells_->cells_of(id);
        for (const auto& [id, job] : jobs_) cells_->release(id);
        std::erase_if(jobs_, [&](const auto& job) {
            return std::ranges::any_of(job.second.placement, [&](const NodeGpus& share) { return bad_[share.node]; });
        });
        std::vector<JobId> order;
        for (const auto& [id, job] : jobs_) {
            order.insert(order.begin() + dice_.between(0, static_cast<std::uint32_t>(order.size())), id);
        }
        for (const JobId id : order) {
            const PlacedJob& job = jobs_.at(id);
            ASSERT_TRUE(cells_->place_at({.job = id,
                                          .tenant = job.tenant,
                                          .gpus = gpu_count(job.placement),
                                          .gpu_type = job.gpu_type,
                                          .priority = job.priority,
                                          .opportunistic = job.opportunistic,
                                          .near = {},
                                          .cells = held.at(id)},
                                         job.placement));
            seen_.placed_again += job.opportunistic ? 0 : 1;
        }
        for (const JobId id : order) ASSERT_EQ(cells_->cells_of(id), held.at(id));
    }

    void fail_or_recover() {
        std::uint32_t node = dice_.between(0, static_cast<std::uint32_t>(bad_.size()) - 1);
        for (std::uint32_t n = 0; n < bad_.size() && dice_.chance(55); ++n) {  // most often recovers
            if (bad_[n]) node = n;
        }
        bad_[node] = !bad_[node];
        cells_->set_usable(node, !bad_[node]);
    }

    SituationCounts& seen_;
    Dice dice_;
    bool nodes_fail_ = false;
    bool prefers_nodes_ = false;
    JobId next_job_ = 0;
    std::vector<std::uint32_t> near_;
    GangShape shape_;
};

class CellsProperties : public testing::TestWithParam<std::uint32_t> {};

TEST_P(CellsProperties, AllHoldAfterEveryOperation) {
    constexpr std::uint32_t kPerCase = kWorlds / 10;
    SituationCounts seen;
    for (std::uint32_t w = 0; w < kPerCase; ++w) {
        const std::uint64_t seed = GetParam() * kPerCase + w;
        World world(seed, seen);
        for (std::uint32_t i = 0; i < kOperations / kWorlds; ++i) {
            world.step();
            if (HasFatalFailure()) FAIL() << "seed " << seed << ", operation " << i;
        }
    }
    EXPECT_GT(seen.placed, kOperations / 500);
    EXPECT_GT(seen.refused, kOperations / 500);
    EXPECT_GT(seen.opportunistic, kOperations / 500);
    EXPECT_GT(seen.evicted, kOperations / 2000);
    EXPECT_GT(seen.scarce, kOperations / 2000);
    EXPECT_GT(seen.claims_changed, kOperations / 2000);
    EXPECT_GT(seen.placed_again, kOperations / 2000);
    EXPECT_GT(seen.shaped, kOperations / 2000);
    EXPECT_GT(seen.doomed, 0U);
}

INSTANTIATE_TEST_SUITE_P(Worlds, CellsProperties, testing::Range(0U, 10U));

}  // namespace
}  // namespace larder::scheduler::tests
