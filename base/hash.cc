#include "base/hash.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace larder {

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed) {
    // ISA-L takes the raw register, so this function does the standard's inversions. ISA-L takes the length as an int.
    constexpr std::size_t piece_bytes = std::size_t{1} << 30;
    std::uint32_t crc = ~seed;
    while (!bytes.empty()) {
        const auto piece = bytes.first(std::min(bytes.size(), piece_bytes));
        auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(piece.data()));
        crc = crc32_iscsi(data, static_cast<int>(piece.size()), crc);
        bytes = bytes.subspan(piece.size());
    }
    return ~crc;
}

}  // namespace larder
