// A node that is really cut off from its allocator by the network: daemons in network namespaces, and one cable pulled
// for longer than a lease lasts.

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <thread>

#include "allocator/service/service.h"
#include "base/file.h"
#include "base/server/http_client.h"
#include "loader/larder.h"
#include "tests/cluster/private_network.h"
#include "tests/cluster/rate_timeline.h"
#include "tests/cluster/rate_watch.h"
#include "tests/cluster/remote_counter.h"
#include "tests/support/http_service.h"
#include "tests/support/sample_data.h"
#include "tests/support/test_daemon.h"

namespace larder::test {
namespace {

namespace asio = boost::asio;
namespace json = boost::json;
using test::NetworkNamespace;
using test::PrivateNetwork;

constexpr double kPartitionedRemote = 8e6;
constexpr double kPartitionedFloor = 5e5;
constexpr int kNodes = 2;

// An allocator at the hub, on its own thread.
class Hub {
public:
    Hub(const PrivateNetwork& network, const allocator::AllocatorConfig& config) {
        const NetworkNamespace::Inside inside(network.hub());
        auto started = allocator::AllocatorService::start(context_, config, clock_);
        if (!started) throw std::runtime_error(started.error().message);
        service_ = std::move(*started);
        thread_ = std::thread([this] { context_.run(); });
    }
    ~Hub() {
        asio::post(context_, [this] { service_->stop(); });
        thread_.join();
    }

private:
    asio::io_context context_{1};
    SteadyClock clock_;
    std::unique_ptr<allocator::AllocatorService> service_;
    std::thread thread_;
};

// Reads epoch after epoch, as fast as its rate allows.
class Reader {
public:
    Reader(const std::string& socket, const std::string& job) {
        LoaderOptions options;
        options.dataset = "images";
        options.job = job;
        options.socket = socket;
        options.memory_budget_bytes = 8u << 20;
        options.batch_size = 4;
        auto loader = Loader::open(options);
        if (!loader) throw std::runtime_error(loader.error().message);
        thread_ = std::jthread([loader = std::move(*loader)](const std::stop_token& stop) mutable {
            while (!stop.stop_requested()) {
                const auto batch = loader.next();
                ASSERT_TRUE(batch.has_value()) << batch.error().message;
            }
        });
    }

private:
    std::jthread thread_;
};

class Partition : public testing::Test {
protected:
    static constexpr std::int64_t kLease_ns = 2'000'000'000;

    // Skips the test if no private network can be made.
    void SetUp() override {
        auto made = PrivateNetwork::make(kNodes);
        if (!made) GTEST_SKIP() << "no network namespaces here: " << made.error().message;
        network.emplace(std::move(*made));
        for (const NamedBytes& file :
             make_tree(tree, {.class_count = 2, .files_per_class = 300, .bytes_max = 60'000})) {
            tree_bytes += static_cast<double>(file.content.size());
        }
        ASSERT_TRUE(replace_file(directory / "tokens",
                                 "node node-0 token-of-node-0-0123456789\nnode node-1 token-of-node-1-0123456789\n",
                                 0600));
        hub.emplace(*network, allocator::AllocatorConfig{.socket = socket,
                                                         .listen = PrivateNetwork::hub_address() + ":7600",
                                                         .plain_tcp = true,
                                                         .token_file = directory / "tokens",
                                                         .cluster = {.remote_bytes_per_second = kPartitionedRemote,
                                                                     .floor_bytes_per_second = kPartitionedFloor,
                                                                     .lease_ns = kLease_ns,
                                                                     .objective = {.place_jobs = false}}});
        for (int i = 0; i < kNodes; ++i) add_node(i);
    }
    void TearDown() override {
        readers.clear();
        nodes.clear();
        hub.reset();
    }

    void add_node(int index) {
        const std::string name = "node-" + std::to_string(index);
        ASSERT_TRUE(replace_file(directory / name, "token-of-" + name + "-0123456789\n", 0600));
        const NetworkNamespace::Inside inside(network->node(static_cast<std::uint32_t>(index)));
        nodes.push_back(std::make_unique<TestDaemon>([&](cache::DaemonConfig& config) {
            config.memory_bytes = 3u << 20;
            config.disk_bytes = 0;
            config.allocator.endpoint = "http://" + PrivateNetwork::hub_address() + ":7600";
            config.allocator.node = name;
            config.allocator.floor_bytes_per_second = kPartitionedFloor;
            config.allocator.credentials.token_file = directory / name;
        }));
        nodes.back()->add("images", tree);
        readers.push_back(std::make_unique<Reader>(nodes.back()->socket(), "job-" + std::to_string(index)));
    }

    // The rate of each job that reads on the node, from the node's daemon.
    std::vector<double> rates_on(std::size_t node) const {
        std::vector<double> rates;
        const json::array jobs = nodes[node]->get("/v1/jobs").body.at("jobs").as_array();
        for (const auto& job : jobs) {
            if (number_at(job, "sessions") > 0) rates.push_back(job.at("remote_rate").to_number<double>());
        }
        return rates;
    }
    // The sum of the jobs' rates, by node.
    std::vector<double> rates() const {
        std::vector<double> sums;
        for (std::size_t node = 0; node < nodes.size(); ++node) {
            const auto job_rates = rates_on(node);
            sums.push_back(std::accumulate(job_rates.begin(), job_rates.end(), 0.0));
        }
        return sums;
    }
    json::object ask(const std::string& target) const {
        const auto answer = http_request(socket, "GET", target);
        EXPECT_TRUE(answer.has_value() && answer->status == 200);
        return json::parse(answer->body).as_object();
    }
    bool is_connected(std::size_t node) const {
        return nodes[node]->get("/v1/status").body.at("allocator").at("connected").as_bool();
    }
    // True if all quotas are filled, as far as the allocator has heard.
    bool is_filled() const {
        const json::array datasets = ask("/v1/plan").at("datasets").as_array();
        return std::ranges::all_of(datasets, [](const json::value& dataset) {
            return number_at(dataset, "cached_bytes") * 10 > number_at(dataset, "quota_bytes") * 9;
        });
    }
    // The plan's quotas by node, and its rates by job for the time when the quotas are filled.
    std::map<std::string, double> plan() const {
        std::map<std::string, double> values;
        const json::object plan = ask("/v1/plan");
        for (const auto& dataset : plan.at("datasets").as_array()) {
            for (const auto& node : dataset.at("nodes").as_array()) {
                values["quota on " + std::string(node.at("node").as_string())] =
                    node.at("memory_bytes").to_number<double>();
            }
        }
        for (const auto& job : plan.at("jobs").as_array()) {
            values[std::string(job.at("name").as_string())] = job.at("steady_bytes_per_second").to_number<double>();
        }
        return values;
    }
    // True if the plan counts both nodes, and knows the size of the dataset in the cache within 5 %. Before blocks are
    // cached, a plan takes their records for as large as they can be.
    bool is_settled(std::map<std::string, double> plan) const {
        if (plan.size() != std::size_t{2 * kNodes}) return false;
        for (int i = 0; i < kNodes; ++i) {
            const double hits = plan["quota on node-" + std::to_string(i)] / (1.05 * tree_bytes);
            if (plan["job-" + std::to_string(i)] * (1 - hits) < kPartitionedRemote / kNodes) return false;
        }
        return true;
    }
    static bool alike(const std::map<std::string, double>& a, const std::map<std::string, double>& b) {
        return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
            return x.first == y.first && std::abs(x.second - y.second) <= 0.02 * x.second;
        });
    }
    std::vector<std::string> admin_sockets() const {
        std::vector<std::string> sockets;
        for (const auto& node : nodes) sockets.push_back(node->admin_socket());
        return sockets;
    }

    TempDirectory directory;
    const std::string tree = directory / "tree";
    double tree_bytes = 0;
    const std::string socket = directory / "allocator.sock";
    std::optional<PrivateNetwork> network;
    std::optional<Hub> hub;
    std::vector<std::unique_ptr<TestDaemon>> nodes;
    std::vector<std::unique_ptr<Reader>> readers;
};

// One node gives 3 of its 4 units to another. The samples of the two are never at one moment.
TEST(RateTimeline, SeesASumThatWasTooLargeForAMoment) {
    const std::vector<RateSample> giving{{0, 1, 4}, {9, 10, 4}, {20, 21, 1}, {30, 31, 1}};
    const auto taking_at = [](std::int64_t first_seen_ns) {
        return std::vector<RateSample>{{0, 2, 4},
                                       {first_seen_ns - 3, first_seen_ns - 2, 4},
                                       {first_seen_ns, first_seen_ns + 1, 7},
                                       {first_seen_ns + 3, first_seen_ns + 4, 7}};
    };
    EXPECT_EQ(largest_sum_of({giving, taking_at(22)}), 8) << "taken after it was given";
    EXPECT_EQ(largest_sum_of({giving, taking_at(12)}), 8) << "it may have been given before";
    EXPECT_EQ(largest_sum_of({giving, taking_at(6)}), 11) << "taken at 7 to 10, when the other still had all";
    EXPECT_EQ(largest_sum_of({giving, {}}), 4);
}

// RateWatch would take bytes that were not counted in time for bytes read all at once.
TEST(RemoteCounter, DaemonThatAnswersTooLateIsAnError) {
    std::vector<HttpRespond> late;  // used by the server's thread until it ends
    bool answers = true;
    test::HttpService daemon([&](const HttpRequest&, const HttpRespond& respond) {
        if (!answers) return late.push_back(respond);
        respond({.body = R"({"jobs":[{"job":"j","dataset":"d","remote_burst_bytes":1,)"
                         R"("counters":{"bytes_remote_read":5}}]})"});
    });
    test::RemoteCounter counter({daemon.socket});
    EXPECT_EQ(counter.bytes().value(), 5u);
    daemon.on_thread([&] { answers = false; });
    test::RemoteCounter impatient({daemon.socket}, 1);
    const auto bytes = impatient.bytes();
    ASSERT_FALSE(bytes.has_value());
    EXPECT_EQ(bytes.error().code, ErrorCode::timeout);
    test::RemoteCounter of_none({daemon.directory / "none.sock"});
    EXPECT_EQ(of_none.bytes().value(), 0u) << "a daemon that is gone reads nothing";
}

TEST_F(Partition, NodeFallsToFloorWithinRemoteAndThePlanReturns) {
    // Wait until both nodes read at the rates of the plan, with all quotas filled.
    std::map<std::string, double> before;
    TestDaemon::wait_until([&] {
        const auto now = rates();
        before = plan();
        return is_settled(before) && now[0] > 0.3 * kPartitionedRemote && now[1] > 0.3 * kPartitionedRemote &&
               is_filled();
    });

    test::RemoteCounter counter(admin_sockets());
    test::RateWatch watch([&] { return counter.bytes(); }, kPartitionedRemote);
    test::RateTimeline timeline(kNodes, [&](std::size_t node) {
        const auto job_rates = rates_on(node);
        return std::accumulate(job_rates.begin(), job_rates.end(), 0.0);
    });
    const auto wait_until = [&](const std::function<bool()>& condition) {
        while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    };
    ASSERT_TRUE(network->cut_off(1));
    wait_until([&] { return rates()[1] == kPartitionedFloor; });
    // The other node gets all that the lost node no longer takes, except the lost node's floor.
    wait_until([&] { return rates()[0] >= 0.99 * (kPartitionedRemote - kPartitionedFloor); });
    EXPECT_EQ(rates()[1], kPartitionedFloor);
    EXPECT_TRUE(is_connected(0));
    wait_until([&] { return !is_connected(1); });
    const SteadyClock clock;
    const std::int64_t still_away_until_ns = clock.now_ns() + kLease_ns;
    wait_until([&] { return clock.now_ns() > still_away_until_ns; });
    EXPECT_EQ(rates()[1], kPartitionedFloor);
    EXPECT_LE(rates()[0], (kPartitionedRemote - kPartitionedFloor) * 1.001);
    EXPECT_FALSE(alike(plan(), before)) << "the plan still counts the lost node";

    // The allocator counts one floor for the lost node. A job that starts there meanwhile shares it.
    readers.push_back(std::make_unique<Reader>(nodes[1]->socket(), "late"));
    wait_until([&] { return rates_on(1) == std::vector(2, kPartitionedFloor / 2); });
    readers.pop_back();
    wait_until([&] { return rates_on(1) == std::vector(1, kPartitionedFloor); });

    ASSERT_TRUE(network->join_again(1));
    wait_until([&] {
        return alike(plan(), before) && rates()[1] > 0.3 * kPartitionedRemote && rates()[0] < 0.7 * kPartitionedRemote;
    });
    watch.stop();
    timeline.stop();
    EXPECT_GT(timeline.largest_sum(), 0.9 * kPartitionedRemote) << "the sum never came near its limit";
    EXPECT_LE(timeline.largest_sum(), kPartitionedRemote * 1.001);
    EXPECT_GE(timeline.changes(), 4u) << "each node's rate changes when the cable is pulled, and when it is back";
    EXPECT_LE(watch.excess_bytes(), static_cast<double>(counter.burst_bytes()));
}

}  // namespace
}  // namespace larder::test
