// Tests that validate() refuses each bad field, and that assign() survives broken states.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "allocator/assign.h"
#include "tests/oracle/random_state.h"
#include "tests/support/property_cases.h"
#include "tests/unit/allocator/corruption.h"

namespace larder::test {
namespace {

using namespace allocator;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kAnyBytes = std::numeric_limits<std::uint64_t>::max();

// Two nodes, two datasets and four jobs, of which the last waits.
ClusterState valid_state() {
    ClusterState state{.remote_bytes_per_second = 1e9};
    for (const char* name : {"left", "right"}) {
        state.nodes.push_back({.name = name,
                               .gpus = 4,
                               .memory_bytes = 10 * kGiB,
                               .disk_bytes = 90 * kGiB,
                               .disk_read_bytes_per_second = 2e9,
                               .nic_bytes_per_second = 3e9});
    }
    state.datasets.push_back({.name = "images", .size_bytes = 150 * kGiB});
    state.datasets.push_back({.name = "text", .size_bytes = 100 * kGiB});
    state.datasets[0].quotas = {{.node = 0, .memory_bytes = kGiB}, {.node = 1, .disk_bytes = kGiB}};
    state.datasets[0].cached = {{.node = 1, .disk_bytes = kGiB}};
    for (const char* name : {"a", "b", "c", "d"}) {
        state.jobs.push_back({.name = name, .dataset = 0, .gpus = 2, .ideal_bytes_per_second = 5e8});
    }
    state.jobs[1].dataset = 1;
    state.jobs[0].placement = {{.node = 0, .gpus = 2}};
    state.jobs[1].placement = {{.node = 0, .gpus = 1}, {.node = 1, .gpus = 1}};
    state.jobs[2].placement = {{.node = 1, .gpus = 2}};
    return state;
}

struct Case {
    const char* message;
    void (*change)(ClusterState& state);
};

void expect_errors(std::initializer_list<Case> cases) {
    for (const auto& [message, change] : cases) {
        ClusterState state = valid_state();
        change(state);
        const auto valid = validate(state);
        ASSERT_FALSE(valid) << message;
        EXPECT_EQ(valid.error().code, ErrorCode::invalid_argument) << message;
        EXPECT_EQ(valid.error().message, message);
        // assign() validates before it computes.
        const auto plan = assign(state, {});
        ASSERT_FALSE(plan) << message;
        EXPECT_EQ(plan.error().message, message);
    }
}

void expect_accepted(const char* what, void (*change)(ClusterState& state)) {
    ClusterState state = valid_state();
    change(state);
    const auto valid = validate(state);
    EXPECT_TRUE(valid) << what << ": " << valid.error().message;
    const auto plan = assign(state, {});
    ASSERT_TRUE(plan) << what << ": " << plan.error().message;
    expect_valid_plan(state, *plan);
}

TEST(Validate, AcceptsAValidState) {
    expect_accepted("as it is", [](ClusterState&) {});
}

TEST(Validate, AcceptsAnEmptyCluster) {
    EXPECT_TRUE(validate({}));
    const auto plan = assign({}, {});
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_TRUE(plan->datasets.empty());
    EXPECT_TRUE(plan->jobs.empty());
}

TEST(Validate, AcceptsMissingOptionalLimits) {
    expect_accepted("disk", [](ClusterState& state) { state.nodes[0].disk_read_bytes_per_second = kUnlimited; });
    expect_accepted("network", [](ClusterState& state) { state.nodes[0].nic_bytes_per_second = kUnlimited; });
    expect_accepted("cap", [](ClusterState& state) { state.jobs[0].bandwidth_cap_bytes_per_second = kUnlimited; });
    expect_accepted("epochs", [](ClusterState& state) { state.jobs[0].remaining_epochs = kUnlimited; });
    expect_accepted("quota cap", [](ClusterState& state) { state.datasets[0].quota_cap_bytes = kAnyBytes; });
}

TEST(Validate, AcceptsZeroCapacitiesAndRates) {
    expect_accepted("remote", [](ClusterState& state) { state.remote_bytes_per_second = 0; });
    expect_accepted("memory", [](ClusterState& state) { state.nodes[0].memory_bytes = 0; });
    expect_accepted("disk", [](ClusterState& state) { state.nodes[0].disk_bytes = 0; });
    expect_accepted("disk rate", [](ClusterState& state) { state.nodes[0].disk_read_bytes_per_second = 0; });
    expect_accepted("network", [](ClusterState& state) { state.nodes[0].nic_bytes_per_second = 0; });
    expect_accepted("quota cap", [](ClusterState& state) { state.datasets[0].quota_cap_bytes = 0; });
    expect_accepted("epochs", [](ClusterState& state) { state.jobs[0].remaining_epochs = 0; });
    expect_accepted("cap", [](ClusterState& state) { state.jobs[0].bandwidth_cap_bytes_per_second = 0; });
    expect_accepted("gpus of a node", [](ClusterState& state) {
        state.nodes[0].gpus = 0;
        for (ClusterJob& job : state.jobs) job.placement.clear();
    });
    expect_accepted("gpus of a job", [](ClusterState& state) {
        state.jobs[0].gpus = 0;
        state.jobs[0].placement = {{.node = 0, .gpus = 0}, {.node = 1, .gpus = 0}};
    });
}

TEST(Validate, AcceptsLimitsExactlyReached) {
    expect_accepted("pinned quota", [](ClusterState& state) {
        state.datasets[0].quota_floor_bytes = state.datasets[0].quota_cap_bytes = 5 * kGiB;
    });
    expect_accepted("floors as large as the cache", [](ClusterState& state) {
        for (ClusterDataset& dataset : state.datasets) dataset.quota_floor_bytes = 100 * kGiB;
    });
    // A floor above the size asks for the whole dataset.
    expect_accepted("floor above the size",
                    [](ClusterState& state) { state.datasets[1].quota_floor_bytes = kAnyBytes; });
    expect_accepted("floors as large as the remote", [](ClusterState& state) {
        state.jobs[0].bandwidth_floor_bytes_per_second = 4e8;
        state.jobs[1].bandwidth_floor_bytes_per_second = 6e8;
        state.jobs[1].bandwidth_cap_bytes_per_second = 6e8;
    });
    expect_accepted("all cached", [](ClusterState& state) {
        state.jobs[0].unread_bytes = state.jobs[0].unread_cached_bytes = kAnyBytes;
    });
    expect_accepted("more cached than there is room for", [](ClusterState& state) {
        state.datasets[0].cached = {{.node = 0, .memory_bytes = 500 * kGiB, .disk_bytes = 500 * kGiB}};
    });
}

TEST(Validate, NamesInvalidFieldOfCluster) {
    expect_errors({
        {"remote_bytes_per_second: nan is not finite", [](ClusterState& s) { s.remote_bytes_per_second = kNan; }},
        {"remote_bytes_per_second: inf is not finite", [](ClusterState& s) { s.remote_bytes_per_second = kUnlimited; }},
        {"remote_bytes_per_second: -1 is negative", [](ClusterState& s) { s.remote_bytes_per_second = -1; }},
    });
}

TEST(Validate, NamesInvalidFieldOfNode) {
    expect_errors({
        {"nodes[1].name: is empty", [](ClusterState& s) { s.nodes[1].name.clear(); }},
        {"nodes[1].name: \"left\" appears twice", [](ClusterState& s) { s.nodes[1].name = "left"; }},
        {"nodes[1].memory_bytes: 9007199254740992 is not below 9007199254740992",
         [](ClusterState& s) { s.nodes[1].memory_bytes = std::uint64_t{1} << 53; }},
        {"nodes[0].disk_bytes: 18446744073709551615 is not below 9007199254740992",
         [](ClusterState& s) { s.nodes[0].disk_bytes = kAnyBytes; }},
        {"nodes[0].disk_read_bytes_per_second: is not a number",
         [](ClusterState& s) { s.nodes[0].disk_read_bytes_per_second = kNan; }},
        {"nodes[1].disk_read_bytes_per_second: -2.5 is negative",
         [](ClusterState& s) { s.nodes[1].disk_read_bytes_per_second = -2.5; }},
        {"nodes[0].nic_bytes_per_second: is not a number",
         [](ClusterState& s) { s.nodes[0].nic_bytes_per_second = kNan; }},
        {"nodes[1].nic_bytes_per_second: -inf is negative",
         [](ClusterState& s) { s.nodes[1].nic_bytes_per_second = -kUnlimited; }},
    });
}

TEST(Validate, NamesInvalidFieldOfDataset) {
    expect_errors({
        {"datasets[0].name: is empty", [](ClusterState& s) { s.datasets[0].name.clear(); }},
        {"datasets[1].name: \"images\" appears twice", [](ClusterState& s) { s.datasets[1].name = "images"; }},
        {"datasets[1].size_bytes: must be above 0", [](ClusterState& s) { s.datasets[1].size_bytes = 0; }},
        {"datasets[0].size_bytes: 18446744073709551615 is not below 9007199254740992",
         [](ClusterState& s) { s.datasets[0].size_bytes = kAnyBytes; }},
        {"datasets[0].quotas: 2 is not below 2", [](ClusterState& s) { s.datasets[0].quotas[1].node = 2; }},
        {"datasets[0].quotas: node 0 appears twice", [](ClusterState& s) { s.datasets[0].quotas[1].node = 0; }},
        {"datasets[0].quotas: 18446744073709551615 is not below 9007199254740992",
         [](ClusterState& s) { s.datasets[0].quotas[0].memory_bytes = kAnyBytes; }},
        {"datasets[0].quotas: 9007199254740992 is not below 9007199254740992",
         [](ClusterState& s) { s.datasets[0].quotas[1].disk_bytes = std::uint64_t{1} << 53; }},
        {"datasets[1].cached: 7 is not below 2", [](ClusterState& s) { s.datasets[1].cached = {{.node = 7}}; }},
        {"datasets[1].cached: node 1 appears twice",
         [](ClusterState& s) { s.datasets[1].cached = {{.node = 1}, {.node = 1}}; }},
        {"datasets[0].cached: 18446744073709551615 is not below 9007199254740992",
         [](ClusterState& s) { s.datasets[0].cached[0].disk_bytes = kAnyBytes; }},
        {"datasets[0].quota_floor_bytes: 11 is above quota_cap_bytes 10",
         [](ClusterState& s) {
             s.datasets[0].quota_floor_bytes = 11;
             s.datasets[0].quota_cap_bytes = 10;
         }},
        {"datasets[1].quota_floor_bytes: the floors do not fit the nodes' cache",
         [](ClusterState& s) {
             s.datasets[0].quota_floor_bytes = 150 * kGiB;
             s.datasets[1].quota_floor_bytes = 50 * kGiB + 1;
         }},
    });
}

TEST(Validate, NamesInvalidFieldOfJob) {
    expect_errors({
        {"jobs[0].name: is empty", [](ClusterState& s) { s.jobs[0].name.clear(); }},
        {"jobs[3].name: \"b\" appears twice", [](ClusterState& s) { s.jobs[3].name = "b"; }},
        {"jobs[3].dataset: 7 is not below 2", [](ClusterState& s) { s.jobs[3].dataset = 7; }},
        {"jobs[0].dataset: 0 is not below 0", [](ClusterState& s) { s.datasets.clear(); }},
        {"jobs[2].ideal_bytes_per_second: must be above 0",
         [](ClusterState& s) { s.jobs[2].ideal_bytes_per_second = 0; }},
        {"jobs[2].ideal_bytes_per_second: nan is not finite",
         [](ClusterState& s) { s.jobs[2].ideal_bytes_per_second = kNan; }},
        {"jobs[2].ideal_bytes_per_second: inf is not finite",
         [](ClusterState& s) { s.jobs[2].ideal_bytes_per_second = kUnlimited; }},
        {"jobs[2].ideal_bytes_per_second: -3 is negative",
         [](ClusterState& s) { s.jobs[2].ideal_bytes_per_second = -3; }},
        {"jobs[1].weight: 0 is not from 1e-06 to 1e+06", [](ClusterState& s) { s.jobs[1].weight = 0; }},
        {"jobs[1].weight: nan is not from 1e-06 to 1e+06", [](ClusterState& s) { s.jobs[1].weight = kNan; }},
        {"jobs[1].weight: inf is not from 1e-06 to 1e+06", [](ClusterState& s) { s.jobs[1].weight = kUnlimited; }},
        {"jobs[1].weight: -1 is not from 1e-06 to 1e+06", [](ClusterState& s) { s.jobs[1].weight = -1; }},
        {"jobs[1].remaining_epochs: is not a number", [](ClusterState& s) { s.jobs[1].remaining_epochs = kNan; }},
        {"jobs[1].remaining_epochs: -0.5 is negative", [](ClusterState& s) { s.jobs[1].remaining_epochs = -0.5; }},
        {"jobs[0].unread_cached_bytes: 3 is above unread_bytes 2",
         [](ClusterState& s) {
             s.jobs[0].unread_bytes = 2;
             s.jobs[0].unread_cached_bytes = 3;
         }},
        {"jobs[0].bandwidth_floor_bytes_per_second: nan is not finite",
         [](ClusterState& s) { s.jobs[0].bandwidth_floor_bytes_per_second = kNan; }},
        {"jobs[0].bandwidth_floor_bytes_per_second: inf is not finite",
         [](ClusterState& s) { s.jobs[0].bandwidth_floor_bytes_per_second = kUnlimited; }},
        {"jobs[0].bandwidth_floor_bytes_per_second: -1 is negative",
         [](ClusterState& s) { s.jobs[0].bandwidth_floor_bytes_per_second = -1; }},
        {"jobs[0].bandwidth_cap_bytes_per_second: is not a number",
         [](ClusterState& s) { s.jobs[0].bandwidth_cap_bytes_per_second = kNan; }},
        {"jobs[0].bandwidth_cap_bytes_per_second: -1 is negative",
         [](ClusterState& s) { s.jobs[0].bandwidth_cap_bytes_per_second = -1; }},
        {"jobs[0].bandwidth_floor_bytes_per_second: is above bandwidth_cap_bytes_per_second",
         [](ClusterState& s) {
             s.jobs[0].bandwidth_floor_bytes_per_second = 3;
             s.jobs[0].bandwidth_cap_bytes_per_second = 2;
         }},
        {"jobs[2].bandwidth_floor_bytes_per_second: the floors do not fit remote_bytes_per_second",
         [](ClusterState& s) {
             s.jobs[0].bandwidth_floor_bytes_per_second = 6e8;
             s.jobs[2].bandwidth_floor_bytes_per_second = 5e8;
         }},
        {"jobs[0].placement: 2 is not below 2", [](ClusterState& s) { s.jobs[0].placement[0].node = 2; }},
        {"jobs[1].placement: node 0 appears twice", [](ClusterState& s) { s.jobs[1].placement[1].node = 0; }},
    });
}

TEST(Validate, RefusesGpusBookedTwice) {
    expect_errors({
        {"jobs[0].placement: node 0 has only 4 GPUs", [](ClusterState& s) { s.jobs[0].placement[0].gpus = 5; }},
        {"jobs[2].placement: node 1 has only 4 GPUs", [](ClusterState& s) { s.jobs[2].placement[0].gpus = 4; }},
        {"jobs[3].placement: node 0 has only 4 GPUs",
         [](ClusterState& s) { s.jobs[3].placement = {{.node = 0, .gpus = 2}}; }},
        {"jobs[3].placement: node 1 has only 4 GPUs",
         [](ClusterState& s) {
             s.jobs[3].placement = {{.node = 1, .gpus = std::numeric_limits<std::uint32_t>::max()}};
         }},
    });
}

// Such values would make sums and quotients overflow.
TEST(Validate, RefusesRatesAndWeightsThatWouldOverflow) {
    expect_errors({
        {"remote_bytes_per_second: 2e+18 is above 1e+18", [](ClusterState& s) { s.remote_bytes_per_second = 2e18; }},
        {"nodes[0].nic_bytes_per_second: 1e+100 is above 1e+18",
         [](ClusterState& s) { s.nodes[0].nic_bytes_per_second = 1e100; }},
        {"nodes[1].disk_read_bytes_per_second: 1e+100 is above 1e+18",
         [](ClusterState& s) { s.nodes[1].disk_read_bytes_per_second = 1e100; }},
        {"jobs[0].ideal_bytes_per_second: 1e+300 is above 1e+18",
         [](ClusterState& s) { s.jobs[0].ideal_bytes_per_second = 1e300; }},
        {"jobs[0].bandwidth_cap_bytes_per_second: 1e+100 is above 1e+18",
         [](ClusterState& s) { s.jobs[0].bandwidth_cap_bytes_per_second = 1e100; }},
        {"jobs[0].weight: 1e-07 is not from 1e-06 to 1e+06", [](ClusterState& s) { s.jobs[0].weight = 1e-7; }},
        {"jobs[0].weight: 1e+07 is not from 1e-06 to 1e+06", [](ClusterState& s) { s.jobs[0].weight = 1e7; }},
    });
    expect_accepted("the least weight", [](ClusterState& state) { state.jobs[0].weight = 1e-6; });
    expect_accepted("the largest weight", [](ClusterState& state) { state.jobs[0].weight = 1e6; });
    expect_accepted("the largest rate", [](ClusterState& state) { state.jobs[0].ideal_bytes_per_second = 1e18; });
}

// Only the first of several errors is reported.
TEST(Validate, NamesFirstOfSeveralInvalidFields) {
    expect_errors({{"nodes[0].nic_bytes_per_second: is not a number", [](ClusterState& s) {
                        s.jobs[2].dataset = 9;
                        s.nodes[0].nic_bytes_per_second = kNan;
                        s.datasets[0].quotas[0].node = 9;
                    }}});
}

TEST(Validate, BrokenStateGivesErrorWithFieldOrFinitePlan) {
    constexpr std::uint64_t kStates = test::property_cases(20'000, 40);
    int refused = 0;
    for (std::uint64_t seed = 0; seed < kStates; ++seed) {
        ClusterState state = RandomState(seed, {.waiting = true}).make();
        Corruption corruption(seed);
        const std::string broken = corruption.apply(state);
        const auto plan = assign(state, {.kind = static_cast<ObjectiveKind>(seed % 5)});
        if (plan) {
            expect_valid_plan(state, *plan);
        } else {
            ++refused;
            EXPECT_EQ(plan.error().code, ErrorCode::invalid_argument);
            EXPECT_TRUE(names_a_field(plan.error().message)) << plan.error().message;
        }
        if (HasFailure()) FAIL() << "seed " << seed << ": " << broken;
    }
    RecordProperty("refused", refused);
    // Both outcomes must be frequent for the loop to test both.
    EXPECT_GT(refused, static_cast<int>(kStates / 5));
    EXPECT_LT(refused, static_cast<int>(kStates * 4 / 5));
}

}  // namespace
}  // namespace larder::test
