// Compares a store under random operations with a plain model. Its fake disk reorders, tears and fails operations, and
// fills up. After every step the accounts add up, use is within the quota, and cached blocks have the right bytes.

#include <gtest/gtest.h>

#include <list>
#include <map>
#include <random>
#include <set>

#include "tests/unit/cache/store/store_fixture.h"

namespace larder::cache {
namespace {

using test::FakeAction;
using test::Fault;
using test::kMiB;
using test::StoreFixture;
using test::TestWrite;

constexpr std::uint32_t kModelBlocks = 400;
constexpr std::uint32_t kBytesMax = 512 * 1024;

class RandomStoreRun : public StoreFixture {
public:
    explicit RandomStoreRun(std::uint64_t seed)
        : StoreFixture(kModelBlocks, kBytesMax, true, 60 * kMiB), random_(seed) {
        set_quota();
    }

    void step() {
        const auto choice = random_() % 64;
        if (choice < 1) {
            set_quota();
        } else if (choice < 2) {
            inject();
        } else if (choice < 4) {
            reference_segment();
        } else if (choice < 6) {
            forget_one();
        } else if (choice < 10) {
            clock.advance_ns(static_cast<std::int64_t>(random_() % 4'000'000'000));
        } else if (choice < 20) {
            device.wait(clock.now_ns() + 100'000);
        } else if (choice < 28) {
            finish_one_in_memory(random_() % 4 == 0);
        } else {
            reserve();
        }
        collect_writes();
        check();
    }

    void end() {
        while (!reserved_.empty()) finish_one_in_memory(false);
        for (const auto& [segment, payload] : references_) store->drop_reference(*segment);
        run();
        collect_writes();
        check();
        EXPECT_TRUE(writes_.empty());
        // After the faults heal, admission resumes.
        device.clear_faults();
        disk.set_bytes_max(~std::uint64_t{0});
        clock.advance_ns(DiskSegments::kRetryAfterNs);
        store->set_quota({.memory_bytes = 0, .disk_bytes = 300 * kMiB}, {});
        run();
        forget_dropped();
        for (std::uint32_t id = 0; id < kModelBlocks; id++) {
            EXPECT_TRUE(store->find(id) || admit_to_disk(id, bytes_of(id)) == 0) << id;
        }
        EXPECT_FALSE(store->disk_problem());
        store->check_invariants();
        store->clear({});
        run();
        EXPECT_EQ(store->usage().draining_segments, 0u);
        EXPECT_EQ(device.open_files(), 0u);
    }

    std::size_t admissions = 0;
    std::size_t failures = 0;

private:
    std::uint32_t block() { return static_cast<std::uint32_t>(random_() % kModelBlocks); }
    static std::uint32_t bytes_of(std::uint32_t id) {
        return static_cast<std::uint32_t>(mix64(id) % (id % 3 == 0 ? kBytesMax : 5000));
    }

    void set_quota() {
        store->set_quota({.memory_bytes = random_() % (24 * kMiB), .disk_bytes = random_() % (48 * kMiB)}, {});
        forget_dropped();
    }
    void forget_dropped() {
        std::erase_if(cached_, [&](std::uint32_t id) { return !store->find(id); });
    }

    void forget_one() {
        const std::uint32_t id = block();
        store->forget(id);
        cached_.erase(id);
    }

    void reserve() {
        const std::uint32_t id = block();
        const StoreUsage before = store->usage();
        const Quota quota = store->quota();
        for (const Tier tier : {Tier::memory, Tier::disk}) {
            const auto room = store->reserve(tier, id, bytes_of(id));
            const bool on_disk = tier == Tier::disk;
            const std::uint64_t record = protocol::record_bytes(bytes_of(id), on_disk ? 512 : 64);
            const bool fits = (on_disk ? before.disk_bytes : before.memory_bytes) + record <=
                              (on_disk ? quota.disk_bytes : quota.memory_bytes);
            if (!room) {
                EXPECT_TRUE(room.error() != Refusal::quota_reached || !fits);
                EXPECT_EQ(room.error() == Refusal::already_cached, cached_.contains(id) || pending_.contains(id));
                continue;
            }
            EXPECT_TRUE(fits);
            pending_.insert(id);
            if (!on_disk) {
                reserved_.push_back(*room);
            } else if (random_() % 10 == 0) {
                store->abandon(*room);
                pending_.erase(id);
            } else {
                writes_.emplace_back(*room);
                EXPECT_TRUE(store->write(writes_.back()));
            }
            return;
        }
    }

    void finish_one_in_memory(bool abandon) {
        if (reserved_.empty()) return;
        const std::size_t chosen = random_() % reserved_.size();
        const Reservation room = reserved_[chosen];
        reserved_.erase(reserved_.begin() + static_cast<std::ptrdiff_t>(chosen));
        pending_.erase(room.block_id);
        if (abandon) return store->abandon(room);
        test::fill_payload(store->payload(room), room.block_id);
        const bool dropped = room.segment->dropped();
        EXPECT_EQ(store->commit(room, crc32c(test::payload_of(room.block_id, room.payload_bytes))), !dropped);
        if (!dropped) note_admitted(room.block_id);
    }

    void note_admitted(std::uint32_t id) {
        admissions++;
        cached_.insert(id);
    }

    void collect_writes() {
        for (auto write = writes_.begin(); write != writes_.end();) {
            if (!write->result) {
                ++write;
                continue;
            }
            const std::uint32_t id = write->reservation.block_id;
            pending_.erase(id);
            if (*write->result == 0 && store->find(id)) note_admitted(id);
            failures += *write->result != 0;
            write = writes_.erase(write);
        }
    }

    void inject() {
        const FakeAction actions[] = {FakeAction::open, FakeAction::allocate, FakeAction::write, FakeAction::unlink};
        const Fault::Kind kinds[] = {Fault::Kind::fail, Fault::Kind::torn, Fault::Kind::short_count};
        const FakeAction action = actions[random_() % 4];
        const Fault::Kind kind = action == FakeAction::write ? kinds[random_() % 3] : Fault::Kind::fail;
        device.inject({.action = action, .kind = kind, .skip = random_() % 4, .error = random_() % 2 ? EIO : ENOSPC});
        clock.advance_ns(DiskSegments::kRetryAfterNs);
    }

    // References a segment, perhaps until long after it is dropped. Its bytes must stay.
    void reference_segment() {
        if (references_.size() > 4) {
            const auto& [segment, referenced] = references_.front();
            EXPECT_EQ(test::stored_payload({segment, referenced.offset, referenced.bytes, 0}),
                      test::payload_of(referenced.id, referenced.bytes));
            store->drop_reference(*segment);
            references_.pop_front();
        }
        if (cached_.empty()) return;
        const std::uint32_t id = *std::next(cached_.begin(), static_cast<std::ptrdiff_t>(random_() % cached_.size()));
        const BlockLocation location = *store->find(id);
        store->add_reference(*location.segment);
        references_.push_back({location.segment, {id, location.payload_bytes, location.offset}});
    }

    void check() {
        store->check_invariants();
        const StoreUsage usage = store->usage();
        ASSERT_EQ(usage.blocks, cached_.size());
        ASSERT_LE(usage.memory_bytes, store->quota().memory_bytes);
        ASSERT_LE(usage.disk_bytes, store->quota().disk_bytes);
        for (const std::uint32_t id : cached_) ASSERT_TRUE(store->find(id));
        StoreUsage found;
        for (const std::uint32_t id : cached_) {
            const bool on_disk = store->find(id)->segment->tier() == Tier::disk;
            const std::uint64_t record = protocol::record_bytes(bytes_of(id), on_disk ? 512 : 64);
            found.payload_bytes += bytes_of(id);
            found.record_bytes += record;
            found.disk_payload_bytes += on_disk ? bytes_of(id) : 0;
            found.disk_record_bytes += on_disk ? record : 0;
        }
        ASSERT_EQ(usage.payload_bytes, found.payload_bytes);
        ASSERT_EQ(usage.record_bytes, found.record_bytes);
        ASSERT_EQ(usage.disk_payload_bytes, found.disk_payload_bytes);
        ASSERT_EQ(usage.disk_record_bytes, found.disk_record_bytes);
        if (cached_.empty()) return;
        const std::uint32_t id = *std::next(cached_.begin(), static_cast<std::ptrdiff_t>(random_() % cached_.size()));
        ASSERT_TRUE(holds(id, bytes_of(id))) << id;
    }

    struct ReferencedBlock {
        std::uint32_t id;
        std::uint32_t bytes;
        std::uint64_t offset;
    };
    std::mt19937_64 random_;
    std::set<std::uint32_t> cached_;
    std::set<std::uint32_t> pending_;
    std::vector<Reservation> reserved_;
    std::list<TestWrite> writes_;
    std::list<std::pair<const Segment*, ReferencedBlock>> references_;
};

class StoreProperty : public testing::TestWithParam<unsigned> {};

TEST_P(StoreProperty, AccountingAndBytesStayCorrect) {
    RandomStoreRun random_run(GetParam());
    for (int step = 0; step < 1500 && !testing::Test::HasFailure(); step++) {
        SCOPED_TRACE(step);
        random_run.step();
    }
    if (testing::Test::HasFailure()) return;
    random_run.end();
    EXPECT_GT(random_run.admissions, 100u);
    EXPECT_GT(random_run.failures, 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, StoreProperty, testing::Range(1u, 9u));

}  // namespace
}  // namespace larder::cache
