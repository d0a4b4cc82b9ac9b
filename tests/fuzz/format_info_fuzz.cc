// Any bytes as a manifest's format info: what is accepted is encoded to the same bytes again.

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "cache/protocol/format_info.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::vector<std::byte> blob(reinterpret_cast<const std::byte*>(data),
                                      reinterpret_cast<const std::byte*>(data) + size);
    const auto info = larder::protocol::parse_format_info(blob);
    if (!info) return 0;
    const std::string again = encode(*info);
    LARDER_ASSERT(again.size() == size && std::memcmp(again.data(), data, size) == 0);
    return 0;
}
