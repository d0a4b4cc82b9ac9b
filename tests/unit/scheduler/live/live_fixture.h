#pragma once

// A scheduler of submitted jobs on a cluster of two nodes with 4 GPUs each. The test advances the clock. The engine
// runs no processes. The fixture keeps the scheduler's record, so that the scheduler can be restarted.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/cluster.h"
#include "scheduler/live/live_scheduler.h"
#include "scheduler/placement/free_pool.h"
#include "tests/unit/scheduler/live/memory_engine.h"

namespace larder::scheduler {

class Live : public ::testing::Test {
protected:
    void SetUp() override { restart(); }

    // Restarts the scheduler from its record, as a new process would.
    void restart() {
        LiveOptions options{.cluster = gpus,
                            .tenants = tenants,
                            .submit_rules = submit_rules,
                            .policy = std::move(make_policy(policy, {}).value()),
                            .history_max = history_max,
                            .queue_bytes_max = queue_bytes_max,
                            .start_timeout_s = start_timeout_s};
        if (own_policy) options.policy = own_policy();
        options.placer = std::make_unique<FreePool>(options.cluster);
        if (own_placer) options.placer = own_placer(options);
        live = std::make_unique<LiveScheduler>(std::move(options), engine, cluster,
                                               [this](const LiveRecord& change, const LiveScheduler::Done& saved) {
                                                   if (disk_is_slow) {
                                                       unwritten.emplace_back(change, saved);
                                                   } else {
                                                       saved(save(change));
                                                   }
                                               });
        live->restore(record, now());
    }
    // Completes the pending writes, in order.
    void write_all() {
        for (const auto& [change, saved] : std::exchange(unwritten, {})) saved(save(change));
    }
    Result<void> save(const LiveRecord& change) {
        if (own_save) return own_save(change);
        return saving_fails ? disk_is_full() : put_on_record(change);
    }
    static Result<void> disk_is_full() { return fail(ErrorCode::no_space, "the disk is full"); }
    Result<void> put_on_record(const LiveRecord& change) {
        for (const auto& [id, job] : change.jobs) {
            if (job) {
                record.jobs.insert_or_assign(id, job);
            } else {
                record.jobs.erase(id);
            }
        }
        for (const auto& [tenant, use] : change.tenants) record.tenants[tenant] = use;
        for (const auto& [name, drain] : change.drains) record.drains.insert_or_assign(name, drain);
        for (const auto& [name, node] : change.nodes) {
            if (node) {
                record.nodes.insert_or_assign(name, node);
            } else {
                record.nodes.erase(name);
            }
        }
        if (!change.gpu_types.empty()) record.gpu_types = change.gpu_types;
        return {};
    }

    Moment now() const { return {.unix_s = now_s, .steady_ns = static_cast<std::int64_t>(now_s * 1e9)}; }
    // Selects a policy under which a shorter job takes the GPUs of a longer one.
    void use_shortest_first() {
        policy = "srtf";
        restart();
        report("", 0);
    }
    void tick(double seconds = 1) {
        now_s += seconds;
        live->tick(now());
        expect_indices();
    }

    static Submission job_with_gpus(std::uint32_t gpus, const std::string& name = "") {
        return {.name = name, .command = {"train", name}, .directory = "/", .gpus = gpus};
    }
    // Returns a job on all GPUs that reads "images" for `epochs`.
    static Submission job_reading_images(const std::string& name, double epochs) {
        Submission asked = job_with_gpus(8, name);
        asked.dataset = "images";
        asked.epochs = epochs;
        asked.ideal_by_type[""] = 5e5;
        return asked;
    }
    JobId submit(Submission job) {
        const auto ids = try_submit(job);
        EXPECT_TRUE(ids) << ids.error().message;
        return ids ? ids->front() : 0;
    }
    // Returns `cancelled` if there is no answer yet.
    Result<std::vector<JobId>> try_submit(const Submission& job) {
        const auto answer = std::make_shared<Result<std::vector<JobId>>>(fail(ErrorCode::cancelled, "no answer yet"));
        live->submit(std::span(&job, 1), submitter, now(),
                     [answer](const Result<std::vector<JobId>>& ids) { *answer = ids; });
        return *answer;
    }
    Result<void> cancel(JobId id, const std::string& by) {
        const auto answer = std::make_shared<Result<void>>(fail(ErrorCode::cancelled, "no answer yet"));
        live->cancel(id, by, now(), [answer](const Result<void>& done) { *answer = done; });
        return *answer;
    }
    const JobRecord& job(JobId id) const { return live->queue().jobs().at(id); }
    Phase phase(JobId id) const { return job(id).phase; }
    std::string why(JobId id) const { return live->why(job(id), now()).text; }
    std::string_view binding(JobId id) const { return live->why(job(id), now()).binding; }
    void expect_indices() {
        std::vector<const JobRecord*> active;
        std::vector<const JobRecord*> holders;
        for (const auto& [id, job] : live->queue().jobs()) {
            if (has_ended(job.phase)) continue;
            active.push_back(&job);
            if (job.phase != Phase::waiting) holders.push_back(&job);
        }
        EXPECT_TRUE(std::ranges::equal(live->queue().active().records(), active));
        EXPECT_TRUE(std::ranges::equal(live->queue().holders().records(), holders));
        EXPECT_TRUE(std::ranges::equal(live->queue().holders(), holders, {}, {}, &JobRecord::id));
    }
    // Submits a job and ticks until the engine has started it.
    JobId submit_and_start(Submission asked) {
        const JobId id = submit(std::move(asked));
        tick();
        engine.tell(EngineEvent::Kind::started, {id, 1});
        tick();
        EXPECT_EQ(phase(id), Phase::running);
        return id;
    }
    // Makes the daemon of node "n1" report that it caches part of "images" and has read `bytes` for `job`. An empty
    // `job` reports no job.
    void report(const std::string& job, std::uint64_t bytes, std::optional<std::uint32_t> user = {}) {
        allocator::NodeReport report{
            .node = "n1",
            .instance = 1,
            .memory_bytes = 1'000'000,
            .datasets = {{.name = "images", .size_bytes = 1'000'000, .cached_memory_bytes = 400'000}}};
        if (!job.empty()) report.jobs.push_back({.name = job, .dataset = "images", .bytes = bytes, .user = user});
        ASSERT_TRUE(cluster.report(report, now().steady_ns));
        ASSERT_TRUE(cluster.replan(now().steady_ns));
    }

    double now_s = 1'000'000;
    GpuCluster gpus{.gpu_types = {"a100"}, .nodes = {{"n1", 0, 4, true}, {"n2", 0, 4, true}}};
    std::vector<Tenant> tenants{{.name = "default"}, {.name = "small", .gpu_quota = 2}};
    std::vector<SubmitRule> submit_rules;  // of the tenants; empty: all are open
    Submitter submitter{.uid = {}, .name = "ci", .is_operator = false};
    std::string policy = "fifo";
    std::function<std::unique_ptr<Policy>()> own_policy;  // used instead of `policy` if set
    std::function<std::unique_ptr<Placer>(const LiveOptions&)> own_placer;
    std::function<Result<void>(const LiveRecord&)> own_save;  // used instead of the record if set
    std::size_t history_max = 100;
    std::uint64_t queue_bytes_max = JobQueue::kBytesMax;
    double start_timeout_s = 0;
    bool saving_fails = false;
    bool disk_is_slow = false;
    std::vector<std::pair<LiveRecord, LiveScheduler::Done>> unwritten;  // while the disk is slow
    LiveRecord record;
    MemoryEngine engine;
    allocator::Cluster cluster{{.remote_bytes_per_second = 1e6}};
    std::unique_ptr<LiveScheduler> live;
};

}  // namespace larder::scheduler
