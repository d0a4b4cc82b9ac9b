#pragma once

// Sorting the few jobs of a dataset, or its few places, thousands of times a plan. Keys in no order make the processor
// guess wrong at about every comparison that is a branch, so that few things are put into their places by counting
// comparisons instead.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <type_traits>

namespace larder::allocator {

// By `key`, smallest first; things of equal keys stay in the order they are in.
template <typename Thing, typename Key>
void sort_few(std::span<Thing> things, const Key& key) {
    static_assert(std::is_trivially_copyable_v<Thing>);
    constexpr std::size_t kFew = 8;
    if (things.size() < 2) return;
    if (things.size() > kFew) {
        std::ranges::stable_sort(things, {}, key);
        return;
    }
    std::array<std::invoke_result_t<Key, const Thing&>, kFew> keys;
    std::array<std::uint32_t, kFew> places;
    for (std::uint32_t i = 0; i < things.size(); ++i) {
        keys[i] = key(things[i]);
        std::uint32_t later = 0;
        for (std::uint32_t earlier = 0; earlier < i; ++earlier) {
            const auto is_later = static_cast<std::uint32_t>(keys[earlier] > keys[i]);
            places[earlier] += is_later;
            later += is_later;
        }
        places[i] = i - later;
    }
    alignas(Thing) std::array<std::byte, kFew * sizeof(Thing)> were;
    std::memcpy(were.data(), things.data(), things.size_bytes());
    for (std::size_t i = 0; i < things.size(); ++i) {
        std::memcpy(&things[places[i]], were.data() + i * sizeof(Thing), sizeof(Thing));
    }
}

// Of things in the order of their keys, those with equal ones in the order `before` has them.
template <typename Thing, typename Key, typename Before>
void sort_equal(std::span<Thing> things, const Key& key, const Before& before) {
    for (std::size_t begin = 0, end = 1; begin < things.size(); begin = end++) {
        while (end < things.size() && key(things[end]) == key(things[begin])) ++end;
        if (end - begin > 1) std::ranges::sort(things.subspan(begin, end - begin), before);
    }
}

}  // namespace larder::allocator
