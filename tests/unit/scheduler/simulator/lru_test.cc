#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "allocator/model.h"
#include "scheduler/simulator/cache_system.h"
#include "scheduler/simulator/data_plane.h"
#include "tests/oracle/lru_blocks.h"

namespace larder::scheduler {
namespace {

using oracle::LruBlocks;

// Returns the hit ratios of the jobs by the closed form.
std::vector<double> predicted_hit_ratios(double capacity, const std::vector<LruBlocks::Job>& jobs) {
    std::vector<SimulatedReader> readers(jobs.size());
    std::vector<Store> stores;
    stores.reserve(jobs.size());
    for (std::size_t j = 0; j < jobs.size(); ++j) {
        readers[j].rate = static_cast<double>(jobs[j].rate);
        readers[j].first_epoch = false;
        auto store = std::ranges::find(stores, jobs[j].dataset, &Store::dataset);
        if (store == stores.end()) {
            stores.push_back({.dataset = jobs[j].dataset, .size_bytes = static_cast<double>(jobs[j].blocks)});
            store = stores.end() - 1;
        }
        store->readers.push_back(&readers[j]);
    }
    std::vector<Store*> all;
    for (Store& store : stores) all.push_back(&store);
    set_lru_hits(all, capacity);
    std::vector<double> hits;
    for (const SimulatedReader& reader : readers) hits.push_back(reader.hit_ratio);
    return hits;
}

void expect_near_blocks(std::size_t capacity, const std::vector<LruBlocks::Job>& jobs, double tolerance) {
    LruBlocks blocks(capacity, jobs);
    std::size_t slowest = 0;
    for (const auto& job : jobs) slowest = std::max(slowest, job.blocks / job.rate);
    blocks.run(3 * slowest, false);
    blocks.run(12 * slowest, true);
    const auto expected = predicted_hit_ratios(static_cast<double>(capacity), jobs);
    for (std::size_t j = 0; j < jobs.size(); ++j) {
        EXPECT_NEAR(blocks.jobs()[j].hits / blocks.jobs()[j].reads, expected[j], tolerance) << "job " << j;
    }
}

TEST(Lru, OneJobMatchesClosedForm) {
    for (const double k : {0.1, 0.25, 0.5, 0.75, 0.9}) {
        const auto hits = predicted_hit_ratios(k * 10000, {{.blocks = 10000}});
        EXPECT_NEAR(hits[0], allocator::lru_hit_ratio(k), 1e-6);
        expect_near_blocks(static_cast<std::size_t>(k * 10000), {{.blocks = 10000}}, 0.01);
    }
}

TEST(Lru, JobsOnOwnDatasetsShareByRate) {
    expect_near_blocks(8000, {{.dataset = 0, .blocks = 8000, .rate = 4}, {.dataset = 1, .blocks = 8000, .rate = 1}},
                       0.06);
    expect_near_blocks(6000, {{.dataset = 0, .blocks = 3000, .rate = 1}, {.dataset = 1, .blocks = 9000, .rate = 2}},
                       0.06);
}

TEST(Lru, JobsOnOneDatasetHitBlocksThatOthersRead) {
    expect_near_blocks(3000, {{.blocks = 10000, .rate = 2}, {.blocks = 10000, .rate = 3}}, 0.04);
    expect_near_blocks(5000, {{.blocks = 10000}, {.blocks = 10000}, {.blocks = 10000, .rate = 3}}, 0.05);
}

// Predicts the hit ratio of jobs that take turns. In its turn, a job reads one block a second from its own dataset.
double predicted_in_turns(double capacity, std::size_t jobs, double blocks, double turn_s) {
    std::vector<SimulatedReader> readers(jobs);
    std::vector<Store> stores(jobs);
    std::vector<Store*> all;
    for (std::size_t j = 0; j < jobs; ++j) {
        stores[j].size_bytes = blocks;
        readers[j] = {.remaining_bytes = 1e9, .first_epoch = false};
        all.push_back(&stores[j]);
    }
    double now_s = 0;
    double hits = 0;
    double reads = 0;
    const double settled_s = 8 * blocks * static_cast<double>(jobs) + 8 * turn_s;
    for (std::size_t turn = 0; now_s < 3 * settled_s; ++turn) {
        Store& store = stores[turn % jobs];
        SimulatedReader& reader = readers[turn % jobs];
        std::erase(store.paused, &reader);
        store.readers = {&reader};
        begin_turn(reader, now_s);
        constexpr int kSteps = 32;
        for (int step = 0; step < kSteps; ++step) {
            reader.rate = 1;
            set_lru_hits(all, capacity, now_s);
            now_s += turn_s / kSteps;
            reader.remaining_bytes -= turn_s / kSteps;
            if (now_s < settled_s) continue;
            hits += reader.hit_ratio * turn_s / kSteps;
            reads += turn_s / kSteps;
        }
        end_turn(reader, now_s);
        store.readers.clear();
        store.paused = {&reader};
    }
    return hits / reads;
}

TEST(Lru, JobThatTakesTurnsHitsBlocksThatOthersLeft) {
    struct Case {
        double capacity = 0;  // as a multiple of a dataset
        std::size_t jobs = 2;
        double turn = 0;  // in epochs
    };
    // Turns of exactly an epoch are left out: each would begin where the job's last turn ended, which the prediction
    // does not model.
    for (const Case& one : {Case{1, 2, 0.05}, Case{1, 2, 0.5}, Case{1, 2, 3}, Case{2.5, 3, 0.1}, Case{2.5, 3, 0.9},
                            Case{2, 4, 0.2}, Case{3, 4, 2}, Case{0.5, 2, 5}, Case{3.5, 3, 1}}) {
        constexpr std::size_t kBlocks = 4000;
        const auto capacity = static_cast<std::size_t>(one.capacity * kBlocks);
        const auto reads = static_cast<std::size_t>(one.turn * kBlocks);
        std::vector<LruBlocks::Job> jobs;
        for (std::uint32_t j = 0; j < one.jobs; ++j) jobs.push_back({.dataset = j, .blocks = kBlocks});
        LruBlocks blocks(capacity, jobs);
        const std::size_t turns = std::max<std::size_t>(20, 40 * kBlocks / reads);
        blocks.take_turns(turns / 2, reads, false);
        blocks.take_turns(turns, reads, true);
        double hits = 0;
        double all = 0;
        for (const auto& job : blocks.jobs()) hits += job.hits, all += job.reads;
        const double expected =
            predicted_in_turns(static_cast<double>(capacity), one.jobs, kBlocks, one.turn * kBlocks);
        EXPECT_NEAR(hits / all, expected, 0.06)
            << one.jobs << " jobs, cache " << one.capacity << ", turns of " << one.turn;
    }
}

// From an empty cache on, quarter epoch by quarter epoch of the first job.
TEST(Lru, FollowedReadersHitAsBlocksDoFromTheFirstByteOn) {
    const std::vector<LruBlocks::Job> jobs{{.dataset = 0, .blocks = 8000, .rate = 2},
                                           {.dataset = 0, .blocks = 8000, .rate = 1},
                                           {.dataset = 1, .blocks = 16000, .rate = 1}};
    constexpr std::size_t kCapacity = 14000;
    LruBlocks blocks(kCapacity, jobs);
    std::vector<Store> stores{{.dataset = 0, .size_bytes = 8000}, {.dataset = 1, .size_bytes = 16000}};
    std::vector<SimulatedReader> readers(jobs.size());
    for (std::size_t j = 0; j < jobs.size(); ++j) {
        readers[j] = {.remaining_bytes = 1e9, .rate = static_cast<double>(jobs[j].rate)};
        stores[jobs[j].dataset].readers.push_back(&readers[j]);
        readers[j].unread_bytes = static_cast<double>(jobs[j].blocks - blocks.jobs()[j].next);
        begin_turn(readers[j], 0);
    }
    Store* const all[] = {&stores[0], &stores[1]};
    constexpr std::size_t kRounds = 1000;
    constexpr std::size_t kStep = 50;
    std::vector<double> hits_before(jobs.size());
    for (std::size_t now = 0; now < 24 * kRounds;) {
        std::vector<double> predicted(jobs.size());
        for (std::size_t step = 0; step < kRounds; step += kStep, now += kStep) {
            const auto now_s = static_cast<double>(now);
            for (SimulatedReader& reader : readers) {
                if (now > 0) end_turn(reader, now_s);
                begin_turn(reader, now_s);
            }
            set_lru_hits(all, kCapacity, now_s, true);
            for (std::size_t j = 0; j < jobs.size(); ++j) {
                const double bytes = readers[j].rate * kStep;
                predicted[j] += readers[j].hit_ratio * bytes;
                readers[j].remaining_bytes -= bytes;
                readers[j].unread_bytes -= bytes;
                if (readers[j].unread_bytes > 0) continue;
                readers[j].first_epoch = false;
                begin_epoch(stores[jobs[j].dataset], readers[j]);
            }
        }
        blocks.run(kRounds, true);
        for (std::size_t j = 0; j < jobs.size(); ++j) {
            const double hits = blocks.jobs()[j].hits - std::exchange(hits_before[j], blocks.jobs()[j].hits);
            const double reads = readers[j].rate * kRounds;
            EXPECT_NEAR(hits / reads, predicted[j] / reads, 0.04) << "job " << j << ", until round " << now;
        }
    }
}

TEST(Lru, AbsentJobLosesItsCache) {
    const GpuCluster cluster{.gpu_types = {"a"}, .nodes = {{"n", 0, 8, true}}};
    const std::vector<DatasetState> datasets{{"d", 1e9}};
    const SimulationOptions options{.cache = *parse_cache("lru", ""),
                                    .storage = {.cache_bytes = 5e8, .remote_bytes_per_second = 1e8}};
    DataPlane data(options, datasets, cluster);
    const JobSpec spec{.ideal_bytes_per_second = {1e8}, .dataset = 0, .total_bytes = 5e9};
    SimulatedJob job;
    job.state.spec = &spec;
    job.state.gpus = 1;
    job.ideal_rate_unshared = 1e8;
    job.reader.remaining_bytes = spec.total_bytes;
    SimulatedJob* const running[] = {&job};
    std::vector<JobOutcome> outcomes(1);
    data.start(job, 0, 0);
    ASSERT_TRUE(data.plan(0, running, {}));
    data.advance(5, running, outcomes);
    data.stop(job, false, 5);
    ASSERT_TRUE(data.plan(5, {}, {}));
    EXPECT_GT(data.cached_bytes(0), 0) << "the job may come back";
    data.forget(job);
    ASSERT_TRUE(data.plan(5, {}, {}));
    EXPECT_EQ(data.cached_bytes(0), 0);
}

TEST(Lru, EverythingHitsWhenEverythingFits) {
    const auto hits = predicted_hit_ratios(100, {{.dataset = 0, .blocks = 40}, {.dataset = 1, .blocks = 50}});
    EXPECT_DOUBLE_EQ(hits[0], 1);
    EXPECT_DOUBLE_EQ(hits[1], 1);
}

TEST(Lru, FirstEpochHasNoOwnHits) {
    SimulatedReader reader{.rate = 1};
    Store store{.size_bytes = 10, .readers = {&reader}};
    Store* const all[] = {&store};
    set_lru_hits(all, 100);
    EXPECT_DOUBLE_EQ(reader.hit_ratio, 0);
}

}  // namespace
}  // namespace larder::scheduler
