// Rows of the state in a real etcd that do not match their CRC.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "allocator/service/state_rows.h"
#include "allocator/service/state_store.h"
#include "base/server/etcd_rows.h"
#include "base/server/http_client.h"
#include "tests/support/server_program.h"

namespace larder::allocator {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kLength_ns = 10'000'000'000;
constexpr std::int64_t kNow_ns = 7'000'000'000;

class DamagedRows : public ::testing::Test {
protected:
    Result<std::unique_ptr<StateStore>> open() {
        return StateStore::open(
            {.lease_ns = kLength_ns,
             .shared_settings = [this](const RowStoreOptions& given) { return open_etcd_rows(options, fence, given); }},
            kNow_ns);
    }
    // Writes a row as it is in etcd.
    void put(const std::string& key, const std::string& value) {
        const std::string last = client.get("sequence/settings").value()->value;
        const Row row{"settings/" + key, value};
        ASSERT_TRUE(client
                        .write({&row, 1}, {.fence = fence.key,
                                           .create_revision = fence.create_revision,
                                           .sequence = "sequence/settings",
                                           .last = last,
                                           .next = std::to_string(std::stoull(last) + 1)})
                        .value());
    }

    test::ServerProgram etcd{{"etcd.py"}};
    EtcdOptions options{.endpoints = split_http_endpoints(etcd["endpoints"]), .prefix = "/test/"};
    EtcdClient client{options};
    EtcdFence fence{
        .key = "leader",
        .create_revision = client.create("leader", "me", client.grant_lease(600).value()).value().create_revision,
        .is_held = [] { return true; }};
};

TEST_F(DamagedRows, RatesAreWaitedOutAndMeasurementsAreLeftOut) {
    ASSERT_TRUE(open());
    const Row run = row_of(StateRun{
        .boot = "", .lease_ns = kLength_ns, .no_lease_before_ns = std::nullopt, .rates_recorded = true, .term = 1});
    const auto begin = [&] {
        put(run.key, seal_row(run.key, *run.text));
        auto store = open();
        EXPECT_TRUE(store) << store.error().message;
        return store.value()->found().no_lease_before_ns;
    };
    const std::string rates = R"({"bytes_per_second":5,"rates":[]})";
    put("rates/a", seal_row("rates/a", rates));
    EXPECT_FALSE(begin()) << "all leases are on record";
    put("ideal/a", seal_row("ideal/a", "{}").replace(0, 1, "x"));
    EXPECT_FALSE(begin()) << "a job's f* is measured again";
    put("rates/a", seal_row("rates/b", rates));
    EXPECT_EQ(begin(), kNow_ns + kLength_ns);
    EXPECT_FALSE(client.get("settings/rates/a").value()) << "it is waited out once";
    EXPECT_FALSE(begin());
}

TEST_F(DamagedRows, OtherRowsAreRefused) {
    ASSERT_TRUE(open());
    put("job/a", seal_row("other", "{}"));
    const auto opened = open();
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::corrupt);
    EXPECT_THAT(opened.error().message, HasSubstr("row \"job/a\" does not match its CRC"));
}

}  // namespace
}  // namespace larder::allocator
