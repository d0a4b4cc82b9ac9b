// The real daemon and the real loader in one process: what a training job sees, from files on a remote to batches.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "loader/larder.h"
#include "tests/support/sample_data.h"
#include "tests/support/test_daemon.h"
#include "tests/support/test_units.h"

namespace larder::test {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

class EndToEnd : public testing::Test {
protected:
    EndToEnd() {
        for (NamedBytes& file : make_tree(root, {.class_count = 3, .files_per_class = 30, .bytes_max = 40'000})) {
            total_bytes += file.content.size();
            files.emplace(std::move(file.name), std::move(file.content));
        }
    }

    LoaderOptions options(const std::string& job = "job") const {
        LoaderOptions options;
        options.dataset = "d";
        options.job = job;
        options.socket = daemon.socket();
        options.memory_budget_bytes = 8 * kMiB;
        options.batch_size = 7;
        return options;
    }
    static Loader open(const LoaderOptions& options) {
        auto loader = Loader::open(options);
        if (!loader) throw std::runtime_error(loader.error().message);
        return std::move(*loader);
    }

    // Takes batches until the epoch ends, or `batches` of them. Each sample's bytes must be its file's.
    void read(Loader& loader, std::multiset<std::string>& seen, std::size_t batches = ~std::size_t{0}) const {
        for (; batches > 0; --batches) {
            auto batch = loader.next();
            ASSERT_TRUE(batch.has_value()) << batch.error().message;
            if (!*batch) return;
            for (const Sample& sample : (*batch)->samples()) {
                const std::string key(sample.key);
                const auto file = files.find(key);
                ASSERT_NE(file, files.end()) << key;
                const auto* bytes = reinterpret_cast<const char*>(sample.bytes().data());
                ASSERT_TRUE(file->second == std::string_view(bytes, sample.bytes().size())) << key;
                seen.insert(key);
            }
        }
    }
    void expect_all_once(const std::multiset<std::string>& seen) const {
        EXPECT_EQ(seen.size(), files.size());
        EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), files.size());
    }
    void read_epoch(Loader& loader) const {
        std::multiset<std::string> seen;
        read(loader, seen);
        expect_all_once(seen);
    }
    std::uint64_t cached_blocks() const { return number_at(daemon.dataset("d").at("used"), "blocks"); }
    std::uint64_t counter(const char* name) const { return number_at(daemon.dataset("d").at("counters"), name); }

    TestDaemon daemon;
    const std::string root = daemon.state / "tree";
    std::map<std::string, std::string> files;
    std::uint64_t total_bytes = 0;
};

TEST_F(EndToEnd, SecondEpochHitsWhatFirstEpochCached) {
    daemon.add("d", root, total_bytes / 2);
    Loader loader = open(options());
    EXPECT_EQ(loader.sample_count(), files.size());
    EXPECT_EQ(loader.class_names().size(), 3u);
    read_epoch(loader);
    const std::uint64_t cached = cached_blocks();
    EXPECT_GT(cached, files.size() / 4);
    EXPECT_LT(cached, files.size() * 3 / 4);
    EXPECT_EQ(counter("misses"), files.size());
    EXPECT_EQ(counter("bytes_remote"), total_bytes);
    read_epoch(loader);
    EXPECT_EQ(counter("memory_hits"), cached);
    EXPECT_EQ(counter("misses"), 2 * files.size() - cached);
    EXPECT_EQ(cached_blocks(), cached) << "a cached block is never replaced";
    EXPECT_LE(number_at(daemon.dataset("d").at("used"), "memory_bytes"), total_bytes / 2);

    const LoaderStatistics statistics = loader.statistics();
    EXPECT_EQ(statistics.samples, 2 * files.size());
    EXPECT_EQ(statistics.bytes, 2 * total_bytes);
    EXPECT_EQ(statistics.memory_blocks, cached);
}

TEST_F(EndToEnd, DiskTierServesHits) {
    daemon.add("d", root, 0, 32 * kMiB);
    Loader loader = open(options());
    read_epoch(loader);
    TestDaemon::wait_until([&] { return cached_blocks() == files.size(); });
    read_epoch(loader);
    EXPECT_EQ(counter("disk_hits"), files.size());
    EXPECT_EQ(counter("bytes_disk"), total_bytes);
    EXPECT_EQ(counter("misses"), files.size());
}

TEST_F(EndToEnd, ThreadsServeTheSameWithoutIoUring) {
    daemon.config().io = cache::IoMode::threads;
    daemon.stop();
    daemon.start();
    EXPECT_EQ(text_at(daemon.get("/v1/status").body, "io"), "threads");
    daemon.add("d", root, total_bytes / 3, 32 * kMiB);
    Loader loader = open(options());
    read_epoch(loader);
    TestDaemon::wait_until([&] { return cached_blocks() == files.size(); });
    read_epoch(loader);
    EXPECT_EQ(counter("misses"), files.size());
    EXPECT_EQ(counter("memory_hits") + counter("disk_hits"), files.size());
    EXPECT_GT(counter("memory_hits"), 0u);
    EXPECT_GT(counter("disk_hits"), 0u);
}

TEST_F(EndToEnd, WebDatasetSamplesAreReadInLargeBlocks) {
    const auto members = make_samples(60, 20'000, 7);
    const std::string shards = daemon.state / "shards";
    std::filesystem::create_directory(shards);
    const std::span<const NamedBytes> all(members);
    const std::size_t half = members.size() / 4 * 2;  // two members per sample
    write_tar(shards + "/shard-000.tar", TarDialect::ustar, all.first(half));
    write_tar(shards + "/shard-001.tar", TarDialect::pax, all.subspan(half));
    daemon.add("d", shards, 16 * kMiB, 0, {{"block", "64 KiB"}});
    EXPECT_EQ(text_at(daemon.dataset("d"), "format"), "webdataset");
    std::map<std::string, std::string> expected;
    for (const NamedBytes& member : members) expected[member.name] = member.content;

    Loader loader = open(options());
    for (int epoch = 0; epoch < 2; ++epoch) {
        std::size_t fields_seen = 0;
        for (;;) {
            const auto batch = loader.next();
            ASSERT_TRUE(batch.has_value()) << batch.error().message;
            if (!*batch) break;
            for (const Sample& sample : (*batch)->samples()) {
                for (const Field& field : sample.fields) {
                    const auto* bytes = reinterpret_cast<const char*>(field.bytes.data());
                    const std::string name = std::string(sample.key) + "." + std::string(field.name);
                    EXPECT_TRUE(expected[name] == std::string_view(bytes, field.bytes.size())) << name;
                    ++fields_seen;
                }
            }
        }
        EXPECT_EQ(fields_seen, members.size());
    }
    EXPECT_EQ(counter("memory_hits"), number_at(daemon.dataset("d"), "blocks"));
}

TEST_F(EndToEnd, DiskBlocksOutliveTheDaemon) {
    daemon.add("d", root, 0, 32 * kMiB);
    {
        Loader loader = open(options());
        read_epoch(loader);
        TestDaemon::wait_until([&] { return cached_blocks() == files.size(); });
    }
    daemon.stop();
    daemon.start();
    EXPECT_EQ(cached_blocks(), files.size());
    Loader loader = open(options());
    read_epoch(loader);
    EXPECT_EQ(counter("disk_hits"), files.size());
    EXPECT_EQ(counter("misses"), 0u);
}

TEST_F(EndToEnd, QuotaGrowsAndShrinksUnderRunningJob) {
    daemon.add("d", root);
    Loader loader = open(options());
    read_epoch(loader);
    EXPECT_EQ(cached_blocks(), 0u);
    const auto set_quota = [&](std::uint64_t memory_bytes) {
        EXPECT_EQ(daemon.put("/v1/datasets/d/quota", {{"memory_bytes", memory_bytes}, {"disk_bytes", 0}}).status, 200u);
    };
    std::multiset<std::string> seen;
    read(loader, seen, 3);
    set_quota(16 * kMiB);
    read(loader, seen);
    expect_all_once(seen);
    read_epoch(loader);
    EXPECT_EQ(cached_blocks(), files.size());
    seen.clear();
    read(loader, seen, 3);
    set_quota(0);
    read(loader, seen);
    expect_all_once(seen);
    const auto dataset = daemon.dataset("d");
    EXPECT_EQ(number_at(dataset.at("used"), "memory_bytes"), 0u);
    EXPECT_EQ(number_at(dataset.at("used"), "blocks"), 0u);
    read_epoch(loader);
}

TEST_F(EndToEnd, JobsShareOneCache) {
    daemon.add("d", root, 16 * kMiB);
    Loader first = open(options("first"));
    read_epoch(first);
    Loader second = open(options("second"));
    read_epoch(second);
    EXPECT_EQ(second.statistics().memory_blocks, files.size());
    const auto jobs = daemon.get("/v1/jobs").body.at("jobs").as_array();
    ASSERT_EQ(jobs.size(), 2u);
    for (const auto& job : jobs) {
        const bool is_first = text_at(job, "job") == "first";
        EXPECT_EQ(text_at(job, "dataset"), "d");
        EXPECT_EQ(number_at(job, "sessions"), 1u);
        EXPECT_EQ(number_at(job, "samples"), files.size());
        EXPECT_EQ(number_at(job, "bytes"), total_bytes);
        EXPECT_EQ(number_at(job.at("counters"), "misses"), is_first ? files.size() : 0);
        EXPECT_EQ(number_at(job.at("counters"), "memory_hits"), is_first ? 0 : files.size());
    }
}

TEST_F(EndToEnd, RanksOfOneJobReadEachSampleOnceBetweenThem) {
    daemon.add("d", root);
    constexpr std::uint32_t kRanks = 4;
    std::array<std::multiset<std::string>, kRanks> seen;
    {
        std::vector<std::jthread> ranks;
        for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
            ranks.emplace_back([&, rank] {
                LoaderOptions mine = options();
                mine.rank = rank;
                mine.world_size = kRanks;
                Loader loader = open(mine);
                read(loader, seen[rank]);
            });
        }
    }
    std::multiset<std::string> all;
    for (auto& part : seen) all.merge(part);
    expect_all_once(all);
    EXPECT_EQ(counter("bytes_remote_read"), total_bytes) << "no block is fetched twice";
    const auto jobs = daemon.get("/v1/jobs").body.at("jobs").as_array();
    ASSERT_EQ(jobs.size(), 1u);
    EXPECT_EQ(number_at(jobs[0], "samples"), files.size());
}

TEST_F(EndToEnd, RunningJobKeepsItsVersion) {
    daemon.add("d", root, 16 * kMiB);
    Loader old = open(options());
    std::multiset<std::string> seen;
    read(old, seen, 4);
    const std::map<std::string, std::string> before = files;
    const auto index = [&] {
        const auto task = daemon.finished(daemon.post("/v1/datasets/d/index"));
        ASSERT_EQ(text_at(task, "state"), "done") << json::serialize(task);
    };
    write_file(root + "/class_001/new.bin", "a new file");
    index();
    read(old, seen);
    expect_all_once(seen);
    files["class_001/new.bin"] = "a new file";

    Loader fresh = open(options("fresh"));
    EXPECT_EQ(fresh.sample_count(), before.size() + 1);
    read_epoch(fresh);
    EXPECT_EQ(fresh.statistics().remote_blocks, 1u) << "unchanged blocks stay cached";
    EXPECT_EQ(old.sample_count(), before.size());

    // Version 1 is in use. Version 2 is old, and unused once `fresh` is opened again.
    fresh = open(options("fresh"));
    for (const char* name : {"newer.bin", "newest.bin"}) {
        write_file(root + "/class_001/" + name, name);
        index();
    }
    fresh = open(options("fresh"));
    TestDaemon::wait_until([&] { return text_at(daemon.dataset("d"), "versions") == "[1,3,4]"; });
    files = before;
    read_epoch(old);
    TestDaemon::wait_until([&] { return !std::filesystem::exists(daemon.state / "state/datasets/d/manifest-2"); });
}

TEST_F(EndToEnd, OpenIsRefusedWithoutReadPermission) {
    daemon.add("d", root, 0, 0, {{"owner", "4000001"}, {"group", "4000002"}, {"mode", "0640"}});
    // Other users must reach the socket to be refused by it.
    for (const std::string& path : {daemon.state.path().string(), daemon.config().state_directory}) {
        ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
    }
    Result<void> refused;
    std::thread stranger([&] {
        // Changes the user of this thread alone, since a superuser may read everything.
        constexpr long kNobody = 65534;
        if (::geteuid() == 0) {
            ASSERT_EQ(::syscall(SYS_setresgid, kNobody, kNobody, kNobody), 0);
            ASSERT_EQ(::syscall(SYS_setresuid, kNobody, kNobody, kNobody), 0);
        }
        const auto loader = Loader::open(options());
        if (!loader) refused = std::unexpected(loader.error());
    });
    stranger.join();
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::permission_denied);
    EXPECT_THAT(refused.error().message, HasSubstr("mode 0640"));
}

TEST_F(EndToEnd, UnknownDatasetAndTooSmallBudgetAreNamed) {
    const auto unknown = Loader::open(options());
    ASSERT_FALSE(unknown.has_value());
    EXPECT_EQ(unknown.error().code, ErrorCode::not_found);
    EXPECT_THAT(unknown.error().message, HasSubstr("\"d\""));

    daemon.add("d", root);
    daemon.stop();
    daemon.config().session_slot_bytes_max = 64 << 10;
    daemon.start();
    const auto refused = Loader::open(options());
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::no_space);
    EXPECT_THAT(refused.error().message, HasSubstr("session.slot_memory_max"));
}

TEST_F(EndToEnd, JobKeepsItsLimit) {
    constexpr double kRate = 8e6;
    constexpr std::uint64_t kBurst = 64 << 10;
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(daemon.put("/v1/jobs/slow/limit", {{"rate_bytes_per_second", kRate}, {"burst_bytes", kBurst}}).status,
              200u);
    daemon.add("d", root);
    Loader loader = open(options("slow"));
    read_epoch(loader);
    const std::uint64_t taken = counter("bytes_remote_read");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    EXPECT_EQ(taken, total_bytes);
    constexpr std::uint64_t kLargestBlock = 40'000;
    EXPECT_LE(static_cast<double>(taken), kRate * took.count() + static_cast<double>(kBurst + kLargestBlock));
    EXPECT_GT(static_cast<double>(taken), static_cast<double>(kBurst + kLargestBlock)) << "the limit was never reached";
}

TEST_F(EndToEnd, ChangedFileIsOneErrorAndOtherFilesAreRead) {
    daemon.add("d", root);
    const std::string changed = "class_002/file_00007.bin";
    write_file(root + "/" + changed, "shorter");
    LoaderOptions strict = options("strict");
    Loader loader = open(strict);
    std::string message;
    for (;;) {
        const auto batch = loader.next();
        if (!batch) message = batch.error().message;
        if (!batch || !*batch) break;
    }
    EXPECT_THAT(message, HasSubstr(changed));

    LoaderOptions lenient = options("lenient");
    lenient.skip_failed = true;
    Loader skipping = open(lenient);
    std::multiset<std::string> seen;
    read(skipping, seen);
    EXPECT_EQ(seen.size(), files.size() - 1);
    EXPECT_EQ(seen.count(changed), 0u);
    EXPECT_EQ(skipping.statistics().skipped_samples, 1u);
}

TEST_F(EndToEnd, FlippedBitsOnDiskAreNeverDelivered) {
    daemon.add("d", root, 0, 32 * kMiB);
    Loader loader = open(options());
    read_epoch(loader);
    TestDaemon::wait_until([&] { return cached_blocks() == files.size(); });
    const std::string id(daemon.dataset("d").at("dataset_id").as_string());
    for (const auto& entry : std::filesystem::directory_iterator(daemon.state / ("state/segments/" + id))) {
        std::fstream segment(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
        // A byte in the middle of a payload: records begin at multiples of 512.
        for (std::streamoff at = 8192 + 300; at < static_cast<std::streamoff>(total_bytes); at += 100 * 1024) {
            segment.seekp(at);
            segment.put('\x5a');
            segment.seekp(at + 1);
            segment.put('\xa5');
        }
    }
    read_epoch(loader);
    EXPECT_GT(counter("crc_failures"), 0u);
    EXPECT_EQ(counter("disk_hits") + counter("misses"), 2 * files.size());
}

TEST_F(EndToEnd, EpochOutlivesTheDaemon) {
    daemon.add("d", root, 16 * kMiB, 32 * kMiB);
    Loader loader = open(options());
    std::multiset<std::string> seen;
    for (int restart = 0; restart < 3; ++restart) {
        read(loader, seen, 3);
        daemon.stop();
        daemon.start();
    }
    read(loader, seen);
    expect_all_once(seen);
    EXPECT_GE(loader.statistics().reconnects, 1u);
    read_epoch(loader);
}

TEST_F(EndToEnd, RaisedLimitReachesWaitingRead) {
    daemon.add("d", root);
    ASSERT_EQ(daemon.put("/v1/jobs/job/limit", {{"rate_bytes_per_second", 1}, {"burst_bytes", 1}}).status, 200u);
    Loader loader = open(options());
    std::thread raising([&] {
        // Once the first block is paid for, the rate allows the next one only hours later.
        TestDaemon::wait_until([&] { return counter("bytes_remote_read") > 0; });
        ASSERT_EQ(daemon.put("/v1/jobs/job/limit", {{"rate_bytes_per_second", 1e9}}).status, 200u);
    });
    read_epoch(loader);
    raising.join();
}

TEST_F(EndToEnd, RemovedDatasetEndsItsSessions) {
    daemon.add("d", root, 16 * kMiB);
    LoaderOptions impatient = options();
    impatient.reconnect_timeout_ms = 50;
    // Less memory than the epoch takes, so that part of it is still missing when the dataset is removed.
    impatient.batch_size = 2;
    impatient.memory_budget_bytes = 512 << 10;
    Loader loader = open(impatient);
    std::multiset<std::string> seen;
    read(loader, seen, 2);
    EXPECT_EQ(daemon.call("DELETE", "/v1/datasets/d").status, 200u);
    for (;;) {
        const auto batch = loader.next();
        if (!batch) break;
        ASSERT_TRUE(batch->has_value()) << "the epoch must end with an error";
    }
    TestDaemon::wait_until([&] { return number_at(daemon.get("/v1/status").body, "sessions") == 0; });
}

}  // namespace
}  // namespace larder::test
