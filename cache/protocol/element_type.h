#pragma once

// The element types of array fields, by NumPy's names. A plain value, shared by the indexer, the manifest and the
// client.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace larder {

// The values are stored in manifests.
enum class ElementType : std::uint8_t {
    none = 0,  // not an array of numbers
    uint8 = 1,
    int8 = 2,
    int16 = 3,
    int32 = 4,
    int64 = 5,
    float64 = 6,
    float32 = 7,
    uint16 = 8,
    uint32 = 9,
    uint64 = 10,
    float16 = 11,
};
inline constexpr std::uint8_t kElementTypeEnd = 12;

// "int32"; "" for none.
constexpr std::string_view name(ElementType type) {
    constexpr std::string_view names[kElementTypeEnd] = {"",        "uint8",   "int8",   "int16",  "int32",  "int64",
                                                         "float64", "float32", "uint16", "uint32", "uint64", "float16"};
    return names[static_cast<std::uint8_t>(type)];
}

// 0 for none.
constexpr std::size_t size_bytes(ElementType type) {
    constexpr std::uint8_t sizes[kElementTypeEnd] = {0, 1, 1, 2, 4, 8, 8, 4, 2, 4, 8, 2};
    return sizes[static_cast<std::uint8_t>(type)];
}

constexpr std::optional<ElementType> element_type_of(std::string_view wanted) {
    for (std::uint8_t i = 1; i < kElementTypeEnd; ++i) {
        if (name(static_cast<ElementType>(i)) == wanted) return static_cast<ElementType>(i);
    }
    return std::nullopt;
}

}  // namespace larder
