// Allocators that elect one of themselves through a real etcd.

#include "allocator/service/leadership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/server/http_client.h"
#include "tests/support/server_program.h"

namespace larder::allocator {
namespace {

class LeadershipTest : public ::testing::Test {
protected:
    EtcdOptions etcd_options() { return {.endpoints = split_http_endpoints(etcd_["endpoints"]), .prefix = "/test/"}; }
    std::unique_ptr<Leadership> stand(const std::string& name) {
        return std::make_unique<Leadership>(
            LeadershipOptions{.etcd = etcd_options(), .name = name, .lease_ns = 5'000'000'000}, [this] { ++changes_; });
    }
    static void wait_until(const std::function<bool()>& holds) {
        while (!holds()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }

    test::ServerProgram etcd_{{"etcd.py"}};
    std::atomic<int> changes_ = 0;
};

TEST_F(LeadershipTest, OneLeadsAndAnotherOnceItHasEnded) {
    auto first = stand("first");
    wait_until([&] { return first->leads(); });
    EXPECT_TRUE(first->fence().is_held());
    auto second = stand("second");
    wait_until([&] { return second->leader() == "first"; });
    EXPECT_FALSE(second->leads());
    EXPECT_FALSE(second->fence().is_held());
    first.reset();
    wait_until([&] { return second->leads(); });
    wait_until([&] { return changes_ >= 2; });
}

TEST_F(LeadershipTest, LeaderThatResignsLetsTheOtherLead) {
    auto first = stand("first");
    wait_until([&] { return first->leads(); });
    auto second = stand("second");
    wait_until([&] { return second->leader() == "first"; });
    const EtcdFence fence = first->fence();
    first->resign();
    EXPECT_FALSE(first->leads());
    EXPECT_FALSE(fence.is_held());
    wait_until([&] { return second->leads(); });
    wait_until([&] { return first->leader() == "second"; });
    EXPECT_FALSE(first->leads());
}

TEST_F(LeadershipTest, FenceOfAnEarlierTermStaysLost) {
    auto only = stand("only");
    wait_until([&] { return only->leads(); });
    const EtcdFence fence = only->fence();
    only->resign();
    wait_until([&] { return only->leads(); });
    EXPECT_FALSE(fence.is_held());
    EXPECT_TRUE(only->fence().is_held());
    EXPECT_GT(only->fence().create_revision, fence.create_revision);
}

TEST_F(LeadershipTest, LeaderWhoseKeyIsRemovedStopsLeading) {
    auto leader = stand("leader");
    wait_until([&] { return leader->leads(); });
    const EtcdFence fence = leader->fence();
    EtcdClient client(etcd_options());
    const auto key = client.get("leader");
    ASSERT_TRUE(key && *key);
    ASSERT_TRUE(client.revoke_lease((*key)->lease));
    wait_until([&] { return !fence.is_held(); });
    wait_until([&] { return changes_ >= 2; });
}

// Serving threads ask at any time, while terms begin and end.
TEST_F(LeadershipTest, TwoNeverLeadAtATime) {
    std::vector<std::unique_ptr<Leadership>> all;
    all.reserve(3);
    for (const char* name : {"a", "b", "c"}) all.push_back(stand(name));
    std::atomic<bool> stopping = false;
    std::atomic<int> overlaps = 0;
    std::vector<std::jthread> threads;
    threads.reserve(3);
    for (std::size_t i = 0; i < 3; ++i) {
        threads.emplace_back([&, i] {
            while (!stopping) {
                const EtcdFence first = all[i]->fence();
                const EtcdFence second = all[(i + 1) % 3]->fence();
                // Two that lead one after the other are told apart by the first, asked again.
                if (first.is_held() && second.is_held() && first.is_held()) ++overlaps;
                static_cast<void>(all[i]->leader());
            }
        });
    }
    for (int term = 0; term < 3; ++term) {
        const auto leader = [&] { return std::ranges::find_if(all, [](const auto& one) { return one->leads(); }); };
        wait_until([&] { return leader() != all.end(); });
        if (const auto one = leader(); one != all.end()) (*one)->resign();
    }
    stopping = true;
    threads.clear();
    EXPECT_EQ(overlaps, 0);
}

}  // namespace
}  // namespace larder::allocator
