#include "cache/control/disk_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/log_file.h"

namespace larder::cache {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kSecondNs = 1'000'000'000;

class DiskReportsTest : public testing::Test {
protected:
    void update(const std::vector<std::string>& problems) {
        std::vector<DatasetStatistics> datasets;
        for (const std::string& problem : problems) {
            const std::uint64_t id = datasets.size() + 1;
            datasets.push_back({.dataset_id = id, .name = "d" + std::to_string(id), .disk_problem = problem});
        }
        now_ns += kSecondNs;
        reports.update(datasets, now_ns);
    }

    test::LogFile log{LogLevel::info};
    DiskReports reports;
    std::int64_t now_ns = 0;
};

TEST_F(DiskReportsTest, LastingProblemIsLoggedOnce) {
    update({"", ""});
    EXPECT_THAT(log.lines(), IsEmpty());
    for (int i = 0; i < 200; ++i) update({"", i % 2 == 0 ? "no space" : "no space either"});
    EXPECT_THAT(log.lines(), ElementsAre(AllOf(HasSubstr("admits no more blocks"), HasSubstr("dataset=d2"),
                                               HasSubstr("why=\"no space\""))));
    update({"I/O error", "no space"});
    EXPECT_THAT(log.lines(), ElementsAre(HasSubstr("dataset=d2"), HasSubstr("dataset=d1")));
}

TEST_F(DiskReportsTest, IntermittentProblemIsLoggedOnce) {
    for (int i = 0; i < 300; ++i) update({i % 10 < 8 ? "no space" : ""});
    EXPECT_EQ(log.lines().size(), 1u);
    for (int i = 0; i < 300; ++i) update({""});
    EXPECT_THAT(log.lines(),
                ElementsAre(HasSubstr("admits no more blocks"), HasSubstr("takes blocks again dataset=d1")));
    update({"no space"});
    EXPECT_EQ(log.lines().size(), 3u) << "a new problem is logged again";
}

TEST_F(DiskReportsTest, RemovedDatasetIsForgotten) {
    update({"no space"});
    update({});
    for (int i = 0; i < 300; ++i) update({""});
    EXPECT_EQ(log.lines().size(), 1u);
}

}  // namespace
}  // namespace larder::cache
