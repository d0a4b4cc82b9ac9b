// Conversions between text and the bytes that readers take.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace larder::test {

// Returns a view that is valid as long as the text.
inline std::span<const std::byte> as_bytes(const std::string& text) {
    return std::as_bytes(std::span(text));
}

inline std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace larder::test
