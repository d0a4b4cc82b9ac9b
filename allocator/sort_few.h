#pragma once

// Sorts the few jobs or places of a dataset, thousands of times per plan. Unordered keys cause branch mispredictions,
// so few things are sorted by counting comparisons instead.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <type_traits>

namespace larder::allocator {

// Sorts by `key`, smallest first. Stable.
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
    alignas(Thing) std::array<std::byte, kFew * sizeof(Thing)> unsorted;
    std::memcpy(unsorted.data(), things.data(), things.size_bytes());
    for (std::size_t i = 0; i < things.size(); ++i) {
        std::memcpy(&things[places[i]], unsorted.data() + i * sizeof(Thing), sizeof(Thing));
    }
}

// Sorts runs of equal keys by `before`, in things that are already in order of their keys.
template <typename Thing, typename Key, typename Before>
void sort_equal(std::span<Thing> things, const Key& key, const Before& before) {
    for (std::size_t begin = 0, end = 1; begin < things.size(); begin = end++) {
        while (end < things.size() && key(things[end]) == key(things[begin])) ++end;
        if (end - begin > 1) std::ranges::sort(things.subspan(begin, end - begin), before);
    }
}

}  // namespace larder::allocator
