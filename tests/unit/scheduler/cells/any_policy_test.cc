// Every policy under decide() over cells, while nodes are lost and recover.

#include <gtest/gtest.h>

#include "scheduler/cells/cells.h"
#include "tests/support/property_cases.h"
#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler::tests {
namespace {

constexpr std::uint32_t kSeeds = test::property_cases(8, 4);
constexpr int kTroubleSteps = 150;  // nodes are lost during the first steps only

// Four nodes of each of two types, two in a rack. Tenant "one" owns a rack of the first type and two nodes of the
// second. "two" owns a node of the first type and a rack of the second. "three" owns nothing, so all its jobs run
// without claims.
class SharedCells : public World {
public:
    explicit SharedCells(std::uint64_t seed) : World(4, {"a", "b"}), random_(seed) {
        CellConfig config;
        for (const std::string& type : cluster.gpu_types) {
            config.hierarchies.push_back({.name = type,
                                          .gpu_type = type,
                                          .levels = {{"node", 8}, {"rack", 2}},
                                          .node_level = 1,
                                          .nodes = {type + "0", type + "1", type + "2", type + "3"}});
        }
        config.virtual_clusters.push_back({.name = "one", .cells = {{0, 2, 1}, {1, 1, 2}}, .pinned = {}});
        config.virtual_clusters.push_back({.name = "two", .cells = {{0, 1, 1}, {1, 2, 1}}, .pinned = {}});
        EXPECT_TRUE(check_cells(config, "test"));
        const std::vector<std::string> names{"one", "two", "three"};
        auto made = Cells::create(config, cluster, names);
        EXPECT_TRUE(made);
        cells_ = made->get();
        pool = std::move(*made);
        tenants[0].gpu_quota = 24;
        tenants.push_back({.name = "two", .weight = 3});
        tenants.push_back({.name = "three"});
        for (int j = 0; j < 24; ++j) add_random_job();
    }

    // Loses random nodes, with all their jobs, and recovers random lost nodes. With `recover_all`, loses none and
    // recovers all.
    void lose_or_recover(bool recover_all) {
        for (std::uint32_t n = 0; n < cluster.nodes.size(); ++n) {
            GpuNode& node = cluster.nodes[n];
            const bool changes =
                node.usable ? !recover_all && random_.below(40) == 0 : recover_all || random_.below(4) == 0;
            if (!changes) continue;
            node.usable = !node.usable;
            gpu_types[node.gpu_type].gpus += node.usable ? node.gpus : -node.gpus;
            if (!node.usable) {
                for (std::uint32_t j = 0; j < present.size(); ++j) {
                    const auto on_lost_node = [&](const NodeGpus& share) { return share.node == n; };
                    if (present[j]->running && std::ranges::any_of(present[j]->placement, on_lost_node)) stop(j);
                }
            }
            pool->set_usable(n, node.usable);
        }
    }

    void check(const Actions& actions) {
        ASSERT_TRUE(cells_->is_sound());
        for (const Start& start : actions.starts) {
            for (const NodeGpus& share : start.placement) ASSERT_TRUE(cluster.nodes[share.node].usable);
        }
        std::vector<std::uint64_t> used(cluster.nodes.size());
        for (std::uint32_t j = 0; j < jobs.size(); ++j) {
            const JobState& job = *jobs[j];
            if (!job.running) continue;
            ASSERT_EQ(gpu_count(job.placement), job.gpus);
            if (job.packed_with != nullptr) {
                const JobState& host = *job.packed_with;
                ASSERT_TRUE(host.running && host.placement == job.placement);
                ASSERT_TRUE(host.spec->tenant == job.spec->tenant || (host.opportunistic && job.opportunistic));
                continue;
            }
            ASSERT_EQ(job.opportunistic, cells_->is_opportunistic(ids[j]));
            ASSERT_TRUE(job.opportunistic || job.spec->tenant < 2);
            for (const NodeGpus& share : job.placement) {
                ASSERT_EQ(used[share.node] & share.gpus, 0U);
                used[share.node] |= share.gpus;
            }
        }
    }
    bool all_nodes_usable() const {
        return std::ranges::all_of(cluster.nodes, [](const GpuNode& node) { return node.usable; });
    }

private:
    void add_random_job() {
        JobSpec& spec = add(1U << random_.below(4), 1e8 * (100 + random_.below(20000)));
        states.back().remaining_bytes = spec.total_bytes *= spec.gpus;
        spec.ideal_bytes_per_second[1] *= 0.25 + random_.below(8) / 4.0;
        spec.tenant = random_.below(3);
        spec.opportunistic = spec.tenant == 2 || random_.below(4) == 0;
        spec.priority = static_cast<std::int32_t>(random_.below(2));
        if (!spec.opportunistic && random_.below(4) == 0) spec.preemptible = false;
        if (random_.below(4) == 0) spec.gpus_max = 2 * spec.gpus;
        if (random_.below(2) == 0) spec.packed_rate = 0.7;
        spec.gpu_memory_part = spec.packed_rate > 0 ? 0.5 : 0;
        if (!spec.opportunistic && random_.below(3) == 0) {
            spec.service = ServiceClass::soft_deadline;
            spec.deadline_s = random_.below(5000);
        }
    }

    void stop(std::uint32_t j) {
        JobState& job = *present[j];
        for (JobState* const guest : present) {
            if (!guest->running || guest->packed_with != &job) continue;
            guest->running = false;
            guest->packed_with = nullptr;
            guest->waiting_since_s = now_s;
        }
        if (job.packed_with == nullptr) pool->release(ids[j]);
        job.running = false;
        job.packed_with = nullptr;
        job.waiting_since_s = now_s;
    }

    TestRandom random_;
    Cells* cells_ = nullptr;
};

TEST(AnyPolicyOnCells, EveryJobEndsWhateverNodesAreLost) {
    for (const std::string_view name : policy_names()) {
        for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
            SCOPED_TRACE(std::string(name) + ", seed " + std::to_string(seed));
            SharedCells world(seed);
            const auto policy = std::move(*make_policy(name, {}));
            int steps = 0;
            for (; !world.jobs.empty() && steps < 20000; ++steps) {
                world.lose_or_recover(steps >= kTroubleSteps);
                const auto actions = world.step(*policy);
                ASSERT_TRUE(actions) << actions.error().message;
                ASSERT_NO_FATAL_FAILURE(world.check(*actions)) << "step " << steps;
                if (world.all_nodes_usable()) {
                    ASSERT_FALSE(world.running().empty());
                }
                const double until_s = std::min(world.next_end_s(), actions->next_s);
                ASSERT_GT(until_s, world.now_s);
                world.pass(steps < kTroubleSteps ? std::min(until_s - world.now_s, 60.0) : until_s - world.now_s);
                world.end_finished();
            }
            EXPECT_TRUE(world.jobs.empty());
        }
    }
}

}  // namespace
}  // namespace larder::scheduler::tests
