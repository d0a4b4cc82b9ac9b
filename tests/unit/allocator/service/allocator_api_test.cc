// The allocator's API as nodes and operators use it: tests send whole requests and check whole answers.

#include "allocator/service/allocator_api.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "allocator/protocol/codec.h"
#include "base/server/json_text.h"
#include "tests/unit/allocator/service/allocator_api_fixture.h"

namespace larder::allocator {
namespace {

namespace json = boost::json;

using ::testing::HasSubstr;

TEST_F(AllocatorApiTest, ReportIsUnchangedByJsonRoundTrip) {
    const NodeReport before = report_of("a");
    const auto after = read_node_report(to_json(before), "");
    ASSERT_TRUE(after.has_value()) << after.error().message;
    EXPECT_EQ(json::serialize(to_json(*after)), json::serialize(to_json(before)));
    EXPECT_EQ(after->instance, before.instance);
    EXPECT_EQ(after->disk_read_bytes_per_second, kUnlimited);
    EXPECT_EQ(after->jobs[0].busy_s, 1.5);
}

TEST_F(AllocatorApiTest, ReportIsAnsweredWithQuotasAndLease) {
    const HttpResponse response = report(report_of("a"));
    ASSERT_EQ(response.status, 200u) << response.body;
    const auto part = read_node_plan(object(response), "", 500, kProtocolOldest);
    ASSERT_TRUE(part.has_value()) << part.error().message;
    ASSERT_EQ(part->quotas.size(), 1u);
    EXPECT_EQ(part->quotas[0].memory_bytes + part->quotas[0].disk_bytes, 100'000'000'000u);
    ASSERT_EQ(part->lease.rates.size(), 1u);
    EXPECT_EQ(part->lease.rates[0].job, "vision");
    EXPECT_DOUBLE_EQ(part->lease.rates[0].bytes_per_second, 1e9);
    EXPECT_EQ(part->lease.expires_ns, 500 + 10'000'000'000) << "counted on the node's own clock";
    EXPECT_GT(part->lease.floor_bytes_per_second, 0);
}

// After a power cut, a node that is cut off may take the floor of a lease that nobody knows any more.
TEST_F(AllocatorApiTest, LeaseIsToldOnceItsFloorIsDurable) {
    std::function<void(Result<void>)> saved;
    bool durable = false;
    api.set_when_durable([&](std::function<void(Result<void>)> then) { saved = std::move(then); },
                         [&] { return durable; });
    HttpResponse given;
    const auto report = [&] {
        given.status = 0;
        api.handle(request("POST", {"v1", "reports"}, json_text(to_json(report_of("a")))),
                   [&](HttpResponse response) { given = std::move(response); });
        return given.status;
    };
    EXPECT_EQ(report(), 0u);
    EXPECT_GT(cluster.in_force(clock.now_ns()), 0);
    saved(fail(ErrorCode::no_space, "the disk is full"));
    EXPECT_EQ(given.status, 507u);
    EXPECT_EQ(cluster.in_force(clock.now_ns()), 0) << "nobody knows of the lease";

    EXPECT_EQ(report(), 0u);
    saved({});
    EXPECT_EQ(given.status, 200u);
    durable = true;
    EXPECT_EQ(report(), 200u) << "a floor that is durable is not waited for";
}

// Changes wait for the disk: each is answered when the test says so.
class ChangesUnderWay : public AllocatorApiTest {
protected:
    ChangesUnderWay() {
        api.set_when_durable([this](std::function<void(Result<void>)> then) { saved.push_back(std::move(then)); },
                             [] { return false; });
    }
    void change(const std::string& method, const std::vector<std::string>& path, const std::string& body = "") {
        const std::size_t number = statuses.size();
        statuses.push_back(0);
        api.handle(request(method, path, body),
                   [this, number](const HttpResponse& response) { statuses[number] = response.status; });
    }
    void set_remote(const std::string& bytes_per_second) {
        change("PUT", {"v1", "remote"}, R"({"bytes_per_second":)" + bytes_per_second + "}");
    }
    double remote() const { return cluster.options().remote_bytes_per_second; }
    static Result<void> full() { return fail(ErrorCode::no_space, "the disk is full"); }

    std::vector<std::function<void(Result<void>)>> saved;
    std::vector<unsigned> statuses;
};

TEST_F(ChangesUnderWay, AllThatFailLeaveTheValueBeforeTheFirst) {
    set_remote("2e9");
    set_remote("3e9");
    ASSERT_EQ(remote(), 3e9);
    saved.at(0)(full());
    EXPECT_EQ(remote(), 1e9);
    saved.at(1)(full());
    EXPECT_EQ(remote(), 1e9);
    EXPECT_THAT(statuses, testing::ElementsAre(507, 507));
}

TEST_F(ChangesUnderWay, FailureFailsLaterChangesOfTheSameSetting) {
    set_remote("2e9");
    change("POST", {"v1", "jobs"}, R"({"name":"vision"})");
    set_remote("3e9");
    saved.at(0)(full());
    saved.at(1)({});
    saved.at(2)({});
    EXPECT_THAT(statuses, testing::ElementsAre(507, 200, 507)) << "3e9 is not in force";
    EXPECT_EQ(remote(), 1e9);
    set_remote("4e9");
    saved.at(3)({});
    EXPECT_EQ(statuses.back(), 200u);
    EXPECT_EQ(remote(), 4e9);
}

TEST_F(ChangesUnderWay, AcknowledgedChangeOutlivesLaterFailure) {
    set_remote("2e9");
    set_remote("3e9");
    saved.at(0)({});
    saved.at(1)(full());
    EXPECT_THAT(statuses, testing::ElementsAre(200, 507));
    EXPECT_EQ(remote(), 2e9);
}

TEST_F(ChangesUnderWay, ChangesOfOneJobAreUndoneTogether) {
    change("POST", {"v1", "jobs"}, R"({"name":"vision","weight":2})");
    change("DELETE", {"v1", "jobs", "vision"});
    change("POST", {"v1", "jobs"}, R"({"name":"vision","weight":3})");
    ASSERT_NE(cluster.registered("vision"), nullptr);
    saved.at(0)({});
    saved.at(1)(full());
    ASSERT_NE(cluster.registered("vision"), nullptr);
    EXPECT_EQ(cluster.registered("vision")->weight, 2);
    saved.at(2)({});
    EXPECT_THAT(statuses, testing::ElementsAre(200, 507, 507));
    EXPECT_EQ(cluster.registered("vision")->weight, 2);
}

TEST_F(ChangesUnderWay, RemovalOfNodeIsAnsweredOnceItIsDurable) {
    ASSERT_TRUE(cluster.report(report_of("a"), clock.now_ns()));
    pass(60 * kSecond_ns);
    change("DELETE", {"v1", "nodes", "a"});
    EXPECT_THAT(statuses, testing::ElementsAre(0));
    saved.at(0)({});
    EXPECT_THAT(statuses, testing::ElementsAre(200));
}

TEST_F(AllocatorApiTest, UnchangedReservationIsAnsweredWithErrorOfEarlierWrite) {
    ASSERT_TRUE(cluster.register_job({.name = "vision"}));
    api.set_when_durable([](const auto& then) { then(fail(ErrorCode::no_space, "the disk is full")); },
                         [] { return false; });
    HttpResponse given;
    api.handle(request("PUT", {"v1", "jobs", "vision", "reservation"},
                       R"({"cache_bytes":0,"bandwidth_floor_bytes_per_second":0})"),
               [&](HttpResponse response) { given = std::move(response); });
    EXPECT_EQ(given.status, 507u) << given.body;
}

TEST_F(AllocatorApiTest, ReportIsReadInTheVersionItNames) {
    json::object sent = to_json(report_of("a"));
    sent.erase("scans");
    const auto post = [&](const std::string& version) {
        HttpRequest asked = request("POST", {"v1", "reports"}, json::serialize(sent));
        if (!version.empty()) asked.query["protocol"] = version;
        HttpResponse response;
        api.handle(asked, [&](const HttpResponse& answer) { response = answer; });
        return response;
    };
    const HttpResponse oldest = post("");
    EXPECT_EQ(oldest.status, 200u) << oldest.body;
    EXPECT_EQ(oldest.headers, (decltype(oldest.headers){{"Larder-Protocol", "6"}}));
    EXPECT_NE(message(post("2")).find("scans"), std::string::npos) << "version 2 needs every key";
    EXPECT_EQ(message(post("7")), "query: protocol: \"7\" is not a protocol version known here: expected 1 to 6");
    sent = to_json(report_of("a"));
    EXPECT_EQ(post("2").status, 200u);
    EXPECT_EQ(post("3").status, 200u);
    EXPECT_EQ(post("4").status, 200u);
    EXPECT_EQ(post("5").status, 200u);
    EXPECT_EQ(post("6").status, 200u);
}

TEST_F(AllocatorApiTest, PlanShowsItsInputs) {
    ASSERT_EQ(report(report_of("a")).status, 200u);
    const json::object plan = object(ask("GET", {"v1", "plan"}));
    EXPECT_EQ(plan.at("objective").as_string(), "max-min");
    EXPECT_EQ(plan.at("nodes").at(0).at("name").as_string(), "a");
    EXPECT_EQ(plan.at("datasets").at(0).at("quota_bytes").to_number<std::uint64_t>(), 100'000'000'000u);
    const json::object& job = plan.at("jobs").at(0).as_object();
    EXPECT_FALSE(job.at("ideal_is_measured").as_bool());
    EXPECT_DOUBLE_EQ(job.at("steady_hit_ratio").to_number<double>(), 0.5);
    EXPECT_DOUBLE_EQ(job.at("steady_bytes_per_second").to_number<double>(), 1e9)
        << "an unknown f* is at first taken to be the remote's bandwidth";
}

TEST_F(AllocatorApiTest, JobsAreRegisteredOnceAndRemoved) {
    EXPECT_EQ(ask("POST", {"v1", "jobs"}, R"({"name":"x","ideal_bytes_per_second":5e8,"epochs":3})").status, 200u);
    EXPECT_EQ(ask("POST", {"v1", "jobs"}, R"({"name":"x"})").status, 409u);
    EXPECT_EQ(ask("DELETE", {"v1", "jobs", "x"}).status, 200u);
    EXPECT_EQ(ask("DELETE", {"v1", "jobs", "x"}).status, 404u);
}

TEST_F(AllocatorApiTest, RegistrationBelongsToTheUserWhoMadeIt) {
    const std::vector<std::string> vision{"v1", "jobs", "vision"};
    EXPECT_EQ(ask_as_user(1001, "POST", {"v1", "jobs"}, R"({"name":"vision","user":1002})").status, 403u);
    ASSERT_EQ(ask_as_user(1001, "POST", {"v1", "jobs"}, R"({"name":"vision"})").status, 200u);
    EXPECT_EQ(only("jobs").at("user").to_number<int>(), 1001);
    EXPECT_EQ(ask_as_user(1002, "DELETE", vision).status, 403u);
    EXPECT_EQ(ask_with_token("ci", "DELETE", vision).status, 403u);
    EXPECT_EQ(ask_as_user(1001, "DELETE", vision).status, 200u);
    ASSERT_EQ(ask("POST", {"v1", "jobs"}, R"({"name":"vision","user":1002})").status, 200u);
    EXPECT_THAT(message(ask_as_user(1002, "DELETE", vision)), HasSubstr("only operators may remove it"))
        << "it may have a weight that the user could not give";
    EXPECT_EQ(ask("DELETE", vision).status, 200u);
}

TEST_F(AllocatorApiTest, RegistrationOfATokenBelongsToThatToken) {
    const std::vector<std::string> vision{"v1", "jobs", "vision"};
    ASSERT_EQ(ask_with_token("ci", "POST", {"v1", "jobs"}, R"({"name":"vision"})").status, 200u);
    EXPECT_THAT(message(ask_as_user(1001, "DELETE", vision)), HasSubstr("token or certificate \"ci\""));
    EXPECT_EQ(ask_with_token("nightly", "DELETE", vision).status, 403u);
    EXPECT_EQ(ask_with_token("nightly", "POST", {"v1", "jobs"}, R"({"name":"vision"})").status, 403u);
    EXPECT_EQ(ask_with_token("ci", "POST", {"v1", "jobs"}, R"({"name":"vision"})").status, 409u);
    EXPECT_EQ(ask_with_token("ci", "DELETE", vision).status, 200u);
}

TEST_F(AllocatorApiTest, RegistrationWithoutOwnerBelongsToOperators) {
    const std::vector<std::string> vision{"v1", "jobs", "vision"};
    ASSERT_EQ(ask("POST", {"v1", "jobs"}, R"({"name":"vision"})").status, 200u);
    EXPECT_TRUE(cluster.registered("vision")->registered_by_operator());
    EXPECT_EQ(ask_as_user(1001, "DELETE", vision).status, 403u);
    EXPECT_EQ(ask_with_token("ci", "DELETE", vision).status, 403u);
    EXPECT_EQ(ask("DELETE", vision).status, 200u);
}

TEST_F(AllocatorApiTest, OnlyOperatorsGiveFloorsAndWeightsAbove1) {
    for (const char* body : {R"({"name":"x","bandwidth_floor_bytes_per_second":1})", R"({"name":"x","weight":1.01})"}) {
        EXPECT_EQ(ask_as_user(1001, "POST", {"v1", "jobs"}, body).status, 403u) << body;
        EXPECT_EQ(ask_with_token("ci", "POST", {"v1", "jobs"}, body).status, 403u) << body;
        EXPECT_EQ(ask("POST", {"v1", "jobs"}, body).status, 200u) << body;
        EXPECT_EQ(ask("DELETE", {"v1", "jobs", "x"}).status, 200u) << body;
    }
    EXPECT_EQ(ask_as_user(1001, "POST", {"v1", "jobs"}, R"({"name":"x","weight":1,"epochs":2})").status, 200u);
    EXPECT_FALSE(cluster.registered("x")->registered_by_operator());
}

// A report names a job of another user like one that runs. Rates that people see are those of the right job.
TEST_F(AllocatorApiTest, MeasuredRateOfAJobLeavesOutAnotherUsersJobOfItsName) {
    NodeReport real = report_of("a");
    real.jobs[0].user = 1001;
    NodeReport forged = report_of("b");
    forged.jobs[0].user = 1002;
    for (int second = 0; second < 5; ++second) {
        ASSERT_EQ(report(real).status, 200u);
        ASSERT_EQ(report(forged).status, 200u);
        clock.advance_ns(kSecond_ns / 4);
        real.jobs[0].bytes += 25'000'000;
        real.jobs[0].busy_s += 0.5;
        forged.jobs[0].bytes += 900'000'000;
    }
    const json::array jobs = object(ask("GET", {"v1", "jobs"})).at("jobs").as_array();
    ASSERT_EQ(jobs.size(), 2u);
    EXPECT_EQ(jobs[0].at("name").as_string(), "vision");
    EXPECT_EQ(jobs[0].at("nodes").as_array(), (json::array{"a"}));
    EXPECT_NEAR(jobs[0].at("measured_bytes_per_second").to_number<double>(), 1e8, 1e6);
    EXPECT_EQ(jobs[1].at("name").as_string(), "vision (user 1002)");
    EXPECT_EQ(jobs[1].at("user").to_number<int>(), 1002);
}

// Each reading advances the clock by a millisecond, so a plan takes a millisecond.
class SlowClock final : public Clock {
public:
    std::int64_t now_ns() const override { return now_ns_ += step_ns; }
    void advance_ns(std::int64_t by_ns) { now_ns_ += by_ns; }

    std::int64_t step_ns = 1'000'000;

private:
    mutable std::int64_t now_ns_ = 0;
};

TEST_F(AllocatorApiTest, ThousandRegistrationsShareTheirPlans) {
    const SlowClock slow;
    AllocatorApi busy(cluster, slow);
    const auto post = [&](const char* list, const std::string& body) {
        unsigned status = 0;
        busy.handle(request("POST", {"v1", list}, body), [&](const HttpResponse& answer) { status = answer.status; });
        EXPECT_EQ(status, 200u) << body;
    };
    const auto plan_count = [&] {
        std::string text;
        busy.handle(request("GET", {"metrics"}), [&](const HttpResponse& answer) { text = answer.body; });
        const std::string name = "larder_plan_duration_seconds_count ";
        return std::stoi(text.substr(text.find(name) + name.size()));
    };
    post("reports", json::serialize(to_json(report_of("a"))));
    const int before = plan_count();
    for (int i = 0; i < 1000; ++i) post("jobs", R"({"name":"job-)" + std::to_string(i) + R"("})");
    EXPECT_LT(plan_count() - before, 700)
        << "one plan for each registration would exceed the share of time that planning may take";
    EXPECT_EQ(cluster.registered_jobs().size(), 1000u);
}

TEST_F(AllocatorApiTest, RegistrationIsPlannedAtNextTick) {
    const SlowClock slow;
    AllocatorApi busy(cluster, slow);
    busy.handle(request("POST", {"v1", "reports"}, json::serialize(to_json(report_of("a")))), [](const auto&) {});
    busy.handle(request("POST", {"v1", "jobs"}, R"({"name":"vision","weight":3})"), [](const auto&) {});
    for (int i = 0; i < 10; ++i) busy.tick();
    EXPECT_EQ(cluster.planned_state().jobs.at(0).weight, 3);
}

TEST(AllocatorPlans, ManyNewNodesShareOneAfterASlowOne) {
    constexpr int kNodes = 50;
    SlowClock clock;
    Cluster cluster({.remote_bytes_per_second = 1e9});
    AllocatorApi api(cluster, clock);
    std::vector<HttpResponse> answers(kNodes);
    const auto report = [&](int n) {
        HttpRequest request;
        request.method = "POST";
        request.path = {"v1", "reports"};
        request.body = json::serialize(to_json(report_of("n" + std::to_string(n))));
        request.is_operator = true;
        answers[n].status = 0;
        api.handle(request, [&, n](HttpResponse response) { answers[n] = std::move(response); });
    };
    clock.step_ns = kSecond_ns / 10;
    report(0);
    clock.step_ns = 0;
    const std::uint64_t first_plan = cluster.plan_number();
    for (int n = 1; n < kNodes; ++n) report(n);
    api.tick();
    EXPECT_EQ(answers[0].status, 200u);
    EXPECT_EQ(answers[1].status, 0u);
    EXPECT_EQ(cluster.plan_number(), first_plan);
    clock.advance_ns(kSecond_ns / 2);
    api.tick();
    EXPECT_EQ(cluster.plan_number(), first_plan + 1);
    double rates = 0;
    for (const HttpResponse& answer : answers) {
        ASSERT_EQ(answer.status, 200u);
        const auto part = read_node_plan(json::parse(answer.body).as_object(), "", 0, kProtocolOldest);
        ASSERT_TRUE(part) << part.error().message;
        EXPECT_EQ(part->lease.rates.size(), 1u);
        rates += part->lease.sum();
    }
    EXPECT_LE(rates, 1e9 * (1 + 1e-9));
}

// A stopped process, a busy machine or a slow disk keeps the allocator from reading reports. The first request after
// that must not make a plan without the nodes whose reports wait.
TEST_F(AllocatorApiTest, AllocatorThatWasStoppedKeepsItsNodes) {
    ASSERT_EQ(report(report_of("a")).status, 200u);
    const std::string before = ask("GET", {"v1", "datasets"}).body;
    for (const bool ticks_first : {false, true}) {
        clock.advance_ns(3600 * kSecond_ns);
        if (ticks_first) api.tick();
        EXPECT_EQ(ask("GET", {"v1", "datasets"}).body, before);
        pass(9 * kSecond_ns);
        EXPECT_EQ(ask("GET", {"v1", "datasets"}).body, before) << "it still has time to report";
        ASSERT_EQ(report(report_of("a")).status, 200u);
    }
    pass(10 * kSecond_ns);
    EXPECT_TRUE(object(ask("GET", {"v1", "datasets"})).at("datasets").as_array().empty());
}

TEST_F(AllocatorApiTest, PinsAndTheRemoteCanBeSet) {
    ASSERT_EQ(report(report_of("a")).status, 200u);
    EXPECT_EQ(ask("PUT", {"v1", "datasets", "images", "pin"}, R"({"bytes":1000000})").status, 200u);
    json::object plan = object(ask("GET", {"v1", "plan"}));
    EXPECT_EQ(plan.at("datasets").at(0).at("quota_bytes").to_number<std::uint64_t>(), 1'000'000u);
    EXPECT_EQ(ask("DELETE", {"v1", "datasets", "images", "pin"}).status, 200u);
    EXPECT_EQ(ask("PUT", {"v1", "datasets", "lost", "pin"}, R"({"bytes":1})").status, 404u);
    EXPECT_EQ(ask("PUT", {"v1", "remote"}, R"({"bytes_per_second":2e9})").status, 200u);
    plan = object(ask("GET", {"v1", "plan"}));
    EXPECT_EQ(plan.at("remote_bytes_per_second").to_number<double>(), 2e9);
}

TEST_F(AllocatorApiTest, InvalidRequestIsNamedAndChangesNothing) {
    json::object spoiled = to_json(report_of("a"));
    spoiled["jobs"].at(0).as_object()["dataset"] = "lost";
    HttpResponse refused = ask("POST", {"v1", "reports"}, json::serialize(spoiled));
    EXPECT_EQ(refused.status, 400u);
    EXPECT_EQ(message(refused), "jobs[0].dataset: \"lost\" is not among the report's datasets");
    spoiled = to_json(report_of("a"));
    spoiled["colour"] = "red";
    refused = ask("POST", {"v1", "reports"}, json::serialize(spoiled));
    EXPECT_EQ(refused.status, 400u);
    EXPECT_NE(message(refused).find("colour"), std::string::npos);
    EXPECT_EQ(ask("POST", {"v1", "reports"}, "{").status, 400u);
    EXPECT_EQ(ask("POST", {"v1", "reports"}, "").status, 400u);
    EXPECT_EQ(ask("PUT", {"v1", "remote"}, R"({"bytes_per_second":-1})").status, 400u);
    EXPECT_EQ(ask("PUT", {"v1", "datasets", "images", "pin"}, R"({"bytes":"many"})").status, 400u);
    EXPECT_TRUE(cluster.state(clock.now_ns()).nodes.empty());
}

TEST_F(AllocatorApiTest, WrongMethodsAndUnknownRoutesAreRefused) {
    EXPECT_EQ(ask("GET", {"healthz"}).status, 200u);
    EXPECT_EQ(ask("POST", {"healthz"}).status, 405u);
    EXPECT_EQ(ask("GET", {"v1", "reports"}).status, 405u);
    EXPECT_EQ(ask("POST", {"v1", "plan"}).status, 405u);
    EXPECT_EQ(ask("GET", {"v1", "remote"}).status, 405u);
    EXPECT_EQ(ask("PUT", {"v1", "jobs"}).status, 405u);
    EXPECT_EQ(ask("GET", {"v1", "jobs", "x"}).status, 405u);
    EXPECT_EQ(ask("GET", {"v1", "datasets", "images", "pin"}).status, 405u);
    EXPECT_EQ(ask("GET", {"v1", "lost"}).status, 404u);
    EXPECT_EQ(ask("GET", {"v1", "jobs", "x", "y"}).status, 404u);
    EXPECT_EQ(ask("PUT", {"v1", "datasets", "", "pin"}, R"({"bytes":1})").status, 404u);
    EXPECT_EQ(ask("GET", {"v2", "plan"}).status, 404u);
}

TEST_F(AllocatorApiTest, IndexListsEveryRoute) {
    const json::array routes = object(ask("GET", {"v1"})).at("routes").as_array();
    EXPECT_EQ(routes.size(), AllocatorApi::routes().size());
    EXPECT_EQ(routes[0].at("method").as_string(), "GET");
    EXPECT_EQ(routes[0].at("path").as_string(), "/healthz");
}

TEST_F(AllocatorApiTest, InvalidQueriesAreNamed) {
    EXPECT_EQ(message(ask("GET", {"v1", "plan"}, "", {{"color", "red"}})), "query: key \"color\" is unknown here");
    EXPECT_EQ(message(ask("GET", {"v1", "events"}, "", {{"color", "red"}})),
              "query: key \"color\" is unknown here; known: after wait_s");
    EXPECT_EQ(message(ask("GET", {"v1", "events"}, "", {{"after", "-1"}})),
              "query: after is \"-1\", but must be a whole number");
    EXPECT_EQ(message(ask("GET", {"v1", "events"}, "", {{"wait_s", "61"}})), "query: wait_s must be at most 60");
    EXPECT_EQ(ask("GET", {"v1", "events"}, "", {{"after", "18446744073709551616"}}).status, 400u);
}

// The test advances this clock, and every plan advances it by 50 ms. Plans are told apart by the job's unread bytes.
class PlanningClock final : public Clock {
public:
    explicit PlanningClock(const Cluster& cluster) : cluster_(cluster) {}
    std::int64_t now_ns() const override {
        const auto& jobs = cluster_.planned_state().jobs;
        if (!jobs.empty() && jobs[0].unread_bytes != unread_bytes_) {
            unread_bytes_ = jobs[0].unread_bytes;
            now_ns_ += 50'000'000;
        }
        return now_ns_;
    }
    void advance_ns(std::int64_t by_ns) { now_ns_ += by_ns; }

private:
    const Cluster& cluster_;
    mutable std::uint64_t unread_bytes_ = 0;
    mutable std::int64_t now_ns_ = 0;
};

TEST(AllocatorApiPlanning, LargeClustersAreNotPlannedForEveryReport) {
    Cluster cluster{{.remote_bytes_per_second = 1e9}};
    PlanningClock clock(cluster);
    AllocatorApi api(cluster, clock);
    NodeReport report = report_of("a");
    HttpRequest request;
    request.method = "POST";
    request.path = {"v1", "reports"};
    std::size_t plans = 0;
    for (std::uint64_t i = 1; i <= 100; ++i) {
        const std::uint64_t before =
            cluster.planned_state().jobs.empty() ? 0 : cluster.planned_state().jobs[0].unread_bytes;
        report.jobs[0].unread_bytes = 100'000'000'000 + i;
        request.body = json::serialize(to_json(report));
        api.handle(request, [](const HttpResponse& response) { EXPECT_EQ(response.status, 200u) << response.body; });
        if (cluster.planned_state().jobs[0].unread_bytes != before) ++plans;
        clock.advance_ns(10'000'000);
    }
    // A plan takes 50 ms, so the next one comes 450 ms later: one second of reports gets two or three plans.
    EXPECT_GE(plans, 2u);
    EXPECT_LE(plans, 3u);
    // A new node is planned with the next report when a plan is due.
    clock.advance_ns(450'000'000);
    report = report_of("b");
    request.body = json::serialize(to_json(report));
    api.handle(request, [](const HttpResponse& response) { EXPECT_EQ(response.status, 200u) << response.body; });
    EXPECT_EQ(cluster.planned_state().nodes.size(), 2u);
}

}  // namespace
}  // namespace larder::allocator
