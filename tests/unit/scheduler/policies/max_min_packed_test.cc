#include <gmock/gmock.h>

#include <map>

#include "scheduler/policies/fair.h"
#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

constexpr double kPackedRoundS = 360;

std::unique_ptr<Policy> packed_policy() {
    return std::move(*make_policy("max-min-packed", {.round_s = kPackedRoundS}));
}

// A world whose jobs have models with measured rates.
class PackedWorld : public tests::World {
public:
    PackedWorld(std::uint32_t nodes, std::uint32_t models, std::vector<std::string> types = {"a"})
        : World(nodes, types), pair_rates(static_cast<std::uint32_t>(types.size()), models) {
        measured = &pair_rates;
    }

    JobSpec& add_model(std::uint32_t model, std::uint32_t gpus = 1) {
        JobSpec& spec = add(gpus, kNever);
        spec.model = model;
        return spec;
    }

    // Runs rounds, and returns what each job read over what it would have read alone all the time on the first type.
    std::vector<double> run_rounds(Policy& policy, int rounds) {
        std::vector<double> read(states.size());
        for (int round = 0; round < rounds; ++round) {
            const auto actions = step(policy);
            EXPECT_TRUE(actions) << actions.error().message;
            expect_places_hold();
            for (std::size_t j = 0; j < states.size(); ++j) read[j] += part_of(states[j]) / rounds;
            pass(kPackedRoundS);
        }
        return read;
    }

    // Returns the job's rate over its rate alone on the first type.
    double part_of(const JobState& job) const {
        if (!job.running) return 0;
        const double alone = job.spec->ideal_bytes_per_second[job.gpu_type] / job.spec->ideal_bytes_per_second[0];
        for (const JobState& other : states) {
            const bool share = job.packed_with == &other || (other.running && other.packed_with == &job);
            if (share) return alone * shared_parts(&pair_rates, *job.spec, *other.spec, job.gpu_type, job.gpus).first;
        }
        return alone;
    }

    // Expects that a GPU has one job and at most one guest, which may share it.
    void expect_places_hold() const {
        std::vector<std::uint64_t> used(cluster.nodes.size());
        std::map<const JobState*, int> guests;
        for (const JobState& job : states) {
            if (!job.running) continue;
            if (job.packed_with == nullptr) {
                for (const NodeGpus& share : job.placement) {
                    EXPECT_EQ(used[share.node] & share.gpus, 0) << job.spec->name;
                    used[share.node] |= share.gpus;
                }
                continue;
            }
            const JobState& host = *job.packed_with;
            EXPECT_TRUE(host.running) << job.spec->name;
            EXPECT_EQ(host.packed_with, nullptr) << job.spec->name << " is the guest of a guest";
            EXPECT_EQ(++guests[&host], 1) << host.spec->name;
            EXPECT_EQ(job.placement, host.placement) << job.spec->name;
            EXPECT_EQ(job.gpus, 1u);
            EXPECT_TRUE(pair_parts(&pair_rates, *job.spec, *host.spec, host.gpu_type, 1).may_share())
                << job.spec->name << " and " << host.spec->name;
        }
    }

    std::size_t guests() const {
        return static_cast<std::size_t>(std::ranges::count_if(
            states, [](const JobState& job) { return job.running && job.packed_with != nullptr; }));
    }

    PairRates pair_rates;
};

TEST(MaxMinPacked, JobsThatGainTogetherShareGpus) {
    PackedWorld world(1, 1);
    world.pair_rates.set(0, 0, 0, {.first = 0.8, .second = 0.8});
    for (int j = 0; j < 16; ++j) world.add_model(0);
    const auto policy = packed_policy();
    for (const double read : world.run_rounds(*policy, 5)) EXPECT_NEAR(read, 0.8, 1e-9);
    EXPECT_EQ(world.guests(), 8u);
    for (const JobState& job : world.states) EXPECT_EQ(job.preemptions, 0u) << "partners stay together";
}

TEST(MaxMinPacked, JobsThatLoseTogetherTakeTurns) {
    PackedWorld world(1, 1);
    world.pair_rates.set(0, 0, 0, {.first = 0.49, .second = 0.49});
    for (int j = 0; j < 16; ++j) world.add_model(0);
    const auto policy = packed_policy();
    for (const double read : world.run_rounds(*policy, 40)) EXPECT_NEAR(read, 0.5, 0.05);
    EXPECT_EQ(world.guests(), 0u);
}

TEST(MaxMinPacked, JobsWithGpusToSpareDoNotShare) {
    PackedWorld world(1, 1);
    world.pair_rates.set(0, 0, 0, {.first = 0.9, .second = 0.9});
    for (int j = 0; j < 8; ++j) world.add_model(0);
    const auto policy = packed_policy();
    for (const double read : world.run_rounds(*policy, 3)) EXPECT_NEAR(read, 1, 1e-9);
}

TEST(MaxMinPacked, JobsOfSeveralGpusDoNotShare) {
    PackedWorld world(1, 1);
    world.pair_rates.set(0, 0, 0, {.first = 1, .second = 1});
    for (int j = 0; j < 8; ++j) world.add_model(0, 2);
    const auto policy = packed_policy();
    for (const double read : world.run_rounds(*policy, 40)) EXPECT_NEAR(read, 0.5, 0.05);
}

TEST(MaxMinPacked, ElasticJobsDoNotShare) {
    PackedWorld world(1, 1);
    world.pair_rates.set(0, 0, 0, {.first = 1, .second = 1});
    for (int j = 0; j < 16; ++j) world.add_model(0).gpus_max = 2;
    const auto policy = packed_policy();
    for (int round = 0; round < 5; ++round) {
        ASSERT_TRUE(world.step(*policy));
        EXPECT_EQ(world.guests(), 0u);
        world.pass(kPackedRoundS);
    }
}

TEST(MaxMinPacked, JobsShareAsTheyDeclareIfTheirMemoryFits) {
    for (const double memory : {0.5, 0.6}) {
        PackedWorld world(1, 1);
        for (int j = 0; j < 16; ++j) {
            JobSpec& spec = world.add(1, kNever);
            spec.packed_rate = 0.7;
            spec.gpu_memory_part = memory;
        }
        const auto policy = packed_policy();
        world.run_rounds(*policy, 3);
        EXPECT_EQ(world.guests(), memory == 0.5 ? 8u : 0u) << memory;
    }
}

// Jobs whose memory differs may be merged into one kind. Each pair must fit all the same.
TEST(MaxMinPacked, MemoryOfEachPairFits) {
    tests::TestRandom random(3);
    PackedWorld world(2, 1);
    for (int j = 0; j < 150; ++j) {
        JobSpec& spec = world.add(1, kNever);
        spec.packed_rate = 0.6 + 0.4 * random.part();
        spec.gpu_memory_part = 0.2 + 0.6 * random.part();
    }
    const auto policy = packed_policy();
    world.run_rounds(*policy, 10);  // expect_places_hold() checks the memory
    EXPECT_GT(world.guests(), 4u);
}

TEST(MaxMinPacked, JobsOfOtherPrioritiesStayApart) {
    PackedWorld world(1, 1);
    world.pair_rates.set(0, 0, 0, {.first = 0.9, .second = 0.9});
    for (int j = 0; j < 16; ++j) world.add_model(0).priority = j % 2;
    const auto policy = packed_policy();
    for (int round = 0; round < 5; ++round) {
        ASSERT_TRUE(world.step(*policy));
        for (const JobState& job : world.states) {
            const JobState& host = job.packed_with == nullptr ? job : *job.packed_with;
            EXPECT_EQ(job.spec->priority, host.spec->priority);
        }
        world.pass(kPackedRoundS);
    }
}

// A job that is alone on its GPU because its partner has ended is joined within the round.
TEST(MaxMinPacked, NewPartnerJoinsWithinTheRound) {
    PackedWorld world(1, 1);
    world.pair_rates.set(0, 0, 0, {.first = 0.9, .second = 0.9});
    for (int j = 0; j < 17; ++j) world.add_model(0);
    const auto policy = packed_policy();
    ASSERT_TRUE(world.step(*policy));
    ASSERT_EQ(world.guests(), 8u);
    world.pass(10);
    const auto guest =
        std::ranges::find_if(world.states, [](const JobState& job) { return job.packed_with != nullptr; });
    world.end(static_cast<std::uint32_t>(guest - world.states.begin()));
    guest->packed_with = nullptr;
    ASSERT_TRUE(world.step(*policy));
    EXPECT_EQ(world.guests(), 8u);
    world.expect_places_hold();
}

struct RandomWorld {
    explicit RandomWorld(std::uint32_t seed) : random(seed), world(1, kModels, {"a", "b"}) {
        for (std::uint32_t type = 0; type < 2; ++type) {
            for (std::uint32_t first = 0; first < kModels; ++first) {
                for (std::uint32_t second = first; second < kModels; ++second) {
                    const double part = 0.4 + 0.6 * random.part();
                    const double other = first == second ? part : 0.4 + 0.6 * random.part();
                    if (random.below(5) > 0)
                        world.pair_rates.set(type, first, second, {.first = part, .second = other});
                }
            }
        }
        const std::uint32_t jobs = 12 + random.below(30);
        std::vector<double> slower;
        for (std::uint32_t model = 0; model < kModels; ++model) slower.push_back(0.2 + random.part());
        for (std::uint32_t j = 0; j < jobs; ++j) {
            const std::uint32_t model = random.below(kModels);
            JobSpec& spec = world.add_model(model, random.below(6) == 0 ? 2 : 1);
            spec.ideal_bytes_per_second[1] *= slower[model];
        }
    }

    static constexpr std::uint32_t kModels = 5;
    tests::TestRandom random;
    PackedWorld world;
};

TEST(MaxMinPacked, SharesKeepToTimeAndRoundsRealizeThem) {
    for (std::uint32_t seed = 0; seed < 10; ++seed) {
        RandomWorld made(seed);
        PackedWorld& world = made.world;
        const auto policy = packed_policy();
        const auto parts = dynamic_cast<Fair&>(*policy).parts(world.snapshot());
        ASSERT_TRUE(parts) << parts.error().message;
        constexpr int kRounds = 150;
        world.run_rounds(*policy, kRounds);
        double missing = 0;
        double all = 0;
        for (std::size_t j = 0; j < world.states.size(); ++j) {
            double sum = 0;
            for (std::size_t type = 0; type < 2; ++type) {
                const double part = (*parts)[2 * j + type];
                const double ran = world.states[j].ran_s_by_type[type] / (kRounds * kPackedRoundS);
                EXPECT_GE(part, 0);
                sum += part;
                missing += std::max(0.0, part - ran);
                all += part;
            }
            EXPECT_LE(sum, 1 + 1e-6) << "seed " << seed << ", job " << j;
        }
        EXPECT_LT(missing, 0.1 * all) << "seed " << seed;
    }
}

// Returns the least rate of all jobs over their rate with an equal share of each type.
double least_rate(std::string_view name, std::uint32_t seed) {
    RandomWorld made(seed);
    const auto policy = std::move(*make_policy(name, {.round_s = kPackedRoundS}));
    const std::vector<double> read = made.world.run_rounds(*policy, 150);
    double least = kNever;
    for (std::size_t j = 0; j < read.size(); ++j) {
        const JobSpec& spec = *made.world.states[j].spec;
        const double equal = (1 + spec.ideal_bytes_per_second[1] / spec.ideal_bytes_per_second[0]) / 2;
        least = std::min(least, read[j] * spec.gpus / equal);
    }
    return least;
}

TEST(MaxMinPacked, LeastRateIsHigherWherePairsGain) {
    double packed = 0;
    double unpacked = 0;
    for (std::uint32_t seed = 0; seed < 8; ++seed) {
        packed += least_rate("max-min-packed", seed);
        unpacked += least_rate("max-min", seed);
    }
    EXPECT_GT(packed, 1.1 * unpacked);
}

}  // namespace
}  // namespace larder::scheduler
