// The allocator's state in a real LMDB: what is kept, what damage does to it, and how clocks of other boots are
// handled.

#include "allocator/service/state_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lmdb.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <string>

#include "allocator/cluster.h"
#include "allocator/protocol/codec.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_units.h"

namespace larder::allocator {

using test::kSecond_ns;
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kLease_ns = 10 * kSecond_ns;

class StateStoreTest : public testing::Test {
protected:
    Result<std::unique_ptr<StateStore>> try_open(std::int64_t now_ns, const std::string& boot = "boot-1",
                                                 std::uint64_t map_bytes = 64u << 20) const {
        return StateStore::open({.directory = state, .map_bytes = map_bytes, .lease_ns = kLease_ns, .boot_id = boot},
                                now_ns);
    }
    std::unique_ptr<StateStore> open(std::int64_t now_ns, const std::string& boot = "boot-1",
                                     std::uint64_t map_bytes = 64u << 20) const {
        auto opened = try_open(now_ns, boot, map_bytes);
        EXPECT_TRUE(opened) << opened.error().message;
        return opened ? std::move(*opened) : nullptr;
    }
    static Result<void> wait_until_on_record(StateStore& store) {
        std::promise<Result<void>> kept;
        store.when_durable([&](const Result<void>& result) { kept.set_value(result); });
        return kept.get_future().get();
    }
    static ClusterRecord example() {
        ClusterRecord record;
        record.jobs["vision"] =
            JobRegistration{.name = "vision", .weight = 2, .epochs = 3, .ideal_bytes_per_second = 1.5e8};
        record.jobs["vision"]->owner = RegistrationOwner{.uid = 1001, .token = {}};
        record.jobs["language"] = JobRegistration{.name = "language", .bandwidth_cap_bytes_per_second = 7e7};
        record.jobs["language"]->owner = RegistrationOwner{.uid = {}, .token = "ci"};
        record.jobs["language"]->dataset = "images";
        record.jobs["language"]->cache_bytes = 5;
        record.jobs["language"]->by_scheduler = true;
        record.jobs["language"]->runs_on = {{"a", 2}, {"b", 0}};
        record.jobs["language"]->expected_on = {"a", "c"};
        record.pins["images"] = 12345;
        record.remote = RemoteRecord{5e8, 1e9};
        record.nodes["a"] = NodeReport{.node = "a", .instance = 7, .datasets = {{.name = "images", .size_bytes = 9}}};
        record.ideals["vision"] = MeasuredIdeal{.bytes_per_second = 1.0 / 3, .user = 1001};
        record.ideals["language"] = MeasuredIdeal{.bytes_per_second = 2, .user = std::nullopt};
        record.epochs["vision"] = EpochsSeen{.first = 7, .last = 9};
        record.plan_number = 17;
        record.quotas["a"] = std::vector<DatasetQuota>{{"images", 1, 2}};
        record.leases["a"] = std::vector<Lease>{{.number = 4,
                                                 .expires_ns = 5 * kSecond_ns,
                                                 .floor_bytes_per_second = 3,
                                                 .rates = {{"vision", 1e8}, {"x", 2}}}};
        record.floors["a"] = 6.5;
        return record;
    }

    // Writes rows as another version would.
    void put_rows(const std::vector<std::pair<std::string, std::string>>& rows) const {
        MDB_env* environment = nullptr;
        MDB_txn* transaction = nullptr;
        MDB_dbi database = 0;
        ASSERT_EQ(mdb_env_create(&environment), 0);
        ASSERT_EQ(mdb_env_set_maxdbs(environment, 1), 0);
        ASSERT_EQ(mdb_env_open(environment, (state + "/cluster").c_str(), 0, 0600), 0);
        ASSERT_EQ(mdb_txn_begin(environment, nullptr, 0, &transaction), 0);
        ASSERT_EQ(mdb_dbi_open(transaction, "state", 0, &database), 0);
        for (auto [name, row] : rows) {
            std::string sealed = seal_row(name, row);
            MDB_val key{name.size(), name.data()};
            MDB_val value{sealed.size(), sealed.data()};
            ASSERT_EQ(mdb_put(transaction, database, &key, &value, 0), 0);
        }
        ASSERT_EQ(mdb_txn_commit(transaction), 0);
        mdb_env_close(environment);
    }

    test::TempDirectory directory;
    std::string state = directory / "state";
};

TEST_F(StateStoreTest, ReportsAreFoundThatSayWhatIsNewInEach) {
    ClusterRecord record;
    NodeReport report{.node = "a", .instance = 7, .datasets = {{.name = "images", .size_bytes = 9}}};
    report.jobs = {{.name = "vision", .dataset = "images", .user = 1001}};
    const NodeReport plain = report;
    report.jobs[0].waits = {.since_us = 1, .until_us = 4, .counted_us = 2, .lengths_us = {1, 2}};
    report.clock_us = 5;
    report.warmed = {"images"};
    record.nodes["a"] = report;
    open(0)->save(record).value();
    EXPECT_EQ(to_json(*open(kSecond_ns)->found().nodes.at("a")), to_json(plain));
    // As versions wrote it that kept what was warmed.
    report.clock_us = std::nullopt;
    report.jobs = plain.jobs;
    put_rows({{"node/a", json_text(to_json(report))}});
    EXPECT_EQ(to_json(*open(2 * kSecond_ns)->found().nodes.at("a")), to_json(plain));
}

TEST_F(StateStoreTest, SavedRecordIsFound) {
    open(0)->save(example()).value();
    const auto store = open(kSecond_ns);
    const ClusterRecord& found = store->found();
    ASSERT_EQ(found.jobs.size(), 2u);
    EXPECT_EQ(found.jobs.at("vision")->weight, 2);
    EXPECT_EQ(found.jobs.at("vision")->epochs, 3);
    EXPECT_EQ(found.jobs.at("language")->dataset, "images");
    EXPECT_EQ(found.jobs.at("language")->cache_bytes, 5u);
    EXPECT_EQ(found.jobs.at("language")->runs_on, (std::map<std::string, std::uint32_t>{{"a", 2}, {"b", 0}}));
    EXPECT_EQ(found.jobs.at("language")->expected_on, (std::vector<std::string>{"a", "c"}));
    EXPECT_EQ(found.jobs.at("vision")->ideal_bytes_per_second, 1.5e8);
    EXPECT_EQ(found.jobs.at("vision")->bandwidth_cap_bytes_per_second, kUnlimited);
    EXPECT_EQ(found.jobs.at("language")->bandwidth_cap_bytes_per_second, 7e7);
    EXPECT_EQ(found.jobs.at("language")->epochs, kUnlimited);
    EXPECT_TRUE(found.jobs.at("language")->by_scheduler);
    EXPECT_FALSE(found.jobs.at("vision")->by_scheduler);
    EXPECT_EQ(found.jobs.at("vision")->owner, (RegistrationOwner{.uid = 1001, .token = {}}));
    EXPECT_EQ(found.jobs.at("language")->owner, (RegistrationOwner{.uid = {}, .token = "ci"}));
    EXPECT_EQ(found.pins.at("images"), 12345u);
    EXPECT_EQ(found.remote->bytes_per_second, 5e8);
    EXPECT_EQ(found.remote->configured_bytes_per_second, 1e9);
    EXPECT_EQ(found.nodes.at("a")->instance, 7u);
    EXPECT_EQ(found.ideals, example().ideals) << "to the last bit";
    EXPECT_EQ(found.epochs, example().epochs);
    EXPECT_EQ(found.plan_number, 17u);
    EXPECT_EQ(found.quotas.at("a"), example().quotas.at("a"));
    ASSERT_EQ(found.leases.at("a")->size(), 1u);
    EXPECT_EQ(found.leases.at("a")->front().number, 4u);
    EXPECT_EQ(found.leases.at("a")->front().expires_ns, 5 * kSecond_ns);
    EXPECT_EQ(found.leases.at("a")->front().rates, example().leases.at("a")->front().rates);
    EXPECT_EQ(found.floors, example().floors);
}

TEST_F(StateStoreTest, ChangeReplacesAndRemovesEntries) {
    const auto store = open(0);
    store->save(example()).value();
    ClusterRecord change;
    change.jobs["vision"] = std::nullopt;
    change.jobs["never there"] = std::nullopt;
    change.pins["images"] = std::nullopt;
    change.quotas["a"] = std::nullopt;
    change.plan_number = 18;
    store->save(change).value();
    const_cast<std::unique_ptr<StateStore>&>(store).reset();
    const auto again = open(0);
    EXPECT_EQ(again->found().jobs.size(), 1u);
    EXPECT_TRUE(again->found().pins.empty());
    EXPECT_TRUE(again->found().quotas.empty());
    EXPECT_EQ(again->found().plan_number, 18u);
    EXPECT_EQ(again->found().leases.size(), 1u) << "entries that are not in a change stay";
}

TEST_F(StateStoreTest, MissingLeaseRecordDelaysLeasesByOneLeaseTime) {
    EXPECT_EQ(open(100)->found().no_lease_before_ns, 100 + kLease_ns);
    // Killed and restarted during the wait: the wait continues.
    EXPECT_EQ(open(200)->found().no_lease_before_ns, 100 + kLease_ns);
}

TEST_F(StateStoreTest, LeasesAreNotDelayedWhenHoldersEndWithTheProcess) {
    for (const char* boot : {"boot-1", "boot-2"}) {
        const auto store = StateStore::open({.directory = state,
                                             .map_bytes = 64u << 20,
                                             .lease_ns = kLease_ns,
                                             .boot_id = boot,
                                             .lease_holders_end_with_process = true},
                                            kSecond_ns);
        ASSERT_TRUE(store) << store.error().message;
        EXPECT_LE((*store)->found().no_lease_before_ns.value_or(0), kSecond_ns);
    }
}

TEST_F(StateStoreTest, LeasesOfAnotherBootKeepOnlyTheirFloors) {
    open(0)->save(example()).value();
    const auto store = open(42, "boot-2");
    EXPECT_EQ(store->found().no_lease_before_ns, 42 + kLease_ns);
    const std::vector<Lease>& leases = *store->found().leases.at("a");
    ASSERT_EQ(leases.size(), 2u) << "its floors still count, those of leases that were lost too";
    for (const Lease& lease : leases) EXPECT_EQ(lease.expires_ns, 42);
    EXPECT_EQ(leases.front().expired(), 6.5);
    EXPECT_EQ(leases.back().expired(), 6);
    EXPECT_EQ(store->found().plan_number, 17u) << "everything else is kept";
    EXPECT_EQ(store->found().jobs.size(), 2u);
}

TEST_F(StateStoreTest, LongerLeaseTimeOfEarlierRunIsWaitedForInFull) {
    StateStore::open({.directory = state, .lease_ns = 60 * kSecond_ns, .boot_id = "boot-1"}, 0).value();
    EXPECT_EQ(open(0, "boot-2")->found().no_lease_before_ns, 60 * kSecond_ns);
}

TEST_F(StateStoreTest, LongerLeasesAreWaitedForAfterSeveralStarts) {
    const auto start = [this](std::int64_t lease_ns, std::int64_t now_ns, const std::string& boot) {
        return StateStore::open({.directory = state, .lease_ns = lease_ns, .boot_id = boot}, now_ns).value();
    };
    const auto leases_until = [](std::int64_t expires_ns) {
        return ClusterRecord{
            .leases = {{"a", std::vector<Lease>{{.number = 1, .expires_ns = expires_ns, .rates = {{"vision", 1e8}}}}}}};
    };
    ASSERT_TRUE(start(60 * kSecond_ns, 0, "boot-1")->save(leases_until(60 * kSecond_ns)));
    {
        const auto store = start(kLease_ns, 3 * kSecond_ns, "boot-1");
        EXPECT_EQ(store->longest_lease_ns(), 57 * kSecond_ns) << "for a move to etcd";
    }
    for (const char* boot : {"boot-2", "boot-3"}) {
        EXPECT_EQ(start(kLease_ns, kSecond_ns, boot)->found().no_lease_before_ns, 58 * kSecond_ns) << boot;
    }
    {
        // In the same boot, what is left of the wait is all that may be in force.
        const auto store = start(kLease_ns, 18 * kSecond_ns, "boot-3");
        EXPECT_EQ(store->found().no_lease_before_ns, 58 * kSecond_ns);
        EXPECT_EQ(store->longest_lease_ns(), 40 * kSecond_ns);
        ASSERT_TRUE(store->save(leases_until(58 * kSecond_ns + kLease_ns)));
    }
    EXPECT_EQ(start(kLease_ns, 0, "boot-4")->found().no_lease_before_ns, kLease_ns) << "the longer leases have expired";
}

TEST_F(StateStoreTest, NewerVersionIsRefusedAndLeftUnchanged) {
    open(0)->save(example()).value();
    put_rows({{"version", R"({"version":99})"}, {"unheard/of", "[1]"}});
    for (int i = 0; i < 2; ++i) {
        const auto refused = try_open(0);
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
        EXPECT_THAT(refused.error().message, HasSubstr("has version 99, but this larder-allocator reads 6 and older"));
    }
    EXPECT_FALSE(std::filesystem::exists(state + "/cluster.damaged"));
}

TEST_F(StateStoreTest, ReportOfAnotherFormIsDroppedAndTheRestKept) {
    open(0)->save(example()).value();
    put_rows({{"node/b", R"({"node":"b","colour":"red"})"}, {"quotas/b", R"({"quotas":[1]})"}});
    const auto store = open(0);
    EXPECT_FALSE(std::filesystem::exists(state + "/cluster.damaged"));
    EXPECT_EQ(store->found().nodes.size(), 1u);
    EXPECT_EQ(store->found().jobs.size(), 2u);
}

TEST_F(StateStoreTest, DamagedStateIsMovedAsideAndReplaced) {
    const std::string file = state + "/cluster/data.mdb";
    open(0)->save(example()).value();
    std::string intact;
    {
        std::ifstream in(file, std::ios::binary);
        intact.assign(std::istreambuf_iterator<char>(in), {});
    }
    std::mt19937_64 random(5);
    int replaced = 0;
    for (int round = 0; round < 60; ++round) {
        std::filesystem::remove_all(state + "/cluster.damaged");
        std::string spoiled = intact;
        if (round % 3 == 0) {
            spoiled.resize(random() % 40'000);
        } else {
            for (int flips = 0; flips < 4; ++flips) spoiled[random() % 40'000] ^= static_cast<char>(1 << random() % 8);
        }
        std::ofstream(file, std::ios::binary | std::ios::trunc) << spoiled;
        const auto store = open(0);
        ASSERT_NE(store, nullptr);
        if (std::filesystem::exists(state + "/cluster.damaged")) {
            ++replaced;
            EXPECT_TRUE(store->found().nodes.empty());
            EXPECT_EQ(store->found().no_lease_before_ns, kLease_ns);
        } else if (!store->found().nodes.empty()) {
            // The flipped bits were in unused space.
            EXPECT_EQ(store->found().nodes.at("a")->instance, 7u);
        }
        EXPECT_EQ(store->found().jobs.at("vision")->weight, 2) << "settings are in another database";
        EXPECT_EQ(store->found().pins.at("images"), 12345u);
        EXPECT_TRUE(store->save(example())) << "the store still saves";
    }
    EXPECT_GE(replaced, 20);
}

TEST_F(StateStoreTest, DamagedSettingsAreMovedAside) {
    open(0)->save(example()).value();
    std::filesystem::resize_file(state + "/settings/data.mdb", 5000);
    const auto store = open(0);
    EXPECT_TRUE(std::filesystem::exists(state + "/settings.damaged"));
    EXPECT_TRUE(store->found().jobs.empty());
    EXPECT_EQ(store->found().plan_number, 17u);
}

TEST_F(StateStoreTest, SettingsOfOlderVersionAreMigrated) {
    open(0);
    put_rows({{"version", R"({"version":2})"},
              {"pin/images", R"({"bytes":77})"},
              {"job/old", R"({"name":"old","weight":4,"bandwidth_floor_bytes_per_second":0})"}});
    for (int start = 0; start < 2; ++start) {
        const auto store = open(0);
        EXPECT_EQ(store->found().pins.at("images"), 77u);
        EXPECT_EQ(store->found().jobs.at("old")->weight, 4);
        EXPECT_TRUE(store->found().jobs.at("old")->registered_by_operator());
    }
}

TEST_F(StateStoreTest, FloorsCountWhenTheLeasesAreLost) {
    {
        const auto store = open(0);
        ASSERT_TRUE(store->save(example()));
        ASSERT_TRUE(wait_until_on_record(*store));
        EXPECT_TRUE(store->all_durable());
    }
    std::filesystem::remove_all(state + "/cluster");
    const auto store = open(42, "boot-2");
    Cluster cluster({.remote_bytes_per_second = 1e9});
    ASSERT_TRUE(cluster.restore(store->found(), 42));
    EXPECT_EQ(cluster.in_force(42), 6.5);
}

TEST_F(StateStoreTest, StateOfVersion4IsRead) {
    ClusterRecord old = example();
    old.floors.clear();
    open(0)->save(old).value();
    put_rows({{"version", R"({"version":4})"}});
    const auto store = open(0);
    EXPECT_EQ(store->found().leases.at("a")->front().number, 4u);
    EXPECT_EQ(store->found().jobs.size(), 2u);
    EXPECT_TRUE(store->found().floors.empty());
}

TEST_F(StateStoreTest, FullMapRefusesSettingsAndKeepsTheRest) {
    std::string refused;
    {
        const auto store = open(0, "boot-1", 128u << 10);
        for (int i = 0; refused.empty(); ++i) {
            ASSERT_LT(i, 10'000);
            const std::string name = "job-" + std::to_string(i);
            ASSERT_TRUE(store->save({.jobs = {{name, JobRegistration{.name = name}}}}));
            const auto kept = wait_until_on_record(*store);
            if (kept) continue;
            EXPECT_EQ(kept.error().code, ErrorCode::no_space) << kept.error().message;
            refused = name;
            EXPECT_FALSE(store->all_durable());
        }
        EXPECT_TRUE(store->save({.plan_number = 3})) << "the database of the cluster still has room";
    }
    const auto store = open(0, "boot-1", 1u << 20);
    EXPECT_FALSE(store->found().jobs.contains(refused));
    EXPECT_GT(store->found().jobs.size(), 100u);
    EXPECT_EQ(store->found().plan_number, 3u);
}

TEST_F(StateStoreTest, LeaseThatCannotBeSavedIsNotGiven) {
    const auto store = open(0, "boot-1", 128u << 10);
    Cluster cluster({.remote_bytes_per_second = 1e9});
    cluster.set_save([&](const ClusterRecord& change) { return store->save(change); });
    NodeReport report{.node = "a", .memory_bytes = 1000};
    for (int i = 0; i < 200; ++i) {
        report.datasets.push_back({.name = "dataset-" + std::string(200, 'x') + std::to_string(i), .size_bytes = 9});
        report.jobs.push_back({.name = "j" + std::to_string(i), .dataset = report.datasets.back().name});
    }
    ASSERT_TRUE(cluster.report(report, 0));
    EXPECT_FALSE(cluster.replan(0));
    const auto part = cluster.plan_for("a", 0);
    ASSERT_FALSE(part);
    EXPECT_EQ(part.error().code, ErrorCode::no_space);
    EXPECT_EQ(cluster.in_force(0), 0);
}

}  // namespace
}  // namespace larder::allocator
