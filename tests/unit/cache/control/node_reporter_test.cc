#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <set>

#include "allocator/protocol/codec.h"
#include "cache/control/agent.h"
#include "cache/protocol/record.h"
#include "cache/store/segment.h"
#include "tests/support/test_units.h"

namespace larder::cache {

using test::kMiB;
namespace {

constexpr std::int64_t kOneSecond_ns = 1'000'000'000;

const std::vector<ReportedDataset> kDatasets = {
    {.report = {.name = "images"}, .payload_bytes = 100 * kMiB},
    {.report = {.name = "text"}, .payload_bytes = 10 * kMiB, .blocks = 256}};

constexpr Quota kRoom{.memory_bytes = 64 * kMiB};

AllocatorClientConfig config() {
    return {.node = "node-1"};
}

JobStatistics job(std::uint64_t bytes, std::int64_t busy_ns, std::uint32_t loops = 1) {
    return {.job = "vision",
            .dataset = "images",
            .sessions = 1,
            .busy_ns = busy_ns,
            .training_loops = loops,
            .bytes_delivered = bytes};
}

// Makes reports in the JSON form in which they are sent.
class Reports {
public:
    explicit Reports(std::uint64_t state_directory) : reporter_(state_directory) {}
    boost::json::object make(const AllocatorClientConfig& config, Quota room,
                             const std::vector<ReportedDataset>& datasets, const ShardStatistics& statistics,
                             std::uint64_t lease_applied, std::int64_t now_ns, const ReportedPeers& peers = {}) {
        return allocator::to_json(reporter_.make(config, room, datasets, statistics, lease_applied, now_ns, peers));
    }

private:
    NodeReporter reporter_;
};

const boost::json::object& only_job(const boost::json::object& report) {
    return report.at("jobs").as_array().at(0).as_object();
}

TEST(NodeReport, BusySecondsExcludeWaiting) {
    Reports reports(1);
    (void)reports.make(config(), kRoom, kDatasets, {.jobs = {job(0, 0)}}, 0, kOneSecond_ns);
    const auto report =
        reports.make(config(), kRoom, kDatasets, {.jobs = {job(5000, kOneSecond_ns / 4)}}, 3, 2 * kOneSecond_ns);
    EXPECT_EQ(report.at("node").as_string(), "node-1");
    EXPECT_EQ(report.at("lease_applied").to_number<int>(), 3);
    EXPECT_EQ(only_job(report).at("bytes").to_number<int>(), 5000);
    EXPECT_EQ(only_job(report).at("ranks").to_number<int>(), 1);
    EXPECT_DOUBLE_EQ(only_job(report).at("busy_s").to_number<double>(), 0.25);
}

TEST(NodeReport, WaitsAreLengthsFromTheirFirstTimeOn) {
    Reports reports(1);
    JobStatistics in_step = job(5000, 0);
    in_step.waits = {
        .since_ns = 1'000'000,
        .until_ns = 9'000'000,
        .counted_ns = 8'000'000,
        .batches = 3,
        .shortest_ns = 700'000,
        .waits = {{.begin_ns = 500'000, .end_ns = 2'000'000}, {.begin_ns = 4'000'000, .end_ns = 9'000'000}}};
    const auto report = reports.make(config(), kRoom, kDatasets, {.jobs = {in_step}}, 0, kOneSecond_ns);
    EXPECT_EQ(report.at("clock_us").to_number<int>(), 1'000'000);
    EXPECT_EQ(
        boost::json::serialize(only_job(report).at("waits")),
        R"({"since_us":1000,"until_us":9000,"counted_us":8000,"batches":3,"shortest_us":700,"lengths_us":[0,1000,2000,5000]})");
    JobStatistics other = in_step;
    other.dataset = "text";
    const auto both = reports.make(config(), kRoom, kDatasets, {.jobs = {in_step, other}}, 0, 2 * kOneSecond_ns);
    EXPECT_FALSE(only_job(both).contains("waits")) << "loops that read two datasets at once";
}

TEST(NodeReport, JobWithoutTrainingLoopReportsNoBusyTime) {
    Reports reports(1);
    (void)reports.make(config(), kRoom, kDatasets, {.jobs = {job(0, 0, 0)}}, 0, kOneSecond_ns);
    const auto report = reports.make(config(), kRoom, kDatasets, {.jobs = {job(5000, 0, 0)}}, 0, 2 * kOneSecond_ns);
    EXPECT_EQ(only_job(report).at("ranks").to_number<int>(), 0);
    EXPECT_EQ(only_job(report).at("busy_s").to_number<double>(), 0);
}

TEST(NodeReport, DemandCountsBytesReadAndWaiting) {
    Reports reports(1);
    JobStatistics first = job(0, 0);
    first.counters.remote_read_bytes = 1000;
    (void)reports.make(config(), kRoom, kDatasets, {.jobs = {first}}, 0, kOneSecond_ns);
    JobStatistics later = first;
    later.counters.remote_read_bytes = 5000;
    later.waiting_bytes = 2000;
    const auto report = reports.make(config(), kRoom, kDatasets, {.jobs = {later}}, 0, 3 * kOneSecond_ns);
    EXPECT_DOUBLE_EQ(only_job(report).at("demand_bytes_per_second").to_number<double>(), 3000);
    EXPECT_EQ(only_job(report).at("remote_bytes").to_number<int>(), 5000);
}

TEST(NodeReport, IdleJobIsReportedBrieflyThenDropped) {
    Reports reports(1);
    (void)reports.make(config(), kRoom, kDatasets, {.jobs = {job(0, 0)}}, 0, kOneSecond_ns);
    JobStatistics idle = job(10, 0, 0);
    idle.sessions = 0;
    const auto soon = reports.make(config(), kRoom, kDatasets, {.jobs = {idle}}, 0, 3 * kOneSecond_ns);
    EXPECT_EQ(only_job(soon).at("ranks").to_number<int>(), 1);
    const auto late = reports.make(config(), kRoom, kDatasets, {.jobs = {idle}}, 0, 9 * kOneSecond_ns);
    EXPECT_TRUE(late.at("jobs").as_array().empty());
    JobStatistics never_active = idle;
    never_active.job = "earlier";
    const auto other = reports.make(config(), kRoom, kDatasets, {.jobs = {never_active}}, 0, 10 * kOneSecond_ns);
    EXPECT_TRUE(other.at("jobs").as_array().empty());
}

TEST(NodeReport, JobOfTwoDatasetsCountsUnderItsMostReadOne) {
    Reports reports(1);
    JobStatistics less_read = job(100, kOneSecond_ns / 10);
    less_read.dataset = "text";
    less_read.unread_bytes = 1;
    JobStatistics most_read = job(300, kOneSecond_ns / 10);
    most_read.unread_bytes = 70;
    most_read.effective_cache_bytes = 7;
    for (const auto& jobs : {std::vector{less_read, most_read}, std::vector{most_read, less_read}}) {
        const auto report = reports.make(config(), kRoom, kDatasets, {.jobs = jobs}, 0, kOneSecond_ns);
        ASSERT_EQ(report.at("jobs").as_array().size(), 1u);
        EXPECT_EQ(only_job(report).at("dataset").as_string(), "images");
        EXPECT_EQ(only_job(report).at("bytes").to_number<int>(), 400);
        EXPECT_EQ(only_job(report).at("unread_bytes").to_number<int>(), 70);
        EXPECT_EQ(only_job(report).at("unread_cached_bytes").to_number<int>(), 7);
    }
}

TEST(NodeReport, EpochIsReportedOnceReadingStarts) {
    Reports reports(1);
    const auto opened = reports.make(config(), kRoom, kDatasets, {.jobs = {job(0, 0)}}, 0, kOneSecond_ns);
    EXPECT_FALSE(only_job(opened).contains("epoch")) << "the job may be resumed at any epoch";
    JobStatistics reads = job(5000, 0);
    reads.epoch = 7;
    const auto report = reports.make(config(), kRoom, kDatasets, {.jobs = {reads}}, 0, 2 * kOneSecond_ns);
    EXPECT_EQ(only_job(report).at("epoch").to_number<int>(), 7);
}

TEST(NodeReport, DatasetSizeIncludesStorageOverhead) {
    Reports reports(1);
    DatasetStatistics images{.name = "images"};
    images.usage = {.memory_bytes = 22 * kMiB, .payload_bytes = 20 * kMiB, .record_bytes = 22 * kMiB};
    const auto report = reports.make(config(), kRoom, kDatasets, {.datasets = {images}}, 0, kOneSecond_ns);
    const auto& datasets = report.at("datasets").as_array();
    EXPECT_EQ(datasets.at(0).at("size_bytes").to_number<std::uint64_t>(), 110 * kMiB);
    EXPECT_EQ(datasets.at(0).at("cached_memory_bytes").to_number<std::uint64_t>(), 22 * kMiB);
    EXPECT_EQ(datasets.at(1).at("size_bytes").to_number<std::uint64_t>(), 10 * kMiB + 256 * (64 + 4096))
        << "nothing of it is stored yet: the largest size it may have";
}

TEST(NodeReport, SizeEstimateIsSteadyWhileFillingAndExactWhenFull) {
    Reports reports(1);
    std::set<std::uint64_t> sizes;
    std::uint64_t stored = 0;
    std::uint64_t payload = 0;
    std::uint64_t last = 0;
    for (std::int64_t second = 1; second <= 100; ++second) {
        payload += kMiB;
        stored += kMiB + 40'000 + static_cast<std::uint64_t>(second * 7919 % 20'000);
        DatasetStatistics images{.name = "images"};
        images.usage = {.memory_bytes = stored, .payload_bytes = payload, .record_bytes = stored};
        const auto report = reports.make(config(), kRoom, kDatasets, {.datasets = {images}}, 0, second * kOneSecond_ns);
        last = report.at("datasets").as_array().at(0).at("size_bytes").to_number<std::uint64_t>();
        EXPECT_GE(last, stored) << "the estimate covers all that is cached";
        sizes.insert(last);
    }
    EXPECT_EQ(last, stored);
    EXPECT_LE(sizes.size(), 3u);
}

// 500 blocks of 1 MiB with a header each. Other nodes, and the same node after a restart, report the same size.
TEST(NodeReport, SizeDoesNotDependOnTheMomentOfTheReport) {
    const std::vector<ReportedDataset> audio = {
        {.report = {.name = "audio"}, .payload_bytes = 500 * kMiB, .blocks = 500}};
    constexpr std::uint64_t kRecordBytes = kMiB + 64;
    Reports reports(1);
    std::int64_t now_ns = 0;
    const auto size = [&](Reports& from, std::uint64_t blocks, std::uint64_t being_written) {
        DatasetStatistics cached{.name = "audio"};
        cached.usage = {.memory_bytes = (blocks + being_written) * kRecordBytes,
                        .payload_bytes = blocks * kMiB,
                        .record_bytes = blocks * kRecordBytes};
        const auto report = from.make(config(), kRoom, audio, {.datasets = {cached}}, 0, now_ns += kOneSecond_ns);
        return report.at("datasets").at(0).at("size_bytes").to_number<std::uint64_t>();
    };
    EXPECT_EQ(size(reports, 0, 1), 500 * (kMiB + 64 + 4096)) << "nothing is measured yet";
    EXPECT_EQ(size(reports, 1, 1), 500 * kRecordBytes) << "what is measured replaces the largest possible size";
    EXPECT_EQ(size(reports, 262, 1), 500 * kRecordBytes) << "a record that is being written has no payload yet";
    Reports restarted(1);
    EXPECT_EQ(size(restarted, 262, 1), 500 * kRecordBytes);
    EXPECT_EQ(size(reports, 499, 3), 502 * kRecordBytes) << "it covers all that counts against the quota";
}

// Memory is filled first, and the disk pads records more. A dataset gets a quota of its size: the node's memory first.
TEST(NodeReport, QuotaOfTheReportedSizeHasRoomForAllBlocksWhileTheyAreCached) {
    for (const std::uint64_t block_bytes : {5'000ul, 65'536ul, 70'000ul, 1'000'000ul}) {
        for (const std::uint64_t memory_bytes : {std::uint64_t{0}, 2 * kMiB, 8 * kMiB, 20 * kMiB}) {
            constexpr std::uint64_t kPayloadBytes = 10 * kMiB;
            const std::uint64_t blocks = kPayloadBytes / block_bytes;
            const std::uint64_t in_memory_bytes = protocol::record_bytes(block_bytes, kMemoryAlignment);
            const std::uint64_t on_disk_bytes = protocol::record_bytes(block_bytes, protocol::kPageBytes);
            const std::uint64_t in_memory = std::min(blocks, memory_bytes / in_memory_bytes);
            const std::vector<ReportedDataset> audio = {{.report = {.name = "audio"},
                                                         .payload_bytes = blocks * block_bytes,
                                                         .blocks = blocks,
                                                         .block_bytes_max = static_cast<std::uint32_t>(block_bytes)}};
            NodeReporter reporter(1);
            for (std::uint64_t cached = 0; cached <= blocks; ++cached) {
                const std::uint64_t on_disk = cached - std::min(cached, in_memory);
                const std::uint64_t memory_used_bytes = (cached - on_disk) * in_memory_bytes;
                DatasetStatistics statistics{.name = "audio"};
                statistics.usage = {.memory_bytes = memory_used_bytes,
                                    .disk_bytes = on_disk * on_disk_bytes,
                                    .payload_bytes = cached * block_bytes,
                                    .record_bytes = memory_used_bytes + on_disk * on_disk_bytes,
                                    .disk_payload_bytes = on_disk * block_bytes,
                                    .disk_record_bytes = on_disk * on_disk_bytes};
                const auto report = reporter.make(config(), {.memory_bytes = memory_bytes, .disk_bytes = 20 * kMiB},
                                                  audio, {.datasets = {statistics}}, 0, kOneSecond_ns);
                const std::uint64_t size = report.datasets.at(0).size_bytes;
                const std::uint64_t needed_bytes = in_memory * in_memory_bytes + (blocks - in_memory) * on_disk_bytes;
                if (cached == blocks) {
                    EXPECT_EQ(size, needed_bytes);
                    continue;
                }
                const std::uint64_t memory_quota = std::min(size, memory_bytes);
                const std::uint64_t fit = memory_quota / in_memory_bytes + (size - memory_quota) / on_disk_bytes;
                ASSERT_GE(fit, blocks) << cached << " of " << blocks << " blocks of " << block_bytes
                                       << " bytes are cached; memory has " << memory_bytes;
                ASSERT_LE(static_cast<double>(size),
                          1.1 * static_cast<double>(needed_bytes + block_bytes + blocks * protocol::kPageBytes));
            }
        }
    }
}

TEST(NodeReport, SizeCoversCachedBlocksOfAnEarlierVersion) {
    Reports reports(1);
    const std::vector<ReportedDataset> smaller = {{.report = {.name = "images"}, .payload_bytes = kMiB, .blocks = 10}};
    DatasetStatistics images{.name = "images"};
    images.usage = {.memory_bytes = 2 * kMiB, .payload_bytes = 2 * kMiB - 1000, .record_bytes = 2 * kMiB};
    const auto report = reports.make(config(), kRoom, smaller, {.datasets = {images}}, 0, kOneSecond_ns);
    EXPECT_EQ(report.at("datasets").at(0).at("size_bytes").to_number<std::uint64_t>(), 2 * kMiB);
}

TEST(NodeReport, ReportsHeldQuotasAndRunningScans) {
    Reports reports(1);
    const std::vector<ReportedDataset> datasets = {
        {.report = {.name = "images", .quota_memory_bytes = 7, .quota_held = true}, .payload_bytes = kMiB},
        {.report = {.name = "text"}, .payload_bytes = kMiB}};
    const auto report = reports.make(config(), kRoom, datasets, {.scans = 2}, 0, kOneSecond_ns);
    EXPECT_EQ(report.at("scans").to_number<int>(), 2);
    EXPECT_TRUE(report.at("datasets").at(0).at("quota_held").as_bool());
    EXPECT_FALSE(report.at("datasets").at(1).at("quota_held").as_bool());
}

TEST(NodeReport, JobOnARemovedDatasetIsOmitted) {
    Reports reports(1);
    JobStatistics orphan = job(1, 0);
    orphan.dataset = "removed";
    const auto report = reports.make(config(), kRoom, kDatasets, {.jobs = {orphan}}, 0, kOneSecond_ns);
    EXPECT_TRUE(report.at("jobs").as_array().empty());
}

}  // namespace
}  // namespace larder::cache
