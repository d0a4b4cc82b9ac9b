#include "allocator/lease_ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "tests/support/test_units.h"

namespace larder::allocator {

using test::kSecond_ns;
namespace {

constexpr std::int64_t kLease_ns = 10 * kSecond_ns;

TEST(LeaseLedger, NodeGetsWhatItAsksForIfFree) {
    LeaseLedger ledger(100, 1, kLease_ns);
    const Lease lease = ledger.lease("a", {{"x", 30}, {"y", 50}}, 0);
    EXPECT_FALSE(lease.cut);
    EXPECT_EQ(lease.expires_ns, kLease_ns);
    EXPECT_DOUBLE_EQ(lease.sum(), 80);
    EXPECT_DOUBLE_EQ(ledger.in_force(0), 80);
}

TEST(LeaseLedger, NodeMustWaitForRateAnotherStillHolds) {
    LeaseLedger ledger(100, 1, kLease_ns);
    ledger.lease("a", {{"x", 90}}, 0);
    const Lease smaller = ledger.lease("a", {{"x", 20}}, kSecond_ns);
    // "a" has not confirmed the smaller lease yet.
    const Lease cut = ledger.lease("b", {{"y", 80}}, kSecond_ns);
    EXPECT_TRUE(cut.cut);
    EXPECT_DOUBLE_EQ(cut.sum(), 10);
    ledger.applied("b", cut.number);
    ledger.applied("a", smaller.number);
    const Lease whole = ledger.lease("b", {{"y", 80}}, 2 * kSecond_ns);
    EXPECT_FALSE(whole.cut);
    EXPECT_DOUBLE_EQ(whole.sum(), 80);
}

TEST(LeaseLedger, ExpiredLeaseFallsBackToFloor) {
    LeaseLedger ledger(100, 2, kLease_ns);
    const Lease lost = ledger.lease("a", {{"x", 60}, {"y", 30}}, 0);
    EXPECT_DOUBLE_EQ(lost.floor_bytes_per_second, 2);
    EXPECT_DOUBLE_EQ(ledger.in_force(kLease_ns - 1), 90);
    EXPECT_DOUBLE_EQ(ledger.in_force(kLease_ns), 4);
    EXPECT_DOUBLE_EQ(ledger.lease("b", {{"z", 100}}, kLease_ns).sum(), 96);
}

// The ledger keeps a running sum of what all nodes hold; in_force() adds it up from nothing.
TEST(LeaseLedger, LeaseLeavesWhatOtherNodesHoldAfterAnyChange) {
    constexpr double kBandwidth = 1000;
    LeaseLedger ledger(kBandwidth, 0.5, kLease_ns);
    std::mt19937_64 random(1);
    std::int64_t now_ns = 0;
    std::uint64_t last_number = 0;
    for (int i = 0; i < 5000; ++i) {
        now_ns += static_cast<std::int64_t>(random() % kSecond_ns);
        const std::string node = "node-" + std::to_string(random() % 40);
        const std::string other = "node-" + std::to_string(random() % 40);
        switch (random() % 6) {
            case 0:
                if (const auto held = ledger.held(other); !held.empty()) ledger.applied(other, held.back().number);
                break;
            case 1: ledger.take_back(other, last_number); break;
            case 2: ledger.remove(other); break;
            case 3: ledger.restore(other, ledger.held(node)); break;
            default: break;
        }
        LeaseLedger without = ledger;
        without.remove(node);
        const double free = std::max(0.0, kBandwidth - without.in_force(now_ns));
        const Lease lease = ledger.lease(node, {{"x", 2 * kBandwidth}}, now_ns);
        last_number = lease.number;
        ASSERT_NEAR(lease.sum(), free, 1e-9 * kBandwidth) << "step " << i;
        // Smaller leases leave room for the others.
        if (random() % 2 == 0) ledger.take_back(node, lease.number);
        if (random() % 2 == 0) last_number = ledger.lease(node, {{"x", 10}}, now_ns).number;
    }
}

TEST(LeaseLedger, RecordsCoverAllLeasesAndAddUpToTheRemote) {
    constexpr double kBandwidth = 1000;
    LeaseLedger ledger(kBandwidth, 0.5, kLease_ns);
    std::map<std::string, RecordedRates> on_record;
    std::mt19937_64 random(2);
    std::int64_t now_ns = 0;
    int full = 0;
    for (int i = 0; i < 5000; ++i) {
        now_ns += static_cast<std::int64_t>(random() % kSecond_ns);
        const std::string node = "node-" + std::to_string(random() % 20);
        if (const auto held = ledger.held(node); !held.empty()) ledger.applied(node, held.back().number);
        std::vector<LeasedRate> wanted;
        for (std::uint64_t job = random() % 3; job > 0; --job)
            wanted.push_back({"x", static_cast<double>(random() % 200)});
        ledger.lease(node, std::move(wanted), now_ns);
        const LeaseLedger::Records records = ledger.to_record(node, now_ns);
        for (const auto& [name, record] : records) {
            on_record.erase(name);
            if (record) on_record[name] = *record;
        }
        ledger.recorded(records, now_ns);
        double sum = 0;
        for (const auto& [name, record] : on_record) sum += record.bytes_per_second;
        ASSERT_LE(sum, kBandwidth * (1 + 1e-6)) << "step " << i;
        if (sum > 0.95 * kBandwidth) ++full;
        for (const Lease& lease : ledger.held(node)) {
            if (lease.rates.empty() || lease.expires_ns <= now_ns) continue;
            ASSERT_LE(lease.in_force(), on_record[node].bytes_per_second) << "step " << i;
        }
    }
    EXPECT_GT(full, 1000);
}

TEST(LeaseLedger, ExpiredLeasesOfSilentNodeCountOnceByTheirLargestFloor) {
    LeaseLedger ledger(100, 2, kLease_ns);
    std::int64_t now_ns = 0;
    for (int i = 0; i < 50; ++i) {
        std::vector<LeasedRate> jobs(i == 20 ? 3 : 1, {"x", 10});
        ledger.lease("a", std::move(jobs), now_ns);
        now_ns += kLease_ns;
        EXPECT_LE(ledger.held("a").size(), 2u) << "its list must not grow for ever";
        EXPECT_DOUBLE_EQ(ledger.in_force(now_ns), i < 20 ? 2 : 6);
    }
}

TEST(LeaseLedger, LargestFloorRemainsOnceAllLeasesOfNodeHaveExpired) {
    LeaseLedger ledger(100, 2, kLease_ns);
    EXPECT_EQ(ledger.expired("a"), 0) << "a node without leases may take nothing";
    ledger.lease("a", {{"x", 60}, {"y", 30}}, 0);
    ledger.lease("a", {{"x", 60}}, 0);
    EXPECT_DOUBLE_EQ(ledger.expired("a"), 4);
    ledger.remove("a");
    EXPECT_EQ(ledger.expired("a"), 0);
}

TEST(LeaseLedger, NodeWithoutJobsHoldsFloorForJobsThatStartWhileCutOff) {
    LeaseLedger ledger(1000, 8, kLease_ns);
    const Lease none = ledger.lease("a", {}, 0);
    EXPECT_DOUBLE_EQ(none.floor_bytes_per_second, 8);
    EXPECT_DOUBLE_EQ(ledger.in_force(0), 8);
    EXPECT_DOUBLE_EQ(ledger.in_force(kLease_ns), 8) << "its jobs share the floor after the lease expires, too";
    const Lease rest = ledger.lease("b", {{"x", 1000}}, 0);
    EXPECT_DOUBLE_EQ(rest.sum(), 992);
    EXPECT_FALSE(rest.cut) << "asking again would bring no more";
    for (int i = 0; i < 1000; ++i) ledger.lease("idle-" + std::to_string(i), {}, 0);
    ledger.lease("b", {}, 0);
    EXPECT_LE(ledger.in_force(kLease_ns), 1000);
}

TEST(LeaseLedger, CutLeaseKeepsFloorsAndSharesTheRest) {
    LeaseLedger ledger(100, 10, kLease_ns);
    const Lease lease = ledger.lease("a", {{"x", 10}, {"y", 60}, {"z", 110}}, 0);
    EXPECT_TRUE(lease.cut);
    EXPECT_NEAR(lease.sum(), 100, 1e-9);
    EXPECT_DOUBLE_EQ(lease.rates[0].bytes_per_second, 10);
    EXPECT_NEAR((lease.rates[2].bytes_per_second - 10) / (lease.rates[1].bytes_per_second - 10), 2, 1e-9);
}

TEST(LeaseLedger, RemovedNodeHoldsNothing) {
    LeaseLedger ledger(100, 1, kLease_ns);
    ledger.lease("a", {{"x", 100}}, 0);
    ledger.remove("a");
    EXPECT_DOUBLE_EQ(ledger.lease("b", {{"y", 100}}, 0).sum(), 100);
}

TEST(LeaseLedger, LeaseTakenBackHoldsNothingAndEarlierOnesStay) {
    LeaseLedger ledger(100, 1, kLease_ns);
    const Lease kept = ledger.lease("a", {{"x", 20}}, 0);
    const Lease withdrawn = ledger.lease("a", {{"x", 90}}, 0);
    EXPECT_DOUBLE_EQ(ledger.in_force(0), 90);
    ledger.take_back("a", withdrawn.number);
    ledger.take_back("nobody", kept.number);
    ASSERT_EQ(ledger.held("a").size(), 1u);
    EXPECT_EQ(ledger.held("a")[0].number, kept.number);
    EXPECT_DOUBLE_EQ(ledger.in_force(0), 20);
    EXPECT_GT(ledger.lease("a", {{"x", 20}}, 0).number, withdrawn.number) << "its number is not reused";
}

TEST(LeaseLedger, RateOfLeaseTakenBackIsFreeForOtherNodes) {
    LeaseLedger ledger(100, 1, kLease_ns);
    // Among many nodes, the ledger adds up what all hold from nothing only once in many leases.
    for (int i = 0; i < 20; ++i) ledger.restore("other-" + std::to_string(i), {});
    for (int i = 0; i < 5; ++i) ledger.lease("a", {{"x", 20}}, 0);
    const Lease withdrawn = ledger.lease("a", {{"x", 90}}, 0);
    EXPECT_DOUBLE_EQ(ledger.lease("b", {{"y", 100}}, 0).sum(), 10);
    ledger.take_back("a", withdrawn.number);
    EXPECT_DOUBLE_EQ(ledger.lease("b", {{"y", 100}}, 0).sum(), 80);
}

TEST(LeaseLedger, AppliedLeaseAndThoseAfterItAreHeld) {
    LeaseLedger ledger(100, 1, kLease_ns);
    ledger.lease("a", {{"x", 90}}, 0);
    const Lease applied = ledger.lease("a", {{"x", 20}}, 0);
    const Lease newest = ledger.lease("a", {{"x", 30}}, 0);
    ledger.applied("a", applied.number);
    ASSERT_EQ(ledger.held("a").size(), 2u);
    EXPECT_EQ(ledger.held("a")[0].number, applied.number);
    EXPECT_EQ(ledger.held("a")[1].number, newest.number);
    EXPECT_TRUE(ledger.held("nobody").empty());
}

TEST(LeaseLedger, RestoredLeasesCountAndTheirNumbersAreNotReused) {
    LeaseLedger before(100, 1, kLease_ns);
    before.lease("b", {{"y", 10}}, 0);
    const Lease last = before.lease("a", {{"x", 70}}, 0);
    LeaseLedger ledger(100, 1, kLease_ns);
    ledger.restore("a", before.held("a"));
    EXPECT_DOUBLE_EQ(ledger.in_force(0), 70);
    const Lease next = ledger.lease("b", {{"y", 50}}, 0);
    EXPECT_DOUBLE_EQ(next.sum(), 30);
    EXPECT_GT(next.number, last.number);
}

TEST(LeaseLedger, WaitLastsUntilItsTime) {
    LeaseLedger ledger(100, 1, kLease_ns);
    EXPECT_EQ(ledger.wait_ns(0), 0);
    ledger.wait_until(kSecond_ns);
    EXPECT_EQ(ledger.wait_ns(kSecond_ns / 4), kSecond_ns / 4 * 3);
    EXPECT_EQ(ledger.wait_ns(kSecond_ns), 0);
    EXPECT_EQ(ledger.wait_ns(2 * kSecond_ns), 0);
}

TEST(LeaseLedger, ConfirmationOfUnknownLeaseChangesNothing) {
    LeaseLedger ledger(100, 1, kLease_ns);
    ledger.lease("a", {{"x", 90}}, 0);
    ledger.lease("a", {{"x", 20}}, 0);
    ledger.applied("a", 77);
    ledger.applied("nobody", 1);
    EXPECT_DOUBLE_EQ(ledger.in_force(0), 90);
}

// Nodes lose answers, apply them late, vanish and come back. The rates they really use never exceed the remote's.
TEST(LeaseLedger, RatesInForceNeverExceedRemoteWhateverIsLost) {
    constexpr double kLedgerRemote = 1000;
    struct Node {
        Lease in_use;
        std::vector<Lease> in_flight;
    };
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        std::mt19937_64 random(seed);
        LeaseLedger ledger(kLedgerRemote, 5, kLease_ns);
        std::map<std::string, Node> nodes;
        std::int64_t now_ns = 0;
        for (int step = 0; step < 400; ++step) {
            now_ns += static_cast<std::int64_t>(random() % (2 * kSecond_ns));
            const std::string name(1, static_cast<char>('a' + random() % 6));
            Node& node = nodes[name];
            switch (random() % 4) {
                case 0: {
                    std::vector<LeasedRate> wanted;
                    for (std::uint64_t job = 0; job < 1 + random() % 3; ++job) {
                        wanted.push_back({std::to_string(job), static_cast<double>(random() % 600)});
                    }
                    node.in_flight.push_back(ledger.lease(name, wanted, now_ns));
                    break;
                }
                case 1:
                    // An answer arrives, maybe not the newest. An answer older than the lease in use is ignored.
                    if (!node.in_flight.empty()) {
                        const Lease arrived = node.in_flight[random() % node.in_flight.size()];
                        if (arrived.number > node.in_use.number) node.in_use = arrived;
                    }
                    break;
                case 2: ledger.applied(name, node.in_use.number); break;
                default: node.in_flight.clear(); break;
            }
            double used = 0;
            for (const auto& [other, holder] : nodes) {
                const double floors =
                    holder.in_use.floor_bytes_per_second * static_cast<double>(holder.in_use.rates.size());
                used += holder.in_use.expires_ns > now_ns ? holder.in_use.sum() : floors;
            }
            ASSERT_LE(used, kLedgerRemote * (1 + 1e-9)) << "seed " << seed << " step " << step;
            ASSERT_LE(ledger.in_force(now_ns), kLedgerRemote * (1 + 1e-9)) << "seed " << seed << " step " << step;
        }
    }
}

}  // namespace
}  // namespace larder::allocator
