#include "loader/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace larder::detail {
namespace {

// Chi-square of `counts` against equal shares, as standard deviations from its mean.
double deviation(const std::vector<double>& counts, double degrees_of_freedom) {
    double total = 0;
    for (const double count : counts) total += count;
    const double expected = total / static_cast<double>(counts.size());
    double chi_square = 0;
    for (const double count : counts) chi_square += (count - expected) * (count - expected) / expected;
    return (chi_square - degrees_of_freedom) / std::sqrt(2 * degrees_of_freedom);
}

TEST(Permutation, MatchesItsGoldenValues) {
    // Computed by an independent implementation of the specification in the header.
    struct Golden {
        std::uint64_t size, seed, epoch, stream;
        std::uint64_t values[8];
    };
    const Golden golden[] = {
        {10u, 0u, 0u, 0u, {1, 5, 3, 0, 6, 4, 7, 9}},
        {10u, 0u, 1u, 0u, {9, 5, 6, 1, 2, 8, 4, 3}},
        {255u, 1u, 2u, 3u, {251, 43, 38, 216, 189, 114, 66, 234}},
        {256u, 1u, 2u, 3u, {205, 157, 166, 126, 21, 93, 156, 243}},
        {1000u, 42u, 0u, 0u, {296, 634, 729, 348, 391, 109, 668, 960}},
        {1281167u, 42u, 7u, 0u, {427020, 968130, 1220845, 111305, 243146, 278114, 114650, 821473}},
        {10000000019u,
         0xfeedfacecafebeefu,
         1000u,
         5u,
         {5029071754, 4662052137, 4404148479, 7599709506, 5967254657, 5579274448, 7415252451, 8166281582}},
    };
    for (const Golden& g : golden) {
        const Permutation permutation(g.size, g.seed, g.epoch, g.stream);
        for (std::uint64_t i = 0; i < 8; ++i) EXPECT_EQ(permutation(i), g.values[i]) << g.size << " at " << i;
    }
}

TEST(Permutation, IsABijectionAtEverySize) {
    for (std::uint64_t size = 1; size < 600; ++size) {
        for (std::uint64_t seed = 0; seed < 3; ++seed) {
            const Permutation permutation(size, seed, size, 0);
            std::vector<bool> seen(size);
            for (std::uint64_t i = 0; i < size; ++i) {
                const std::uint64_t value = permutation(i);
                ASSERT_LT(value, size);
                ASSERT_FALSE(seen[value]);
                seen[value] = true;
            }
        }
    }
}

TEST(Permutation, IdentityLeavesEverythingInPlace) {
    const Permutation permutation = Permutation::identity(100);
    EXPECT_EQ(permutation.size(), 100u);
    for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(permutation(i), i);
}

TEST(Permutation, EveryValueIsEquallyLikelyAtEveryPosition) {
    for (const std::uint64_t size : {2u, 3u, 5u, 10u, 16u, 31u, 100u, 300u}) {
        std::vector<double> counts(size * size);
        const std::uint64_t epochs = 30 * size + 5000;
        for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
            const Permutation permutation(size, 11, epoch, 0);
            for (std::uint64_t i = 0; i < size; ++i) counts[i * size + permutation(i)] += 1;
        }
        const double freedom = static_cast<double>((size - 1) * (size - 1));
        EXPECT_LT(std::abs(deviation(counts, freedom)), 5.0) << "size " << size;
    }
}

TEST(Permutation, SuccessiveEpochsAndNeighbouringSeedsAreIndependent) {
    constexpr std::uint64_t size = 20;
    std::vector<double> epochs(size * size);
    std::vector<double> seeds(size * size);
    std::vector<double> neighbours(size - 1);
    for (std::uint64_t i = 0; i < 40000; ++i) {
        const Permutation here(size, 3, i, 0);
        epochs[here(4) * size + Permutation(size, 3, i + 1, 0)(4)] += 1;
        seeds[Permutation(size, i, 5, 0)(4) * size + Permutation(size, i + 1, 5, 0)(4)] += 1;
        neighbours[(here(8) + size - here(7)) % size - 1] += 1;
    }
    EXPECT_LT(std::abs(deviation(epochs, size * size - 1)), 5.0);
    EXPECT_LT(std::abs(deviation(seeds, size * size - 1)), 5.0);
    EXPECT_LT(std::abs(deviation(neighbours, size - 2)), 5.0);
}

TEST(Permutation, AnyRangeOfALargePermutationIsSpreadEvenly) {
    constexpr std::uint64_t size = 10'000'019;
    constexpr std::uint64_t cells = 100;
    const Permutation permutation(size, 1, 0, 0);
    for (const std::uint64_t begin : {std::uint64_t{0}, std::uint64_t{5'000'000}, size - 100'000}) {
        std::vector<double> counts(cells);
        for (std::uint64_t i = 0; i < 100'000; ++i) counts[permutation(begin + i) * cells / size] += 1;
        EXPECT_LT(std::abs(deviation(counts, cells - 1)), 5.0) << "from " << begin;
    }
}

}  // namespace
}  // namespace larder::detail
