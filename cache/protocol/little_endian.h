#pragma once

// Reads little-endian numbers at any alignment. Larder runs on little-endian machines only, so a read is a copy. The
// caller has checked the bounds.

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

namespace larder::protocol {

static_assert(std::endian::native == std::endian::little);

template <typename Number>
Number load(std::span<const std::byte> bytes, std::size_t offset = 0) {
    Number number;
    std::memcpy(&number, bytes.data() + offset, sizeof number);
    return number;
}

}  // namespace larder::protocol
