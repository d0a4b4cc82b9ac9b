#pragma once

// A small real dataset on disk, a FakeDaemon that serves it, and loaders that read from the daemon.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "loader/larder.h"
#include "tests/support/sample_data.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/loader/fake_daemon.h"

namespace larder::test {

class LoaderTest : public testing::Test {
protected:
    void start(protocol::Manifest opened) {
        manifest = std::move(opened);
        std::vector<std::string> blocks;
        for (std::uint32_t i = 0; i < manifest.block_count(); ++i) blocks.push_back(block_content(root(), manifest, i));
        daemon = std::make_unique<FakeDaemon>(directory.path().string(), manifest_path(), std::move(blocks));
        daemon->start();
    }
    // Files of 1 to `bytes_max` bytes, one sample each.
    void make_raw(std::uint32_t files, std::size_t bytes_max = 20'000) {
        make_tree(root(), {.class_count = 4, .files_per_class = files / 4, .bytes_max = bytes_max});
        start(make_manifest(root(), manifest_path()));
    }
    // Shards of samples with two fields, in blocks of about `block_bytes`. Every `large_every`th shard, if not 0, has
    // samples of up to ten times the size.
    void make_shards(std::uint32_t shards, std::uint32_t samples, std::uint64_t block_bytes,
                     std::uint32_t large_every = 0) {
        std::filesystem::create_directories(root());
        for (std::uint32_t i = 0; i < shards; ++i) {
            const bool large = large_every > 0 && i % large_every == 0;
            write_tar(root() / ("shard-" + std::to_string(i) + ".tar"), TarDialect::pax,
                      make_samples(samples, large ? 60'000 : 6000, i + 1));
        }
        start(make_manifest(root(), manifest_path(), protocol::Format::webdataset,
                            {.target = protocol::BlockTarget::bytes, .bytes = block_bytes}));
    }

    LoaderOptions options() const {
        LoaderOptions options;
        options.dataset = "test";
        options.socket = daemon->socket_path();
        options.seed = 7;
        options.batch_size = 16;
        options.memory_budget_bytes = std::uint64_t{16} << 20;
        options.reconnect_timeout_ms = 20'000;
        return options;
    }
    Loader open(const LoaderOptions& settings) const {
        auto loader = Loader::open(settings);
        EXPECT_TRUE(loader.has_value()) << loader.error().message;
        return std::move(*loader);
    }

    // Checks the bytes of each sample against the files and counts it.
    void count(const Batch& batch) {
        for (const Sample& sample : batch.samples()) {
            ++seen[sample.index];
            std::string bytes;
            if (manifest.header().format == protocol::Format::raw) {
                bytes.assign(reinterpret_cast<const char*>(sample.bytes().data()), sample.bytes().size());
                ASSERT_EQ(bytes, sample_content(root(), manifest, sample.index)) << sample.key;
            } else {
                const std::string all = sample_content(root(), manifest, sample.index);
                ASSERT_EQ(sample.fields.size(), 2u);
                for (const Field& field : sample.fields) {
                    bytes.assign(reinterpret_cast<const char*>(field.bytes.data()), field.bytes.size());
                    ASSERT_NE(all.find(bytes), std::string::npos);
                }
            }
        }
    }
    // Takes up to `batches_max` batches. Returns false if the epoch ended.
    bool take(Loader& loader, std::uint64_t batches_max = ~std::uint64_t{0}) {
        for (std::uint64_t i = 0; i < batches_max; ++i) {
            auto batch = loader.next();
            EXPECT_TRUE(batch.has_value()) << batch.error().message;
            if (!batch || !*batch) return false;
            count(**batch);
        }
        return true;
    }
    void expect_each_sample_once() {
        EXPECT_EQ(seen.size(), manifest.sample_count());
        for (const auto& [sample, times] : seen) ASSERT_EQ(times, 1) << "sample " << sample;
        seen.clear();
    }

    std::filesystem::path root() const { return directory.path() / "data"; }
    std::string manifest_path() const { return directory / "manifest"; }

    TempDirectory directory;
    protocol::Manifest manifest;
    std::unique_ptr<FakeDaemon> daemon;
    std::map<std::uint64_t, int> seen;
};

}  // namespace larder::test
