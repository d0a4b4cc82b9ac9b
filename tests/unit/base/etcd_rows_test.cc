// Rows in a real etcd.

#include "base/server/etcd_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/server/http_client.h"
#include "tests/support/certificates.h"
#include "tests/support/etcd_gateway.h"
#include "tests/support/http_service.h"
#include "tests/support/server_program.h"
#include "tests/support/temp_directory.h"

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Rows = std::map<std::string, std::string>;

class EtcdRowsTest : public ::testing::Test {
protected:
    using Does = test::EtcdGateway::Does;

    EtcdOptions options() {
        EtcdOptions options;
        options.endpoints = split_http_endpoints(etcd_["endpoints"]);
        options.prefix = "/test/";
        options.timeout_ms = 30'000;  // a slow machine must not lose an answer
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
        return open_at(etcd_["endpoints"], fence, rows, version);
    }
    Result<std::unique_ptr<RowStore>> open_at(const std::string& endpoint, const EtcdFence& fence, Rows& rows,
                                              std::uint64_t version = 1) {
        rows.clear();
        EtcdOptions at = options();
        at.endpoints = {endpoint};
        return open_etcd_rows(at, fence,
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
    void write_raw(const EtcdFence& fence, const Row& row) {
        const EtcdClient::Turn next = turn(fence);
        EXPECT_EQ(EtcdClient(options()).write({&row, 1}, next).value(), next.next);
    }
    EtcdClient::Turn turn(const EtcdFence& fence) {
        const std::string last = value_of("sequence/queue");
        return {.fence = fence.key,
                .create_revision = fence.create_revision,
                .sequence = "sequence/queue",
                .last = last,
                .next = std::to_string(last.empty() ? 1 : std::stoull(last) + 1)};
    }
    // Returns the value of a whole key; empty if there is none.
    std::string value_of(const std::string& key) {
        const auto found = EtcdClient(options()).get(key).value();
        return found ? found->value : "";
    }
    std::vector<std::string> keys_of_journal() {
        EtcdClient client(options());
        const std::vector<EtcdKey> found = client.list("journal/", "", 50).value();
        std::vector<std::string> keys;
        keys.reserve(found.size());
        for (const EtcdKey& key : found) keys.push_back(key.key);
        return keys;
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
}

TEST_F(EtcdRowsTest, LimitOfBytesHoldsForEachRow) {
    Rows rows;
    const EtcdFence fence = lead();
    auto store = open(fence, rows);
    ASSERT_TRUE(store) << store.error().message;
    struct Case {
        int rows;
        std::size_t bytes_of_each;
    };
    for (const Case& change : {Case{5, 250'000}, Case{99, 15'000}, Case{300, 5'000}, Case{6, kEtcdRowBytesMax - 5}}) {
        // Nothing in a text makes a row larger in etcd.
        const std::vector<Row> large = numbered(change.rows, std::string(change.bytes_of_each, '\x01'));
        const auto written = (*store)->write(large);
        ASSERT_TRUE(written) << written.error().message;
        EXPECT_THAT(keys_of_journal(), IsEmpty());
        store = open(fence, rows);
        ASSERT_TRUE(store) << store.error().message;
        for (const Row& row : large) ASSERT_EQ(rows[row.key], row.text) << row.key << " of " << change.rows;
    }
    std::vector<Row> change = numbered(200, "x");
    change.push_back({"large", std::string(kEtcdRowBytesMax - 4, 'x')});
    const auto refused = (*store)->write(change);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::no_space);
    EXPECT_THAT(refused.error().message, HasSubstr("row \"large\" has 1048577 bytes, which is more than etcd takes"));
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
    const Row part{"journal/queue/0", seal_row("journal/queue/0", "[[\"a\",1],[\"old\",null],[\"empty\",0]]\n1")};
    const Row last{"journal/queue/1", seal_row("journal/queue/1", "[[\"b\",2]]\n2\n")};
    const Row journal{"journal/queue", seal_row("journal/queue", "2")};
    const Row done{"queue/a", seal_row("a", "1")};
    const Row old{"queue/old", seal_row("old", "0")};
    for (const Row& row : {part, last, journal, done, old}) write_raw(fence, row);
    auto store = open(fence, rows);
    ASSERT_TRUE(store) << store.error().message;
    EXPECT_EQ(rows, (Rows{{"a", "1"}, {"b", "2\n"}, {"empty", ""}}));
    EXPECT_THAT(keys_of_journal(), IsEmpty());
}

TEST_F(EtcdRowsTest, UnreadableJournalIsRefused) {
    Rows rows;
    {
        ASSERT_TRUE(open(lead(), rows));
    }
    const EtcdFence fence = lead();
    const Row journal{"journal/queue", seal_row("journal/queue", "1")};
    write_raw(fence, journal);
    const auto refuse = [&](const std::string& why) {
        const auto opened = open(fence, rows);
        ASSERT_FALSE(opened);
        EXPECT_EQ(opened.error().code, ErrorCode::corrupt);
        EXPECT_THAT(opened.error().message, HasSubstr(why));
    };
    refuse("the key journal/queue/0 is missing, or cannot be read");
    for (const std::string text : {"[[\"a\",2]]\n1", "[[\"a\",1]]\n12", "[[\"a\"]]\n", "[", ""}) {
        write_raw(fence, {"journal/queue/0", seal_row("journal/queue/0", text)});
        refuse("its journal ");
    }
    write_raw(fence, {"journal/queue", seal_row("journal/queue", "[]")});
    refuse("the key journal/queue is missing, or cannot be read");
}

TEST_F(EtcdRowsTest, JournalIsFinishedOnceItIsWholeAndLeftOutBefore) {
    Rows rows;
    // Three transactions of the journal, and four of its rows.
    const std::vector<Row> large = numbered(300, std::string(8'000, 'x'));
    for (std::size_t written = 0; written < 7; ++written) {
        test::EtcdGateway gateway(etcd_["endpoints"]);
        {
            auto before = open(lead(), rows);
            ASSERT_TRUE(before) << before.error().message;
            std::vector<Row> removed;
            removed.reserve(rows.size());
            for (const auto& [key, text] : rows) removed.push_back({key, std::nullopt});
            ASSERT_TRUE((*before)->write(removed));
        }
        auto store = open_at(gateway.endpoint(), lead(), rows);
        ASSERT_TRUE(store) << store.error().message;
        ASSERT_THAT(rows, IsEmpty());
        std::deque<Does> next(written, Does::passes);
        next.insert(next.end(), 2, Does::is_full);
        gateway.then(next);
        const auto failed = (*store)->write(large);
        ASSERT_FALSE(failed) << written;
        EXPECT_EQ(failed.error().code, ErrorCode::no_space);
        EXPECT_EQ(keys_of_journal().size(), written >= 3 ? 4u : written);
        const bool leader_goes_on = written % 2 == 1;
        if (leader_goes_on) {
            const Row after{"after", "1"};
            EXPECT_FALSE((*store)->write({&after, 1}));
            ASSERT_TRUE((*store)->write({&after, 1}));
            EXPECT_THAT(keys_of_journal(), IsEmpty());
        }
        store = open(lead(), rows);
        ASSERT_TRUE(store) << store.error().message;
        EXPECT_EQ(rows.size(), (written >= 3 ? large.size() : 0) + (leader_goes_on ? 1 : 0)) << written;
        EXPECT_THAT(keys_of_journal(), IsEmpty());
    }
}

// A store whose requests pass a gateway, which can lose answers.
class EtcdRowsBehindGateway : public EtcdRowsTest {
protected:
    void SetUp() override {
        auto store = open_at(gateway_.endpoint(), fence_, rows_);
        ASSERT_TRUE(store) << store.error().message;
        store_ = std::move(*store);
    }

    Rows rows_;
    test::EtcdGateway gateway_{etcd_["endpoints"]};
    EtcdFence fence_ = lead();
    std::unique_ptr<RowStore> store_;
};

TEST_F(EtcdRowsBehindGateway, WriteOfUnknownOutcomeIsNotTakenForTheNext) {
    // etcd carries out the first, and says to its second attempt that there is no space.
    gateway_.then({Does::loses_answer, Does::is_full});
    const Row first{"first", "1"};
    const auto refused = store_->write({&first, 1});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::no_space);
    const Row second{"second", "2"};
    ASSERT_TRUE(store_->write({&second, 1}));
    const Row third{"third", "3"};
    ASSERT_TRUE(store_->write({&third, 1}));
    // The first has been carried out nevertheless.
    ASSERT_TRUE(open(fence_, rows_));
    EXPECT_EQ(rows_, (Rows{{"first", "1"}, {"second", "2"}, {"third", "3"}}));
}

TEST_F(EtcdRowsBehindGateway, WriteWhoseAnswerWasLostIsDoneOnce) {
    gateway_.then({Does::loses_answer, Does::loses_answer});
    const Row row{"a", "1"};
    const unsigned long long before = std::stoull(value_of("sequence/queue"));
    ASSERT_TRUE(store_->write({&row, 1}));
    EXPECT_EQ(std::stoull(value_of("sequence/queue")), before + 1);
    ASSERT_TRUE(open(fence_, rows_));
    EXPECT_EQ(rows_, (Rows{{"a", "1"}}));
}

// The journal would otherwise overwrite newer rows once the next leader finds it.
TEST_F(EtcdRowsBehindGateway, JournalOfUnknownOutcomeIsTakenBackByTheNextWrite) {
    gateway_.then({Does::loses_answer, Does::is_full});
    ASSERT_FALSE(store_->write(numbered(150, "refused")));
    EXPECT_THAT(keys_of_journal(), ElementsAre("journal/queue", "journal/queue/0"));
    const Row row{"row/7", "newer"};
    ASSERT_TRUE(store_->write({&row, 1}));
    EXPECT_THAT(keys_of_journal(), IsEmpty());
    ASSERT_TRUE(open(fence_, rows_));
    EXPECT_EQ(rows_, (Rows{{"row/7", "newer"}}));
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
    const EtcdClient::Turn turn_of_first = turn(fence);
    const Row first{"queue/a", seal_row("a", "1")};
    EtcdClient client(options());
    ASSERT_EQ(client.write({&first, 1}, turn_of_first).value(), turn_of_first.next);
    // The answer was lost, and the write is tried again.
    EXPECT_EQ(client.write({&first, 1}, turn_of_first).value(), turn_of_first.next);
    store = open(fence, rows);
    EXPECT_EQ(rows["a"], "1");
    const Row second{"a", "2"};
    ASSERT_TRUE((*store)->write({&second, 1}));
    // An attempt that was on its way for long.
    EXPECT_NE(client.write({&first, 1}, turn_of_first).value(), turn_of_first.next);
    ASSERT_TRUE(open(fence, rows));
    EXPECT_EQ(rows["a"], "2");
}

TEST_F(EtcdRowsTest, FenceThatIsNotHeldOpensNothing) {
    Rows rows;
    const auto opened = open({.key = "leader", .create_revision = 0, .is_held = [] { return false; }}, rows);
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message, HasSubstr("this process no longer leads"));
    EXPECT_EQ(value_of("sequence/queue"), "");
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
    write_raw(fence, {"queue/a", seal_row("b", "1")});
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

TEST(EtcdClientTest, RefusedCertificateIsNamedInEtcdsWords) {
    test::TempDirectory directory;
    test::CertificateAuthority authority{directory.path().string(), "authority"};
    const auto server = authority.issue("server", {.common_name = "", .alternative_names = "IP:127.0.0.1"});
    const auto named = authority.issue("named", {.common_name = "allocator", .alternative_names = ""});
    const auto nameless = authority.issue("nameless", {.common_name = "", .alternative_names = "DNS:allocator"});
    test::ServerProgram etcd({"etcd.py", "--cert-file", server.certificate, "--key-file", server.key,
                              "--trusted-ca-file", authority.file()});
    const HttpClientOptions http{
        .ca_file = authority.file(), .certificate_file = nameless.certificate, .key_file = nameless.key};
    const std::string password = "a-password";
    for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
             {"user/add", R"({"name":"root","password":")" + password + R"("})"},
             {"role/add", R"({"name":"root"})"},
             {"user/grant", R"({"user":"root","role":"root"})"},
             {"enable", "{}"}}) {
        const auto answer = http_request(etcd["endpoints"], "POST", "/v3/auth/" + path, body, http);
        ASSERT_TRUE(answer) << answer.error().message;
        ASSERT_EQ(answer->status, 200u) << path << answer->body;
    }
    EtcdOptions options;
    options.endpoints = {etcd["endpoints"]};
    options.user = "root";
    options.password_file = directory / "password";
    ASSERT_TRUE(replace_file(options.password_file, password, 0600));
    options.ca_file = authority.file();
    options.certificate_file = nameless.certificate;
    options.key_file = nameless.key;
    const auto found = EtcdClient(options).get("leader");
    ASSERT_TRUE(found) << found.error().message;

    options.certificate_file = named.certificate;
    options.key_file = named.key;
    const auto refused = EtcdClient(options).get("leader");
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message,
                HasSubstr("status 400: CommonName of client sending a request against gateway will be ignored"));
}

TEST(EtcdClientTest, TextOfARefusalIsOneShortLine) {
    const std::vector<std::pair<std::string, std::string>> cases{
        {R"({"error":"too many\r\nkeys","code":3})", "too many  keys"},
        {R"({"error":"e","message":"no\u001b[2Jroom\u00e9","code":3})", "no [2Jroom"},
        {"<b>\n\x1b[2JGo\xff away</b>\n", "status 400: <b>  [2JGo  away</b>"},
        {std::string(5'000, 'x'), "status 400: " + std::string(300, 'x') + "..."},
        {R"({"message":")" + std::string(5'000, 'y') + "\"}", std::string(300, 'y') + "..."},
        {R"({"error":"e","message":""})", "e"},
        {R"({"code":3})", "status 400"},
        {"\n", "status 400"},
        {"", "status 400"},
    };
    for (const auto& [body, shown] : cases) {
        const test::HttpService service(
            [&](const HttpRequest&, const HttpRespond& respond) { respond({400, "text/plain", body, {}, {}}); });
        EtcdOptions options;
        options.endpoints = {"http://127.0.0.1:" + std::to_string(service.port)};
        const auto refused = EtcdClient(options).get("leader");
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
        EXPECT_EQ(refused.error().message, "etcd at " + options.endpoints[0] + ": " + shown);
    }
}

}  // namespace
}  // namespace larder
