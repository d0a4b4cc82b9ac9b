#include "loader/bit_coder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "tests/support/property_cases.h"

namespace larder::detail {
namespace {

std::uint64_t words_of(std::uint64_t bit_count) {
    return (bit_count + 63) / 64;
}

// A bitmap with `ones` random bits set.
std::vector<std::uint64_t> random_bits(std::mt19937_64& random, std::uint64_t bit_count, std::uint64_t ones) {
    std::vector<std::uint64_t> words(words_of(bit_count));
    std::uint64_t left = ones;
    for (std::uint64_t i = 0; i < bit_count; ++i) {
        if (random() % (bit_count - i) >= left) continue;
        words[i / 64] |= std::uint64_t{1} << (i % 64);
        --left;
    }
    return words;
}

// The bytes that tell such a set from all others of its size: the logarithm of "bit_count choose ones".
double entropy_bytes(std::uint64_t bit_count, std::uint64_t ones) {
    const auto log_factorial = [](std::uint64_t n) { return std::lgamma(static_cast<double>(n) + 1); };
    return (log_factorial(bit_count) - log_factorial(ones) - log_factorial(bit_count - ones)) / std::log(2.0) / 8;
}

TEST(BitCoder, DecodesWhatWasCodedInCloseToTheFewestBytes) {
    std::mt19937_64 random(1);
    std::vector<std::uint64_t> sizes = {0, 1, 2, 63, 64, 65, 1000, 65'536, 1'000'003};
    for (int i = 0; i < 100; ++i) sizes.push_back(random() % 5000);
    for (const std::uint64_t size : sizes) {
        for (const std::uint64_t wanted : {std::uint64_t{0}, std::uint64_t{1}, size / 1000, size / 10, size / 2,
                                           size - size / 100, size - std::min<std::uint64_t>(size, 1), size}) {
            const std::uint64_t ones = std::min(wanted, size);
            const auto bits = random_bits(random, size, ones);
            const auto coded = code_bits(bits, size, ones);
            ASSERT_EQ(decode_bits(coded, size, ones), bits) << ones << " of " << size;
            ASSERT_LE(static_cast<double>(coded.size()), 1.02 * entropy_bytes(size, ones) + 1024)
                << ones << " of " << size;
            EXPECT_TRUE((ones > 0 && ones < size) || coded.empty());
        }
    }
}

TEST(BitCoder, HalfOfAMillionTakes122KiB) {
    std::mt19937_64 random(2);
    const auto bits = random_bits(random, 1'000'000, 500'000);
    EXPECT_NEAR(static_cast<double>(code_bits(bits, 1'000'000, 500'000).size()) / 1024, 122, 1);
}

// Sets that come in runs take as long as any others, and carries go through bytes of ones.
TEST(BitCoder, DecodesSetsWithLongRuns) {
    for (const std::uint64_t size : {100u, 4096u, 100'001u}) {
        for (std::uint64_t ones = 1; ones < size; ones += 1 + size / 7) {
            std::vector<std::uint64_t> first(words_of(size));
            std::vector<std::uint64_t> last(words_of(size));
            for (std::uint64_t i = 0; i < ones; ++i) {
                const std::uint64_t from_end = size - 1 - i;
                first[i / 64] |= std::uint64_t{1} << (i % 64);
                last[from_end / 64] |= std::uint64_t{1} << (from_end % 64);
            }
            EXPECT_EQ(decode_bits(code_bits(first, size, ones), size, ones), first);
            EXPECT_EQ(decode_bits(code_bits(last, size, ones), size, ones), last);
        }
    }
}

TEST(BitCoder, AnyBytesGiveAsManyOnesAsAskedForOrNothing) {
    std::mt19937_64 random(3);
    const auto ones_of = [](const std::vector<std::uint64_t>& words) {
        std::uint64_t ones = 0;
        for (const std::uint64_t word : words) ones += static_cast<std::uint64_t>(std::popcount(word));
        return ones;
    };
    std::uint64_t refused = 0;
    const std::uint64_t cases = test::property_cases(20'000);
    for (std::uint64_t i = 0; i < cases; ++i) {
        const std::uint64_t size = random() % 600;
        const std::uint64_t ones = random() % (size + 2);
        std::vector<std::byte> bytes(random() % 100);
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
        if (i % 2 == 0 && ones <= size) {
            bytes = code_bits(random_bits(random, size, ones), size, ones);
            bytes.resize(random() % (bytes.size() + 1));
        }
        const auto decoded = decode_bits(bytes, size, ones);
        refused += !decoded;
        if (!decoded) continue;
        ASSERT_EQ(decoded->size(), words_of(size));
        ASSERT_EQ(ones_of(*decoded), ones);
        ASSERT_TRUE(size % 64 == 0 || decoded->back() >> (size % 64) == 0) << "a bit beyond the last one";
    }
    EXPECT_GT(refused, cases / 10);
    EXPECT_FALSE(decode_bits({}, 10, 11)) << "more ones than bits";
}

}  // namespace
}  // namespace larder::detail
