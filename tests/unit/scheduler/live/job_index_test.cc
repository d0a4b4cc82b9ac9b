// The index of a queue's jobs against a tree of the same jobs.

#include "scheduler/live/job_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace larder::scheduler {
namespace {

using Records = std::map<JobId, JobRecord>;

void expect_same(JobIndex& index, Records& records, const Records& expected) {
    std::vector<JobId> ids;
    std::vector<JobRecord*> in_order;
    for (const auto& [id, _] : expected) {
        ids.push_back(id);
        in_order.push_back(&records.at(id));
    }
    ASSERT_EQ(index.ids(), ids);
    ASSERT_EQ(std::vector<JobId>(index.begin(), index.end()), ids);
    ASSERT_EQ(std::vector<JobRecord*>(index.records().begin(), index.records().end()), in_order);
    ASSERT_EQ(index.size(), ids.size());
    ASSERT_EQ(index.empty(), ids.empty());
    for (auto& [id, record] : records) {
        ASSERT_EQ(index.contains(id), expected.contains(id)) << id;
        ASSERT_EQ(index.find(id), expected.contains(id) ? &record : nullptr) << id;
    }
}

TEST(JobIndex, HasTheSameJobsAsATree) {
    Records records;
    for (JobId id = 1; id <= 30; ++id) records[id].id = id;
    JobIndex index;
    Records expected;
    std::mt19937_64 random(3);
    ASSERT_NO_FATAL_FAILURE(expect_same(index, records, expected));
    for (int step = 0; step < 3000; ++step) {
        const JobId id = 1 + random() % 30;
        // Grows for a while, then shrinks to nothing.
        if (random() % 100 < (step / 300 % 2 == 0 ? 70 : 20)) {
            index.insert(records.at(id));
            expected.insert_or_assign(id, records.at(id));
        } else {
            index.erase(id);
            expected.erase(id);
        }
        SCOPED_TRACE(step);
        ASSERT_NO_FATAL_FAILURE(expect_same(index, records, expected));
    }
}

TEST(JobIndex, LoopOverIdsOfSomeMayChangeTheIndex) {
    Records records;
    JobIndex index;
    for (JobId id = 1; id <= 10; ++id) {
        records[id].id = id;
        records[id].phase = id % 3 == 0 ? Phase::running : Phase::waiting;
        index.insert(records[id]);
    }
    std::vector<JobId> seen;
    for (const JobId id : index.ids_if([](const JobRecord& job) { return job.phase == Phase::running; })) {
        seen.push_back(id);
        index.erase(id);
        index.erase(id + 1);
    }
    EXPECT_EQ(seen, (std::vector<JobId>{3, 6, 9}));
    EXPECT_EQ(index.ids(), (std::vector<JobId>{1, 2, 5, 8}));
}

}  // namespace
}  // namespace larder::scheduler
