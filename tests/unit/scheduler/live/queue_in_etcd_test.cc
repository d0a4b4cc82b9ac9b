// The queue in a real etcd, from one leader to the next.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/server/etcd_rows.h"
#include "scheduler/live/history_store.h"
#include "tests/support/etcd_gateway.h"
#include "tests/support/server_program.h"
#include "tests/unit/scheduler/live/live_fixture.h"

namespace larder::scheduler {
namespace {

using ::testing::SizeIs;
using Does = test::EtcdGateway::Does;

class QueueInEtcd : public Live {
protected:
    void SetUp() override {
        own_save = [this](const LiveRecord& change) {
            std::promise<Result<void>> written;
            store->save(change, [&](const Result<void>& result) { written.set_value(result); });
            return written.get_future().get();
        };
        lead();
    }
    void TearDown() override { live.reset(); }

    // Replaces the leader, which ends without a further write.
    void lead() {
        live.reset();
        store.reset();
        EtcdOptions options{.endpoints = {gateway.endpoint()}, .prefix = "/test/"};
        EtcdClient client(options);
        if (lease != 0) {
            EXPECT_TRUE(client.revoke_lease(lease));
        }
        lease = client.grant_lease(600).value();
        const EtcdFence fence{.key = "leader",
                              .create_revision = client.create("leader", "me", lease).value().create_revision,
                              .is_held = [] { return true; }};
        auto opened = HistoryStore::open(
            {.directory = "",
             .shared_rows = [&](const RowStoreOptions& given) { return open_etcd_rows(options, fence, given); },
             .gpu_types = gpus.gpu_types});
        ASSERT_TRUE(opened) << opened.error().message;
        store = std::move(*opened);
        record = store->found();
        restart();
    }

    test::ServerProgram etcd{{"etcd.py"}};
    test::EtcdGateway gateway{etcd["endpoints"]};
    std::int64_t lease = 0;
    std::unique_ptr<HistoryStore> store;
};

TEST_F(QueueInEtcd, ProgressOfJobsWithLargeRowsIsSaved) {
    std::vector<JobId> ids;
    for (int i = 0; i < 5; ++i) {
        Submission asked = job_with_gpus(1);
        for (int part = 0; part < 4; ++part)
            asked.environment["PART_" + std::to_string(part)] = std::string(60'000, 'x');
        ids.push_back(submit(asked));
    }
    tick();
    for (const JobId id : ids) engine.tell(EngineEvent::Kind::started, {id, 1});
    // The progress of all of them is saved together.
    for (int i = 0; i < 3; ++i) tick(10);
    EXPECT_TRUE(live->all_saved());
    EXPECT_EQ(live->counts().saves_failed, 0u);
    submit(job_with_gpus(1));
    tick();
    EXPECT_THAT(engine.starts, SizeIs(6));
    lead();
    EXPECT_THAT(live->queue().jobs(), SizeIs(6));
    for (const JobId id : ids) EXPECT_GT(job(id).state.attained_gpu_s, 19) << id;
}

TEST_F(QueueInEtcd, SubmissionRefusedAfterItsJournalWasWrittenIsNeverStarted) {
    const std::vector<Submission> many(150, job_with_gpus(1));
    const auto submit_many = [&] {
        auto answer = std::make_shared<Result<std::vector<JobId>>>(fail(ErrorCode::cancelled, "no answer yet"));
        live->submit(many, submitter, now(), [answer](const Result<std::vector<JobId>>& ids) { *answer = ids; });
        return *answer;
    };
    gateway.then({Does::passes, Does::is_full});
    EXPECT_EQ(submit_many().error().code, ErrorCode::no_space);
    tick();
    EXPECT_TRUE(live->all_saved());
    const auto again = submit_many();
    ASSERT_TRUE(again) << again.error().message;
    lead();
    EXPECT_THAT(live->queue().jobs(), SizeIs(150));
    EXPECT_EQ(live->queue().jobs().begin()->first, again->front());
    tick();
    ASSERT_THAT(engine.starts, SizeIs(8));
    EXPECT_GE(engine.starts.front().first, again->front());
}

}  // namespace
}  // namespace larder::scheduler
