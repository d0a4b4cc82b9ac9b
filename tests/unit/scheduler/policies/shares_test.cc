#include "scheduler/policies/shares.h"

#include <gmock/gmock.h>

#include "tests/unit/scheduler/policies/dense_program.h"
#include "tests/unit/scheduler/snapshots.h"

namespace larder::scheduler {
namespace {

using testing::DoubleNear;

ShareProblem random_problem(tests::TestRandom& random, std::size_t types, std::size_t groups) {
    ShareProblem problem;
    for (std::size_t type = 0; type < types; ++type) problem.gpus_by_type.push_back(1 + random.below(16));
    for (std::size_t g = 0; g < groups; ++g) {
        ShareGroup group{.jobs = 1 + random.below(4), .gpus = 1.0 + random.below(4)};
        group.need = 0.1 + random.part();
        for (std::size_t type = 0; type < types; ++type) {
            group.rates.push_back(random.below(4) == 0 && type > 0 ? 0 : 100 * (0.1 + random.part()));
        }
        problem.groups.push_back(group);
    }
    return problem;
}

// Adds pairs of the groups of one GPU. Together the two jobs do from less to more than one job alone.
void add_random_pairs(tests::TestRandom& random, ShareProblem& problem) {
    for (ShareGroup& group : problem.groups) group.gpus = random.below(4) == 0 ? 2 : 1;
    for (std::uint32_t a = 0; a < problem.groups.size(); ++a) {
        for (std::uint32_t b = a; b < problem.groups.size(); ++b) {
            const ShareGroup& first = problem.groups[a];
            const ShareGroup& second = problem.groups[b];
            if (first.gpus > 1 || second.gpus > 1 || (a == b && first.jobs == 1)) continue;
            for (std::uint32_t type = 0; type < problem.gpus_by_type.size(); ++type) {
                if (first.rates[type] <= 0 || second.rates[type] <= 0 || random.below(3) == 0) continue;
                const double part = 0.3 + 0.7 * random.part();
                problem.pairs.push_back(
                    {.first = a,
                     .second = b,
                     .type = type,
                     .first_rate = first.rates[type] * part,
                     .second_rate = second.rates[type] * (a == b ? part : 0.3 + 0.7 * random.part())});
            }
        }
    }
}

// Expects that no job or GPU is busy for more than all the time, and that every group reaches the level.
void expect_valid(const ShareProblem& problem, const Shares& shares, const char* label) {
    std::vector<double> used(problem.gpus_by_type.size());
    for (std::size_t g = 0; g < problem.groups.size(); ++g) {
        const ShareGroup& group = problem.groups[g];
        double time = 0;
        for (std::size_t type = 0; type < used.size(); ++type) {
            const double part = shares.part(g, type);
            EXPECT_GE(part, 0) << label;
            EXPECT_TRUE(part == 0 || group.rates[type] > 0) << label;
            time += part;
            used[type] += part * group.jobs * group.gpus;
        }
        for (std::size_t i = 0; i < problem.pairs.size(); ++i) {
            time += problem.pairs[i].jobs_of(g) * shares.pair_gpus[i] / group.jobs;
        }
        EXPECT_LE(time, 1 + 1e-6) << label;
        EXPECT_GE(rate_of(problem, shares, g), (group.floor + shares.level * group.need) * (1 - 1e-6) - 1e-6) << label;
    }
    for (std::size_t i = 0; i < problem.pairs.size(); ++i) {
        EXPECT_GE(shares.pair_gpus[i], 0) << label;
        used[problem.pairs[i].type] += shares.pair_gpus[i];
    }
    for (std::size_t type = 0; type < used.size(); ++type) {
        EXPECT_LE(used[type], problem.gpus_by_type[type] * (1 + 1e-6)) << label;
    }
}

double level_by_textbook_simplex(const ShareProblem& problem) {
    const std::size_t types = problem.gpus_by_type.size();
    const std::size_t first_pair = problem.groups.size() * types;
    const std::size_t columns = first_pair + problem.pairs.size() + 1;  // the columns of pairs count GPUs
    std::vector<std::vector<double>> rows;
    std::vector<double> bounds;
    for (std::size_t type = 0; type < types; ++type) {
        std::vector<double> row(columns);
        for (std::size_t g = 0; g < problem.groups.size(); ++g) {
            row[g * types + type] = problem.groups[g].jobs * problem.groups[g].gpus;
        }
        for (std::size_t i = 0; i < problem.pairs.size(); ++i) row[first_pair + i] = problem.pairs[i].type == type;
        rows.push_back(row);
        bounds.push_back(problem.gpus_by_type[type]);
    }
    for (std::size_t g = 0; g < problem.groups.size(); ++g) {
        std::vector<double> time(columns), rate(columns);
        for (std::size_t type = 0; type < types; ++type) {
            time[g * types + type] = 1;
            rate[g * types + type] = -problem.groups[g].rates[type];
        }
        for (std::size_t i = 0; i < problem.pairs.size(); ++i) {
            time[first_pair + i] = problem.pairs[i].jobs_of(g) / problem.groups[g].jobs;
            rate[first_pair + i] = -problem.pairs[i].rate_of(g) / problem.groups[g].jobs;
        }
        rate[columns - 1] = problem.groups[g].need;
        rows.push_back(time);
        bounds.push_back(1);
        rows.push_back(rate);
        bounds.push_back(0);
    }
    std::vector<double> objective(columns);
    objective[columns - 1] = 1;
    return tests::largest_value(objective, rows, bounds);
}

TEST(Shares, ProgramReachesLevelOfTextbookSimplex) {
    ShareProgram warm;
    for (std::uint32_t seed = 0; seed < 300; ++seed) {
        tests::TestRandom random(seed);
        const std::size_t types = 1 + random.below(3);
        const ShareProblem problem = random_problem(random, types, 1 + random.below(7));
        const double best = level_by_textbook_simplex(problem);
        ShareProgram cold;
        const auto solved = cold.solve(problem);
        ASSERT_TRUE(solved) << solved.error().message;
        EXPECT_NEAR(solved->level, best, 1e-6 * best) << "seed " << seed;
        expect_valid(problem, *solved, "cold");
        const auto again = warm.solve(problem);
        ASSERT_TRUE(again) << again.error().message;
        EXPECT_NEAR(again->level, best, 1e-6 * best) << "seed " << seed;
        expect_valid(problem, *again, "warm");
    }
}

TEST(Shares, ProgramWithPairsReachesLevelOfTextbookSimplex) {
    ShareProgram warm;
    int gained = 0;
    for (std::uint32_t seed = 0; seed < 200; ++seed) {
        tests::TestRandom random(seed);
        const std::size_t types = 1 + random.below(3);
        ShareProblem problem = random_problem(random, types, 1 + random.below(5));
        for (double& gpus : problem.gpus_by_type) gpus = 1 + random.below(3);  // few, so that sharing gains
        add_random_pairs(random, problem);
        ShareProblem unpacked = problem;
        unpacked.pairs.clear();
        const double best = level_by_textbook_simplex(problem);
        ShareProgram cold;
        const auto solved = cold.solve(problem);
        ASSERT_TRUE(solved) << solved.error().message;
        EXPECT_NEAR(solved->level, best, 1e-6 * best) << "seed " << seed;
        expect_valid(problem, *solved, "cold");
        const auto again = warm.solve(problem);
        ASSERT_TRUE(again) << again.error().message;
        EXPECT_NEAR(again->level, best, 1e-6 * best) << "seed " << seed;
        expect_valid(problem, *again, "warm");
        if (best > 1.01 * level_by_textbook_simplex(unpacked)) ++gained;
    }
    EXPECT_GT(gained, 40);
}

TEST(Shares, JobsThatGainTogetherShareGpus) {
    const ShareProblem problem{.gpus_by_type = {1},
                               .groups = {{.jobs = 2, .rates = {10}, .need = 10}},
                               .pairs = {{.first = 0, .second = 0, .type = 0, .first_rate = 8, .second_rate = 8}}};
    ShareProgram program;
    const auto shares = program.solve(problem);
    ASSERT_TRUE(shares);
    EXPECT_THAT(shares->level, DoubleNear(0.8, 1e-6));
    EXPECT_THAT(shares->pair_gpus[0], DoubleNear(1, 1e-6));
    EXPECT_THAT(shares->part(0, 0), DoubleNear(0, 1e-6));
}

TEST(Shares, ClosedFormReachesProgramLevel) {
    for (std::uint32_t seed = 0; seed < 300; ++seed) {
        tests::TestRandom random(seed);
        const ShareProblem problem = random_problem(random, 1, 1 + random.below(20));
        const Shares closed = closed_form_shares(problem);
        expect_valid(problem, closed, "closed form");
        ShareProgram program;
        const auto solved = program.solve(problem);
        ASSERT_TRUE(solved) << solved.error().message;
        EXPECT_NEAR(closed.level, solved->level, 1e-6 * solved->level) << "seed " << seed;
        double used = 0;
        double wanted = 0;
        for (std::size_t g = 0; g < problem.groups.size(); ++g) {
            used += closed.part(g, 0) * problem.groups[g].jobs * problem.groups[g].gpus;
            wanted += problem.groups[g].jobs * problem.groups[g].gpus;
        }
        EXPECT_NEAR(used, std::min(wanted, problem.gpus_by_type[0]), 1e-6 * used) << "seed " << seed;
    }
}

// The opening example of Gavel's paper: types matter more to some jobs than to others, so the jobs that gain most get
// the fast type.
TEST(Shares, JobsThatGainMostGetFastType) {
    const ShareProblem problem{
        .gpus_by_type = {1, 1},
        .groups = {{.jobs = 2, .rates = {4, 1}, .need = 2.5}, {.jobs = 2, .rates = {1.2, 1}, .need = 1.1}}};
    ShareProgram program;
    const auto shares = program.solve(problem);
    ASSERT_TRUE(shares);
    EXPECT_THAT(shares->part(0, 1), DoubleNear(0, 1e-6));
    EXPECT_THAT(shares->level, DoubleNear(2.2 / 3.7, 1e-6));  // sharing both types equally reaches only level 0.5
}

TEST(Shares, BindingGroupIsNamed) {
    // The first group cannot get above level 1. The second group could.
    const ShareProblem problem{.gpus_by_type = {4, 1},
                               .groups = {{.rates = {1, 0}, .need = 1}, {.rates = {1, 2}, .need = 0.5}}};
    ShareProgram program;
    const auto shares = program.solve(problem);
    ASSERT_TRUE(shares);
    EXPECT_THAT(shares->level, DoubleNear(1, 1e-6));
    EXPECT_TRUE(shares->binding[0]);
    EXPECT_FALSE(shares->binding[1]);
    EXPECT_THAT(shares->part(1, 1), DoubleNear(1, 1e-6));  // the second group uses the faster type all the time
}

}  // namespace
}  // namespace larder::scheduler
