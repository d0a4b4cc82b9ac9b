#pragma once

// A DatasetStore with its index on real files. A test can stop, kill and restart them, and damage the files in between.
// The index commits only in flush(), so a test decides which changes a kill loses.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cache/store/index.h"
#include "cache/store/recovery.h"
#include "cache/store/segment_header.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/cache/store/store_fixture.h"

namespace larder::test {

class RestartFixture : public testing::Test {
protected:
    static constexpr std::uint32_t kBlocks = 200;

    ~RestartFixture() override { stop(); }

    void start(cache::Quota quota = {.memory_bytes = 0, .disk_bytes = 64 * kMiB}, bool with_index = true) {
        device_ = std::move(cache::make_device(cache::DeviceKind::automatic, clock_)->device);
        if (with_index) {
            auto opened = cache::Index::open(
                {.directory = index_directory_, .map_bytes = std::uint64_t{1} << 30, .commit_after_ms = 3'600'000});
            ASSERT_TRUE(opened) << opened.error().message;
            opened_ = opened->report;
            index_ = std::move(opened->index);
        }
        auto recovered = cache::recover_segments(kDatasetId, segments_, index_.get());
        report_ = std::move(recovered.report);
        cache::StoreOptions options;
        options.dataset_id = kDatasetId;
        options.block_id_end = kBlocks;
        options.block_bytes_max = 2 * kMiB;
        options.segment_directory = segments_;
        store_ = std::make_unique<cache::DatasetStore>(options, *device_, clock_, index_.get());
        store_->recover(std::move(recovered.segments));
        store_->check_invariants();
        store_->set_quota(quota, {});
        run();
        store_->check_invariants();
    }
    void run() {
        while (store_->operations_in_flight() > 0) device_->wait(clock_.now_ns() + 1'000'000'000);
    }
    void stop() {
        if (device_ != nullptr) device_->stop();
        store_.reset();
        device_.reset();
        index_.reset();
    }
    // Acts like kill -9: the index loses every change since its last flush().
    void kill() {
        const std::string copy_directory = directory_ / "copy";
        std::filesystem::copy(index_directory_, copy_directory);
        stop();
        std::filesystem::remove_all(index_directory_);
        std::filesystem::rename(copy_directory, index_directory_);
    }
    static std::uint32_t bytes_of(std::uint32_t block_id) { return 1000 + block_id * 777; }
    void admit(std::uint32_t from, std::uint32_t to) {
        std::vector<std::unique_ptr<TestWrite>> writes;
        for (std::uint32_t block_id = from; block_id < to; block_id++) {
            const auto room = store_->reserve(cache::Tier::disk, block_id, bytes_of(block_id));
            ASSERT_TRUE(room);
            writes.push_back(std::make_unique<TestWrite>(*room));
            ASSERT_TRUE(store_->write(*writes.back()));
        }
        run();
        for (const auto& write : writes) ASSERT_EQ(write->result, 0);
    }
    bool holds(std::uint32_t block_id) {
        const auto location = store_->find(block_id);
        return location && location->payload_bytes == bytes_of(block_id) &&
               stored_payload(*location) == payload_of(block_id, bytes_of(block_id)) &&
               location->payload_crc == crc32c(payload_of(block_id, bytes_of(block_id)));
    }
    void expect_held(std::uint32_t from, std::uint32_t to) {
        for (std::uint32_t block_id = from; block_id < to; block_id++) EXPECT_TRUE(holds(block_id)) << block_id;
    }
    void overwrite(const std::string& path, std::uint64_t offset, std::size_t bytes) {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(static_cast<std::streamoff>(offset));
        file << std::string(bytes, '\x5a');
        ASSERT_TRUE(file.good());
    }
    std::string path_of(std::uint32_t block_id) {
        return cache::segment_path(segments_, store_->find(block_id)->segment->id());
    }

    TempDirectory directory_;
    std::string segments_ = directory_ / "segments";
    std::string index_directory_ = directory_ / "index";
    SteadyClock clock_;
    std::unique_ptr<cache::Device> device_;
    std::unique_ptr<cache::Index> index_;
    std::unique_ptr<cache::DatasetStore> store_;
    cache::Index::OpenReport opened_;
    cache::RecoveryReport report_;
};

}  // namespace larder::test
