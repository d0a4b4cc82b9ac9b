#include "loader/permutation.h"

#include "base/assert.h"

namespace larder::detail {
namespace {

// The least r with r * r >= value, in integer arithmetic, which is the same on every machine.
std::uint64_t root_ceiling(std::uint64_t value) {
    std::uint64_t low = 0;
    std::uint64_t high = std::uint64_t{1} << 31;
    while (low < high) {
        const std::uint64_t middle = low + (high - low) / 2;
        if (middle * middle >= value) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

}  // namespace

Permutation::Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch, std::uint64_t stream)
    : size_(size) {
    LARDER_ASSERT(size < (std::uint64_t{1} << 62));
    if (size < 2) return;
    rows_ = root_ceiling(size);
    columns_ = (size + rows_ - 1) / rows_;
    rounds_ = size < kSmall ? kRoundsSmall : kRounds;
    const std::uint64_t base = mix64(mix64(mix64(seed) ^ epoch) ^ stream);
    for (int round = 0; round < rounds_; ++round) keys_[round] = mix64(base + static_cast<std::uint64_t>(round));
}

Permutation Permutation::identity(std::uint64_t size) {
    Permutation permutation;
    permutation.size_ = size;
    return permutation;
}

}  // namespace larder::detail
