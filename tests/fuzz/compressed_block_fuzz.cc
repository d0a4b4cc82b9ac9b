// Any bytes as a compressed block: the block is decompressed to exactly the expected number of bytes, or refused. Any
// bytes survive compression and decompression. Also any bytes as the index's row of a block, as they are and with the
// row's checksum repaired.

#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "cache/protocol/decompressor.h"
#include "cache/store/index_rows.h"

namespace larder {
namespace {

constexpr std::uint32_t kRawBytesMax = 1 << 20;

void check_row(const std::uint8_t* data, std::size_t size) {
    const cache::IndexKey key(1, 2, 3);
    const std::span<const unsigned char> key_bytes(key.bytes);
    const auto row = cache::read_block_row(key_bytes, {data, size});
    LARDER_ASSERT(!row || row->raw_bytes == 0 || row->payload_bytes < row->raw_bytes);
    cache::CompressedBlockRow sealed{};
    if (size < sizeof sealed) return;
    std::memcpy(&sealed, data, sizeof sealed);
    sealed.crc = cache::row_crc(key_bytes, sealed);
    const auto read = cache::read_block_row(key_bytes, {reinterpret_cast<unsigned char*>(&sealed), sizeof sealed});
    LARDER_ASSERT(read.has_value() == (sealed.payload_bytes < sealed.raw_bytes));
}

void check_round_trip(protocol::Decompressor& decompressor, std::span<const std::byte> raw) {
    if (raw.empty()) return;
    std::vector<std::byte> frame(::ZSTD_compressBound(raw.size()));
    const std::size_t bytes = ::ZSTD_compress(frame.data(), frame.size(), raw.data(), raw.size(), 1);
    LARDER_ASSERT(::ZSTD_isError(bytes) == 0);
    const auto again = decompressor.run(std::span(frame).first(bytes), static_cast<std::uint32_t>(raw.size()));
    LARDER_ASSERT(again && std::memcmp(again->get(), raw.data(), raw.size()) == 0);
}

}  // namespace
}  // namespace larder

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static larder::protocol::Decompressor decompressor;
    larder::check_row(data, size);
    std::uint32_t raw_bytes = 0;
    if (size < sizeof raw_bytes) return 0;
    std::memcpy(&raw_bytes, data, sizeof raw_bytes);
    const auto frame = std::as_bytes(std::span(data, size)).subspan(sizeof raw_bytes);
    if (const auto raw = decompressor.run(frame, raw_bytes % larder::kRawBytesMax)) {
        // Reads every byte, so that the sanitizer detects a buffer that is too small.
        const std::uint32_t count = raw_bytes % larder::kRawBytesMax;
        volatile unsigned sum = 0;
        for (std::uint32_t i = 0; i < count; ++i) sum = sum + static_cast<unsigned>(raw->get()[i]);
    }
    larder::check_round_trip(decompressor, frame);
    return 0;
}
