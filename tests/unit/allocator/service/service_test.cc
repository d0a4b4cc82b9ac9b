// The allocator's service from outside: who may connect over TCP, what a reload changes, and what the service refuses.

#include "allocator/service/service.h"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/service/access.h"
#include "base/out_of_memory.h"
#include "tests/support/name_service.h"
#include "tests/support/server_program.h"
#include "tests/unit/allocator/service/service_fixture.h"

namespace larder::allocator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;

// A body that would change something if the request were let through.
std::string body_for(const AccessRule& rule) {
    if (rule.method == "GET" || rule.method == "DELETE") return "";
    if (rule.path == "/v1/reports") return report_json("intruder");
    if (rule.path == "/v1/jobs") return R"({"name":"some"})";
    if (rule.path == "/v1/remote") return R"({"bytes_per_second":5})";
    if (rule.path == "/v1/datasets/{name}/pin") return R"({"bytes":1})";
    return "{}";
}

std::string target_of(const AccessRule& rule) {
    std::string target(rule.path);
    const std::size_t at = target.find("{name}");
    if (at != std::string::npos) target.replace(at, 6, target.starts_with("/v1/datasets") ? "images" : "kept");
    return target;
}

TEST_F(ServiceTest, EveryNetworkRouteNeedsTokenOfRightRole) {
    use_tls();
    start();
    ASSERT_EQ(local("POST", "/v1/reports", report_json("node-1")).status, 200u);
    ASSERT_EQ(local("POST", "/v1/jobs", R"({"name":"kept"})").status, 200u);
    const std::string before = local("GET", "/v1/plan").body;
    const std::vector<std::pair<Role, std::string>> holders{
        {Role::viewer, kViewerToken}, {Role::job, kJobToken}, {Role::node, kNodeToken}};
    std::size_t forbidden = 0;
    for (const AccessRule& rule : access_rules()) {
        if (rule.anyone) continue;
        const std::string method(rule.method);
        for (const std::string token : {"", "wrong-token-0123456789"}) {
            const auto answer = ask(method, target_of(rule), body_for(rule), with_token(token));
            EXPECT_EQ(answer.status, 401u) << rule.method << " " << rule.path;
            EXPECT_THAT(answer.headers, Contains(Key("WWW-Authenticate")));
        }
        for (const auto& [role, token] : holders) {
            if ((rule.roles & static_cast<Roles>(role)) != 0) continue;
            ++forbidden;
            EXPECT_EQ(ask(method, target_of(rule), body_for(rule), with_token(token)).status, 403u)
                << name(role) << " " << rule.method << " " << rule.path;
        }
    }
    EXPECT_GE(forbidden, 10u);
    EXPECT_EQ(local("GET", "/v1/plan").body, before);
    EXPECT_EQ(local("POST", "/v1/jobs", R"({"name":"kept"})").status, 409u) << "the job was not removed";
    EXPECT_EQ(local("POST", "/v1/jobs", R"({"name":"some"})").status, 200u) << "the job was not registered";
    EXPECT_EQ(ask("GET", "/healthz", "", with_token("")).status, 200u);
}

TEST_F(ServiceTest, EachRoleCanDoItsPartOverTls) {
    use_tls();
    start();
    EXPECT_EQ(ask("POST", "/v1/reports", report_json("node-1"), with_token(kNodeToken)).status, 200u);
    EXPECT_EQ(ask("POST", "/v1/jobs", R"({"name":"vision"})", with_token(kJobToken)).status, 200u);
    EXPECT_EQ(ask("GET", "/v1/plan", "", with_token(kViewerToken)).status, 200u);
    EXPECT_EQ(ask("PUT", "/v1/remote", R"({"bytes_per_second":5e8})", with_token(kOperatorToken)).status, 200u);
    EXPECT_THAT(ask("GET", "/v1/plan", "", with_token(kViewerToken)).body,
                HasSubstr("\"remote_bytes_per_second\":500000000"));
}

// A stolen or lying node's token must not reach beyond that node.
TEST_F(ServiceTest, NodeReportsOnlyItsOwnNameEndpointAndGroup) {
    use_tls();
    write_tokens(std::string("node node-1 ") + kNodeToken +
                 " http://10.0.0.1:7474\nnode node-2 other-token-0123456789\n");
    start();
    const auto report = [&](const std::string& node, const std::string& endpoint, const std::string& group,
                            const std::string& token) {
        std::string text = report_json(node);
        if (!endpoint.empty()) {
            text.insert(1, R"("peer_group":")" + group + R"(","peer_endpoint":")" + endpoint + R"(",)");
        }
        return ask("POST", "/v1/reports", text, with_token(token));
    };
    EXPECT_EQ(report("node-1", "http://10.0.0.1:7474", "default", kNodeToken).status, 200u);
    const auto foreign = report("node-2", "", "", kNodeToken);
    EXPECT_EQ(foreign.status, 403u);
    EXPECT_THAT(foreign.body, HasSubstr("cannot report node"));
    const auto evil = report("node-1", "http://evil:1", "default", kNodeToken);
    EXPECT_EQ(evil.status, 403u);
    EXPECT_THAT(evil.body, HasSubstr("the endpoint of its token is http://10.0.0.1:7474"));
    EXPECT_EQ(report("node-1", "http://10.0.0.1:7474", "other", kNodeToken).status, 403u);
    EXPECT_THAT(report("node-2", "http://10.0.0.2:7474", "default", "other-token-0123456789").body,
                HasSubstr("its token has no endpoint"));
    EXPECT_EQ(report("node-2", "", "", "other-token-0123456789").status, 200u);
    EXPECT_EQ(ask("GET", "/v1/nodes/node-1/plan", "", with_token(kNodeToken)).status, 200u);
    EXPECT_EQ(ask("GET", "/v1/nodes/node-2/plan", "", with_token(kNodeToken)).status, 403u);
    EXPECT_THAT(local("GET", "/v1/nodes").body, ::testing::Not(HasSubstr("evil")));
}

TEST_F(ServiceTest, ClientCertificateGrantsItsRole) {
    use_tls();
    config.certificates = {{"node-7", Grant{.role = Role::node}}};
    start();
    const auto files = authority.issue("node-7", {.common_name = "node-7"});
    HttpClientOptions showing = with_token("");
    showing.certificate_file = files.certificate;
    showing.key_file = files.key;
    EXPECT_EQ(ask("POST", "/v1/reports", report_json("node-7"), showing).status, 200u);
    EXPECT_EQ(ask("PUT", "/v1/remote", R"({"bytes_per_second":5})", showing).status, 403u);
    const auto unknown = authority.issue("node-8", {.common_name = "node-8"});
    showing.certificate_file = unknown.certificate;
    showing.key_file = unknown.key;
    EXPECT_EQ(ask("POST", "/v1/reports", report_json("node-8"), showing).status, 401u);
}

TEST_F(ServiceTest, ForeignPageChangesNothingWithClientCertificate) {
    use_tls();
    config.certificates = {{"alice", Grant{.role = Role::operator_}}};
    start();
    const auto files = authority.issue("alice", {.common_name = "alice"});
    const auto status = [&](const HttpClientOptions& sent) {
        HttpClientOptions options = sent;
        options.ca_file = authority.file();
        options.certificate_file = files.certificate;
        options.key_file = files.key;
        return ask("PUT", "/v1/remote", R"({"bytes_per_second":5})", options).status;
    };
    EXPECT_EQ(status({.headers = {{"Origin", endpoint()}, {"Sec-Fetch-Site", "same-origin"}}}), 200u);
    EXPECT_EQ(status({.headers = {{"Origin", "https://evil.example"}, {"Content-Type", "text/plain"}}}), 403u);
    EXPECT_EQ(status({.headers = {{"Sec-Fetch-Site", "cross-site"}, {"Content-Type", "text/plain"}}}), 403u);
    EXPECT_EQ(status({}), 200u) << "no browser";
    HttpClientOptions image{.ca_file = authority.file(),
                            .certificate_file = files.certificate,
                            .key_file = files.key,
                            .headers = {{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Dest", "image"}}};
    EXPECT_EQ(ask("GET", "/v1/nodes/n1/plan", "", image).status, 403u) << "an answer would grant a lease";
    EXPECT_EQ(ask("GET", "/v1/plan", "", image).status, 200u);
}

TEST_F(ServiceTest, UnknownLocalUserIsRefused) {
    config.users = {{"no-such-user-here", Role::node}};
    boost::asio::io_context unused;
    const auto refused = AllocatorService::start(unused, config, clock);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("user.no-such-user-here.role"));
}

TEST_F(ServiceTest, ReloadTakesAllNewTokensAndCertificatesOrNone) {
    use_tls();
    start();
    const std::string fresh = "fresh-token-0123456789";
    EXPECT_EQ(ask("GET", "/v1/plan", "", with_token(fresh)).status, 401u);
    write_tokens("viewer eye " + fresh + "\n");
    EXPECT_TRUE(on_thread([this] { return service->reload(config); }));
    EXPECT_EQ(ask("GET", "/v1/plan", "", with_token(fresh)).status, 200u);
    EXPECT_EQ(ask("GET", "/v1/plan", "", with_token(kOperatorToken)).status, 401u) << "the reload removed this token";
    write_tokens("viewer eye short\n");
    EXPECT_FALSE(on_thread([this] { return service->reload(config); }));
    EXPECT_EQ(ask("GET", "/v1/plan", "", with_token(fresh)).status, 200u) << "the old tokens stay valid";
    write_tokens(std::string("viewer eye ") + kViewerToken + "\n");
    AllocatorConfig broken = config;
    broken.tls.certificate_file = directory / "lost.pem";
    EXPECT_FALSE(on_thread([&] { return service->reload(broken); }));
    EXPECT_EQ(ask("GET", "/v1/plan", "", with_token(fresh)).status, 200u) << "a failed reload changes nothing";
}

TEST_F(ServiceTest, ReloadEndsEventStreams) {
    config.listen = "127.0.0.1:0";
    start();
    std::promise<void> began;
    std::atomic<bool> has_begun = false;
    HttpClientOptions options = with_token(kViewerToken);
    options.timeout_ms = 10'000;
    Result<void> ended;
    std::jthread reader([&] {
        const auto take = [&](std::string_view) {
            if (!has_begun.exchange(true)) began.set_value();
            return true;
        };
        ended = http_get_stream(endpoint(), "/v1/events/stream?status_ms=1000", take, options);
        if (!has_begun.exchange(true)) began.set_value();
    });
    began.get_future().wait();
    write_tokens(std::string("operator alice ") + kOperatorToken + "\n");
    EXPECT_TRUE(on_thread([this] { return service->reload(config); }));
    reader.join();
    EXPECT_TRUE(ended) << ended.error().message;
    EXPECT_FALSE(http_get_stream(
        endpoint(), "/v1/events/stream", [](std::string_view) { return true; }, options))
        << "the reload removed this token";
}

TEST_F(ServiceTest, RequestLimitsHold) {
    config.listen = "127.0.0.1:0";
    config.limits.body_bytes = 64u << 10;
    config.limits.header_bytes = 2u << 10;
    config.limits.requests_per_second_per_peer = 1;
    config.limits.request_burst_per_peer = 4;
    start();
    EXPECT_EQ(ask("POST", "/v1/jobs", std::string(65u << 10, ' '), with_token(kJobToken)).status, 413u);
    EXPECT_EQ(ask("GET", "/v1/plan?" + std::string(3000, 'x'), "", with_token(kJobToken)).status, 431u);
    // However slowly this runs, some of 1,000 requests come before the rate limiter allows another.
    bool limited = false;
    for (int i = 0; i < 1000 && !limited; ++i) {
        const auto answer = ask("GET", "/v1/plan", "", with_token("wrong-token-0123456789"));
        limited = answer.status == 429;
        if (limited) {
            EXPECT_THAT(answer.headers, Contains(::testing::Pair("Retry-After", "1")));
        }
    }
    EXPECT_TRUE(limited) << "guesses of tokens are limited";
}

TEST_F(ServiceTest, ThousandJobsMayRegisterAtOnce) {
    config.listen = "127.0.0.1:0";
    config.state_directory = directory / "state";
    start();
    std::atomic<int> registered = 0;
    {
        std::vector<std::jthread> clients;
        for (int client = 0; client < 8; ++client) {
            clients.emplace_back([&, client] {
                for (int i = client; i < 1000; i += 8) {
                    const std::string body = R"({"name":"job-)" + std::to_string(i) + R"("})";
                    registered += ask("POST", "/v1/jobs", body, with_token(kJobToken)).status == 200u ? 1 : 0;
                }
            });
        }
    }
    EXPECT_EQ(registered, 1000);
    EXPECT_EQ(ask("POST", "/v1/jobs", R"({"name":"job-500"})", with_token(kJobToken)).status, 409u)
        << "each name only once";
    stop();
    start();
    for (const char* job : {"job-0", "job-500", "job-999"}) {
        EXPECT_EQ(local("POST", "/v1/jobs", R"({"name":")" + std::string(job) + R"("})").status, 409u)
            << "after a restart";
    }
}

TEST_F(ServiceTest, SecondNodeWithSameNameIsRefused) {
    start();
    ASSERT_EQ(local("POST", "/v1/reports", report_json("a", 1)).status, 200u);
    const auto refused = local("POST", "/v1/reports", report_json("a", 2));
    EXPECT_EQ(refused.status, 409u);
    EXPECT_THAT(refused.body, HasSubstr("give each its own name"));
    EXPECT_EQ(local("POST", "/v1/reports", report_json("a", 1)).status, 200u);
}

TEST_F(ServiceTest, PlanSettingsAndLeasesSurviveRestart) {
    config.state_directory = directory / "state";
    start();
    clock.advance_ns(config.cluster.lease_ns);
    ASSERT_EQ(local("POST", "/v1/reports", report_json("a")).status, 200u);
    ASSERT_EQ(local("POST", "/v1/jobs", R"({"name":"later","weight":2})").status, 200u);
    ASSERT_EQ(local("PUT", "/v1/datasets/images/pin", R"({"bytes":300000})").status, 200u);
    ASSERT_EQ(local("PUT", "/v1/remote", R"({"bytes_per_second":5e8})").status, 200u);
    const auto part = boost::json::parse(local("POST", "/v1/reports", report_json("a")).body);
    const auto before = boost::json::parse(local("GET", "/v1/plan").body);
    stop();
    start();
    const auto after = boost::json::parse(local("GET", "/v1/plan").body);
    EXPECT_EQ(after.at("plan"), before.at("plan"));
    EXPECT_EQ(after.at("datasets"), before.at("datasets"));
    EXPECT_EQ(after.at("jobs"), before.at("jobs"));
    EXPECT_EQ(after.at("remote_bytes_per_second"), before.at("remote_bytes_per_second"));
    EXPECT_EQ(local("POST", "/v1/jobs", R"({"name":"later"})").status, 409u);
    const auto again = local("POST", "/v1/reports", report_json("a"));
    ASSERT_EQ(again.status, 200u) << again.body;
    const auto renewed = boost::json::parse(again.body);
    EXPECT_EQ(renewed.at("quotas"), part.at("quotas"));
    EXPECT_GT(renewed.at("lease").at("number").to_number<int>(), part.at("lease").at("number").to_number<int>());
}

TEST_F(ServiceTest, PlanIsInForceAtOnceAfterTenMinutesDown) {
    config.state_directory = directory / "state";
    start();
    clock.advance_ns(config.cluster.lease_ns);
    ASSERT_EQ(local("POST", "/v1/reports", report_json("a")).status, 200u);
    ASSERT_EQ(local("POST", "/v1/reports", report_json("b")).status, 200u);
    const auto before = boost::json::parse(local("POST", "/v1/reports", report_json("a")).body);
    const auto plan = boost::json::parse(local("GET", "/v1/plan").body);
    stop();
    clock.advance_ns(600 * std::int64_t{1'000'000'000});
    start();
    EXPECT_EQ(boost::json::parse(local("GET", "/v1/plan").body).at("jobs"), plan.at("jobs"));
    const auto answer = local("POST", "/v1/reports", report_json("a", 1, 7));
    ASSERT_EQ(answer.status, 200u) << answer.body;
    const auto after = boost::json::parse(answer.body);
    EXPECT_EQ(after.at("plan"), before.at("plan"));
    EXPECT_EQ(after.at("quotas"), before.at("quotas"));
    EXPECT_EQ(after.at("lease").at("rates"), before.at("lease").at("rates"));
    // The other node does not come back. Plans leave it out once its lease has expired.
    constexpr std::int64_t kStep_ns = 200'000'000;
    for (std::int64_t passed_ns = 0; passed_ns < config.cluster.lease_ns; passed_ns += kStep_ns) {
        clock.advance_ns(kStep_ns);
        ASSERT_EQ(local("GET", "/healthz", "").status, 200u);
    }
    ASSERT_EQ(local("POST", "/v1/reports", report_json("a", 1, 8)).status, 200u);
    EXPECT_EQ(boost::json::parse(local("GET", "/v1/plan").body).at("nodes").as_array().size(), 1u);
}

TEST_F(ServiceTest, FullStateIsReportedAndPlanInForceStays) {
    config.state_directory = directory / "state";
    config.state_bytes_max = 192u << 10;
    start();
    clock.advance_ns(config.cluster.lease_ns);
    ASSERT_EQ(local("POST", "/v1/reports", report_json("a")).status, 200u);
    int accepted = 0;
    HttpResponse answer;
    do {
        answer = local("POST", "/v1/jobs", R"({"name":"job-)" + std::to_string(accepted) + R"("})");
        accepted += answer.status == 200u;
        ASSERT_LT(accepted, 10'000);
    } while (answer.status == 200u);
    EXPECT_EQ(answer.status, 507u) << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("no_space"));
    EXPECT_GT(accepted, 100);
    EXPECT_EQ(local("DELETE", "/v1/jobs/job-" + std::to_string(accepted)).status, 404u)
        << "the refused job is not registered";
    EXPECT_THAT(local("GET", "/v1/plan").body, HasSubstr("\"vision\""));
    // A node gets a lease that can be saved, or is told to continue under its current lease.
    const unsigned reported = local("POST", "/v1/reports", report_json("a", 1, 1)).status;
    EXPECT_TRUE(reported == 200u || reported == 507u) << reported;
    stop();
    config.state_bytes_max = 1u << 20;
    start();
    EXPECT_EQ(local("POST", "/v1/jobs", R"({"name":"job-0"})").status, 409u) << "accepted jobs are kept";
    EXPECT_EQ(local("POST", "/v1/jobs", R"({"name":"one-more"})").status, 200u) << "and there is room again";
}

// The status that a user of the machine gets for registering a job, which a viewer may not.
unsigned status_for(uid_t uid, const std::string& socket, const std::string& job) {
    unsigned status = 0;
    std::thread([&] {
        ::syscall(SYS_setresuid, -1, uid, -1);  // of this thread only
        const auto answer = http_request(socket, "POST", "/v1/jobs", R"({"name":")" + job + R"("})");
        if (answer) status = answer->status;
    }).join();
    return status;
}

TEST_F(ServiceTest, SighupLooksUsersUpAgainAndNeverWaitsForThem) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can connect as other users";
    constexpr uid_t kBefore = 4001;
    constexpr uid_t kAfter = 4002;
    ASSERT_EQ(::chmod(directory.path().c_str(), 0755), 0);
    config.socket_mode = 0666;
    config.users = {{test::kServedUser, Role::viewer}};
    test::served_uid = kBefore;
    std::promise<void> started;
    std::atomic<bool> all_reloads_returned = false;
    std::shared_ptr<void> reload_copies(nullptr, [&](void*) { all_reloads_returned = true; });
    std::thread server([&] {
        EXPECT_TRUE(serve({.config = config,
                           .extend = {},
                           .reload = [config = config, copy = std::move(reload_copies)] { return config; },
                           .started = [&](const auto&) { started.set_value(); },
                           .stopping = {}}));
    });
    started.get_future().wait();
    EXPECT_EQ(status_for(kBefore, config.socket, "a"), 403u);
    EXPECT_EQ(status_for(kAfter, config.socket, "b"), 200u);
    test::served_uid = kAfter;
    ::kill(::getpid(), SIGHUP);
    for (int i = 0; status_for(kAfter, config.socket, "c" + std::to_string(i)) != 403u; ++i) {
    }
    EXPECT_EQ(status_for(kBefore, config.socket, "d"), 200u);

    test::service_hangs = true;
    ::kill(::getpid(), SIGHUP);
    while (test::look_ups_hanging == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(status_for(kBefore, config.socket, "e"), 200u) << "all is answered meanwhile";
    ::kill(::getpid(), SIGTERM);
    server.join();
    test::service_hangs = false;
    while (!all_reloads_returned) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// One of several allocators, whose term ends while it answers. A client that gets 421 asks another one, which would do
// the same a second time.
TEST_F(ServiceTest, RequestAnsweredWith421HasNoEffect) {
    const test::ServerProgram etcd({"etcd.py"});
    config.etcd.options = {.endpoints = split_http_endpoints(etcd["endpoints"]), .prefix = "/test/"};
    EtcdClient client(config.etcd.options);
    const auto key = client.create("leader", "me", client.grant_lease(600).value());
    ASSERT_TRUE(key);
    const auto is_there = [this](const std::string& job) {
        const auto found = EtcdClient(config.etcd.options).get("settings/job/" + job);
        return found && *found;
    };
    std::atomic<int> round = 0;
    const auto ends_the_term = [&round] { return "round-" + std::to_string(round) + "-thread-0-change-3"; };
    start(EtcdFence{.key = "leader", .create_revision = key->create_revision, .is_held = [&] {
                        return !is_there(ends_the_term());
                    }});
    // Each change is made while those of others wait for etcd. The term may end between two changes, which shows
    // nothing, so another one follows until a change was cut short.
    std::atomic<int> unknown = 0;
    const auto change_until_the_term_ends = [&](int thread_number) {
        for (int change = 0; change < 10'000; ++change) {
            const std::string name = "round-" + std::to_string(round) + "-thread-" + std::to_string(thread_number) +
                                     "-change-" + std::to_string(change);
            const unsigned status = local("POST", "/v1/jobs", R"({"name":")" + name + R"("})").status;
            if (status == 503) ++unknown;
            if (status != 200 && status != 503) {
                EXPECT_EQ(status, 421u);
            }
            if (status == 421) {
                EXPECT_FALSE(is_there(name)) << name;
                return;
            }
        }
    };
    constexpr int kMaxRounds = 50;
    while (unknown == 0 && round < kMaxRounds) {
        ++round;
        std::vector<std::jthread> threads;
        threads.reserve(8);
        for (int i = 0; i < 8; ++i) threads.emplace_back(change_until_the_term_ends, i);
    }
    EXPECT_GT(unknown, 0);
    EXPECT_TRUE(is_there(ends_the_term()));
    EXPECT_EQ(local("GET", "/v1/jobs").status, 421u);
    stop();  // before what the term refers to is gone
}

// Whoever watches the leader must not restart it because etcd is full: no other allocator could begin to lead.
TEST_F(ServiceTest, LeaderIsHealthyWhileEtcdIsFull) {
    const test::ServerProgram etcd({"etcd.py", "--quota-backend-bytes", "2000000"});
    config.etcd.options = {.endpoints = split_http_endpoints(etcd["endpoints"]), .prefix = "/test/"};
    EtcdClient client(config.etcd.options);
    const std::int64_t lease = client.grant_lease(600).value();
    const auto key = client.create("leader", "me", lease);
    ASSERT_TRUE(key);
    start(EtcdFence{.key = "leader", .create_revision = key->create_revision, .is_held = [] { return true; }});
    EtcdClient::Turn turn{
        .fence = "leader", .create_revision = key->create_revision, .sequence = "filler", .last = {}, .next = {}};
    for (int number = 0;; ++number) {
        ASSERT_LT(number, 100);
        turn.last = std::exchange(turn.next, std::to_string(number));
        const Row row{.key = "filler/" + turn.next, .text = std::string(100'000, 'x')};
        if (const auto written = client.write(std::span(&row, 1), turn); !written) {
            EXPECT_EQ(written.error().code, ErrorCode::no_space) << written.error().message;
            break;
        }
    }
    EXPECT_EQ(local("POST", "/v1/jobs", R"({"name":"vision"})").status, 507u);
    EXPECT_EQ(local("GET", "/healthz").status, 200u);
    EXPECT_EQ(local("GET", "/metrics").status, 200u);
    const auto jobs = local("GET", "/v1/jobs");
    EXPECT_EQ(jobs.status, 200u) << "the refused job is no secret to wait for: " << jobs.body;
    EXPECT_EQ(jobs.body.find("vision"), std::string::npos) << jobs.body;
    EXPECT_TRUE(client.keep_lease(lease)) << "the leader goes on";
    EXPECT_EQ(client.grant_lease(600).error().code, ErrorCode::no_space) << "nobody else can begin to lead";
}

TEST_F(ServiceTest, SecondAllocatorIsRefusedAndLeavesTheState) {
    config.state_directory = directory / "state";
    start();
    AllocatorConfig other = config;
    other.socket = directory / "other.sock";
    boost::asio::io_context second;
    const auto refused = AllocatorService::start(second, other, clock);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("another larder-allocator uses the state directory"));
}

// The program ends before the handling of signals does, which would let SIGTERM kill it.
TEST_F(ServiceTest, LackOfMemoryWhileServingEndsTheProgramWithMessageAndExitCode) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const auto serve_without_memory = [this] {
        exit_when_out_of_memory("larder-allocator");
        try {
            static_cast<void>(serve({.config = config,
                                     .extend = {},
                                     .reload = {},
                                     .started = [](const auto&) { ::raise(SIGTERM); },
                                     .stopping = [] { throw std::bad_alloc(); }}));
        } catch (const std::bad_alloc&) {
            ::_exit(3);
        }
        ::_exit(4);
    };
    EXPECT_EXIT(serve_without_memory(), testing::ExitedWithCode(1), "larder-allocator: out of memory");
}

}  // namespace
}  // namespace larder::allocator
