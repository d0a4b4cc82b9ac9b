// A seeded random run of one shard. Sessions come and go, misbehave and die; quotas grow and shrink; disk and remote
// fail, answer short, tear writes and flip bits. The fake device's jitter reorders completions. A client must get the
// object's bytes or an explicit error, and accounts must hold throughout. Once the faults end, every fetch must
// complete and hits must return. Each seed runs twice and must leave the same trace.

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "base/server/logging.h"
#include "tests/unit/cache/shard/shard_fixture.h"

namespace larder::cache {
namespace {

using protocol::BlockStatus;
using test::FakeAction;
using test::Fault;
using test::RingClient;
using test::ShardWorld;

struct SimulatedClient {
    RingClient* ring = nullptr;
    std::map<std::uint32_t, std::uint32_t> requested;  // slot page -> block
    std::map<std::uint32_t, std::uint32_t> held;
    std::uint32_t epoch = 1;
};

class Simulation {
public:
    explicit Simulation(std::uint64_t seed)
        : random_(seed),
          world_({.blocks = 120,
                  .block_bytes_max = 16'000,
                  .quota = {.memory_bytes = 200'000, .disk_bytes = 400'000},
                  .device = {.seed = seed, .latency_ns = 200'000, .jitter_ns = 3'000'000},
                  .seed = seed}) {}

    std::uint64_t run() {
        for (int step = 0; step < 3000; ++step) {
            for (int i = 0; i < 4; ++i) act();
            world_.turns(1);
            for (SimulatedClient& client : clients_) take_completions(client);
            check_accounts();
        }
        heal();
        return world_.device->trace_hash();
    }

    std::uint64_t good() const { return good_; }
    std::uint64_t errors() const { return errors_; }

private:
    std::uint32_t below(std::uint32_t end) { return static_cast<std::uint32_t>(random_() % end); }

    void act() {
        const std::uint32_t roll = below(400);
        if (clients_.empty() || roll < 4) {
            join();
        } else if (roll < 6) {
            leave();
        } else if (roll < 12) {
            set_quota();
        } else if (roll < 24) {
            inject();
        } else {
            SimulatedClient& client = clients_[below(static_cast<std::uint32_t>(clients_.size()))];
            if (roll < 30) {
                ++client.epoch;
            } else {
                fetch_or_release(client);
            }
        }
    }

    void join() {
        if (clients_.size() >= 6) return;
        auto bucket = std::make_shared<TokenBucket>();
        if (below(3) == 0) bucket->set_limit(2e7, 30'000, world_.clock.now_ns());
        const std::string job = "job-" + std::to_string(below(3));
        clients_.push_back({.ring = &world_.attach({.session_id = ++sessions_,
                                                    .job = job,
                                                    .bucket = bucket,
                                                    .slot_bytes = 40 * kSlotPages * 4096,
                                                    .order = below(4) == 0 ? protocol::ReadOrder::sequential
                                                                           : protocol::ReadOrder::random})});
    }

    void leave() {
        if (clients_.size() < 2) return;
        const auto leaver = below(static_cast<std::uint32_t>(clients_.size()));
        if (below(3) == 0) {
            clients_[leaver].ring->release(39);  // a breach: the page is not held
            world_.turns(2);
            EXPECT_TRUE(clients_[leaver].ring->hung_up());
        } else {
            clients_[leaver].ring->close_socket();
        }
        clients_.erase(clients_.begin() + leaver);
    }

    void set_quota() {
        quota_ = {.memory_bytes = below(3) * 150'000ull, .disk_bytes = below(4) * 250'000ull};
        world_.shard->set_quota(test::kDatasetId, quota_);
    }

    void inject() {
        const std::vector<Fault> faults = {
            {.action = FakeAction::read, .kind = Fault::Kind::fail, .path_part = "segment"},
            {.action = FakeAction::read, .kind = Fault::Kind::short_count, .path_part = ""},
            {.action = FakeAction::read, .kind = Fault::Kind::flip_bit, .path_part = "segment"},
            {.action = FakeAction::read, .kind = Fault::Kind::fail, .path_part = "data"},
            {.action = FakeAction::open, .kind = Fault::Kind::fail, .path_part = "data"},
            {.action = FakeAction::write, .kind = Fault::Kind::torn, .path_part = "segment"},
            {.action = FakeAction::write, .kind = Fault::Kind::flip_bit, .path_part = "segment"},
            {.action = FakeAction::write, .kind = Fault::Kind::short_count, .path_part = "segment"},
            {.action = FakeAction::write, .kind = Fault::Kind::fail, .path_part = "segment", .error = 28},
            {.action = FakeAction::allocate, .kind = Fault::Kind::fail, .path_part = "segment", .error = 28},
        };
        Fault fault = faults[below(static_cast<std::uint32_t>(faults.size()))];
        fault.skip = below(5);
        fault.times = 1 + below(3);
        world_.device->inject(fault);
    }

    void fetch_or_release(SimulatedClient& client) {
        const std::uint32_t page = below(39) * kSlotPages;
        if (client.requested.contains(page)) return;
        if (const auto held = client.held.find(page); held != client.held.end()) {
            client.ring->release(page);
            client.held.erase(held);
            return;
        }
        const std::uint32_t block = below(static_cast<std::uint32_t>(world_.content.size()));
        client.requested[page] = block;
        client.ring->fetch(block, page, page, client.epoch);
    }

    void take_completions(SimulatedClient& client) {
        while (const auto got = client.ring->next_completion()) {
            const auto requested = client.requested.find(got->tag);
            ASSERT_NE(requested, client.requested.end()) << "a completion nobody waits for";
            if (got->status == BlockStatus::ok) {
                ASSERT_EQ(client.ring->payload(*got), world_.content[requested->second])
                    << "block " << requested->second;
                if (got->segment == 0) client.held.insert(*requested);
                ++good_;
            } else {
                ++errors_;
            }
            client.requested.erase(requested);
        }
        client.ring->read_messages();
        for (const std::uint32_t segment : client.ring->dropped_segments) client.ring->unmap(segment);
        client.ring->dropped_segments.clear();
    }

    void check_accounts() {
        const DatasetStatistics dataset = world_.dataset();
        ASSERT_LE(dataset.usage.memory_bytes, dataset.quota.memory_bytes);
        ASSERT_LE(dataset.usage.disk_bytes, dataset.quota.disk_bytes);
        for (const JobStatistics& job : world_.shard->statistics().jobs) {
            ASSERT_LE(job.effective_cache_bytes, job.unread_bytes) << job.job;
            ASSERT_LE(job.effective_cache_bytes, dataset.usage.payload_bytes) << job.job;
        }
    }

    void heal() {
        world_.device->clear_faults();
        world_.shard->set_quota(test::kDatasetId, {.memory_bytes = 8 << 20, .disk_bytes = 8 << 20});
        world_.clock.advance_ns(11'000'000'000);  // past the retry interval of a full disk
        for (int i = 0; i < 20'000; ++i) {
            bool waiting = false;
            for (SimulatedClient& client : clients_) {
                take_completions(client);
                waiting |= !client.requested.empty();
            }
            if (!waiting) break;
            world_.turns(1);
        }
        for (const SimulatedClient& client : clients_)
            EXPECT_TRUE(client.requested.empty()) << "a fetch never came back";
        for (const auto& client : world_.clients) client->close_socket();
        RingClient& last = world_.attach({.session_id = ++sessions_, .job = "last"});
        world_.read_epoch(last, 1);
        world_.read_epoch(last, 2);
        EXPECT_EQ(world_.read_epoch(last, 3), world_.content.size()) << "every read hits again";
    }

    static constexpr std::uint32_t kSlotPages = 4;
    std::mt19937_64 random_;
    ShardWorld world_;
    std::vector<SimulatedClient> clients_;
    Quota quota_;
    std::uint64_t sessions_ = 0;
    std::uint64_t good_ = 0;
    std::uint64_t errors_ = 0;
};

class ShardSimulation : public testing::TestWithParam<std::uint64_t> {
protected:
    // Logs errors only: the clients break the protocol on purpose, many times.
    static void SetUpTestSuite() { EXPECT_TRUE(start_logging({LogLevel::error, {}})); }
    static void TearDownTestSuite() { stop_logging(); }
};

TEST_P(ShardSimulation, DeliversCorrectBytesOrErrorsAndDrainsAfterFaults) {
    Simulation first(GetParam());
    const std::uint64_t trace = first.run();
    EXPECT_GT(first.good(), 200u);
    EXPECT_GT(first.errors(), 0u);
    Simulation second(GetParam());
    EXPECT_EQ(second.run(), trace) << "the same seed gives the same trace";
    EXPECT_EQ(first.good(), second.good());
    EXPECT_EQ(first.errors(), second.errors());
}

INSTANTIATE_TEST_SUITE_P(Seeds, ShardSimulation, testing::Range<std::uint64_t>(1, 21));

}  // namespace
}  // namespace larder::cache
