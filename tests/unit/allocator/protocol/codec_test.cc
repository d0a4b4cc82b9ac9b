// Both sides of the protocol between nodes and the allocator, and each side reading the previous version.

#include "allocator/protocol/codec.h"

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <string>

namespace larder::allocator {
namespace {

namespace json = boost::json;

constexpr std::int64_t kSecond_ns = 1'000'000'000;

NodeReport full_report() {
    return {.node = "a",
            .instance = 7,
            .state_directory = 8,
            .lease_applied = 9,
            .rates = false,
            .scans = 2,
            .gpus = 4,
            .memory_bytes = 1 << 20,
            .disk_bytes = 1 << 21,
            .disk_read_bytes_per_second = 3e9,
            .nic_bytes_per_second = 1e9,
            .peer_group = "rack",
            .peer_endpoint = "http://a:1",
            .datasets = {{.name = "images", .size_bytes = 5, .quota_memory_bytes = 4, .quota_held = true}},
            .jobs = {{.name = "vision",
                      .dataset = "images",
                      .ranks = 2,
                      .bytes = 11,
                      .busy_s = 1.5,
                      .demand_bytes_per_second = 2.5,
                      .remote_bytes = 12,
                      .unread_bytes = 13,
                      .unread_cached_bytes = 14,
                      .epoch = 3}}};
}

NodePlan full_plan() {
    return {.plan = 5,
            .quotas = {{.name = "images", .memory_bytes = 1, .disk_bytes = 2}},
            .peers = std::vector<PeerNode>{{.node = "b", .endpoint = "http://b:1"}},
            .peers_etag = 7,
            .lease = {.number = 6,
                      .expires_ns = 4 * kSecond_ns,
                      .floor_bytes_per_second = 1e6,
                      .rates = {{.job = "vision", .bytes_per_second = 2e6}},
                      .cut = true}};
}

std::string error_of(const json::object& report, unsigned version = kProtocolNewest) {
    const auto read = read_node_report(report, "", version);
    return read ? "" : read.error().message;
}

TEST(Codec, MessagesSurviveTheirJson) {
    for (const NodeReport& report : {full_report(), NodeReport{.node = "idle"}}) {
        const json::object sent = to_json(report);
        const auto read = read_node_report(sent, "");
        ASSERT_TRUE(read) << read.error().message;
        EXPECT_EQ(to_json(*read), sent);
    }
    EXPECT_FALSE(to_json(NodeReport{}).contains("nic_bytes_per_second")) << "a missing limit is not sent";
    const auto plan = read_node_plan(to_json(full_plan(), kSecond_ns), "", 100 * kSecond_ns);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->lease.expires_ns, 103 * kSecond_ns) << "three seconds are left, on the reader's clock";
    EXPECT_EQ(to_json(*plan, 100 * kSecond_ns), to_json(full_plan(), kSecond_ns));
    const JobRegistration job{.name = "x", .weight = 2, .epochs = 3, .ideal_bytes_per_second = 4};
    const auto registration = read_job_registration(to_json(job), "");
    ASSERT_TRUE(registration) << registration.error().message;
    EXPECT_EQ(to_json(*registration), to_json(job));
}

TEST(Codec, UnknownAndMissingAndWrongKeysAreNamedWithTheirPath) {
    json::object report = to_json(full_report());
    report["jobs"].at(0).as_object()["colour"] = "red";
    EXPECT_NE(error_of(report).find("jobs[0]: "), std::string::npos) << error_of(report);
    EXPECT_NE(error_of(report).find("colour"), std::string::npos);
    // Every key of every level is required, except those of optional values and unlimited rates.
    const auto is_optional = [](std::string_view key) {
        return key == "remote_bytes" || key == "epoch" || key == "disk_read_bytes_per_second" ||
               key == "nic_bytes_per_second";
    };
    for (const char* part : {"", "datasets", "jobs"}) {
        const json::object whole = to_json(full_report());
        const json::object& level = *part == 0 ? whole : whole.at(part).at(0).as_object();
        for (const auto& member : level) {
            json::object less = whole;
            (*part == 0 ? less : less.at(part).at(0).as_object()).erase(member.key());
            const std::string error = error_of(less);
            EXPECT_EQ(error.empty(), is_optional(member.key())) << part << " " << member.key();
            EXPECT_TRUE(error.empty() || error.find(member.key()) != std::string::npos) << error;
        }
    }
    report = to_json(full_report());
    report["gpus"] = std::uint64_t{1} << 32;
    EXPECT_NE(error_of(report).find("gpus"), std::string::npos);
    report["gpus"] = "4";
    EXPECT_NE(error_of(report).find("gpus"), std::string::npos);
}

// Messages of version 1, in which the keys that were added last may be missing.
TEST(Codec, EachSideReadsThePreviousVersion) {
    const json::object report = json::parse(R"({"node":"a","instance":1,"lease_applied":0,"gpus":0,"memory_bytes":1,
        "disk_bytes":2,"datasets":[{"name":"d","size_bytes":1,"quota_memory_bytes":0,"quota_disk_bytes":0,
        "cached_memory_bytes":0,"cached_disk_bytes":0}],"jobs":[]})")
                                    .as_object();
    const auto read = read_node_report(report, "", 1);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(read->rates) << "a node that does not say otherwise follows rates";
    EXPECT_FALSE(read->datasets[0].quota_held);
    EXPECT_NE(error_of(report, 2), "");
    const json::object plan = json::parse(R"({"plan":1,"quotas":[],"lease":{"number":1,"lease_ms":10,
        "floor_bytes_per_second":0,"rates":[]}})")
                                  .as_object();
    EXPECT_TRUE(read_node_plan(plan, "", 0, 1));
    EXPECT_FALSE(read_node_plan(plan, "", 0, 2));
    // A reader of version 1 accepts reports of this version, because these have no key that version 1 lacks.
    EXPECT_TRUE(read_node_report(to_json(full_report()), "", 1));
    // A plan is written in the version of its reader. Before version 3 it does not name its peers.
    for (const unsigned version : {1u, 2u, 3u}) {
        const json::object sent = to_json(full_plan(), 0, version);
        for (const unsigned reader : {1u, 2u, 3u}) {
            const bool same_peers = (version < 3) == (reader < 3);
            EXPECT_EQ(read_node_plan(sent, "", 0, reader).has_value(), same_peers) << version << " read as " << reader;
        }
        const auto as_sent = read_node_plan(sent, "", 0, version);
        ASSERT_TRUE(as_sent) << as_sent.error().message;
        EXPECT_EQ(as_sent->peers, (std::vector<PeerNode>{{.node = version < 3 ? "" : "b", .endpoint = "http://b:1"}}));
    }
    json::object more = report;
    more["colour"] = "red";
    EXPECT_NE(error_of(more, 1), "") << "unknown keys are refused in every version";
}

TEST(Codec, WarmingIsSentFromVersion4OnAndLeftOutIfThereIsNone) {
    NodePlan plan = full_plan();
    EXPECT_FALSE(to_json(plan, 0).contains("warm"));
    plan.warm = {"images"};
    EXPECT_FALSE(to_json(plan, 0, 3).contains("warm"));
    const json::object sent = to_json(plan, 0);
    EXPECT_EQ(read_node_plan(sent, "", 0)->warm, plan.warm);
    EXPECT_FALSE(read_node_plan(sent, "", 0, 3)) << "version 3 has no such key";
    NodeReport report = full_report();
    EXPECT_FALSE(to_json(report).contains("warmed"));
    report.warmed = {"images"};
    EXPECT_EQ(read_node_report(to_json(report), "")->warmed, report.warmed);
    EXPECT_FALSE(read_node_report(to_json(report), "", 3));
    EXPECT_TRUE(read_node_report(to_json(report, 3), "", 3));
}

TEST(Codec, ListOfPeersMayBeNamedByItsEtagFromVersion6On) {
    NodePlan plan = full_plan();
    plan.peers.reset();
    const json::object sent = to_json(plan, 0);
    EXPECT_FALSE(sent.contains("peers"));
    const auto read = read_node_plan(sent, "", 0);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->peers, std::nullopt);
    EXPECT_EQ(read->peers_etag, 7u);
    EXPECT_EQ(read_node_plan(to_json(full_plan(), 0), "", 0)->peers, full_plan().peers);
    const json::object before = to_json(full_plan(), 0, 5);
    EXPECT_FALSE(before.contains("peers_etag"));
    EXPECT_TRUE(read_node_plan(before, "", 0, 5));
    EXPECT_FALSE(read_node_plan(before, "", 0)) << "the etag is missing";
    json::object without = before;
    without.erase("peers");
    const auto refused = read_node_plan(without, "at", 0, 5);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "at.peers is missing");
    NodeReport report = full_report();
    EXPECT_FALSE(to_json(report).contains("peers_etag"));
    report.peers_etag = 0;
    EXPECT_EQ(read_node_report(to_json(report), "")->peers_etag, 0u);
    EXPECT_FALSE(to_json(report, 5).contains("peers_etag"));
    EXPECT_FALSE(read_node_report(to_json(report), "", 5)) << "version 5 has no such key";
}

TEST(Codec, WaitsAreSentFromVersion5On) {
    const NodeReport plain = full_report();
    EXPECT_FALSE(to_json(plain).contains("clock_us"));
    EXPECT_FALSE(to_json(plain).at("jobs").at(0).as_object().contains("waits"));
    NodeReport with_clock = plain;
    with_clock.clock_us = 70;
    NodeReport with_waits = plain;
    with_waits.jobs[0].waits = {
        .since_us = 30, .until_us = 60, .counted_us = 50, .batches = 5, .shortest_us = 2, .lengths_us = {1, 2, 3, 4}};
    for (const NodeReport& report : {with_clock, with_waits}) {
        const json::object sent = to_json(report);
        const auto read = read_node_report(sent, "");
        ASSERT_TRUE(read) << read.error().message;
        EXPECT_EQ(to_json(*read), sent);
        EXPECT_FALSE(read_node_report(sent, "", 4)) << "version 4 has no such key";
        EXPECT_EQ(to_json(report, 4), to_json(plain));
    }
    // Either side may be of the version before.
    EXPECT_TRUE(read_node_report(to_json(plain), "", 5));
    EXPECT_TRUE(read_node_report(to_json(plain), "", 4));
    EXPECT_EQ(to_json(full_plan(), 0, 5), to_json(full_plan(), 0, 4));
    for (const char* key : {"since_us", "until_us", "counted_us", "batches", "shortest_us", "lengths_us"}) {
        json::object less = to_json(with_waits);
        less["jobs"].at(0).as_object()["waits"].as_object().erase(key);
        EXPECT_NE(error_of(less).find(key), std::string::npos) << error_of(less);
    }
    for (const json::value& wrong : {json::value("1"), json::value(-1), json::value(1.5), json::value(nullptr)}) {
        json::object sent = to_json(with_waits);
        sent["jobs"].at(0).as_object()["waits"].as_object()["lengths_us"].as_array()[2] = wrong;
        EXPECT_EQ(error_of(sent), "jobs[0].waits.lengths_us[2] must be an integer, not negative");
    }
}

TEST(Codec, RegistrationHasItsDatasetOnlyIfOneIsDeclared) {
    const json::object plain = to_json(JobRegistration{.name = "x"});
    EXPECT_FALSE(plain.contains("dataset") || plain.contains("cache_bytes"));
    const JobRegistration job{.name = "x", .dataset = "images", .cache_bytes = 7};
    const auto read = read_job_registration(to_json(job), "");
    ASSERT_TRUE(read);
    EXPECT_EQ(read->dataset, "images");
    EXPECT_EQ(read->cache_bytes, 7u);
}

TEST(Codec, LeaseOfYearsLastsAnHour) {
    json::object plan = to_json(full_plan(), 0);
    plan["lease"].as_object()["lease_ms"] = std::uint64_t{900'000'000'000'000'000};
    EXPECT_EQ(read_node_plan(plan, "", 5)->lease.expires_ns, 3600 * kSecond_ns + 5);
}

TEST(Codec, OnlyKnownProtocolVersionsAreParsed) {
    EXPECT_EQ(*parse_protocol("1"), 1u);
    EXPECT_EQ(*parse_protocol("2"), 2u);
    EXPECT_EQ(*parse_protocol("3"), 3u);
    EXPECT_EQ(*parse_protocol("4"), 4u);
    EXPECT_EQ(*parse_protocol("5"), 5u);
    EXPECT_EQ(*parse_protocol("6"), 6u);
    for (const char* wrong : {"0", "7", "", "1x", "-1", "99999999999"}) EXPECT_FALSE(parse_protocol(wrong)) << wrong;
    EXPECT_EQ(*parse_protocol("8", 1000), 8u) << "every version up to the newest one given";
}

TEST(Codec, NodeSpeaksNewestVersionThatBothKnow) {
    const auto common = [](const char* named) { return common_protocol({.headers = {{kProtocolHeader, named}}}); };
    EXPECT_EQ(common("2"), 2u);
    EXPECT_EQ(common("99"), kProtocolNewest);
    EXPECT_EQ(common("new"), kProtocolOldest);
    EXPECT_EQ(common_protocol({}), kProtocolOldest) << "an allocator of before the header was sent";
}

}  // namespace
}  // namespace larder::allocator
