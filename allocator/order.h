#pragma once

// Indices in the order of their keys, equal keys in the order of their indices: an order that does not depend on how it
// was made.

#include <boost/sort/pdqsort/pdqsort.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace larder::allocator {

// By the key times `sign`.
inline std::vector<std::uint32_t> order_of(std::span<const double> keys, double sign) {
    struct Entry {
        double key;
        std::uint32_t index;
    };
    std::vector<Entry> entries;
    entries.reserve(keys.size());
    for (const double key : keys) entries.push_back({sign * key, static_cast<std::uint32_t>(entries.size())});
    // Without branches, which keys in no order make the processor guess wrong.
    boost::sort::pdqsort_branchless(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
        return static_cast<bool>((a.key < b.key) | ((a.key == b.key) & (a.index < b.index)));
    });
    std::vector<std::uint32_t> order;
    order.reserve(entries.size());
    for (const Entry& entry : entries) order.push_back(entry.index);
    return order;
}

// Smallest key first. Keys are not NaN.
inline std::vector<std::uint32_t> ascending(std::span<const double> keys) {
    return order_of(keys, 1);
}

// Largest key first.
inline std::vector<std::uint32_t> descending(std::span<const double> keys) {
    return order_of(keys, -1);
}

}  // namespace larder::allocator
