#include <gmock/gmock.h>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::HasSubstr;

TEST(MakePolicy, UnknownNameListsThePolicies) {
    const auto made = make_policy("fifi", {});
    ASSERT_FALSE(made);
    EXPECT_THAT(made.error().message, HasSubstr("fifo-backfill"));
}

TEST(MakePolicy, EachPolicyHasTheNameItIsMadeBy) {
    for (const std::string_view name : policy_names()) {
        const auto made = make_policy(name, {});
        ASSERT_TRUE(made) << name;
        EXPECT_EQ((*made)->name(), name);
    }
}

TEST(MakePolicy, InvalidOptionsAreRefused) {
    const auto refused = [](const PolicyOptions& options, const char* what) {
        const auto made = make_policy("las", options);
        ASSERT_FALSE(made) << what;
        EXPECT_EQ(made.error().code, ErrorCode::invalid_argument);
        EXPECT_THAT(made.error().message, HasSubstr(what));
    };
    refused({.round_s = 0}, "round: ");
    refused({.queue_gpu_s = {}}, "queues: ");
    refused({.queue_gpu_s = {100, 100}}, "queues: ");
    refused({.queue_gpu_s = {0, 100}}, "queues: ");
    refused({.promote_after = -1}, "promote_after");
    refused({.window_intervals = 0}, "window_intervals");
    refused({.interval_s = -1}, "interval: ");
    refused({.lease_s = kNever}, "lease: ");
    refused({.starve_s = 0}, "starve: ");
}

// Properties of every policy on random jobs: no GPU is used twice, every job ends, and the checks of decide() hold.
TEST(AnyPolicy, EveryJobEndsAndNoGpuIsUsedTwice) {
    for (const std::string_view name : policy_names()) {
        for (std::uint32_t seed = 0; seed < 8; ++seed) {
            tests::TestRandom random(seed);
            tests::TestRandom claims(seed + 100);
            tests::World world(2, {"a", "b"});
            world.tenants.push_back({.name = "two", .weight = 3});
            for (int j = 0; j < 20; ++j) {
                JobSpec& spec = world.add(1U << random.below(4), 1e8 * (100 + random.below(20000)));
                world.states.back().remaining_bytes = spec.total_bytes *= spec.gpus;
                spec.ideal_bytes_per_second[1] *= 0.25 + random.below(8) / 4.0;
                spec.tenant = random.below(2);
                spec.priority = static_cast<std::int32_t>(random.below(2));
                if (random.below(4) == 0) spec.preemptible = false;
                if (random.below(4) == 0) spec.gpus_max = 2 * spec.gpus;
                if (random.below(3) == 0) spec.packed_rate = 0.7;
                spec.gpu_memory_part = spec.packed_rate > 0 ? 0.5 : 0;
                if (random.below(3) == 0) {
                    spec.service = ServiceClass::soft_deadline;
                    spec.deadline_s = random.below(5000);
                } else if (spec.preemptible) {
                    spec.opportunistic = claims.below(4) == 0;
                }
            }
            const auto policy = std::move(*make_policy(name, {}));
            int steps = 0;
            for (; !world.jobs.empty() && steps < 20000; ++steps) {
                const auto actions = world.step(*policy);
                ASSERT_TRUE(actions) << name << ": " << actions.error().message;
                std::vector<std::uint64_t> used(world.cluster.nodes.size());
                for (const JobState* const job : world.jobs) {
                    if (!job->running || job->packed_with != nullptr) continue;
                    for (const NodeGpus& share : job->placement) {
                        ASSERT_EQ(used[share.node] & share.gpus, 0) << name;
                        used[share.node] |= share.gpus;
                    }
                }
                ASSERT_FALSE(world.running().empty()) << name << ", seed " << seed;
                ASSERT_GT(actions->next_s, world.now_s) << name;
                world.pass(std::min(world.next_end_s(), actions->next_s) - world.now_s);
                world.end_finished();
            }
            EXPECT_TRUE(world.jobs.empty()) << name << ", seed " << seed;
        }
    }
}

}  // namespace
}  // namespace larder::scheduler
