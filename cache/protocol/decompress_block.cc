#include "cache/protocol/decompress_block.h"

#include "cache/protocol/array_record.h"

namespace larder::protocol {

Result<std::unique_ptr<std::byte[]>> decompress_block(const Manifest& manifest, const Block& block,
                                                      std::span<const std::byte> bytes, Decompressor& decompressor) {
    if (manifest.header().format == Format::array_record) {
        return decode_array_record(bytes, block.offset, block.sample_count, block.raw_bytes, decompressor);
    }
    return decompressor.run(bytes, block.raw_bytes);
}

}  // namespace larder::protocol
