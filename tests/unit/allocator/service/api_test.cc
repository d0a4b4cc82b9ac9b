// The allocator's API as nodes and operators use it: whole requests in, whole answers out.

#include "allocator/service/api.h"

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "allocator/service/json.h"
#include "base/clock.h"
#include "base/server/json_reader.h"

namespace larder::allocator {
namespace {

namespace json = boost::json;

NodeReport report_of(const std::string& node) {
    return {.node = node,
            .instance = 0xffff'ffff'ffff'ffff,
            .gpus = 8,
            .memory_bytes = 10'000'000'000,
            .disk_bytes = 90'000'000'000,
            .nic_bytes_per_second = 12.5e9,
            .datasets = {{.name = "images", .size_bytes = 200'000'000'000, .cached_disk_bytes = 5}},
            .jobs = {{.name = "vision",
                      .dataset = "images",
                      .ranks = 4,
                      .bytes = 77,
                      .busy_s = 1.5,
                      .demand_bytes_per_second = 2e9,
                      .unread_bytes = 9,
                      .unread_cached_bytes = 4}}};
}

class AllocatorApi : public testing::Test {
protected:
    ManualClock clock{1'000'000'000};
    Cluster cluster{{.remote_bytes_per_second = 1e9}};
    Api api{cluster, clock};

    HttpResponse ask(const std::string& method, const std::vector<std::string>& path, const std::string& body = "") {
        return api.handle({.method = method, .path = path, .query = {}, .body = body, .peer = {}});
    }
    HttpResponse report(const NodeReport& of) { return ask("POST", {"v1", "reports"}, json::serialize(to_json(of))); }
    static json::object object(const HttpResponse& response) { return json::parse(response.body).as_object(); }
    static std::string message(const HttpResponse& response) {
        return std::string(object(response).at("error").at("message").as_string());
    }
};

TEST_F(AllocatorApi, AReportSurvivesItsJson) {
    const NodeReport before = report_of("a");
    const auto after = read_node_report(to_json(before), "");
    ASSERT_TRUE(after.has_value()) << after.error().message;
    EXPECT_EQ(json::serialize(to_json(*after)), json::serialize(to_json(before)));
    EXPECT_EQ(after->instance, before.instance);
    EXPECT_EQ(after->disk_read_bytes_per_second, kUnlimited);
    EXPECT_EQ(after->jobs[0].busy_s, 1.5);
}

TEST_F(AllocatorApi, AReportIsAnsweredWithQuotasAndALease) {
    const HttpResponse response = report(report_of("a"));
    ASSERT_EQ(response.status, 200u) << response.body;
    const auto part = read_node_plan(object(response), "", 500);
    ASSERT_TRUE(part.has_value()) << part.error().message;
    ASSERT_EQ(part->quotas.size(), 1u);
    EXPECT_EQ(part->quotas[0].memory_bytes + part->quotas[0].disk_bytes, 100'000'000'000u);
    ASSERT_EQ(part->lease.rates.size(), 1u);
    EXPECT_EQ(part->lease.rates[0].job, "vision");
    EXPECT_DOUBLE_EQ(part->lease.rates[0].bytes_per_second, 1e9);
    EXPECT_EQ(part->lease.expires_ns, 500 + 10'000'000'000) << "counted on the node's own clock";
    EXPECT_GT(part->lease.floor_bytes_per_second, 0);
}

TEST_F(AllocatorApi, ThePlanSaysWhatItIsMadeFrom) {
    ASSERT_EQ(report(report_of("a")).status, 200u);
    const json::object plan = object(ask("GET", {"v1", "plan"}));
    EXPECT_EQ(plan.at("nodes").at(0).at("name").as_string(), "a");
    EXPECT_EQ(plan.at("datasets").at(0).at("quota_bytes").to_number<std::uint64_t>(), 100'000'000'000u);
    const json::object& job = plan.at("jobs").at(0).as_object();
    EXPECT_FALSE(job.at("ideal_is_measured").as_bool());
    EXPECT_DOUBLE_EQ(job.at("steady_hit_ratio").to_number<double>(), 0.5);
    EXPECT_DOUBLE_EQ(job.at("steady_bytes_per_second").to_number<double>(), 1e9)
        << "f* is taken as the remote's at first";
}

TEST_F(AllocatorApi, JobsAreRegisteredOnceAndRemoved) {
    EXPECT_EQ(ask("POST", {"v1", "jobs"}, R"({"name":"x","ideal_bytes_per_second":5e8,"epochs":3})").status, 200u);
    EXPECT_EQ(ask("POST", {"v1", "jobs"}, R"({"name":"x"})").status, 409u);
    EXPECT_EQ(ask("DELETE", {"v1", "jobs", "x"}).status, 200u);
    EXPECT_EQ(ask("DELETE", {"v1", "jobs", "x"}).status, 404u);
}

TEST_F(AllocatorApi, PinsAndTheRemoteCanBeSet) {
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

TEST_F(AllocatorApi, WhatIsWrongIsNamedAndChangesNothing) {
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

TEST_F(AllocatorApi, EveryRouteKnowsItsMethods) {
    EXPECT_EQ(ask("GET", {"healthz"}).status, 200u);
    EXPECT_EQ(ask("POST", {"healthz"}).status, 405u);
    EXPECT_EQ(ask("GET", {"v1", "reports"}).status, 405u);
    EXPECT_EQ(ask("POST", {"v1", "plan"}).status, 405u);
    EXPECT_EQ(ask("GET", {"v1", "remote"}).status, 405u);
    EXPECT_EQ(ask("PUT", {"v1", "jobs"}).status, 405u);
    EXPECT_EQ(ask("GET", {"v1", "jobs", "x"}).status, 405u);
    EXPECT_EQ(ask("GET", {"v1", "datasets", "images", "pin"}).status, 405u);
    EXPECT_EQ(ask("GET", {"v1", "datasets"}).status, 404u);
    EXPECT_EQ(ask("GET", {"v2", "plan"}).status, 404u);
}

}  // namespace
}  // namespace larder::allocator
