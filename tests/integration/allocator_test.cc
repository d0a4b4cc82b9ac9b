// Node daemons under an allocator, over its real API: quotas and rates come with the plan and end with the lease.

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <optional>
#include <thread>

#include "allocator/service/allocator_api.h"
#include "base/server/http.h"
#include "base/server/http_client.h"
#include "loader/larder.h"
#include "tests/cluster/rate_timeline.h"
#include "tests/support/sample_data.h"
#include "tests/support/test_daemon.h"

namespace larder::test {
namespace {

namespace asio = boost::asio;
namespace json = boost::json;

constexpr double kRemote = 50e6;
constexpr double kFloor = 1e6;

// An HTTP server on a Unix socket in a thread of its own.
class TestServer {
public:
    TestServer(const std::string& socket, HttpHandler handler) : http_(context_, std::move(handler)) {
        const auto listening = http_.listen_unix(socket, 0600);
        EXPECT_TRUE(listening.has_value()) << listening.error().message;
        thread_ = std::thread([this] { context_.run(); });
    }
    // Gives every request the same answer.
    TestServer(const std::string& socket, const HttpResponse& answer)
        : TestServer(socket, [answer](const HttpRequest&, const HttpRespond& respond) { respond(answer); }) {}
    ~TestServer() {
        asio::post(context_, [this] { http_.stop(); });
        thread_.join();
    }

private:
    asio::io_context context_{1};
    HttpServer http_;
    std::thread thread_;
};

class UnderAnAllocator : public testing::Test {
protected:
    UnderAnAllocator() { make_tree(tree, {.class_count = 2, .files_per_class = 40, .bytes_max = 60'000}); }

    void start_allocator(allocator::ObjectiveKind kind = allocator::ObjectiveKind::max_min) {
        cluster.emplace(allocator::ClusterOptions{.remote_bytes_per_second = kRemote,
                                                  .floor_bytes_per_second = kFloor,
                                                  .lease_ns = 1'500'000'000,
                                                  .objective = {.kind = kind, .place_jobs = false}});
        api.emplace(*cluster, clock);
        server = std::make_unique<TestServer>(
            socket, [this](const HttpRequest& request, const HttpRespond& respond) { api->handle(request, respond); });
    }

    std::unique_ptr<TestDaemon> start_node(const std::string& name) {
        auto daemon = std::make_unique<TestDaemon>([&](cache::DaemonConfig& config) {
            config.allocator.endpoint = socket;
            config.allocator.node = name;
            config.allocator.floor_bytes_per_second = kFloor / 2;
        });
        daemon->add("images", tree);
        return daemon;
    }

    static Loader open(const TestDaemon& daemon, const std::string& job) {
        LoaderOptions options;
        options.dataset = "images";
        options.job = job;
        options.socket = daemon.socket();
        options.memory_budget_bytes = 8u << 20;
        options.batch_size = 4;
        auto loader = Loader::open(options);
        if (!loader) throw std::runtime_error(loader.error().message);
        return std::move(*loader);
    }

    static double rate_of(const TestDaemon& daemon, const std::string& job) {
        const ApiAnswer jobs = daemon.get("/v1/jobs");
        for (const auto& entry : jobs.body.at("jobs").as_array()) {
            if (entry.at("job").as_string() == std::string_view(job))
                return entry.at("remote_rate").to_number<double>();
        }
        return -1;
    }
    static bool is_connected(const TestDaemon& daemon) {
        return daemon.get("/v1/status").body.at("allocator").at("connected").as_bool();
    }
    static std::uint64_t quota_of(const TestDaemon& daemon) {
        const auto quota = daemon.dataset("images").at("quota");
        return number_at(quota, "memory_bytes") + number_at(quota, "disk_bytes");
    }

    TempDirectory directory;
    const std::string tree = directory / "tree";
    const std::string socket = directory / "allocator.sock";
    SteadyClock clock;
    std::optional<allocator::Cluster> cluster;
    std::optional<allocator::AllocatorApi> api;
    std::unique_ptr<TestServer> server;
};

TEST_F(UnderAnAllocator, QuotasAndRatesComeWithThePlan) {
    const auto first = start_node("first");
    EXPECT_EQ(quota_of(*first), 0u);
    Loader one = open(*first, "one");
    EXPECT_EQ(rate_of(*first, "one"), kFloor / 2) << "the node's own floor, until an allocator answers";
    start_allocator();
    const auto second = start_node("second");
    // The allocator counts a node's rates from the node's first lease on.
    TestDaemon::wait_until([&] { return is_connected(*first) && is_connected(*second); });
    RateTimeline timeline(2, [&](std::size_t node) {
        return std::max(0.0, node == 0 ? rate_of(*first, "one") : rate_of(*second, "two"));
    });
    Loader two = open(*second, "two");
    TestDaemon::wait_until([&] { return rate_of(*first, "one") > kFloor && rate_of(*second, "two") > kFloor; });
    // Everything fits the nodes' caches.
    TestDaemon::wait_until([&] { return quota_of(*first) > 0 && quota_of(*second) > 0; });
    timeline.stop();
    EXPECT_LE(timeline.largest_sum(), kRemote * 1.001);
    // A busy machine may delay a report, so that a lease expires for a moment.
    json::value status;
    TestDaemon::wait_until([&] {
        status = first->get("/v1/status").body.at("allocator");
        return status.at("connected").as_bool() && status.at("lease_left_s").to_number<double>() > 0;
    });
    EXPECT_EQ(status.at("node").as_string(), "first");
    TestDaemon::wait_until([&] { return first->get("/metrics").text.contains("larder_allocator_connected 1"); });
}

TEST_F(UnderAnAllocator, LostAllocatorLowersRatesToFloorAndKeepsQuotas) {
    start_allocator();
    const auto daemon = start_node("only");
    Loader loader = open(*daemon, "job");
    TestDaemon::wait_until([&] { return rate_of(*daemon, "job") == kRemote && quota_of(*daemon) > 0; });
    server.reset();
    // Until a report has failed, an answer that was on its way may still set another quota.
    TestDaemon::wait_until([&] { return !is_connected(*daemon); });
    const std::uint64_t quota = quota_of(*daemon);
    EXPECT_GT(quota, 0u);
    TestDaemon::wait_until([&] { return rate_of(*daemon, "job") == kFloor; });
    EXPECT_EQ(quota_of(*daemon), quota);
    // The job reads slowly, but it reads.
    const auto batch = loader.next();
    ASSERT_TRUE(batch.has_value()) << batch.error().message;
    start_allocator();
    TestDaemon::wait_until([&] { return rate_of(*daemon, "job") == kRemote; });
}

TEST_F(UnderAnAllocator, UserOfJobIsReported) {
    start_allocator();
    const auto daemon = start_node("only");
    const Loader loader = open(*daemon, "job");
    TestDaemon::wait_until([&] {
        const auto jobs = json::parse(http_request(socket, "GET", "/v1/jobs")->body).at("jobs").as_array();
        const json::value* user = jobs.empty() ? nullptr : jobs[0].as_object().if_contains("user");
        return user != nullptr && user->to_number<uid_t>() == ::geteuid();
    });
}

TEST_F(UnderAnAllocator, RemoteRateOfJobIsReported) {
    start_allocator();
    const auto daemon = start_node("only");
    // Every epoch reads from the remote. A cached dataset may be read whole before the report that a rate starts from.
    ASSERT_EQ(daemon->put("/v1/datasets/images/quota", {{"memory_bytes", 0}, {"disk_bytes", 0}}).status, 200u);
    Loader loader = open(*daemon, "job");
    TestDaemon::wait_until([&] {
        const auto batch = loader.next();
        EXPECT_TRUE(batch.has_value()) << batch.error().message;
        const auto jobs = json::parse(http_request(socket, "GET", "/v1/jobs")->body).at("jobs").as_array();
        if (jobs.empty()) return false;
        const json::value* taken = jobs[0].as_object().if_contains("measured_remote_bytes_per_second");
        return taken != nullptr && taken->to_number<double>() > 0;
    });
}

TEST_F(UnderAnAllocator, QuotaSetOnNodeIsInEveryPlanUntilReleased) {
    start_allocator();
    const auto daemon = start_node("only");
    Loader loader = open(*daemon, "job");
    const auto planned_quota = [&] {
        const json::value plan = json::parse(http_request(socket, "GET", "/v1/plan")->body);
        const auto& datasets = plan.at("datasets").as_array();
        return datasets.empty() ? 0 : number_at(datasets.at(0), "quota_bytes");
    };
    TestDaemon::wait_until([&] { return quota_of(*daemon) > 2'000'000 && planned_quota() > 2'000'000; });
    EXPECT_EQ(daemon->put("/v1/datasets/images/quota", {{"memory_bytes", 4096}, {"disk_bytes", 123}}).status, 200u);
    TestDaemon::wait_until([&] { return planned_quota() == 4219; });
    EXPECT_EQ(quota_of(*daemon), 4219u);
    EXPECT_EQ(daemon->put("/v1/datasets/images/quota", {{"auto", true}}).status, 200u);
    TestDaemon::wait_until([&] { return quota_of(*daemon) > 2'000'000; });
}

TEST_F(UnderAnAllocator, PinReachesNode) {
    start_allocator();
    const auto daemon = start_node("only");
    Loader loader = open(*daemon, "job");
    TestDaemon::wait_until([&] { return quota_of(*daemon) > 0; });
    const auto pinned = http_request(socket, "PUT", "/v1/datasets/images/pin", R"({"bytes":123456})");
    ASSERT_TRUE(pinned.has_value());
    EXPECT_EQ(pinned->status, 200u) << pinned->body;
    TestDaemon::wait_until([&] { return quota_of(*daemon) == 123456u; });
}

TEST_F(UnderAnAllocator, QuotaOfUnknownDatasetIsIgnored) {
    TestServer fake_allocator(
        socket, HttpResponse{.content_type = "application/json",
                             .body = R"({"plan":1,"quotas":[{"name":"elsewhere","memory_bytes":9,"disk_bytes":9},)"
                                     R"({"name":"images","memory_bytes":1000,"disk_bytes":0}],)"
                                     R"("lease":{"number":1,"lease_ms":1000,"floor_bytes_per_second":1,"rates":[]}})"});
    const auto daemon = start_node("only");
    TestDaemon::wait_until([&] { return quota_of(*daemon) == 1000u; });
}

TEST_F(UnderAnAllocator, QuotasThatDoNotFitAreRefusedTogetherAndReported) {
    TestServer fake_allocator(
        socket, HttpResponse{.content_type = "application/json",
                             .body = R"({"plan":1,"quotas":[{"name":"images","memory_bytes":1000000000000,)"
                                     R"("disk_bytes":0}],"lease":{"number":1,"lease_ms":1000,)"
                                     R"("floor_bytes_per_second":1,"rates":[{"job":"j","bytes_per_second":77}]}})"});
    const auto daemon = start_node("only");
    Loader loader = open(*daemon, "j");
    TestDaemon::wait_until([&] { return rate_of(*daemon, "j") == 77; });
    EXPECT_EQ(quota_of(*daemon), 0u);
    TestDaemon::wait_until([&] {
        const auto status = daemon->get("/v1/status").body.at("allocator");
        return text_at(status, "problem").find("memory quotas") != std::string::npos;
    });
}

TEST_F(UnderAnAllocator, QuotaSetByHandKeepsItsSizeWhenCapacityIsLowered) {
    start_allocator();
    const auto daemon = start_node("only");
    daemon->add("chosen", tree);
    ASSERT_EQ(daemon->put("/v1/datasets/chosen/quota", {{"memory_bytes", 3'000'000}, {"disk_bytes", 0}}).status, 200u);
    {
        Loader loader = open(*daemon, "job");
        TestDaemon::wait_until([&] { return quota_of(*daemon) > 500'000; });
    }
    daemon->stop();
    daemon->config().memory_bytes = 3'500'000;
    daemon->config().disk_bytes = 0;
    daemon->start();
    EXPECT_EQ(number_at(daemon->dataset("chosen").at("quota"), "memory_bytes"), 3'000'000u);
    EXPECT_LE(quota_of(*daemon), 500'000u);
}

TEST_F(UnderAnAllocator, CapacityLoweredBelowUseHoldsAfterRestart) {
    start_allocator();
    const auto daemon = start_node("only");
    daemon->stop();
    daemon->config().memory_bytes = 0;
    daemon->config().disk_bytes = 4u << 20;
    daemon->start();
    const auto used = [&] { return number_at(daemon->dataset("images").at("used"), "disk_bytes"); };
    {
        Loader loader = open(*daemon, "job");
        TestDaemon::wait_until([&] {
            EXPECT_TRUE(loader.next().has_value());
            return used() > 1u << 20;
        });
    }
    daemon->stop();
    daemon->config().disk_bytes = 512u << 10;
    daemon->start();
    EXPECT_LE(quota_of(*daemon), 512u << 10);
    TestDaemon::wait_until([&] { return used() <= 512u << 10; });
    TestDaemon::wait_until([&] { return is_connected(*daemon); });
    EXPECT_LE(quota_of(*daemon), 512u << 10);
    Loader loader = open(*daemon, "job");
    for (;;) {
        const auto batch = loader.next();
        ASSERT_TRUE(batch.has_value()) << batch.error().message;
        if (!*batch) break;
    }
    EXPECT_EQ(daemon->get("/v1/status").body.at("allocator").at("problem").as_string(), "");
}

TEST_F(UnderAnAllocator, SecondNodeWithSameNameIsReported) {
    start_allocator();
    const auto first = start_node("same");
    Loader loader = open(*first, "job");
    TestDaemon::wait_until([&] { return rate_of(*first, "job") == kRemote; });
    const auto second = start_node("same");
    TestDaemon::wait_until([&] {
        const auto status = second->get("/v1/status").body.at("allocator");
        return text_at(status, "problem").find("reports from two daemons") != std::string::npos;
    });
    EXPECT_TRUE(first->get("/v1/status").body.at("allocator").at("connected").as_bool());
}

}  // namespace
}  // namespace larder::test
