// Kills a store again and again, with writes in flight and index changes uncommitted. Every flushed block comes back,
// every block that comes back is right or fails its CRC, no block comes back whose drop was flushed, and the accounts
// add up.

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/unit/cache/store/restart_fixture.h"

namespace larder::cache {
namespace {

using test::kMiB;
using test::TestWrite;

class RestartProperty : public test::RestartFixture, public testing::WithParamInterface<unsigned> {
protected:
    void change_and_kill(std::mt19937_64& random) {
        std::vector<std::unique_ptr<TestWrite>> writes;
        for (int step = 0; step < 60; step++) {
            const auto id = static_cast<std::uint32_t>(random() % kBlocks);
            const auto choice = random() % 32;
            if (choice == 0) {
                run();
                index_->flush();
                flushed_.clear();
                flushed_drops_ = dropped_;
                for (std::uint32_t block_id = 0; block_id < kBlocks; block_id++) {
                    if (store_->find(block_id)) flushed_.insert(block_id);
                }
            } else if (choice == 1) {
                drop(id);
                flushed_.erase(id);
            } else if (choice == 2) {
                store_->set_quota({.memory_bytes = 0, .disk_bytes = (4 + random() % 28) * kMiB}, {});
                std::erase_if(flushed_, [&](std::uint32_t block_id) { return !store_->find(block_id); });
            } else if (choice < 8) {
                device_->wait(clock_.now_ns() + 200'000);
            } else if (const auto room = store_->reserve(Tier::disk, id, bytes_of(id))) {
                dropped_.erase(id);
                flushed_drops_.erase(id);
                writes.push_back(std::make_unique<TestWrite>(*room));
                if (!store_->write(*writes.back())) writes.pop_back();
            }
            store_->check_invariants();
        }
        // Some writes are still in flight.
        kill();
    }

    void drop(std::uint32_t block_id) {
        if (store_->find(block_id)) dropped_.insert(block_id);
        store_->forget(block_id);
    }

    void check_restarted() {
        for (const std::uint32_t block_id : flushed_drops_) ASSERT_FALSE(store_->find(block_id)) << block_id;
        // A block comes back if its drop was not committed.
        std::erase_if(dropped_, [&](std::uint32_t block_id) { return store_->find(block_id).has_value(); });
        for (const std::uint32_t block_id : flushed_) ASSERT_TRUE(store_->find(block_id)) << block_id;
        for (std::uint32_t block_id = 0; block_id < kBlocks; block_id++) {
            const auto location = store_->find(block_id);
            if (!location) continue;
            const auto payload = test::stored_payload(*location);
            const bool good = payload == test::payload_of(block_id, bytes_of(block_id));
            ASSERT_EQ(good, crc32c(payload) == location->payload_crc) << block_id;
            // Only blocks that were in flight may be torn.
            ASSERT_TRUE(good || !flushed_.contains(block_id)) << block_id;
            if (!good) drop(block_id);
        }
        store_->check_invariants();
    }

    std::set<std::uint32_t> flushed_;
    std::set<std::uint32_t> dropped_;  // and not admitted again
    std::set<std::uint32_t> flushed_drops_;
};

TEST_P(RestartProperty, RecoveredBlocksAreCorrectOrFailTheirCrc) {
    std::mt19937_64 random(GetParam());
    const Quota quota{.memory_bytes = 0, .disk_bytes = 32 * kMiB};
    start(quota);
    for (int round = 0; round < 12; round++) {
        SCOPED_TRACE(round);
        change_and_kill(random);
        if (random() % 4 == 0) {
            std::filesystem::remove_all(index_directory_);
            // Only the index knows what was dropped.
            dropped_.clear();
            flushed_drops_.clear();
        }
        start(quota);
        check_restarted();
        if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RestartProperty, testing::Range(1u, 4u));

}  // namespace
}  // namespace larder::cache
