#include "allocator/sorted_indices.h"

#include <boost/sort/pdqsort/pdqsort.hpp>

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "allocator/sort_few.h"

namespace larder::allocator {
namespace {

struct Entry {
    std::uint64_t key;
    std::uint32_t index;
};

// Maps doubles to integers of the same order; -0 and 0 map to the same integer.
std::uint64_t ordered_bits(double key) {
    const auto bits = std::bit_cast<std::uint64_t>(key + 0.0);
    constexpr std::uint64_t kSign = std::uint64_t{1} << 63;
    return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

void sort_bucket(std::span<Entry> entries) {
    // Entries arrive in the order of their indices, which the stable sort_few keeps.
    if (entries.size() <= 8) {
        sort_few(entries, [](const Entry& entry) { return entry.key; });
        return;
    }
    // Often all keys are equal.
    if (std::ranges::is_sorted(entries, {}, &Entry::key)) return;
    // Branchless, because unordered keys cause branch mispredictions.
    boost::sort::pdqsort_branchless(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
        return static_cast<bool>((a.key < b.key) | ((a.key == b.key) & (a.index < b.index)));
    });
}

// Deals keys to about as many buckets as there are keys, by the highest bits in which they differ. Most buckets get one
// or two keys, and however uneven the buckets are, no key is compared more often than without them.
std::vector<std::uint32_t> order_of(std::span<const std::uint64_t> keys) {
    if (keys.empty()) return {};
    std::uint64_t least = keys.front();
    std::uint64_t most = keys.front();
    for (const std::uint64_t key : keys) {
        least = std::min(least, key);
        most = std::max(most, key);
    }
    const std::uint64_t range = most - least;
    std::vector<std::uint32_t> order(keys.size());
    if (range == 0) {
        std::iota(order.begin(), order.end(), 0U);
        return order;
    }
    const auto range_bits = static_cast<int>(std::bit_width(range));
    const auto bucket_bits = static_cast<int>(std::bit_width(keys.size()));
    const int shift = std::max(0, range_bits - bucket_bits);
    std::vector<std::uint32_t> ends((range >> shift) + 1);
    for (const std::uint64_t key : keys) ++ends[(key - least) >> shift];
    std::uint32_t begin = 0;
    for (std::uint32_t& end : ends) begin += std::exchange(end, begin);
    std::vector<Entry> dealt(keys.size());
    for (std::uint32_t i = 0; i < keys.size(); ++i) {
        dealt[ends[(keys[i] - least) >> shift]++] = {.key = keys[i], .index = i};
    }
    begin = 0;
    for (const std::uint32_t end : ends) {
        // Equal keys are already in the order of their indices.
        if (shift > 0 && end - begin > 1) sort_bucket(std::span(dealt).subspan(begin, end - begin));
        begin = end;
    }
    std::ranges::transform(dealt, order.begin(), &Entry::index);
    return order;
}

std::vector<std::uint32_t> order_of(std::span<const double> keys, double sign) {
    std::vector<std::uint64_t> bits(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) bits[i] = ordered_bits(sign * keys[i]);
    return order_of(bits);
}

}  // namespace

std::vector<std::uint32_t> ascending(std::span<const double> keys) {
    return order_of(keys, 1);
}

std::vector<std::uint32_t> ascending(std::span<const std::uint64_t> keys) {
    return order_of(keys);
}

std::vector<std::uint32_t> descending(std::span<const double> keys) {
    return order_of(keys, -1);
}

}  // namespace larder::allocator
