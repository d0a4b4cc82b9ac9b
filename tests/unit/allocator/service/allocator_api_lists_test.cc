// Tests the API's pages for operators: lists with reported, planned and measured values, events, and what-if.

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/allocator/service/allocator_api_fixture.h"

namespace larder::allocator {
namespace {

namespace json = boost::json;

class AllocatorLists : public AllocatorApiTest {
protected:
    // Reports ten seconds in which the job is busy half of the time.
    void run(NodeReport& node) {
        for (int i = 0; i < 10; ++i) {
            node.jobs[0].bytes += 400'000'000;
            node.jobs[0].busy_s += 4 * 0.5;
            node.jobs[0].remote_bytes = node.jobs[0].remote_bytes.value_or(0) + 100'000'000;
            ASSERT_EQ(report(node).status, 200u);
            clock.advance_ns(kSecond_ns);
        }
    }
    json::array events_after(std::uint64_t after) {
        return object(ask("GET", {"v1", "events"}, "", {{"after", std::to_string(after)}})).at("events").as_array();
    }
    static double number(const json::object& object, const char* key) { return object.at(key).to_number<double>(); }
    static std::string text(const json::value& value, const char* key) {
        return std::string(value.at(key).as_string());
    }
};

TEST_F(AllocatorLists, JobShowsDeclaredMeasuredAndPredictedRates) {
    ASSERT_EQ(ask("POST", {"v1", "jobs"}, R"({"name":"vision","ideal_bytes_per_second":5e8,"epochs":3})").status, 200u);
    json::object job = only("jobs");
    EXPECT_TRUE(job.at("registered").as_bool());
    EXPECT_FALSE(job.at("running").as_bool());
    EXPECT_EQ(number(job, "declared_ideal_bytes_per_second"), 5e8);
    EXPECT_FALSE(job.contains("dataset")) << "no node has reported the job yet";

    NodeReport node = report_of("a");
    run(node);
    job = only("jobs");
    EXPECT_TRUE(job.at("running").as_bool());
    EXPECT_EQ(number(job, "declared_ideal_bytes_per_second"), 5e8);
    EXPECT_NEAR(number(job, "measured_ideal_bytes_per_second"), 8e8, 1e6) << "bytes over busy time, of all ranks";
    EXPECT_EQ(number(job, "ideal_bytes_per_second"), number(job, "measured_ideal_bytes_per_second"));
    EXPECT_DOUBLE_EQ(number(job, "measured_bytes_per_second"), 4e8);
    EXPECT_DOUBLE_EQ(number(job, "measured_remote_bytes_per_second"), 1e8);
    EXPECT_DOUBLE_EQ(number(job, "stall_ratio"), 0.5);
    EXPECT_DOUBLE_EQ(number(job, "hit_ratio"), 4.0 / 9);
    EXPECT_NEAR(number(job, "prediction_error_ratio"), 4e8 / number(job, "predicted_bytes_per_second") - 1, 1e-12);
    EXPECT_GT(number(job, "bandwidth_bytes_per_second"), 0);
    EXPECT_EQ(number(job, "remaining_epochs"), 3);
    EXPECT_EQ(job.at("nodes").at(0).as_string(), "a");
    EXPECT_FALSE(job.contains("bandwidth_cap_bytes_per_second")) << "the job has no cap";
}

TEST_F(AllocatorLists, RunningJobShowsWhatItReservesAndRepeatedReservationChangesNothing) {
    ASSERT_EQ(report(report_of("a")).status, 200u);
    ASSERT_EQ(ask("POST", {"v1", "jobs"}, R"({"name":"vision","dataset":"images"})").status, 200u);
    ASSERT_TRUE(only("jobs").at("running").as_bool());
    EXPECT_EQ(number(only("jobs"), "bandwidth_floor_bytes_per_second"), 0)
        << "the floor of its lease is no reservation";

    const auto reserve = [&](const char* body) { return ask("PUT", {"v1", "jobs", "vision", "reservation"}, body); };
    const char* const some = R"({"cache_bytes":1000000000,"bandwidth_floor_bytes_per_second":1000})";
    ASSERT_EQ(reserve(some).status, 200u);
    EXPECT_EQ(number(only("jobs"), "bandwidth_floor_bytes_per_second"), 1000);
    EXPECT_EQ(number(only("jobs"), "cache_bytes"), 1e9);
    const std::size_t events = events_after(0).size();
    ASSERT_EQ(reserve(some).status, 200u);
    EXPECT_EQ(events_after(0).size(), events);
    ASSERT_EQ(reserve(R"({"cache_bytes":0,"bandwidth_floor_bytes_per_second":1000})").status, 200u);
    EXPECT_GT(events_after(0).size(), events);
}

TEST_F(AllocatorLists, ReservationNamesTheNodesWhereTheJobIsExpected) {
    NodeReport node = report_of("a");
    node.jobs.clear();
    ASSERT_EQ(report(node).status, 200u);
    ASSERT_EQ(ask("POST", {"v1", "jobs"}, R"({"name":"waits","dataset":"images"})").status, 200u);
    const auto expect_on = [&](const std::string& nodes) {
        return ask("PUT", {"v1", "jobs", "waits", "reservation"},
                   R"({"cache_bytes":1000,"bandwidth_floor_bytes_per_second":0,"nodes":)" + nodes + "}");
    };
    const auto expected_on = [&] { return cluster.registered("waits")->expected_on; };
    ASSERT_EQ(expect_on(R"(["b","a","b"])").status, 200u);
    EXPECT_EQ(expected_on(), (std::vector<std::string>{"a", "b"}));
    const std::size_t events = events_after(0).size();
    ASSERT_EQ(expect_on(R"(["a"])").status, 200u);
    EXPECT_EQ(expected_on(), std::vector<std::string>{"a"});
    EXPECT_EQ(events_after(0).size(), events) << "many jobs may be expected elsewhere at the same time";
    std::string many = R"("n")";
    for (std::size_t i = 0; i < kExpectedNodesMax; ++i) many += R"(,"n")";
    const std::string long_name = R"([")" + std::string(256, 'n') + R"("])";
    const std::vector<std::string> wrong_nodes{"{}", "[1]", R"([""])", long_name, "[" + many + "]"};
    for (const std::string& wrong : wrong_nodes) {
        EXPECT_EQ(expect_on(wrong).status, 400u) << wrong;
    }
    EXPECT_EQ(expected_on(), std::vector<std::string>{"a"});
    ASSERT_EQ(expect_on("[]").status, 200u);
    EXPECT_TRUE(expected_on().empty());
}

TEST_F(AllocatorLists, DatasetShowsQuotaCachedAndEffectiveBytes) {
    NodeReport node = report_of("a");
    node.datasets[0].cached_disk_bytes = 60'000'000'000;
    ASSERT_EQ(report(node).status, 200u);
    json::object dataset = only("datasets");
    EXPECT_EQ(number(dataset, "size_bytes"), 200e9);
    EXPECT_EQ(number(dataset, "quota_bytes"), 100e9);
    EXPECT_EQ(number(dataset, "cached_bytes"), 60e9);
    EXPECT_NEAR(number(dataset, "effective_bytes"), 200e9 * 4 / 9, 1)
        << "the cached share of the bytes that the job has not read";
    EXPECT_EQ(dataset.at("jobs").at(0).as_string(), "vision");
    EXPECT_EQ(number(dataset.at("nodes").at(0).at("cached").as_object(), "disk_bytes"), 60e9);
    EXPECT_FALSE(dataset.contains("pinned_bytes"));
    ASSERT_EQ(ask("PUT", {"v1", "datasets", "images", "pin"}, R"({"bytes":1000000})").status, 200u);
    dataset = only("datasets");
    EXPECT_EQ(number(dataset, "pinned_bytes"), 1e6);
    EXPECT_EQ(number(dataset, "quota_bytes"), 1e6);
    node.jobs.clear();
    ASSERT_EQ(report(node).status, 200u);
    EXPECT_EQ(number(only("datasets"), "effective_bytes"), 60e9) << "without a job, all cached bytes count";
}

TEST_F(AllocatorLists, NodeShowsItsLeaseAndAgeOfLastReport) {
    NodeReport node = report_of("a");
    node.datasets[0].cached_memory_bytes = 7;
    ASSERT_EQ(report(node).status, 200u);
    pass(2 * kSecond_ns);
    json::object shown = only("nodes");
    EXPECT_TRUE(shown.at("alive").as_bool());
    EXPECT_EQ(number(shown, "heard_ms_ago"), 2000);
    EXPECT_EQ(number(shown.at("capacity").as_object(), "disk_bytes"), 90e9);
    EXPECT_EQ(number(shown.at("quota").as_object(), "memory_bytes"), 10e9);
    EXPECT_EQ(number(shown.at("used").as_object(), "memory_bytes"), 7);
    EXPECT_EQ(number(shown.at("lease").as_object(), "age_ms"), 2000);
    EXPECT_EQ(number(shown.at("lease").as_object(), "left_ms"), 8000);
    EXPECT_NEAR(number(shown.at("lease").as_object(), "bytes_per_second"), 1e9, 1);
    EXPECT_FALSE(shown.contains("disk_read_bytes_per_second")) << "the disk has no limit";
    pass(9 * kSecond_ns);
    shown = only("nodes");
    EXPECT_FALSE(shown.at("alive").as_bool());
    EXPECT_EQ(number(shown.at("lease").as_object(), "left_ms"), 0);
    EXPECT_EQ(number(shown.at("quota").as_object(), "memory_bytes"), 0) << "plans leave a silent node out";
}

TEST_F(AllocatorLists, EventsNameEveryChange) {
    ASSERT_EQ(ask("POST", {"v1", "jobs"}, R"({"name":"vision"})").status, 200u);
    ASSERT_EQ(report(report_of("a")).status, 200u);
    for (int second = 0; second < 6; ++second) {
        clock.advance_ns(kSecond_ns);
        ASSERT_EQ(report(report_of("b")).status, 200u) << "b's lease is cut, because a holds all bandwidth";
    }
    ASSERT_EQ(report(report_of("a")).status, 200u);
    ASSERT_EQ(ask("PUT", {"v1", "datasets", "images", "pin"}, R"({"bytes":1000})").status, 200u);
    ASSERT_EQ(ask("PUT", {"v1", "datasets", "lost", "pin"}, R"({"bytes":1000})").status, 404u);
    ASSERT_EQ(ask("DELETE", {"v1", "datasets", "images", "pin"}).status, 200u);
    ASSERT_EQ(ask("PUT", {"v1", "remote"}, R"({"bytes_per_second":2e9})").status, 200u);
    ASSERT_EQ(ask("DELETE", {"v1", "jobs", "vision"}).status, 200u);
    NodeReport wrong = report_of("a");
    wrong.datasets.clear();
    ASSERT_EQ(report(wrong).status, 400u);
    pass(11 * kSecond_ns);
    std::vector<std::string> kinds;
    for (const json::value& event : events_after(0)) {
        if (text(event, "kind") != "plan_changed") kinds.push_back(text(event, "kind") + " " + text(event, "subject"));
    }
    EXPECT_EQ(kinds, (std::vector<std::string>{"job_registered vision", "node_came a", "job_seen vision", "node_came b",
                                               "lease_cut b", "pin_set images", "pin_released images", "remote_set ",
                                               "job_removed vision", "report_refused a", "node_gone a", "node_gone b",
                                               "job_gone vision"}));
}

TEST_F(AllocatorLists, PlanChangeEventNamesItsCause) {
    ASSERT_EQ(report(report_of("a")).status, 200u);
    ASSERT_EQ(ask("PUT", {"v1", "datasets", "images", "pin"}, R"({"bytes":1000})").status, 200u);
    std::vector<std::string> messages;
    for (const json::value& event : events_after(0)) {
        if (text(event, "kind") == "plan_changed") messages.push_back(text(event, "message"));
    }
    ASSERT_EQ(messages.size(), 2u);
    EXPECT_EQ(messages[0], "plan 1: quotas of 1 dataset, 93.13 GiB to fetch; because node a came, job vision came");
    EXPECT_EQ(messages[1], "plan 2: quotas of 1 dataset, 995 B to fetch; because quota of images is pinned to 1000 B");
}

TEST_F(AllocatorLists, RatesThatFollowTheCacheCauseFewEvents) {
    ASSERT_EQ(ask("POST", {"v1", "jobs"}, R"({"name":"small","ideal_bytes_per_second":2e8})").status, 200u);
    NodeReport node = report_of("a");
    JobReport small = node.jobs[0];
    small.name = "small";
    small.unread_bytes = 100'000'000'000;
    node.jobs.push_back(small);
    for (std::uint64_t i = 0; i < 25; ++i) {
        // The job needs less and less of the remote for its f*.
        node.jobs[1].unread_cached_bytes = i * 1'000'000'000;
        ASSERT_EQ(report(node).status, 200u);
        clock.advance_ns(kSecond_ns);
    }
    EXPECT_GT(cluster.plan_number(), 10u);
    std::size_t plan_events = 0;
    for (const json::value& event : events_after(0)) plan_events += text(event, "kind") == "plan_changed" ? 1 : 0;
    EXPECT_EQ(plan_events, 4u) << "one when the node came, and then one every ten seconds";
}

TEST_F(AllocatorLists, WhatIfAnswersAndChangesNothing) {
    ASSERT_EQ(report(report_of("a")).status, 200u);
    const std::string before = ask("GET", {"v1", "plan"}).body;
    const HttpResponse response =
        ask("POST", {"v1", "whatif"},
            R"({"remote_bytes_per_second":2e9,"cache_bytes":-50000000000,"objective":"equal-shares",)"
            R"("add_jobs":[{"name":"big","dataset":"images","ideal_bytes_per_second":1e8}],)"
            R"("remove_jobs":["vision"]})");
    ASSERT_EQ(response.status, 200u) << response.body;
    const json::object answer = object(response);
    EXPECT_EQ(number(answer.at("before").as_object(), "remote_bytes_per_second"), 1e9);
    EXPECT_EQ(number(answer.at("after").as_object(), "remote_bytes_per_second"), 2e9);
    EXPECT_EQ(number(answer.at("after").as_object(), "cache_bytes"), 50e9);
    EXPECT_EQ(text(answer.at("after"), "objective"), "equal-shares");
    const json::object& dataset = answer.at("datasets").at(0).as_object();
    EXPECT_EQ(number(dataset.at("before").as_object(), "quota_bytes"), 100e9);
    EXPECT_EQ(number(dataset.at("after").as_object(), "quota_bytes"), 50e9);
    const json::object& big = answer.at("jobs").at(0).as_object();
    EXPECT_EQ(text(big, "name"), "big");
    EXPECT_FALSE(big.contains("before"));
    EXPECT_DOUBLE_EQ(number(big.at("after").as_object(), "steady_bytes_per_second"), 1e8);
    const json::object& vision = answer.at("jobs").at(1).as_object();
    EXPECT_FALSE(vision.contains("after"));
    EXPECT_DOUBLE_EQ(number(vision.at("before").as_object(), "steady_bytes_per_second"), 1e9);
    EXPECT_EQ(ask("GET", {"v1", "plan"}).body, before);
}

// "vision" belongs to user 7. A user of only the added jobs gets half of the remote's bandwidth for both of them.
TEST_F(AllocatorLists, WhatIfAddsJobsForTheUserWhoAsks) {
    NodeReport sent = report_of("a");
    sent.jobs[0].user = 7;
    ASSERT_EQ(report(sent).status, 200u);
    const auto granted = [&](std::uint32_t uid) {
        const HttpResponse response = ask_as_user(
            uid, "POST", {"v1", "whatif"},
            R"({"add_jobs":[{"name":"big","dataset":"new","dataset_size_bytes":1000000000000,)"
            R"("ideal_bytes_per_second":1e10},{"name":"large","dataset":"new","ideal_bytes_per_second":1e10}]})");
        EXPECT_EQ(response.status, 200u) << response.body;
        const json::object answer = object(response);
        double sum = 0;
        for (const json::value& job : answer.at("jobs").as_array()) {
            if (text(job, "name") != "vision") {
                sum += number(job.at("after").as_object(), "bandwidth_bytes_per_second");
            }
        }
        return sum;
    };
    EXPECT_NEAR(granted(8), 0.5e9, 1e6);
    EXPECT_GT(granted(7), 0.6e9);
}

// Moves on by a fixed time whenever it is read.
class RunningClock final : public Clock {
public:
    std::int64_t now_ns() const override { return time_ns_ += step_ns; }
    void pass(std::int64_t by_ns) { time_ns_ += by_ns; }
    std::int64_t step_ns = 10'000'000;

private:
    mutable std::int64_t time_ns_ = kSecond_ns;
};

TEST_F(AllocatorLists, WhatIfsOfOthersThanOperatorsTakePartOfTheTime) {
    RunningClock running;
    AllocatorApi busy(cluster, running);
    const auto ask_as = [&](bool is_operator) {
        HttpRequest asked = request("POST", {"v1", "whatif"}, "{}");
        asked.is_operator = is_operator;
        HttpResponse given;
        busy.handle(asked, [&](HttpResponse response) { given = std::move(response); });
        return given;
    };
    int answered = 0;
    HttpResponse last = ask_as(false);
    for (; last.status != 429 && answered < 1'000; ++answered) last = ask_as(false);
    EXPECT_GT(answered, 3) << "some may come at once";
    ASSERT_EQ(last.status, 429u);
    EXPECT_THAT(last.headers, ::testing::Contains(::testing::Pair("Retry-After", "1")));
    EXPECT_NE(message(last).find("wait 1 s"), std::string::npos);
    EXPECT_NE(ask_as(true).status, 429u) << "an operator need not wait";
    running.pass(kSecond_ns);
    EXPECT_NE(ask_as(false).status, 429u);
}

TEST_F(AllocatorLists, WhatIfRefusesUnknownKeysAndNames) {
    ASSERT_EQ(report(report_of("a")).status, 200u);
    const auto refused = [&](const std::string& body) {
        const HttpResponse response = ask("POST", {"v1", "whatif"}, body);
        EXPECT_GE(response.status, 400u) << response.body;
        return message(response);
    };
    EXPECT_EQ(refused(R"({"colour":1})"), "key \"colour\" is unknown");
    EXPECT_NE(refused(R"({"objective":"luck"})")
                  .find("known: efficiency, max-min, throughput, utilisation, equal-shares, pinned"),
              std::string::npos);
    EXPECT_NE(refused(R"({"cache_bytes":0.5})").find("an integer of 64 bits"), std::string::npos);
    EXPECT_EQ(refused(R"({"add_jobs":[3]})"), "add_jobs[0] must be an object");
    for (const std::string key : {"add_jobs", "pins"}) {
        std::string entries = "3";
        for (int i = 1; i < 256; ++i) entries += ",3";
        EXPECT_EQ(refused("{\"" + key + "\":[" + entries + "]}"), key + "[0] must be an object");
        EXPECT_EQ(refused("{\"" + key + "\":[" + entries + ",3]}"), "key \"" + key + "\" has more than 256 entries");
    }
    EXPECT_EQ(refused(R"({"add_jobs":[{"name":"x"}]})"), "add_jobs[0]: key \"dataset\" is missing");
    EXPECT_EQ(refused(R"({"add_jobs":[{"name":"x","dataset":"images","nodes":[1]}]})"),
              "add_jobs[0]: key \"nodes\" must be names");
    EXPECT_EQ(refused(R"({"remove_jobs":[1]})"), "key \"remove_jobs\" must be names");
    EXPECT_EQ(refused(R"({"remote_bytes_per_second":"fast"})"),
              "key \"remote_bytes_per_second\" is \"fast\", but must be a number, 0 or greater");
}

}  // namespace
}  // namespace larder::allocator
