#pragma once

// A shard on a fake device with a manual clock. The real file remote reads a raw dataset from a fake disk, and the
// clients are bare ring clients.

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/remote/remote_place.h"
#include "cache/shard/shard.h"
#include "cache/store/index.h"
#include "cache/store/store.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_disk.h"
#include "tests/support/ring_client.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_units.h"

namespace larder::test {

inline constexpr std::uint64_t kDatasetId = 0x1234;
inline constexpr std::int64_t kMillisecond_ns = 1'000'000;
// Room for all blocks in one tier.
inline constexpr cache::Quota kMemory{.memory_bytes = 64 * kMiB, .disk_bytes = 0};
inline constexpr cache::Quota kDisk{.memory_bytes = 0, .disk_bytes = 64 * kMiB};

struct ShardWorldOptions {
    std::uint32_t blocks = 64;
    std::uint32_t block_bytes_max = 20'000;
    cache::Quota quota;
    FakeDeviceOptions device;
    cache::ShardOptions shard;
    std::uint64_t seed = 1;
    bool checksums = false;  // in the manifest
    cache::Compression compression = {};
    bool compressible = false;  // every second block compresses, the others are random
    cache::Index* index = nullptr;
};

// The shard's view of a manual clock: each reading advances the clock by step_ns.
class SteppingClock final : public Clock {
public:
    explicit SteppingClock(ManualClock& clock) : clock_(clock) {}
    std::int64_t now_ns() const override {
        clock_.advance_ns(step_ns);
        return clock_.now_ns();
    }
    std::int64_t step_ns = 0;

private:
    ManualClock& clock_;
};

class ShardWorld {
public:
    explicit ShardWorld(const ShardWorldOptions& options)
        : device(std::make_unique<FakeDevice>(disk, clock, options.device)),
          shard(std::make_unique<cache::Shard>(*device, stepping_clock, deterministic(options.shard))) {
        std::mt19937_64 random(options.seed);
        cache::DatasetContent dataset_content;
        // The remote looks for its root once, before any read goes through the device.
        std::filesystem::create_directory(root());
        for (std::uint32_t i = 0; i < options.blocks; ++i) {
            std::string bytes(1 + random() % options.block_bytes_max, '\0');
            const bool shrinks = options.compressible && i % 2 == 0;
            for (char& byte : bytes) byte = static_cast<char>(shrinks ? 'a' + random() % 2 : random());
            disk.put(path(i), bytes, 1000 + i);
            dataset_content.add_object(object_name(i), bytes.size(), 1000 + i, protocol::kNoLabel);
            if (options.checksums) {
                dataset_content.objects.back().first_block = i;
                dataset_content.checksums.push_back(crc32c(std::as_bytes(std::span(bytes))));
            }
            total_bytes += bytes.size();
            content.push_back(std::move(bytes));
        }
        const auto written = cache::write_manifest(dataset_content, {.url = url(), .format = protocol::Format::raw},
                                                   {.path = directory / "manifest", .dataset_id = kDatasetId});
        EXPECT_TRUE(written.has_value()) << written.error().message;
        manifest = std::make_shared<const protocol::Manifest>(*protocol::Manifest::open(directory / "manifest"));
        cache::StoreOptions store{.dataset_id = kDatasetId,
                                  .block_id_end = static_cast<std::uint32_t>(manifest->header().block_id_end),
                                  .block_bytes_max = manifest->header().block_bytes_max,
                                  .segment_directory = directory / "segments",
                                  .disk_alignment = 512};
        const auto place = cache::RemotePlace::open(url(), {}, nullptr);
        EXPECT_TRUE(place.has_value()) << place.error().message;
        auto remote = (*place)->remote(*device);
        EXPECT_TRUE(remote.has_value()) << remote.error().message;
        shard->add_dataset({.definition = {.name = "data", .compression = options.compression},
                            .store = std::make_unique<cache::DatasetStore>(store, *device, clock, options.index),
                            .remote = std::move(*remote),
                            .quota = options.quota,
                            .manifest = manifest});
    }

    ~ShardWorld() {
        if (shard != nullptr) shard->stop(clock.now_ns() + 60'000'000'000);
    }

    // The path of a block's object on the fake disk.
    std::string path(std::uint32_t block) const { return (root() / object_name(block)).string(); }

    static std::string object_name(std::uint32_t block) {
        char name[16];
        std::snprintf(name, sizeof name, "%06u.bin", block);
        return name;
    }
    std::filesystem::path root() const { return directory.path() / "data"; }
    std::string url() const { return "file://" + root().string(); }

    RingClient& attach(const RingClientOptions& options = {}) {
        clients.push_back(std::make_unique<RingClient>(manifest, options));
        shard->attach(clients.back()->take_setup());
        return *clients.back();
    }

    void turns(int count) {
        for (int i = 0; i < count; ++i) shard->turn(clock.now_ns() + kMillisecond_ns);
    }

    // Turns the shard until the client has a completion, at most `turns_max` times.
    std::optional<protocol::Completion> completion(RingClient& client, int turns_max = 5000) {
        for (int i = 0; i < turns_max; ++i) {
            if (auto got = client.next_completion()) return got;
            turns(1);
        }
        return std::nullopt;
    }

    // The result of read(), which fetches one block into a slot and releases the slot.
    struct Fetched {
        protocol::BlockStatus status = protocol::BlockStatus::remote_failed;
        protocol::BlockSource source = protocol::BlockSource::none;
        std::string bytes;
    };
    Fetched read(RingClient& client, std::uint32_t block, std::uint32_t epoch = 1, std::uint32_t slot_page = 0) {
        client.fetch(block, slot_page, block, epoch);
        const auto got = completion(client);
        if (!got) {
            ADD_FAILURE() << "block " << block << " never came";
            return {};
        }
        EXPECT_EQ(got->tag, block);
        Fetched fetched{got->status, got->source, {}};
        if (got->status != protocol::BlockStatus::ok) return fetched;
        fetched.bytes = client.payload(*got);
        if (got->segment == 0) client.release(slot_page);
        return fetched;
    }

    // Reads every block once. Returns the number of hits.
    std::uint32_t read_epoch(RingClient& client, std::uint32_t epoch) {
        std::uint32_t hits = 0;
        for (std::uint32_t block = 0; block < content.size(); ++block) {
            const Fetched fetched = read(client, block, epoch);
            EXPECT_EQ(fetched.status, protocol::BlockStatus::ok);
            EXPECT_EQ(fetched.bytes, content[block]) << "block " << block;
            hits += fetched.source != protocol::BlockSource::remote;
        }
        turns(20);  // lets admissions to disk finish
        return hits;
    }

    static cache::ShardOptions deterministic(cache::ShardOptions options) {
        options.background_threads = false;
        return options;
    }

    cache::DatasetStatistics dataset() const { return shard->statistics().datasets.at(0); }
    cache::JobStatistics job(const std::string& name) const {
        for (const auto& job : shard->statistics().jobs) {
            if (job.job == name) return job;
        }
        ADD_FAILURE() << "no job " << name;
        return {};
    }

    TempDirectory directory;
    FakeDisk disk;
    ManualClock clock{1'000'000'000};
    SteppingClock stepping_clock{clock};
    std::vector<std::string> content;
    std::uint64_t total_bytes = 0;
    std::shared_ptr<const protocol::Manifest> manifest;
    std::unique_ptr<FakeDevice> device;
    std::unique_ptr<cache::Shard> shard;
    std::vector<std::unique_ptr<RingClient>> clients;
};

}  // namespace larder::test
