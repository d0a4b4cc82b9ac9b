// Submitted jobs on cells: tenants "default" and "small" own one node of 4 GPUs each.

#include <gmock/gmock.h>

#include "scheduler/cells/cells.h"
#include "scheduler/live/queue_api.h"
#include "tests/unit/scheduler/live/live_fixture.h"

namespace larder::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Attempt = MemoryEngine::Attempt;

class LiveOnCells : public Live {
protected:
    LiveOnCells() {
        own_placer = [](const LiveOptions& options) -> std::unique_ptr<Placer> {
            HierarchyConfig hierarchy{
                .name = "h", .gpu_type = "a100", .levels = {{"node", 4}}, .node_level = 1, .nodes = {"n1", "n2"}};
            CellConfig config{.hierarchies = {hierarchy}, .virtual_clusters = {}};
            config.virtual_clusters.push_back({.name = "default", .cells = {{0, 1, 1}}, .pinned = {}});
            config.virtual_clusters.push_back({.name = "small", .cells = {{0, 1, 1}}, .pinned = {}});
            const std::vector<std::string> names{"default", "small"};
            return std::move(*Cells::create(config, options.cluster, names));
        };
    }
    static Submission opportunistic(std::uint32_t gpus) {
        Submission asked = job_with_gpus(gpus);
        asked.opportunistic = true;
        return asked;
    }
};

TEST_F(LiveOnCells, OpportunisticJobRunsInAnyCellsUntilClaimed) {
    const JobId guest = submit_and_start(opportunistic(8));
    EXPECT_TRUE(job(guest).held->opportunistic);
    Submission owner = job_with_gpus(2, "owner");
    owner.tenant = "small";
    const JobId claimant = submit(owner);
    tick();
    EXPECT_EQ(phase(guest), Phase::stopping);
    EXPECT_EQ(phase(claimant), Phase::placed) << "it starts once the guest has ended";
    engine.tell_ended({guest, 1}, 0, true);
    tick();
    EXPECT_EQ(phase(claimant), Phase::starting);
    EXPECT_FALSE(job(claimant).held->opportunistic);
    tick(20);
    EXPECT_EQ(phase(guest), Phase::waiting);
    EXPECT_THAT(why(guest), HasSubstr("8 GPUs that no job with a claim uses"));
    engine.tell_ended({claimant, 1}, 0);
    tick();
    EXPECT_THAT(engine.starts, ElementsAre(Attempt{guest, 1}, Attempt{claimant, 1}, Attempt{guest, 2}));
}

TEST_F(LiveOnCells, ElasticJobIsResizedWithinItsTenantsCells) {
    own_placer = [](const LiveOptions& options) -> std::unique_ptr<Placer> {
        HierarchyConfig hierarchy{
            .name = "h", .gpu_type = "a100", .levels = {{"node", 4}}, .node_level = 1, .nodes = {"n1", "n2"}};
        CellConfig config{.hierarchies = {hierarchy}, .virtual_clusters = {}};
        config.virtual_clusters.push_back({.name = "default", .cells = {{0, 1, 2}}, .pinned = {}});
        config.virtual_clusters.push_back({.name = "small", .cells = {}, .pinned = {}});
        const std::vector<std::string> names{"default", "small"};
        return std::move(*Cells::create(config, options.cluster, names));
    };
    policy = "las";
    engine.resizes_attempts = true;
    restart();
    Submission asked = job_with_gpus(4, "train");
    asked.gpus_max = 8;
    asked.elastic = true;
    const JobId id = submit_and_start(asked);
    ASSERT_EQ(job(id).held->count, 8U);
    const std::string other = job(id).held->gpus[1].node;
    const JobId second = submit(job_with_gpus(4, "second"));
    tick();
    ASSERT_EQ(engine.resizes.size(), 1U);
    EXPECT_EQ(phase(second), Phase::placed);
    engine.tell_resize(EngineEvent::Kind::resized, {id, 1}, 1);
    tick();
    EXPECT_EQ(job(id).held->count, 4U);
    engine.tell(EngineEvent::Kind::started, {second, 1});
    tick();
    engine.tell_ended({second, 1}, 0);
    tick();
    ASSERT_EQ(engine.resizes.size(), 2U);
    EXPECT_EQ(job(id).next->cells.size(), 2U);
    restart();
    ASSERT_EQ(phase(id), Phase::running);
    engine.tell_node(EngineEvent::Kind::node_lost, other);
    tick();
    EXPECT_EQ(job(id).next->count, 4U);
    EXPECT_EQ(job(id).resizes, 3U);
    engine.tell_resize(EngineEvent::Kind::resized, {id, 1}, 3);
    tick();
    EXPECT_EQ(job(id).held->count, 4U);
    EXPECT_EQ(job(id).held->cells.size(), 1U);
    EXPECT_THAT(engine.stops, IsEmpty());
}

TEST_F(LiveOnCells, OperatorsSeeDoomedCells) {
    const auto doomed = [&] { return live->options().placer->doomed_cells(); };
    EXPECT_THAT(doomed(), IsEmpty());
    engine.tell_node(EngineEvent::Kind::node_lost, "n1");
    tick();
    EXPECT_THAT(doomed(), IsEmpty()) << "either tenant could still get the other node";
    engine.tell_node(EngineEvent::Kind::node_lost, "n2");
    tick();
    EXPECT_THAT(doomed(), ElementsAre(DoomedCells{"default", "h", "node", 1}, DoomedCells{"small", "h", "node", 1}));
    EXPECT_THAT(queue_metrics(*live), HasSubstr("larder_queue_doomed_cells{tenant=\"small\"} 1"));
    engine.tell_node(EngineEvent::Kind::node_back, "n1");
    tick();
    EXPECT_THAT(doomed(), IsEmpty());
}

TEST_F(LiveOnCells, ClaimLargerThanItsTenantsCellsIsRefused) {
    const Submission wide = job_with_gpus(8);
    const auto refused = try_submit(wide);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::no_space);
    EXPECT_THAT(refused.error().message, HasSubstr("tenant \"default\" has a claim to 4 of one type"));
    EXPECT_EQ(submit(opportunistic(8)), 1U);
}

TEST_F(LiveOnCells, OpportunisticJobHasNoClaimAfterRestart) {
    const JobId guest = submit_and_start(opportunistic(8));
    restart();
    tick();
    EXPECT_EQ(phase(guest), Phase::running);
    const JobId claimant = submit(job_with_gpus(4));
    tick();
    EXPECT_EQ(phase(guest), Phase::stopping);
    EXPECT_EQ(phase(claimant), Phase::placed);
    EXPECT_THAT(engine.stops, ElementsAre(Attempt{guest, 1}));
}

TEST_F(LiveOnCells, NoJobIsStoppedWithoutConflictingClaim) {
    const JobId guest = submit_and_start(opportunistic(4));
    const JobId claimant = submit_and_start(job_with_gpus(4));
    tick(100);
    EXPECT_EQ(phase(guest), Phase::running);
    EXPECT_EQ(phase(claimant), Phase::running);
    EXPECT_THAT(engine.stops, IsEmpty());
}

// Nodes of two GPU types: "fast1" has faster GPUs than "slow1".
class LiveOnTwoTypes : public Live {
protected:
    LiveOnTwoTypes() {
        gpus = {.gpu_types = {"a100", "k80"}, .nodes = {{"fast1", 0, 4, true}, {"slow1", 1, 4, true}}};
        own_placer = [](const LiveOptions& options) -> std::unique_ptr<Placer> {
            CellConfig config{.hierarchies = {}, .virtual_clusters = {}};
            config.hierarchies.push_back(
                {.name = "fast", .gpu_type = "a100", .levels = {{"node", 4}}, .node_level = 1, .nodes = {"fast1"}});
            config.hierarchies.push_back(
                {.name = "slow", .gpu_type = "k80", .levels = {{"node", 4}}, .node_level = 1, .nodes = {"slow1"}});
            config.virtual_clusters.push_back({.name = "default", .cells = {{0, 1, 1}}, .pinned = {{1, 1, 0, "mine"}}});
            const std::vector<std::string> names{"default"};
            return std::move(*Cells::create(config, options.cluster, names));
        };
    }
};

TEST_F(LiveOnTwoTypes, GangThatNamesItsPlaceGetsItsType) {
    Submission asked = job_with_gpus(4);
    asked.ideal_by_type = {{"a100", 2e8}, {"k80", 1e8}};
    asked.shape.hierarchy = "slow";
    const JobId in_hierarchy = submit_and_start(asked);
    EXPECT_EQ(job(in_hierarchy).held->gpu_type, "k80");
    engine.tell_ended({in_hierarchy, 1}, 0);
    tick();
    asked.shape = {.cell = "mine"};
    const JobId in_cell = submit_and_start(asked);
    EXPECT_EQ(job(in_cell).held->gpu_type, "k80");
    asked.shape = {.pods = {3, 2}};
    asked.gpus = 5;
    const auto refused = try_submit(asked);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::no_space);
}

// One machine with four GPUs of one type, then four of another.
class LiveOnMixedMachine : public Live {
protected:
    LiveOnMixedMachine() {
        gpus = {.gpu_types = {"a100", "k80"},
                .nodes = {{.name = "n1", .gpu_type = 0, .gpus = 4},
                          {.name = "n1", .gpu_type = 1, .gpus = 4, .first_gpu = 4}}};
        own_placer = [](const LiveOptions& options) -> std::unique_ptr<Placer> {
            HierarchyConfig a100{
                .name = "a100", .gpu_type = "a100", .levels = {{"node", 4}}, .node_level = 1, .nodes = {"n1"}};
            HierarchyConfig k80 = a100;
            k80.name = k80.gpu_type = "k80";
            k80.first_gpu = 4;
            CellConfig config{.hierarchies = {a100, k80}, .virtual_clusters = {}};
            config.virtual_clusters.push_back({.name = "default", .cells = {{0, 1, 1}, {1, 1, 1}}, .pinned = {}});
            EXPECT_TRUE(check_cells(config, "test"));
            const std::vector<std::string> names{"default"};
            return std::move(*Cells::create(config, options.cluster, names));
        };
    }
    JobId run_on(const std::string& type, std::uint32_t wanted) {
        Submission asked = job_with_gpus(wanted);
        asked.gpu_type = type;
        return submit_and_start(asked);
    }
};

TEST_F(LiveOnMixedMachine, GpusAreNumberedAsTheMachineNumbersThem) {
    const JobId on_a100 = run_on("a100", 3);
    const JobId on_k80 = run_on("k80", 3);
    EXPECT_THAT(job(on_a100).held->gpus, ElementsAre(NamedGpus{"n1", 0b0000'0111}));
    EXPECT_THAT(job(on_k80).held->gpus, ElementsAre(NamedGpus{"n1", 0b0111'0000}));
    EXPECT_THAT(job(on_k80).held->cells, ElementsAre(NamedCell{"n1", 4, "node"}));
    EXPECT_EQ(engine.started.at(Attempt{on_k80, 1}).gpus, job(on_k80).held->gpus);
    restart();
    tick();
    for (const JobId id : {on_a100, on_k80}) {
        EXPECT_EQ(phase(id), Phase::running);
        EXPECT_FALSE(job(id).held->opportunistic);
    }
    EXPECT_THAT(engine.stops, IsEmpty());
    const JobId rest = run_on("k80", 1);
    EXPECT_THAT(job(rest).held->gpus, ElementsAre(NamedGpus{"n1", 0b1000'0000}));
}

TEST_F(LiveOnMixedMachine, AllGpusOfALostMachineAreUnusable) {
    engine.tell_node(EngineEvent::Kind::node_lost, "n1");
    tick();
    EXPECT_EQ(live->options().placer->free_gpus(0) + live->options().placer->free_gpus(1), 0U);
    EXPECT_THAT(queue_metrics(*live), HasSubstr("larder_queue_node_gpus{node=\"n1\"} 0"));
    engine.tell_node(EngineEvent::Kind::node_back, "n1");
    tick();
    EXPECT_EQ(live->options().placer->free_gpus(0) + live->options().placer->free_gpus(1), 8U);
    EXPECT_THAT(queue_metrics(*live), HasSubstr("larder_queue_node_gpus{node=\"n1\"} 8"));
}

// Tenants own pinned nodes, and a new file of cells may give the nodes other owners.
class LiveOnChangedCells : public Live {
protected:
    LiveOnChangedCells() {
        tenants = {{.name = "default"}, {.name = "small"}};
        own_placer = [this](const LiveOptions& options) -> std::unique_ptr<Placer> {
            HierarchyConfig hierarchy{
                .name = "h", .gpu_type = "a100", .levels = {{"node", 4}}, .node_level = 1, .nodes = {"n1", "n2"}};
            CellConfig config{.hierarchies = {hierarchy}, .virtual_clusters = {}};
            config.virtual_clusters.push_back(
                {.name = "default", .cells = {}, .pinned = {{0, 1, nodes_swapped ? 1U : 0U}}});
            config.virtual_clusters.push_back(
                {.name = "small", .cells = {}, .pinned = {{0, 1, nodes_swapped ? 0U : 1U}}});
            const std::vector<std::string> names{"default", "small"};
            return std::move(*Cells::create(config, options.cluster, names));
        };
    }
    bool nodes_swapped = false;
};

TEST_F(LiveOnChangedCells, JobWhoseCellsHaveANewOwnerRunsOnWithoutClaim) {
    for (const char* name : {"fifo", "tenant-fifo", "srtf"}) {
        policy = name;
        restart();
        const JobId id = submit_and_start(job_with_gpus(4));
        ASSERT_FALSE(job(id).held->opportunistic);
        nodes_swapped = true;
        restart();
        tick();
        EXPECT_EQ(phase(id), Phase::running) << name;
        EXPECT_TRUE(job(id).held->opportunistic) << name;
        EXPECT_THAT(engine.stops, IsEmpty()) << name;
        EXPECT_THAT(job(id).log.back().text, HasSubstr("loses its claim")) << name;
        // It holds up no other job of its tenant.
        const JobId other = submit_and_start(job_with_gpus(4));
        EXPECT_EQ(phase(id), Phase::running) << name;
        // The new owner takes its own cell.
        Submission owner = job_with_gpus(4);
        owner.tenant = "small";
        const JobId claimant = submit(owner);
        tick();
        EXPECT_EQ(phase(id), Phase::stopping) << name;
        EXPECT_EQ(phase(claimant), Phase::placed) << name;
        for (const JobId ending : {id, other, claimant}) ASSERT_TRUE(cancel(ending, "the test"));
        tick();
        for (const JobId ending : {id, other}) engine.tell_ended({ending, 1}, 0, true);
        tick();
        engine.stops.clear();
        nodes_swapped = false;
    }
}

// Four racks of two nodes. "default" owns a rack and a node, "small" a node.
class LiveOnRacks : public Live {
protected:
    LiveOnRacks() {
        gpus.nodes.clear();
        for (const char* name : {"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"})
            gpus.nodes.push_back({name, 0, 4, true});
        tenants = {{.name = "default"}, {.name = "small"}};
        own_placer = [](const LiveOptions& options) -> std::unique_ptr<Placer> {
            HierarchyConfig hierarchy{
                .name = "h", .gpu_type = "a100", .levels = {{"node", 4}, {"rack", 2}}, .node_level = 1, .nodes = {}};
            for (const GpuNode& node : options.cluster.nodes) hierarchy.nodes.push_back(node.name);
            CellConfig config{.hierarchies = {hierarchy}, .virtual_clusters = {}};
            config.virtual_clusters.push_back({.name = "default", .cells = {{0, 2, 1}, {0, 1, 1}}, .pinned = {}});
            config.virtual_clusters.push_back({.name = "small", .cells = {{0, 1, 1}}, .pinned = {}});
            EXPECT_TRUE(check_cells(config, "test"));
            const std::vector<std::string> names{"default", "small"};
            return std::move(*Cells::create(config, options.cluster, names));
        };
    }
    JobId run_job_of(const std::string& tenant) {
        Submission asked = job_with_gpus(4);
        asked.tenant = tenant;
        return submit_and_start(asked);
    }
    void end_job(JobId id) {
        engine.tell_ended({id, 1}, 0);
        tick();
    }
    std::string node_of(JobId id) const { return job(id).held->gpus.front().node; }
    // Runs one job that holds its node through its tenant's rack cell, and one through its tenant's node cell, in a
    // rack where another tenant has a node.
    void run_in_both_levels() {
        const JobId first = run_job_of("default");
        neighbour = run_job_of("small");
        in_rack = run_job_of("default");
        const JobId beside = run_job_of("default");
        end_job(first);
        on_node = run_job_of("default");
        end_job(beside);
        ASSERT_EQ(node_of(neighbour), "n1");
        ASSERT_EQ(node_of(in_rack), "n2");
        ASSERT_EQ(node_of(on_node), "n0");
    }

    JobId neighbour = 0;
    JobId in_rack = 0;
    JobId on_node = 0;
};

TEST_F(LiveOnRacks, EveryJobKeepsItsCellsAcrossRestart) {
    run_in_both_levels();
    restart();
    tick();
    for (const JobId id : {neighbour, in_rack, on_node}) EXPECT_EQ(phase(id), Phase::running) << id;
    EXPECT_THAT(engine.stops, IsEmpty());
}

TEST_F(LiveOnRacks, RecordsWithoutCellsAreAssignedInOrder) {
    run_in_both_levels();
    for (auto& [id, job] : record.jobs) {
        if (job->held) job->held->cells.clear();
    }
    restart();
    tick();
    EXPECT_EQ(phase(neighbour), Phase::running);
    EXPECT_EQ(phase(in_rack), Phase::running);
    EXPECT_EQ(phase(on_node), Phase::running);
    EXPECT_TRUE(job(on_node).held->opportunistic) << "its claim was given to the job before it";
}

}  // namespace
}  // namespace larder::scheduler
