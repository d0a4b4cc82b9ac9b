// The allocator killed at any moment, under load from nodes that report and operators that register jobs. Together, the
// nodes never use more than the remote's bandwidth. Plan numbers never go back, and nothing acknowledged is lost.

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "allocator/protocol/codec.h"
#include "base/clock.h"
#include "base/server/http_client.h"
#include "tests/crash/killed_server.h"
#include "tests/support/temp_directory.h"

namespace larder::allocator {
namespace {

namespace json = boost::json;

constexpr double kRemote = 1e9;
constexpr int kKills = 15;
constexpr int kNodes = 4;

// The rates that each node uses, as its daemon would: those of its last lease, and its floors once the lease expires.
class RatesInUse {
public:
    void take(const std::string& node, Lease lease) {
        const std::lock_guard lock(mutex_);
        leases_[node] = std::move(lease);
        const std::int64_t now_ns = clock_.now_ns();
        double used = 0;
        for (const auto& [name, held] : leases_) {
            used += held.expires_ns > now_ns ? held.sum()
                                             : held.floor_bytes_per_second * static_cast<double>(held.rates.size());
        }
        EXPECT_LE(used, kRemote * (1 + 1e-9)) << "after " << lease_count_ << " leases";
        largest_sum_ = std::max(largest_sum_, used);
        ++lease_count_;
    }
    double largest_sum() const { return largest_sum_; }
    int lease_count() const { return lease_count_; }

private:
    std::mutex mutex_;
    SteadyClock clock_;
    std::map<std::string, Lease> leases_;
    double largest_sum_ = 0;
    std::atomic<int> lease_count_ = 0;
};

void report_until(const std::string& socket, int number, const std::atomic<bool>& done, RatesInUse& in_use) {
    const SteadyClock clock;
    std::mt19937_64 random(static_cast<std::uint64_t>(number));
    NodeReport report{
        .node = "node-" + std::to_string(number),
        .instance = 1,
        .memory_bytes = 1'000'000'000,
        .datasets = {{.name = "images", .size_bytes = 4'000'000'000}, {.name = "text", .size_bytes = 2'000'000'000}},
        .jobs = {{.name = "shared", .dataset = "images"},
                 {.name = "own-" + std::to_string(number), .dataset = "text"}}};
    std::uint64_t plan = 0;
    while (!done) {
        for (JobReport& job : report.jobs) job.demand_bytes_per_second = static_cast<double>(random() % 1'000'000'000);
        const std::int64_t sent_ns = clock.now_ns();
        const auto answer = http_request(socket, "POST", "/v1/reports", json::serialize(to_json(report)));
        // The allocator is dead, starting, or waiting for old leases to expire: the node continues with its lease.
        if (!answer || answer->status == 503) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            continue;
        }
        ASSERT_EQ(answer->status, 200u) << answer->body;
        auto part = read_node_plan(json::parse(answer->body).as_object(), "", sent_ns, kProtocolOldest);
        ASSERT_TRUE(part) << part.error().message;
        ASSERT_GE(part->plan, plan) << "plan numbers only rise";
        ASSERT_GT(part->lease.number, report.lease_applied) << "lease numbers only rise";
        plan = part->plan;
        report.lease_applied = part->lease.number;
        in_use.take(report.node, std::move(part->lease));
    }
}

// Registers one job after the other. Adds the name of each acknowledged job to `acknowledged`.
void register_until(const std::string& socket, const std::atomic<bool>& done, std::set<std::string>& acknowledged) {
    for (int number = 0; !done; ++number) {
        const std::string name = "registered-" + std::to_string(number);
        for (bool known = false; !known && !done;) {
            const auto answer = http_request(socket, "POST", "/v1/jobs", R"({"name":")" + name + R"("})");
            // 409: the previous try was killed after the job was recorded and before it was acknowledged.
            known = answer && (answer->status == 200 || answer->status == 409);
            if (known) acknowledged.insert(name);
        }
    }
}

TEST(KilledAllocator, KeepsPlanSettingsAndSumOfRates) {
    const test::TempDirectory directory;
    test::KilledAllocator allocator(directory / "state", {"--remote-bandwidth", "1 GB/s", "--floor", "1 MB/s"});
    std::atomic<bool> done = false;
    RatesInUse in_use;
    std::set<std::string> registered;
    {
        std::vector<std::jthread> clients;
        for (int node = 0; node < kNodes; ++node) {
            clients.emplace_back([&, node] { report_until(allocator.socket(), node, done, in_use); });
        }
        clients.emplace_back([&] { register_until(allocator.socket(), done, registered); });
        std::mt19937_64 random(11);
        for (int kill = 0; kill < kKills; ++kill) {
            // Wait for 20 more leases, so that the wait at the first start is over and some work is done.
            for (const int before = in_use.lease_count();
                 in_use.lease_count() < before + 20 && !testing::Test::HasFailure();) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            const std::uint64_t bytes = 1000 + static_cast<std::uint64_t>(kill);
            const auto pinned = http_request(allocator.socket(), "PUT", "/v1/datasets/text/pin",
                                             R"({"bytes":)" + std::to_string(bytes) + "}");
            EXPECT_TRUE(pinned && pinned->status == 200) << (pinned ? pinned->body : pinned.error().message);
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 50'000));
            allocator.kill_and_restart();
            const auto datasets = http_request(allocator.socket(), "GET", "/v1/datasets");
            const std::string body = datasets ? datasets->body : datasets.error().message;
            EXPECT_NE(body.find(R"("pinned_bytes":)" + std::to_string(bytes)), std::string::npos) << body;
        }
        done = true;
    }
    EXPECT_GT(in_use.largest_sum(), kRemote / 2) << "the sum never came near its limit";
    EXPECT_GT(registered.size(), 20u);
    const auto jobs = http_request(allocator.socket(), "GET", "/v1/jobs");
    ASSERT_TRUE(jobs) << jobs.error().message;
    for (const std::string& name : registered) {
        EXPECT_NE(jobs->body.find("\"" + name + "\""), std::string::npos) << name << " was acknowledged and is lost";
    }
}

TEST(KilledAllocator, KeepsPlanWhileItCannotTakeReports) {
    const test::TempDirectory directory;
    test::KilledAllocator allocator(directory / "state", {"--remote-bandwidth", "1 GB/s", "--floor", "1 MB/s"});
    const NodeReport report{.node = "node",
                            .instance = 1,
                            .memory_bytes = 1'000'000'000,
                            .datasets = {{.name = "images", .size_bytes = 4'000'000'000}}};
    const auto send = [&] {
        return http_request(allocator.socket(), "POST", "/v1/reports", json::serialize(to_json(report)));
    };
    // The first start leases nothing for as long as a lease lasts.
    for (auto answer = send(); !answer || answer->status != 200; answer = send()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const auto before = http_request(allocator.socket(), "GET", "/v1/datasets");
    ASSERT_TRUE(before) << before.error().message;
    ASSERT_NE(before->body.find("images"), std::string::npos) << before->body;
    allocator.kill_and_restart();
    allocator.pause(std::chrono::milliseconds(4000));  // longer than a lease
    const auto after = http_request(allocator.socket(), "GET", "/v1/datasets");
    ASSERT_TRUE(after) << after.error().message;
    EXPECT_EQ(after->body, before->body);
}

}  // namespace
}  // namespace larder::allocator
