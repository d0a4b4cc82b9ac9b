#include "scheduler/live/history_store.h"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/server/lmdb_rows.h"
#include "scheduler/engines/attempt_files.h"
#include "scheduler/engines/local_engine.h"
#include "scheduler/live/json.h"
#include "tests/support/temp_directory.h"

namespace larder::scheduler {
namespace {

const std::vector<std::string> kTypes{"a100", "k80"};

JobRecord full_record() {
    JobRecord job{.id = 12,
                  .asked = {.name = "resnet",
                            .command = {"python", "train.py"},
                            .directory = "/work",
                            .environment = {{"SEED", "7"}},
                            .user = RunAs{1000, 100},
                            .tenant = "vision",
                            .gpus = 4,
                            .gpus_min = 2,
                            .gpus_max = 8,
                            .gpu_type = "k80",
                            .dataset = "images",
                            .epochs = 2.5,
                            .ideal_by_type = {{"", 1e8}, {"k80", 3e7}},
                            .priority = -3,
                            .deadline_s = 2e9,
                            .service = ServiceClass::soft_deadline,
                            .after = {"prepare"},
                            .grace_s = 5,
                            .preemptible = false,
                            .opportunistic = true,
                            .elastic = true,
                            .weight = 2,
                            .restart_s = 30,
                            .packed_rate = 0.5,
                            .gpu_memory_part = 0.25,
                            .scaling = {0.5, 0.75, 1, 1.2, 1.4, 1.5, 1.6},
                            .rate_by_nodes = {1, 0.9},
                            .shape = {.pods = {3, 1}, .hierarchy = "ib", .together = "rack", .cell = "fast"}},
                  .after = {3, 4},
                  .dataset_bytes = 1'000'000,
                  .phase = Phase::stopping,
                  .stop_cause = StopCause::moved,
                  .attempt = 3,
                  .held = Allotment{{{"n1", 0b11}, {"n2", std::uint64_t{1} << 63}}, 3, "k80", true, 9},
                  .next = Allotment{{{"n3", 1}}, 1, "a100"},
                  .last = Allotment{{{"n1", 0b110}}, 2, "k80"},
                  .devices = {{"n1", {"0", "GPU-7"}}, {"n2", {"3"}}},
                  .last_ideal = 2e7,
                  .registered = true,
                  .submitted_s = 1.5e9,
                  .lost = 2,
                  .pending_for = "no image",
                  .rejected = 3,
                  .not_before_s = 1.5e9 + 7,
                  .read_bytes = 123456,
                  .counted = {{"n1", {77, 1000}}},
                  .exit_signal = 9,
                  .end_reason = "killed"};
    job.state.waiting_since_s = 1.5e9 + 1;
    job.state.started_s = 1.5e9 + 2;
    job.state.first_started_s = 1.5e9 + 3;
    job.state.attained_gpu_s = 17;
    job.state.ran_s = 5;
    job.state.ran_s_by_type = {1, 4};
    job.state.recent_run_s_by_type = {0.5, 2};
    job.state.recent_run_at_s = 1.5e9 + 9;
    job.state.lease_until_s = 1.6e9;
    job.state.admitted_s = 1.5e9 + 4;
    job.state.promised = {.gpu_type = 1, .spans = {{1.5e9 + 10, 1.5e9 + 20}, {1.5e9 + 30, 1.5e9 + 40.5}}};
    job.state.preemptions = 4;
    add_log(job, 1.5e9, "submitted");
    return job;
}

Result<void> save(HistoryStore& store, const LiveRecord& change) {
    std::promise<Result<void>> written;
    store.save(change, [&](const Result<void>& result) { written.set_value(result); });
    return written.get_future().get();
}

LiveRecord with_job(JobId id) {
    LiveRecord change;
    change.jobs[id] = full_record();
    change.jobs[id]->id = id;
    return change;
}

TEST(HistoryStore, RecordOfAResizedJobIsUnchangedByRoundTrip) {
    for (const bool is_resizing : {false, true}) {
        JobRecord job = full_record();
        job.phase = Phase::running;
        job.stop_cause = StopCause::none;
        job.resizes = 7;
        job.is_resizing = is_resizing;
        job.resize_s = is_resizing ? 1.5e9 : 0;
        const JobRecord back = job_of_row(row_json(job, kTypes), kTypes);
        EXPECT_EQ(back.next, job.next);
        EXPECT_EQ(back.resizes, 7U);
        EXPECT_EQ(back.is_resizing, is_resizing);
        EXPECT_EQ(back.resize_s, job.resize_s);
    }
}

// A release that knows no resizes reads what the job holds, and gives all else to others.
TEST(HistoryStore, RecordOfAGrowingJobHoldsAllItsGpusForOlderReleases) {
    JobRecord job = full_record();
    job.phase = Phase::running;
    job.stop_cause = StopCause::none;
    job.held = Allotment{.gpus = {{"n1", 0xf}}, .count = 4, .gpu_type = "a100", .cells = {}};
    job.next = Allotment{.gpus = {{"n1", 0xf}, {"n2", 0xf}}, .count = 8, .gpu_type = "a100", .cells = {}};
    job.resizes = 1;
    job.is_resizing = true;
    job.may_lack_nodes = true;
    job.is_resizable = true;
    job.refused_growths = 2;
    job.grow_not_before_s = 1.5e9;
    const boost::json::object row = row_json(job, kTypes);
    EXPECT_EQ(row.at("holds").at("gpus").to_number<int>(), 8);
    const JobRecord back = job_of_row(row, kTypes);
    EXPECT_EQ(back.held, job.held);
    EXPECT_EQ(back.next, job.next);
    EXPECT_TRUE(back.may_lack_nodes);
    EXPECT_TRUE(back.is_resizable);
    EXPECT_EQ(back.refused_growths, 2U);
    EXPECT_EQ(back.grow_not_before_s, 1.5e9);
}

TEST(HistoryStore, RecordIsUnchangedByRoundTrip) {
    const boost::json::object row = row_json(full_record(), kTypes);
    const JobRecord back = job_of_row(row, kTypes);
    EXPECT_EQ(boost::json::serialize(row_json(back, kTypes)), boost::json::serialize(row));
    EXPECT_EQ(back.asked.user, full_record().asked.user);
    EXPECT_EQ(back.held, full_record().held);
    EXPECT_EQ(back.next, full_record().next);
    EXPECT_EQ(back.last, full_record().last);
    EXPECT_EQ(back.last_ideal, full_record().last_ideal);
    EXPECT_EQ(back.pending_for, "no image");
    EXPECT_EQ(back.devices, full_record().devices);
    EXPECT_EQ(back.rejected, 3u);
    EXPECT_EQ(back.not_before_s, 1.5e9 + 7);
    EXPECT_TRUE(back.asked.elastic);
    EXPECT_EQ(back.asked.ideal_by_type, full_record().asked.ideal_by_type);
    EXPECT_EQ(back.counted.at("n1").bytes, 1000u);
    EXPECT_EQ(back.state.ran_s_by_type, full_record().state.ran_s_by_type);
    EXPECT_EQ(back.state.promised, full_record().state.promised);
    // GPU types may be listed in another order later.
    const std::vector<std::string> others{"h100", "k80", "a100"};
    EXPECT_EQ(job_of_row(row, others).state.ran_s_by_type, (std::vector<double>{0, 4, 1}));
}

TEST(HistoryStore, PublicJsonHasNoEnvironment) {
    EXPECT_FALSE(to_json(full_record()).contains("environment"));
    EXPECT_TRUE(row_json(full_record(), kTypes).contains("environment"));
}

TEST(HistoryStore, SavedRecordIsFound) {
    const test::TempDirectory directory;
    {
        const auto store = HistoryStore::open({.directory = directory / "state", .gpu_types = kTypes}).value();
        JobRecord second = full_record();
        second.id = 13;
        LiveRecord change{.jobs = {}, .tenants = {{"vision", {.interval = 5, .gpu_s_by_interval = {1, 2}}}}};
        change.jobs[12] = full_record();
        change.jobs[13] = second;
        ASSERT_TRUE(save(*store, change));
        LiveRecord forgotten;
        forgotten.jobs[12] = std::nullopt;
        ASSERT_TRUE(save(*store, forgotten));
    }
    const auto store = HistoryStore::open({.directory = directory / "state", .gpu_types = kTypes}).value();
    ASSERT_EQ(store->found().jobs.size(), 1u);
    EXPECT_EQ(store->found().jobs.at(13)->asked.name, "resnet");
    EXPECT_EQ(store->found().tenants.at("vision"), (GpuTime{.interval = 5, .gpu_s_by_interval = {1, 2}}));
}

TEST(HistoryStore, NodesOfTheClusterManagerAndTheirTypesAreFound) {
    const test::TempDirectory directory;
    const auto open = [&](const std::vector<std::string>& types) {
        return HistoryStore::open({.directory = directory / "state", .gpu_types = types}).value();
    };
    const KnownNode node{{.gpus = 8, .gpu_type = "k80", .labels = {{"rack", "r1"}}}, false};
    {
        const auto store = open({"gpu"});
        LiveRecord change = with_job(12);
        change.jobs[12]->state.ran_s_by_type = {1, 2, 4};
        change.nodes = {{"n1", node}, {"n2", node}};
        change.gpu_types = {"gpu", "a100", "k80"};
        ASSERT_TRUE(save(*store, change));
        LiveRecord removed;
        removed.nodes["n2"] = std::nullopt;
        ASSERT_TRUE(save(*store, removed));
    }
    const auto store = open({"gpu"});
    EXPECT_EQ(store->found().nodes.size(), 1u);
    EXPECT_EQ(*store->found().nodes.at("n1"), node);
    EXPECT_FALSE(store->found().nodes.at("n1")->usable);
    EXPECT_EQ(store->found().gpu_types, (std::vector<std::string>{"gpu", "k80"}));
    EXPECT_EQ(store->found().jobs.at(12)->state.ran_s_by_type, (std::vector<double>{1, 4})) << "a100 has gone";
}

TEST(HistoryStore, DrainedNodesAreFoundUntilTheyAreTakenBack) {
    const test::TempDirectory directory;
    const auto open = [&] { return HistoryStore::open({.directory = directory / "state", .gpu_types = {}}).value(); };
    const NodeDrain drain{.by = "ops", .since_s = 1.5e9};
    {
        const auto store = open();
        LiveRecord change;
        change.drains = {{"n1", drain}, {"n2", drain}};
        ASSERT_TRUE(save(*store, change));
        LiveRecord taken_back;
        taken_back.drains["n2"] = std::nullopt;
        ASSERT_TRUE(save(*store, taken_back));
    }
    const auto store = open();
    ASSERT_EQ(store->found().drains.size(), 1u);
    EXPECT_EQ(*store->found().drains.at("n1"), drain);
}

TEST(HistoryStore, QueueKeepsItsIdentityAndNewQueueHasAnother) {
    const test::TempDirectory directory;
    const auto open = [&] {
        return HistoryStore::open({.directory = directory / "state", .gpu_types = kTypes}).value();
    };
    const std::string first = open()->identity();
    EXPECT_THAT(first, testing::MatchesRegex("q-[0-9a-f]{16}"));
    EXPECT_EQ(open()->identity(), first);
    std::filesystem::remove_all(directory / "state/queue");
    EXPECT_NE(open()->identity(), first);
}

TEST(HistoryStore, NumberOfForgottenJobIsNotReused) {
    const test::TempDirectory directory;
    const auto open = [&] {
        return HistoryStore::open({.directory = directory / "state", .gpu_types = kTypes}).value();
    };
    {
        const auto store = open();
        ASSERT_TRUE(save(*store, with_job(12)));
        LiveRecord forgotten;
        forgotten.jobs[12] = std::nullopt;
        ASSERT_TRUE(save(*store, forgotten));
    }
    EXPECT_EQ(open()->found().last_number, 12u);
    std::filesystem::remove_all(directory / "state/queue");
    EXPECT_GE(open()->found().last_number, 12u) << "the queue is lost";
}

// Rows that several allocators share.
struct SharedRows {
    struct Opened final : RowStore {
        explicit Opened(SharedRows& given) : shared(given) {}
        bool is_new() const override { return shared.rows.empty(); }
        std::size_t rows_at_once() const override { return 4; }
        std::size_t bytes_at_once() const override { return std::size_t{1} << 20; }
        Result<void> write(std::span<const Row> changed) override {
            if (shared.may_write.valid()) shared.may_write.wait();
            shared.most_rows = std::max(shared.most_rows, changed.size());
            for (const Row& row : changed) {
                shared.rows.erase(row.key);
                if (row.text) shared.rows[row.key] = *row.text;
            }
            return {};
        }
        SharedRows& shared;
    };
    std::unique_ptr<HistoryStore> open() {
        return HistoryStore::open(
                   {.directory = "",
                    .shared_rows = [this](const RowStoreOptions& options) -> Result<std::unique_ptr<RowStore>> {
                        for (const auto& [key, text] : rows) {
                            if (auto taken = options.take(key, text); !taken) return std::unexpected(taken.error());
                        }
                        return std::make_unique<Opened>(*this);
                    },
                    .gpu_types = kTypes})
            .value();
    }

    std::map<std::string, std::string> rows;
    std::size_t most_rows = 0;           // of a write
    std::shared_future<void> may_write;  // writes wait for it, if there is one
};

TEST(HistoryStore, ChangesWrittenTogetherHaveAsManyRowsAsTheStoreTakesAtOnce) {
    SharedRows shared;
    const auto store = shared.open();
    shared.most_rows = 0;
    std::promise<void> may_write;
    shared.may_write = may_write.get_future().share();
    std::promise<void> all_written;
    for (JobId id = 1; id <= 9; ++id) {
        store->save(with_job(id), [&, id](const Result<void>& written) {
            EXPECT_TRUE(written);
            if (id == 9) all_written.set_value();
        });
    }
    may_write.set_value();
    all_written.get_future().wait();
    EXPECT_EQ(shared.most_rows, 4u) << "two changes of a job and the highest number";
    EXPECT_EQ(shared.rows.size(), 11u);
}

TEST(HistoryStore, MoveOfALostQueueKeepsItsNumbers) {
    const test::TempDirectory directory;
    const std::string state = directory / "state";
    EXPECT_FALSE(HistoryStore::read_to_move(state).value().queue);
    EXPECT_FALSE(std::filesystem::exists(state));
    {
        const auto store = HistoryStore::open({.directory = state, .gpu_types = kTypes}).value();
        ASSERT_TRUE(save(*store, with_job(12)));
    }
    const auto moved = [&] {
        SharedRows shared;
        const auto found = HistoryStore::read_to_move(state);
        EXPECT_TRUE(found) << found.error().message;
        for (const Row& row : found.value().queue->rows) shared.rows[row.key] = *row.text;
        const auto store = shared.open();
        return std::pair(store->found().last_number, store->found().jobs.size());
    };
    EXPECT_EQ(moved(), std::pair(JobId{12}, std::size_t{1}));
    const auto begin_version_1 = [&] {
        auto rows = open_lmdb_rows({.directory = state + "/queue",
                                    .database = "jobs",
                                    .noun = "queue",
                                    .program = "test",
                                    .take = [](std::string_view, std::string_view) -> Result<void> { return {}; },
                                    .lost = {}});
        ASSERT_TRUE(rows) << rows.error().message;
    };
    std::filesystem::remove_all(state + "/queue");
    EXPECT_EQ(moved(), std::pair(JobId{112}, std::size_t{0})) << "so many numbers may have been acknowledged";
    begin_version_1();
    EXPECT_EQ(moved(), std::pair(JobId{112}, std::size_t{0})) << "rows of version 1 have no numbers";
    std::ofstream(state + "/job-numbers") << "many\n";
    EXPECT_EQ(HistoryStore::read_to_move(state).error().code, ErrorCode::corrupt);
}

TEST(HistoryStore, NewQueueStartsAboveNumbersSeen) {
    const test::TempDirectory directory;
    const auto store =
        HistoryStore::open({.directory = directory / "state", .gpu_types = kTypes, .number_seen = 7}).value();
    EXPECT_EQ(store->found().last_number, 7u);
    EXPECT_EQ(store->first_number(), 8u);
}

// Jobs are submitted beside the files of earlier attempts: of this queue, of a queue that was lost, and of a version
// without queue identities. Each job must run, and end as it ends itself.
TEST(HistoryStore, NewJobTakesNoResultOfAnOldAttempt) {
    const std::vector<std::vector<std::string>> losses{
        {}, {"job-numbers"}, {"queue"}, {"queue", "job-numbers"}, {"queue", "job-numbers", "queue.lock"}};
    for (const auto& lost : losses) {
        const test::TempDirectory directory;
        const std::string state = directory / "state";
        const std::string jobs = state + "/jobs";
        // Runs a new job to its end. Returns its number.
        const auto run = [&](int exit_code) {
            const auto store =
                HistoryStore::open({.directory = state, .gpu_types = kTypes, .number_seen = highest_job_number(jobs)})
                    .value();
            const JobId id = store->found().last_number + 1;
            EXPECT_TRUE(save(*store, with_job(id)));
            const auto engine = LocalEngine::open({.directory = jobs,
                                                   .queue = store->identity(),
                                                   .first = store->first_number(),
                                                   .runner = LARDER_RUNNER_PROGRAM})
                                    .value();
            engine->start({.job = id,
                           .attempt = 1,
                           .command = {"sh", "-c", "exit " + std::to_string(exit_code)},
                           .directory = "/"});
            for (;;) {
                for (const EngineEvent& event : engine->poll()) {
                    if (event.kind == EngineEvent::Kind::started) continue;
                    EXPECT_EQ(event.kind, EngineEvent::Kind::ended) << event.message;
                    EXPECT_EQ(event.exit_code, exit_code) << "job " << id;
                    return id;
                }
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
        };
        const AttemptFiles oldest(jobs + "/41/1");
        ASSERT_TRUE(oldest.claim({.pid = 1, .boot = "b"}));
        ASSERT_TRUE(oldest.write_exit({.code = 5}));
        const JobId first = run(3);
        EXPECT_GT(first, 41u) << "the number is that of an old job";
        for (const std::string& name : lost) std::filesystem::remove_all(state + "/" + name);
        EXPECT_GT(run(4), first);
        EXPECT_GT(run(0), first + 1);
    }
}

TEST(HistoryStore, NumberFileWithoutNumberIsRefused) {
    const test::TempDirectory directory;
    std::filesystem::create_directories(directory / "state");
    std::ofstream(directory / "state/job-numbers") << "many\n";
    const auto refused = HistoryStore::open({.directory = directory / "state", .gpu_types = kTypes});
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, testing::HasSubstr("job-numbers"));
}

TEST(HistoryStore, SecondProcessIsRefused) {
    const test::TempDirectory directory;
    const auto store = HistoryStore::open({.directory = directory / "state", .gpu_types = kTypes}).value();
    EXPECT_EQ(HistoryStore::open({.directory = directory / "state", .gpu_types = kTypes}).error().code,
              ErrorCode::already_exists);
}

TEST(HistoryStore, DamagedHistoryIsMovedAside) {
    const test::TempDirectory directory;
    {
        const auto store = HistoryStore::open({.directory = directory / "state", .gpu_types = kTypes}).value();
        LiveRecord change;
        change.jobs[12] = full_record();
        ASSERT_TRUE(save(*store, change));
    }
    std::filesystem::resize_file(directory / "state/queue/data.mdb", 5000);
    const auto store = HistoryStore::open({.directory = directory / "state", .gpu_types = kTypes});
    ASSERT_TRUE(store) << store.error().message;
    EXPECT_TRUE((*store)->found().jobs.empty());
    EXPECT_TRUE(std::filesystem::exists(directory / "state/queue.damaged"));
}

}  // namespace
}  // namespace larder::scheduler
