// SamplePool gives samples to many threads. The daemon is a real one.

#include "tools/mount/sample_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/file.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_daemon.h"

namespace larder::mount {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kFiles = 80;

std::atomic<bool> is_interrupted = false;

class SamplePoolTest : public ::testing::Test {
protected:
    SamplePoolTest() {
        test::make_tree(tree_, {.class_count = 2, .files_per_class = kFiles / 2, .bytes_max = 60'000});
        daemon_.add("images", tree_);
        is_interrupted = false;
    }

    std::unique_ptr<SamplePool> open(std::size_t readers_max = 4, std::uint64_t memory_bytes = 1 << 20) {
        auto pool = SamplePool::open({.connection = {.dataset = "images",
                                                     .job = "mount",
                                                     .socket = daemon_.socket(),
                                                     .memory_budget_bytes = memory_bytes,
                                                     .reconnect_timeout_ms = 60'000,
                                                     .interrupted = [] { return is_interrupted.load(); }},
                                      .readers_max = readers_max});
        if (!pool) throw std::runtime_error(pool.error().message);
        return std::move(*pool);
    }

    // Compares a sample with its file.
    void expect_sample(SamplePool& pool, std::uint64_t index) {
        const auto sample = pool.get(index);
        ASSERT_TRUE(sample) << sample.error().message;
        const auto file = read_file(tree_ + "/" + std::string(pool.manifest().object(index).path));
        ASSERT_TRUE(file);
        const auto bytes = (*sample)->bytes();
        ASSERT_EQ(bytes.size(), file->size());
        EXPECT_EQ(std::memcmp(bytes.data(), file->data(), bytes.size()), 0);
    }

    std::uint64_t blocks_read() const { return test::number_at(daemon_.dataset("images").at("counters"), "misses"); }

    test::TempDirectory directory_;
    const std::string tree_ = directory_ / "tree";
    test::TestDaemon daemon_;
};

TEST_F(SamplePoolTest, ManyThreadsReadInRandomOrder) {
    const auto pool = open();
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < 8; ++i) {
        threads.emplace_back([&, i] {
            std::mt19937_64 draw(i);
            for (int round = 0; round < 200; ++round) expect_sample(*pool, draw() % kFiles);
        });
    }
}

TEST_F(SamplePoolTest, ManyThreadsReadInOrder) {
    const auto pool = open();
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            for (std::uint64_t index = 0; index < kFiles; ++index) expect_sample(*pool, index);
        });
    }
}

TEST_F(SamplePoolTest, SamplesThatFollowComeWithoutBeingAskedFor) {
    const auto pool = open(4, 16 << 20);  // room for all samples
    for (std::uint64_t index = 0; index < 3; ++index) expect_sample(*pool, index);
    // The groups are 0; 1 to 2; 3 to 6. The third one comes while the second one is read.
    daemon_.wait_until([&] { return blocks_read() == 7; });
    for (std::uint64_t index = 3; index < kFiles; ++index) expect_sample(*pool, index);
    EXPECT_EQ(blocks_read(), kFiles);
}

TEST_F(SamplePoolTest, SamplesReadAgainBringNoOthers) {
    const auto pool = open();
    for (const std::uint64_t index : {9, 30, 5, 77, 40}) {
        for (int piece = 0; piece < 3; ++piece) expect_sample(*pool, index);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(blocks_read(), 5u);
}

TEST_F(SamplePoolTest, PoolEndsThoughAFetchAheadWaitsForTheDaemon) {
    auto pool = open(1);
    for (std::uint64_t index = 0; index < 3; ++index) expect_sample(*pool, index);
    daemon_.wait_until([&] { return blocks_read() == 7; });
    daemon_.stop();
    expect_sample(*pool, 3);  // begins to fetch the next group
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    pool.reset();
}

TEST_F(SamplePoolTest, HeldSamplesStayWhatTheyAre) {
    const auto pool = open(1);
    // More than the reader's memory, so some are in the node's cache or the pool waits for none.
    ASSERT_EQ(daemon_.put("/v1/datasets/images/quota", {{"memory_bytes", 16 << 20}, {"disk_bytes", 0}}).status, 200u);
    for (std::uint64_t index = 0; index < kFiles; ++index) expect_sample(*pool, index);
    std::vector<std::shared_ptr<const Sample>> held;
    for (std::uint64_t index = 0; index < kFiles; ++index) {
        auto sample = pool->get(index);
        ASSERT_TRUE(sample) << sample.error().message;
        held.push_back(std::move(*sample));
    }
    for (std::uint64_t index = 0; index < kFiles; ++index) {
        const auto file = read_file(tree_ + "/" + std::string(pool->manifest().object(index).path));
        ASSERT_EQ(held[index]->bytes().size(), file->size());
        EXPECT_EQ(std::memcmp(held[index]->bytes().data(), file->data(), file->size()), 0);
    }
}

TEST_F(SamplePoolTest, FileThatIsGoneFailsAlone) {
    const auto pool = open();
    const std::string gone = tree_ + "/" + std::string(pool->manifest().object(5).path);
    ASSERT_EQ(::unlink(gone.c_str()), 0);
    // In order, so that the missing sample is also fetched ahead.
    for (std::uint64_t index = 0; index < kFiles; ++index) {
        if (index != 5) {
            expect_sample(*pool, index);
            continue;
        }
        const auto sample = pool->get(index);
        ASSERT_FALSE(sample);
        EXPECT_THAT(sample.error().message, HasSubstr(pool->manifest().object(5).path));
    }
}

TEST_F(SamplePoolTest, ReadsGoOnWithAnotherDaemon) {
    const auto pool = open();
    expect_sample(*pool, 1);
    daemon_.stop();
    std::atomic<bool> has_read = false;
    std::jthread reader([&] {
        expect_sample(*pool, 2);
        has_read = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(has_read);
    daemon_.start();
    reader.join();
    EXPECT_TRUE(has_read);
}

TEST_F(SamplePoolTest, InterruptedReadEndsThoughTheDaemonIsAway) {
    const auto pool = open();
    expect_sample(*pool, 1);
    daemon_.stop();
    std::vector<std::jthread> readers;
    for (int i = 0; i < 3; ++i) {
        readers.emplace_back([&] {
            const auto sample = pool->get(2);
            ASSERT_FALSE(sample);
            EXPECT_EQ(sample.error().code, ErrorCode::cancelled);
        });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    is_interrupted = true;
    readers.clear();
    is_interrupted = false;
    daemon_.start();
    expect_sample(*pool, 2);
}

}  // namespace
}  // namespace larder::mount
