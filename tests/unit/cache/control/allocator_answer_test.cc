#include <gtest/gtest.h>

#include "cache/control/agent.h"

namespace larder::cache {
namespace {

constexpr const char* kAnswer =
    R"({"plan":7,"quotas":[{"name":"images","memory_bytes":10,"disk_bytes":20}],"peers":[],)"
    R"("lease":{"number":9,"lease_ms":5000,"floor_bytes_per_second":8,)"
    R"("rates":[{"job":"vision","bytes_per_second":1.5e6}],"cut":true}})";

TEST(AllocatorAnswer, ValidAnswerGivesPlanQuotasAndLease) {
    const auto plan = read_allocator_answer(kAnswer, 2, 1'000);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    EXPECT_EQ(plan->plan, 7u);
    EXPECT_EQ(plan->lease, 9u);
    EXPECT_EQ(plan->quotas.at("images"), (Quota{.memory_bytes = 10, .disk_bytes = 20}));
    EXPECT_EQ(plan->rates.rates.at("vision"), 1.5e6);
    EXPECT_EQ(plan->rates.floor_bytes_per_second, 8);
    EXPECT_TRUE(plan->cut);
    EXPECT_EQ(plan->rates.expires_ns, 5'000'000'000 + 1'000) << "counted from the time the report was sent";
}

std::string answer_with(std::string_view from, std::string_view to) {
    std::string text = kAnswer;
    return text.replace(text.find(from), from.size(), to);
}

TEST(AllocatorAnswer, InvalidAnswerErrorNamesTheKey) {
    const auto message = [](const std::string& text) {
        const auto plan = read_allocator_answer(text, 2, 0);
        return plan ? std::string("taken") : plan.error().message;
    };
    EXPECT_NE(message("no JSON").find("the allocator's answer"), std::string::npos);
    EXPECT_NE(message(answer_with("\"plan\":7", "\"plan\":-7")).find("plan"), std::string::npos);
    EXPECT_NE(
        message(answer_with("\"memory_bytes\":10", "\"memory_bytes\":\"10\"")).find("quotas[0]: key \"memory_bytes\""),
        std::string::npos);
    EXPECT_NE(message(answer_with("1.5e6", "-1")).find("lease.rates[0]: key \"bytes_per_second\""), std::string::npos);
    EXPECT_NE(message(answer_with("[]", "[7]")).find("peers[0] must be a string"), std::string::npos);
    EXPECT_NE(message(answer_with("\"number\":9,", "")).find("lease: key \"number\""), std::string::npos);
    EXPECT_NE(message(answer_with("\"number\":9,", "\"number\":9,\"more\":1,")).find("more"), std::string::npos);
}

// One node's report must not cost the others their plan: the directory of peers names the peer.
TEST(AllocatorAnswer, PeerWithoutEndpointLeavesThePlanInForce) {
    const auto plan = read_allocator_answer(answer_with("[]", "[\"no endpoint\",\"http://b:1\"]"), 2, 0);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    EXPECT_EQ(plan->quotas.size(), 1u);
    EXPECT_EQ(plan->peers->size(), 2u);
    const auto named = read_allocator_answer(answer_with("[]", "[{\"node\":\"b\",\"endpoint\":\"http://b:1\"}]"), 3, 0);
    ASSERT_TRUE(named.has_value()) << named.error().message;
    EXPECT_EQ(named->peers->at(0).node, "b");
    EXPECT_EQ(named->peers->at(0).endpoint, "http://b:1");
}

TEST(AllocatorAnswer, LeaseIsCappedAtOneHour) {
    const auto plan = read_allocator_answer(answer_with("5000", "900000000000000000"), 2, 0);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    EXPECT_EQ(plan->rates.expires_ns, 3'600'000'000'000);
}

}  // namespace
}  // namespace larder::cache
