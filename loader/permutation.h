#pragma once

// A pseudo-random permutation of [0, n), computed one value at a time from (seed, epoch, stream): no table, O(1)
// memory, some tens of nanoseconds per value. The permutation decides the order of training, so it is specified exactly
// here and never changes; the tests hold golden values.
//
//   x = left * columns + right, with rows = ceil(sqrt(n)), columns = ceil(n / rows): a Feistel network whose halves are
//   numbers modulo rows and modulo columns. Rounds r = 0, 1, ...: 24 of them if n < 256 (tiny halves mix slowly),
//   else 6:
//     r even:  left  = (left  + below(rows,    mix64(key[r] ^ right))) mod rows
//     r odd:   right = (right + below(columns, mix64(key[r] ^ left ))) mod columns
//   below(m, h) = high 64 bits of m * h (128-bit product), a number in [0, m).
//   A result of n or more (rows * columns exceeds n by less than rows) goes through the network again: cycle walking.
//   key[r] = mix64(mix64(mix64(mix64(seed) ^ epoch) ^ stream) + r); mix64 is base/hash.h's.

#include <array>
#include <cstdint>

#include "base/hash.h"

namespace larder::detail {

class Permutation {
public:
    // The identity on an empty range.
    Permutation() = default;
    Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch, std::uint64_t stream);

    static Permutation identity(std::uint64_t size);

    std::uint64_t size() const { return size_; }

    // `position` < size().
    std::uint64_t operator()(std::uint64_t position) const {
        if (columns_ == 0) return position;
        do position = walk(position);
        while (position >= size_);
        return position;
    }

private:
    static constexpr int kRounds = 6;
    static constexpr int kRoundsSmall = 24;
    static constexpr std::uint64_t kSmall = 256;

    static std::uint64_t below(std::uint64_t modulus, std::uint64_t hash) {
        return static_cast<std::uint64_t>((static_cast<unsigned __int128>(modulus) * hash) >> 64);
    }
    static std::uint64_t add(std::uint64_t a, std::uint64_t b, std::uint64_t modulus) {
        const std::uint64_t sum = a + b;
        return sum >= modulus ? sum - modulus : sum;
    }
    std::uint64_t walk(std::uint64_t position) const {
        std::uint64_t left = position / columns_;
        std::uint64_t right = position % columns_;
        for (int round = 0; round < rounds_; round += 2) {
            left = add(left, below(rows_, mix64(keys_[round] ^ right)), rows_);
            right = add(right, below(columns_, mix64(keys_[round + 1] ^ left)), columns_);
        }
        return left * columns_ + right;
    }

    std::uint64_t size_ = 0;
    std::uint64_t rows_ = 0;
    std::uint64_t columns_ = 0;  // 0: identity
    int rounds_ = 0;
    std::array<std::uint64_t, kRoundsSmall> keys_{};
};

}  // namespace larder::detail
