#include <gmock/gmock.h>

#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double kChronusLeaseS = 100;

std::unique_ptr<Policy> lease_policy(std::string_view name, bool exact = false) {
    return std::move(*make_policy(name, {.lease_s = kChronusLeaseS, .exact = exact}));
}

JobSpec& add(tests::World& world, std::uint32_t gpus, double seconds, ServiceClass service, double deadline_s) {
    JobSpec& spec = world.add(gpus, tests::work_bytes(gpus, seconds));
    spec.service = service;
    spec.deadline_s = deadline_s;
    return spec;
}

// Runs until all jobs have ended or until `until_s`. Returns the end of each job.
std::vector<double> run(tests::World& world, Policy& policy, double until_s = 1e6) {
    std::vector<double> ends(world.states.size(), kNever);
    while (!world.jobs.empty() && world.now_s < until_s) {
        const auto actions = world.step(policy);
        EXPECT_TRUE(actions) << actions.error().message;
        const double next_s = std::min({world.next_end_s(), actions->next_s, until_s});
        if (next_s == kNever) break;
        world.pass(next_s - world.now_s);
        world.end_finished();
        for (std::size_t j = 0; j < ends.size(); ++j) {
            const bool is_present = std::ranges::find(world.jobs, &world.states[j]) != world.jobs.end();
            if (!is_present && ends[j] == kNever) ends[j] = world.now_s;
        }
    }
    return ends;
}

TEST(Edf, EarliestDeadlineGoesFirst) {
    tests::World world(1);
    world.add(8);
    add(world, 8, 100, ServiceClass::soft_deadline, 2000);
    add(world, 8, 100, ServiceClass::strict_deadline, 1000);
    const auto edf = lease_policy("edf");
    ASSERT_TRUE(world.step(*edf));
    EXPECT_THAT(world.running(), ElementsAre(2));
    world.end(2);
    ASSERT_TRUE(world.step(*edf));
    EXPECT_THAT(world.running(), ElementsAre(1));
}

TEST(Chronus, StrictJobThatWouldBeLateIsRefusedWithItsEarliestEnd) {
    tests::World world(1);
    add(world, 8, 500, ServiceClass::strict_deadline, 600);
    add(world, 8, 200, ServiceClass::strict_deadline, 550);
    const auto chronus = lease_policy("chronus");
    const auto actions = world.step(*chronus);
    ASSERT_TRUE(actions);
    EXPECT_THAT(world.running(), ElementsAre(0));
    EXPECT_THAT(actions->admitted, ElementsAre(0));
    ASSERT_EQ(actions->refused.size(), 1);
    EXPECT_EQ(actions->refused[0].job, 1);
    EXPECT_EQ(actions->refused[0].end_s, 700);
    EXPECT_EQ(world.waits[1], WaitsFor::deadline);
}

// The expected end may be wrong, so a job that seems late already runs while no other job wants its GPUs.
TEST(Chronus, StrictJobThatSeemsLateRunsOnSpareGpusUntilOthersCome) {
    tests::World world(1);
    add(world, 8, 500, ServiceClass::strict_deadline, 400);
    const auto chronus = lease_policy("chronus");
    auto actions = world.step(*chronus);
    ASSERT_TRUE(actions);
    EXPECT_THAT(world.running(), ElementsAre(0));
    EXPECT_THAT(actions->admitted, IsEmpty());
    EXPECT_THAT(actions->refused, IsEmpty());
    world.pass(30);
    world.add(1, tests::work_bytes(1, 1000));
    actions = world.step(*chronus);
    ASSERT_TRUE(actions);
    EXPECT_THAT(world.running(), ElementsAre(1));
    actions = world.step(*chronus);
    ASSERT_TRUE(actions);
    EXPECT_EQ(actions->refused.size(), 1);
    EXPECT_EQ(world.waits[0], WaitsFor::deadline);
}

TEST(Chronus, StrictJobThatSeemsLateIsRefusedAfterItsDeadlineOrIfItCannotBeStopped) {
    for (const bool preemptible : {true, false}) {
        tests::World world(1);
        add(world, 8, 500, ServiceClass::strict_deadline, 400).preemptible = preemptible;
        if (preemptible) world.pass(400);
        const auto chronus = lease_policy("chronus");
        const auto actions = world.step(*chronus);
        ASSERT_TRUE(actions);
        EXPECT_THAT(world.running(), IsEmpty());
        EXPECT_EQ(actions->refused.size(), 1);
    }
}

TEST(Chronus, PromiseHoldsAgainstLaterTighterDeadline) {
    tests::World world(1);
    add(world, 8, 300, ServiceClass::strict_deadline, 350);
    const auto chronus = lease_policy("chronus");
    ASSERT_TRUE(world.step(*chronus));
    world.pass(50);
    add(world, 8, 100, ServiceClass::strict_deadline, 200);
    const auto actions = world.step(*chronus);
    ASSERT_TRUE(actions);
    EXPECT_EQ(actions->refused.size(), 1);
    // The first job's slack allows one more job before it, if that job is no longer than the slack.
    world.end(1);
    add(world, 8, 40, ServiceClass::strict_deadline, 150);
    const auto ends = run(world, *chronus, 600);
    EXPECT_LE(ends[0], 350);
}

TEST(Chronus, PromisedJobMayWaitForItsLeases) {
    tests::World world(1);
    add(world, 8, 300, ServiceClass::strict_deadline, 2000);
    add(world, 8, 100, ServiceClass::strict_deadline, 150);
    const auto chronus = lease_policy("chronus");
    const auto actions = world.step(*chronus);
    ASSERT_TRUE(actions);
    EXPECT_THAT(world.running(), ElementsAre(1));
    EXPECT_EQ(world.states[0].admitted_s, 0);
    EXPECT_THAT(actions->refused, IsEmpty());
}

TEST(Chronus, BestEffortFillsGapsAndYieldsAtOnce) {
    tests::World world(1);
    world.add(8, tests::work_bytes(8, 1000));
    const auto chronus = lease_policy("chronus");
    ASSERT_TRUE(world.step(*chronus));
    world.pass(30);
    add(world, 6, 200, ServiceClass::strict_deadline, 400);
    world.add(2, tests::work_bytes(2, 50));
    const auto actions = world.step(*chronus);
    ASSERT_TRUE(actions);
    EXPECT_THAT(world.running(), ElementsAre(1, 2));
    EXPECT_EQ(actions->next_s, 100);
    EXPECT_EQ(world.states[1].admitted_s, 30);
}

TEST(Chronus, JobsWithoutPromiseGoShortestFirst) {
    tests::World world(1);
    world.add(8, tests::work_bytes(8, 10));
    add(world, 8, 500, ServiceClass::soft_deadline, 300);
    const auto chronus = lease_policy("chronus");
    const auto actions = world.step(*chronus);
    ASSERT_TRUE(actions);
    EXPECT_THAT(world.running(), ElementsAre(0));
    EXPECT_THAT(actions->admitted, IsEmpty());
    EXPECT_THAT(actions->refused, IsEmpty());
}

// A soft deadline is no promise, so it gives way to a strict one that comes later.
TEST(Chronus, SoftDeadlineGivesWayToLaterStrictOne) {
    tests::World world(1);
    add(world, 8, 300, ServiceClass::soft_deadline, 350);
    const auto chronus = lease_policy("chronus");
    ASSERT_TRUE(world.step(*chronus));
    EXPECT_THAT(world.running(), ElementsAre(0));
    world.pass(50);
    add(world, 8, 100, ServiceClass::strict_deadline, 200);
    const auto actions = world.step(*chronus);
    ASSERT_TRUE(actions);
    EXPECT_THAT(actions->admitted, ElementsAre(1));
    EXPECT_LE(run(world, *chronus)[1], 200);
}

TEST(Chronus, ShortJobRunsBeforeAPromisedJobWithTimeToSpare) {
    tests::World world(1);
    add(world, 8, 300, ServiceClass::strict_deadline, 2000);
    world.add(8, tests::work_bytes(8, 150));
    const auto chronus = lease_policy("chronus");
    const auto ends = run(world, *chronus);
    EXPECT_EQ(ends[1], 150);
    EXPECT_LE(ends[0], 2000);
}

// A job that is stopped may start again on more nodes.
TEST(Chronus, PromiseDoesNotRestOnAPlaceOnFewNodes) {
    tests::World world(2);
    add(world, 2, 100, ServiceClass::strict_deadline, 150).rate_by_nodes = {1, 0.5};
    add(world, 2, 100, ServiceClass::strict_deadline, 250).rate_by_nodes = {1, 0.5};
    const auto chronus = lease_policy("chronus");
    const auto actions = world.step(*chronus);
    ASSERT_TRUE(actions);
    EXPECT_THAT(actions->admitted, ElementsAre(1));
    EXPECT_THAT(world.running(), ElementsAre(0, 1));
}

TEST(Chronus, SoftJobOfHigherValueGoesFirst) {
    tests::World world(1);
    add(world, 8, 220, ServiceClass::soft_deadline, 250).values = {{.until_s = 250, .value = 2}};
    add(world, 8, 200, ServiceClass::soft_deadline, 250).values = {{.until_s = 250, .value = 10}};
    const auto chronus = lease_policy("chronus");
    const auto ends = run(world, *chronus);
    EXPECT_EQ(ends[1], 200);
}

// The first time of the job is out of reach. Short jobs without a deadline must not cost it the next one as well.
TEST(Chronus, SoftJobKeepsItsNextValueAfterItsDeadline) {
    tests::World world(1);
    add(world, 8, 200, ServiceClass::soft_deadline, 100).values = {{.until_s = 100, .value = 10},
                                                                   {.until_s = 400, .value = 5}};
    for (int j = 0; j < 4; ++j) world.add(8, tests::work_bytes(8, 90));
    const auto chronus = lease_policy("chronus");
    EXPECT_LE(run(world, *chronus)[0], 400);
}

// Notes the present time as the end of each job that has left the world since the last call.
void note_ends(const tests::World& world, std::vector<double>& ends) {
    for (std::size_t j = 0; j < ends.size(); ++j) {
        const bool is_present = std::ranges::find(world.jobs, &world.states[j]) != world.jobs.end();
        if (!is_present && ends[j] == kNever) ends[j] = world.now_s;
    }
}

struct Played {
    std::size_t strict_missed = 0;
    double value = 0;
};

// Plays arrivals like those of Chronus's trace: 60% soft, 30% strict, 10% best effort.
Played play_mixed_trace(std::string_view name, std::uint32_t jobs, std::uint32_t between_s) {
    Played played;
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
        tests::TestRandom random(seed);
        tests::World world(2);
        const auto policy = lease_policy(name);
        std::vector<double> ends;
        double arrives_s = 0;
        for (std::uint32_t left = jobs; left > 0 || !world.jobs.empty();) {
            while (left > 0 && arrives_s <= world.now_s) {
                --left;
                const double seconds = 200 + random.below(10) * random.below(400);
                const std::uint32_t kind = random.below(10);
                JobSpec& spec = world.add(1U << random.below(4), 1);
                spec.total_bytes = tests::work_bytes(spec.gpus, seconds);
                world.states.back().remaining_bytes = spec.total_bytes;
                ends.push_back(kNever);
                arrives_s += random.below(2 * between_s);
                if (kind == 9) continue;
                spec.service = kind < 6 ? ServiceClass::soft_deadline : ServiceClass::strict_deadline;
                double until_s = world.now_s + (1.1 + 0.9 * random.part()) * seconds + random.below(600);
                spec.deadline_s = until_s;
                for (const double value : {10, 8, 5, 2}) {
                    spec.values.push_back({.until_s = until_s, .value = value});
                    until_s += std::max(200.0, 0.2 * seconds);
                    if (kind >= 6) break;
                }
            }
            const auto actions = world.step(*policy);
            EXPECT_TRUE(actions) << actions.error().message;
            if (!actions) return played;
            for (const Refused& refused : actions->refused) {
                JobState& state = *world.present[refused.job];
                if (!state.running && state.spec->deadline_s <= world.now_s) state.remaining_bytes = 0;  // expired
            }
            const double next_s =
                std::min({world.next_end_s(), actions->next_s, left > 0 ? arrives_s : kNever, world.now_s + 500});
            world.pass(std::max(0.0, next_s - world.now_s));
            world.end_finished();
            note_ends(world, ends);
        }
        for (std::size_t j = 0; j < ends.size(); ++j) {
            const JobSpec& spec = world.specs[j];
            if (spec.values.empty()) continue;
            played.value += value_of_end(spec, ends[j] - 1e-3);
            const bool missed = ends[j] > spec.deadline_s + 1e-3;
            played.strict_missed += missed && spec.service == ServiceClass::strict_deadline ? 1 : 0;
            EXPECT_FALSE(missed && world.states[j].admitted_s != kNever) << "seed " << seed << ", job " << j;
        }
    }
    return played;
}

TEST(Chronus, MissesNoMoreThanOthersOnMixedTraces) {
    for (const std::uint32_t between_s : {1100U, 700U, 500U}) {  // from a light load to an overload
        const Played chronus = play_mixed_trace("chronus", 60, between_s);
        for (const std::string_view name : {"edf", "srtf", "las", "fifo"}) {
            const Played other = play_mixed_trace(name, 60, between_s);
            EXPECT_LE(chronus.strict_missed, other.strict_missed) << name << ", " << between_s << " s";
            EXPECT_GE(chronus.value, other.value) << name << ", " << between_s << " s";
        }
    }
}

// A lease is 100 s. A promised job with time to spare must not hold up a short job that has none.
TEST(Chronus, ShortJobInterruptsALeaseThatHasTimeToSpare) {
    tests::World world(1);
    add(world, 8, 150, ServiceClass::strict_deadline, 900);
    const auto chronus = lease_policy("chronus");
    ASSERT_TRUE(world.step(*chronus));
    world.pass(10);
    add(world, 8, 20, ServiceClass::strict_deadline, 45);
    const auto actions = world.step(*chronus);
    ASSERT_TRUE(actions);
    EXPECT_THAT(actions->admitted, ElementsAre(1));
    EXPECT_THAT(world.running(), ElementsAre(1));
    const auto ends = run(world, *chronus);
    EXPECT_LE(ends[0], 900);
    EXPECT_LE(ends[1], 45);
}

TEST(Chronus, StrictJobWithoutPromiseIsRefusedWhileNoGpuIsLeft) {
    tests::World world(1);
    add(world, 8, 150, ServiceClass::strict_deadline, 160);
    add(world, 8, 50, ServiceClass::strict_deadline, 90);
    const auto chronus = lease_policy("chronus");
    const auto actions = world.step(*chronus);
    ASSERT_TRUE(actions);
    EXPECT_EQ(actions->admitted.size(), 1U);
    EXPECT_EQ(actions->refused.size(), 1U);
}

TEST(Chronus, NonPreemptibleJobDelaysNoPromise) {
    tests::World world(1);
    add(world, 4, 150, ServiceClass::strict_deadline, 210).gpus = 4;
    add(world, 8, 100, ServiceClass::strict_deadline, 350);
    world.add(4, tests::work_bytes(4, 1000)).preemptible = false;
    world.add(4, tests::work_bytes(4, 100)).preemptible = false;
    const auto chronus = lease_policy("chronus");
    ASSERT_TRUE(world.step(*chronus));
    EXPECT_THAT(world.running(), ElementsAre(0, 3));
    const auto ends = run(world, *chronus);
    EXPECT_LE(ends[1], 350);
}

// As long as rates hold, no promised job is late.
TEST(Chronus, EveryPromiseIsKept) {
    for (const bool exact : {false, true}) {
        std::size_t promised = 0;
        for (std::uint32_t seed = 0; seed < (exact ? 15 : 200); ++seed) {
            tests::TestRandom random(seed);
            tests::World world(1, {"a", "b"});
            for (int j = 0; j < 9; ++j) {
                const double seconds = 50 + random.below(600);
                JobSpec& spec = add(world, 1U << random.below(4), seconds, static_cast<ServiceClass>(random.below(3)),
                                    seconds + random.below(1500));
                spec.ideal_bytes_per_second[1] *= 0.5;
                if (random.below(3) == 0) spec.restart_s = 20;
                if (random.below(6) == 0) spec.preemptible = false;
            }
            const auto chronus = lease_policy("chronus", exact);
            const auto ends = run(world, *chronus, 4000);
            for (std::size_t j = 0; j < ends.size(); ++j) {
                if (world.states[j].admitted_s == kNever) continue;
                ++promised;
                EXPECT_LE(ends[j], world.specs[j].deadline_s + 1e-3)
                    << (exact ? "exact, seed " : "seed ") << seed << ", job " << j;
            }
        }
        EXPECT_GT(promised, 40);
    }
}

// As above, while jobs arrive and end. Some gangs fit together only in one order.
TEST(Chronus, EveryPromiseIsKeptWhateverArrivesLater) {
    std::size_t promised = 0;
    for (std::uint32_t seed = 0; seed < 1000; ++seed) {
        tests::TestRandom random(seed);
        tests::World world(1, {"a", "b"});
        const auto chronus = lease_policy("chronus");
        std::vector<double> ends;
        double arrives_s = 0;
        for (std::uint32_t left = 14; left > 0 || (!world.jobs.empty() && world.now_s < 6000);) {
            while (left > 0 && arrives_s <= world.now_s) {
                --left;
                const double seconds = 30 + random.below(500);
                JobSpec& spec = add(world, 1 + random.below(8), seconds, static_cast<ServiceClass>(random.below(3)),
                                    world.now_s + seconds + random.below(1200));
                spec.ideal_bytes_per_second[1] *= 0.5;
                if (random.below(3) == 0) spec.restart_s = 25;
                if (random.below(6) == 0) spec.preemptible = false;
                arrives_s += random.below(150);
                ends.push_back(kNever);
            }
            const auto actions = world.step(*chronus);
            ASSERT_TRUE(actions) << actions.error().message;
            const double next_s =
                std::min({world.next_end_s(), actions->next_s, left > 0 ? arrives_s : kNever, world.now_s + 1000});
            world.pass(std::max(0.0, next_s - world.now_s));
            world.end_finished();
            note_ends(world, ends);
        }
        for (std::size_t j = 0; j < ends.size(); ++j) {
            if (world.states[j].admitted_s == kNever) continue;
            ++promised;
            EXPECT_LE(ends[j], world.specs[j].deadline_s + 1e-3) << "seed " << seed << ", job " << j;
        }
    }
    EXPECT_GT(promised, 1000);
}

// A long job with slack waits for a short one, whichever came first, so the short job is not refused.
TEST(Chronus, LongJobWithSlackYieldsToShortJob) {
    tests::World world(1);
    add(world, 8, 1000, ServiceClass::strict_deadline, 5000);
    const auto chronus = lease_policy("chronus");
    ASSERT_TRUE(world.step(*chronus));
    world.pass(50);
    add(world, 8, 100, ServiceClass::strict_deadline, 250);
    const auto actions = world.step(*chronus);
    ASSERT_TRUE(actions);
    EXPECT_THAT(actions->admitted, ElementsAre(1));
    const auto ends = run(world, *chronus);
    EXPECT_LE(ends[1], 250);
    EXPECT_LE(ends[0], 5000);
}

// Under overload, admitting only jobs that can be on time misses fewer deadlines than running the earliest deadline
// first.
TEST(Chronus, MissesFewerDeadlinesThanItsBaselines) {
    const auto misses = [](std::string_view name) {
        std::size_t missed = 0;
        for (std::uint32_t seed = 0; seed < 30; ++seed) {
            tests::TestRandom random(seed);
            tests::World world(1);
            for (int j = 0; j < 12; ++j) {
                const double seconds = 100 + random.below(400);
                add(world, 4 + 4 * random.below(2), seconds, ServiceClass::strict_deadline,
                    seconds + random.below(1000));
            }
            const auto policy = lease_policy(name);
            const auto ends = run(world, *policy, 8000);
            for (std::size_t j = 0; j < ends.size(); ++j) missed += ends[j] > world.specs[j].deadline_s + 1e-3 ? 1 : 0;
        }
        return missed;
    };
    const std::size_t by_chronus = misses("chronus");
    EXPECT_LT(by_chronus, misses("edf"));
    EXPECT_LT(by_chronus, misses("fifo"));
}

// The rate that storage allows decides whether a job's deadline can be promised.
TEST(Chronus, SlowStorageRefusesDeadline) {
    for (const bool aware : {true, false}) {
        tests::World world(1);
        world.storage = {.cache_bytes = 0, .remote_bytes_per_second = 4e8};
        world.datasets = {{.name = "remote", .size_bytes = 1e12, .cached_bytes = 0}};
        add(world, 8, 500, ServiceClass::strict_deadline, 800).dataset = 0;  // at half its rate: 1,000 s
        world.storage_aware = aware;
        const auto chronus = lease_policy("chronus");
        const auto actions = world.step(*chronus);
        ASSERT_TRUE(actions);
        EXPECT_EQ(actions->admitted.size(), aware ? 0U : 1U);
    }
}

// Searches all ways to give jobs leases. Returns the highest count of admitted jobs; strict jobs count twice.
double highest_value_by_search(const std::vector<JobSpec*>& specs, std::uint32_t leases, std::uint32_t gpus) {
    double most = 0;
    std::vector<std::uint32_t> used(leases);
    const auto search = [&](const auto& self, std::size_t j, double value) -> void {
        most = std::max(most, value);
        if (j == specs.size()) return;
        self(self, j + 1, value);
        const JobSpec& spec = *specs[j];
        const auto seconds = spec.total_bytes / spec.ideal_bytes_per_second[0];
        for (std::uint32_t mask = 1; mask < 1U << leases; ++mask) {
            double done = 0;
            bool fits = true;
            for (std::uint32_t lease = 0; lease < leases; ++lease) {
                if ((mask >> lease & 1) == 0) continue;
                done += std::clamp(spec.deadline_s - kChronusLeaseS * lease, 0.0, kChronusLeaseS);
                fits = fits && used[lease] + spec.gpus <= gpus;
            }
            if (!fits || done < seconds - 1e-6) continue;
            for (std::uint32_t lease = 0; lease < leases; ++lease) used[lease] += (mask >> lease & 1) * spec.gpus;
            self(self, j + 1, value + (spec.service == ServiceClass::strict_deadline ? 2 : 1));
            for (std::uint32_t lease = 0; lease < leases; ++lease) used[lease] -= (mask >> lease & 1) * spec.gpus;
        }
    };
    search(search, 0, 0);
    return most;
}

TEST(Chronus, ExactAdmissionAdmitsAsManyAsPossible) {
    int exact_is_better = 0;
    for (std::uint32_t seed = 0; seed < 60; ++seed) {
        double value_by_slack = 0;
        for (const bool exact : {false, true}) {
            tests::TestRandom random(seed);
            tests::World world(1);
            std::vector<JobSpec*> specs;
            for (int j = 0; j < 5; ++j) {
                const double leases = 1 + random.below(3);
                specs.push_back(&add(world, 2 + random.below(6), leases * kChronusLeaseS - random.below(60),
                                     static_cast<ServiceClass>(1 + random.below(2)),
                                     kChronusLeaseS * std::min(4.0, leases + random.below(3))));
            }
            const auto chronus = lease_policy("chronus", exact);
            const auto actions = world.step(*chronus);
            ASSERT_TRUE(actions);
            double value = 0;
            for (const std::uint32_t j : actions->admitted) {
                value += specs[j]->service == ServiceClass::strict_deadline ? 2 : 1;
            }
            const double most = highest_value_by_search(specs, 4, 8);
            if (exact) {
                EXPECT_EQ(value, most) << "seed " << seed;
                exact_is_better += value > value_by_slack ? 1 : 0;
            } else {
                EXPECT_LE(value, most) << "seed " << seed;
                value_by_slack = value;
            }
        }
    }
    EXPECT_GT(exact_is_better, 0);
}

}  // namespace
}  // namespace larder::scheduler
