#pragma once

// Numbers as they lie in the bytes of formats: little-endian, at any alignment. The machines Larder runs on are
// little-endian, so it is a copy. The caller has checked that the bytes are there.

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
