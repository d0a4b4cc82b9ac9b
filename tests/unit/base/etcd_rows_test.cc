// Rows in a real etcd.

#include "base/server/etcd_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/server/http_client.h"
#include "tests/support/server_program.h"

namespace larder {
namespace {

using ::testing::HasSubstr;
using Rows = std::map<std::string, std::string>;

class EtcdRowsTest : public ::testing::Test {
protected:
    EtcdOptions options() {
        EtcdOptions options;
        options.endpoints = split_http_endpoints(etcd_["endpoints"]);
        options.prefix = "/test/";
        return options;
    }

    // Makes this process the leader, in place of an earlier one.
    EtcdFence lead() {
        EtcdClient client(options());
        if (lease_ != 0) {
            EXPECT_TRUE(client.revoke_lease(lease_));
        }
        lease_ = client.grant_lease(600).value();
        const auto key = client.create("leader", "me", lease_);
        EXPECT_TRUE(key) << key.error().message;
        EXPECT_EQ(key->lease, lease_);
        return {
            .key = "leader", .create_revision = key->create_revision, .is_held = [this] { return is_held_.load(); }};
    }

    Result<std::unique_ptr<RowStore>> open(const EtcdFence& fence, Rows& rows, std::uint64_t version = 1) {
        rows.clear();
        return open_etcd_rows(options(), fence,
                              {.version = version,
                               .noun = "queue",
                               .program = "larder",
                               .take = [&rows](std::string_view key, std::string_view text) -> Result<void> {
                                   rows[std::string(key)] = text;
                                   return {};
                               },
                               .lost = {}});
    }

    // Writes under whole keys, as a leader that ends right after.
    void write_raw(const EtcdFence& fence, std::uint64_t number, const Row& row) {
        EtcdClient client(options());
        EXPECT_TRUE(client.write({&row, 1}, turn(fence, number)).value());
    }
    static EtcdClient::Turn turn(const EtcdFence& fence, std::uint64_t number) {
        return {.fence = fence.key,
                .create_revision = fence.create_revision,
                .sequence = "sequence/queue",
                .number = number};
    }
    std::uint64_t last_number() {
        const auto key = EtcdClient(options()).get("sequence/queue").value();
        return key ? std::stoull(key->value) : 0;
    }

    static std::vector<Row> numbered(int count, const std::string& text) {
        std::vector<Row> rows;
        rows.reserve(static_cast<std::size_t>(count));
        for (int i = 0; i < count; ++i) rows.push_back({"row/" + std::to_string(i), text});
        return rows;
    }

    test::ServerProgram etcd_{{"etcd.py"}};
    std::int64_t lease_ = 0;
    std::atomic<bool> is_held_ = true;
};

TEST_F(EtcdRowsTest, RowsOfOneLeaderAreFoundByTheNext) {
    Rows rows;
    {
        auto store = open(lead(), rows);
        ASSERT_TRUE(store) << store.error().message;
        EXPECT_TRUE((*store)->is_new());
        EXPECT_TRUE(rows.empty());
        const std::string bytes("\"\\\0\x1f\n~", 6);
        const std::vector<Row> written{{"a", "1"}, {"b/c", bytes}, {"gone", "x"}, {"\"empty", ""}};
        ASSERT_TRUE((*store)->write(written));
        const Row removed{"gone", std::nullopt};
        ASSERT_TRUE((*store)->write({&removed, 1}));
        ASSERT_TRUE((*store)->write({}));
    }
    auto store = open(lead(), rows);
    ASSERT_TRUE(store) << store.error().message;
    EXPECT_FALSE((*store)->is_new());
    EXPECT_EQ(rows, (Rows{{"a", "1"}, {"b/c", std::string("\"\\\0\x1f\n~", 6)}, {"\"empty", ""}}));
}

TEST_F(EtcdRowsTest, ManyRowsAreOneChange) {
    Rows rows;
    auto store = open(lead(), rows);
    ASSERT_TRUE(store) << store.error().message;
    const std::vector<Row> many = numbered(2500, R"({"text":"of a row"})");
    for (const std::size_t count : {std::size_t{99}, std::size_t{100}, std::size_t{101}, many.size()}) {
        ASSERT_TRUE((*store)->write(std::span(many).first(count))) << count;
    }
    // The reader takes several pages.
    store = open(lead(), rows);
    ASSERT_TRUE(store) << store.error().message;
    EXPECT_EQ(rows.size(), many.size());
    for (const std::size_t count : {std::size_t{1}, std::size_t{99}, std::size_t{300}}) {
        const std::vector<Row> change = count == 1
                                            ? std::vector<Row>{{"large", std::string(2u << 20, 'x')}}
                                            : numbered(static_cast<int>(count), std::string(1'500'000 / count, 'x'));
        const auto refused = (*store)->write(change);
        ASSERT_FALSE(refused) << count;
        EXPECT_EQ(refused.error().code, ErrorCode::no_space);
        EXPECT_THAT(refused.error().message, HasSubstr("bytes is more than etcd takes"));
    }
    const Row after{"after", "1"};
    EXPECT_TRUE((*store)->write({&after, 1}));
}

TEST_F(EtcdRowsTest, ReplacedLeaderWritesNothing) {
    Rows rows;
    auto old_store = open(lead(), rows);
    ASSERT_TRUE(old_store);
    auto new_store = open(lead(), rows);
    ASSERT_TRUE(new_store);
    const Row stale{"a", "stale"};
    for (const std::vector<Row>& change : {std::vector<Row>{stale}, numbered(200, "stale")}) {
        const auto written = (*old_store)->write(change);
        ASSERT_FALSE(written);
        EXPECT_THAT(written.error().message, HasSubstr("another process leads now"));
    }
    new_store = open(lead(), rows);
    ASSERT_TRUE(new_store);
    EXPECT_TRUE(rows.empty());
}

TEST_F(EtcdRowsTest, NextLeaderFinishesJournal) {
    Rows rows;
    {
        ASSERT_TRUE(open(lead(), rows));
    }
    const EtcdFence fence = lead();
    // The leader ended after the journal and one row.
    const Row journal{"journal/queue", seal_row("journal/queue", R"([["a","0"],["a","1"],["b","2"],["old",null]])")};
    const Row done{"queue/a", seal_row("a", "1")};
    const Row old{"queue/old", seal_row("old", "0")};
    for (const Row& row : {journal, done, old}) write_raw(fence, last_number(), row);
    auto store = open(fence, rows);
    ASSERT_TRUE(store) << store.error().message;
    EXPECT_EQ(rows, (Rows{{"a", "1"}, {"b", "2"}}));
    EXPECT_FALSE(EtcdClient(options()).get("journal/queue").value());
}

TEST_F(EtcdRowsTest, LastRowOfAKeyCounts) {
    Rows rows;
    const EtcdFence fence = lead();
    auto store = open(fence, rows);
    ASSERT_TRUE(store);
    // Changes that are written together have some rows in common.
    std::vector<Row> few{{"numbers", "1"}, {"job/1", "x"}, {"numbers", "2"}, {"job/1", std::nullopt}};
    ASSERT_TRUE((*store)->write(few));
    std::vector<Row> many = numbered(150, "1");
    many.insert(many.begin(), {"numbers", "3"});
    many.push_back({"numbers", "4"});
    ASSERT_TRUE((*store)->write(many));
    ASSERT_TRUE(open(fence, rows));
    EXPECT_EQ(rows.size(), 151u);
    EXPECT_EQ(rows["numbers"], "4");
}

TEST_F(EtcdRowsTest, DelayedWriteOverwritesNothing) {
    Rows rows;
    const EtcdFence fence = lead();
    auto store = open(fence, rows);
    ASSERT_TRUE(store);
    const EtcdClient::Turn turn_of_first = turn(fence, last_number());
    const Row first{"queue/a", seal_row("a", "1")};
    EtcdClient client(options());
    ASSERT_TRUE(client.write({&first, 1}, turn_of_first).value());
    // The answer was lost, and the write is tried again.
    EXPECT_TRUE(client.write({&first, 1}, turn_of_first).value());
    store = open(fence, rows);
    EXPECT_EQ(rows["a"], "1");
    const Row second{"a", "2"};
    ASSERT_TRUE((*store)->write({&second, 1}));
    // An attempt that was on its way for long.
    EXPECT_FALSE(client.write({&first, 1}, turn_of_first));
    ASSERT_TRUE(open(fence, rows));
    EXPECT_EQ(rows["a"], "2");
}

TEST_F(EtcdRowsTest, FenceThatIsNotHeldOpensNothing) {
    Rows rows;
    const auto opened = open({.key = "leader", .create_revision = 0, .is_held = [] { return false; }}, rows);
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message, HasSubstr("this process no longer leads"));
    EXPECT_EQ(last_number(), 0u);
}

TEST_F(EtcdRowsTest, DamageAndNewerVersionAreRefused) {
    Rows rows;
    const EtcdFence fence = lead();
    {
        ASSERT_TRUE(open(fence, rows, 2));
    }
    const auto newer = open(fence, rows, 1);
    ASSERT_FALSE(newer);
    EXPECT_EQ(newer.error().code, ErrorCode::unsupported);
    EXPECT_THAT(newer.error().message, HasSubstr("has version 2, but this larder reads 1 and older"));
    write_raw(fence, last_number(), {"queue/a", seal_row("b", "1")});
    const auto corrupt = open(fence, rows, 2);
    ASSERT_FALSE(corrupt);
    EXPECT_EQ(corrupt.error().code, ErrorCode::corrupt);
    EXPECT_THAT(corrupt.error().message, HasSubstr("row \"a\" does not match its CRC"));
}

TEST_F(EtcdRowsTest, WriteWaitsForEtcdAsLongAsTheProcessLeads) {
    Rows rows;
    auto store = open(lead(), rows);
    ASSERT_TRUE(store);
    etcd_.ask(R"({"kill": 0})");
    is_held_ = false;
    const Row row{"a", "1"};
    const auto given_up = (*store)->write({&row, 1});
    ASSERT_FALSE(given_up);
    EXPECT_THAT(given_up.error().message, HasSubstr("this process no longer leads"));
    is_held_ = true;
    std::atomic<bool> answered = false;
    std::jthread writes([&] {
        EXPECT_TRUE((*store)->write({&row, 1}));
        answered = true;
    });
    // Some attempts fail meanwhile.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_FALSE(answered);
    etcd_.ask(R"({"start": 0})");
    writes.join();
    EXPECT_TRUE(answered);
}

TEST(EtcdClientTest, GoesToMemberThatAnswers) {
    test::ServerProgram etcd({"etcd.py", "--members", "3"});
    EtcdOptions options;
    options.endpoints = split_http_endpoints(etcd["endpoints"]);
    EtcdClient client(options);
    const std::int64_t lease = client.grant_lease(600).value();
    ASSERT_TRUE(client.create("leader", "me", lease));
    EXPECT_EQ(client.create("leader", "another", lease)->value, "me");
    for (const std::string member : {"0", "1", "2"}) {
        etcd.ask("{\"pause\": " + member + "}");
        // Without the member that led the others, they need some seconds to elect one.
        auto key = client.get("leader");
        for (int tries = 0; !key && tries < 50; ++tries) key = client.get("leader");
        ASSERT_TRUE(key) << key.error().message;
        ASSERT_TRUE(*key);
        EXPECT_EQ((*key)->value, "me");
        etcd.ask("{\"resume\": " + member + "}");
    }
    EXPECT_GT(client.keep_lease(lease).value(), 0);
    ASSERT_TRUE(client.revoke_lease(lease));
    EXPECT_FALSE(client.get("leader").value());
    EXPECT_EQ(client.keep_lease(lease).value(), 0);
}

TEST(EtcdClientTest, NamesTheMemberThatDoesNotAnswer) {
    EtcdOptions options;
    options.endpoints = {"http://127.0.0.1:1"};
    EtcdClient client(options);
    const auto lease = client.grant_lease(5);
    ASSERT_FALSE(lease);
    EXPECT_EQ(lease.error().code, ErrorCode::unavailable);
    EXPECT_THAT(lease.error().message, HasSubstr("etcd: connect to http://127.0.0.1:1: "));
}

}  // namespace
}  // namespace larder
