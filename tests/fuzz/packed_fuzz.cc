// Any bytes as a packed file: once unchanged, once with repaired checksums, so that the code behind the checks is
// reached. Whatever is accepted lies inside the file, in order, with every sample inside its block.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/hash.h"
#include "cache/protocol/packed.h"
#include "tests/support/memory_source.h"

namespace larder::protocol {
namespace {

void read(std::string_view file) {
    test::MemoryReader reader(file);
    const auto index = read_packed_index(reader);
    if (!index) {
        LARDER_ASSERT(!index.error().message.empty());
        return;
    }
    std::size_t next = 0;
    std::uint64_t end = kPackedBlockAlignment;
    for (const PackedBlock& block : index->blocks) {
        LARDER_ASSERT(block.offset >= end && block.offset % kPackedBlockAlignment == 0);
        end = block.offset + block.stored_bytes;
        LARDER_ASSERT(end <= file.size());
        const std::uint64_t bytes = block.raw_bytes > 0 ? block.raw_bytes : block.stored_bytes;
        std::uint64_t sample_end = 0;
        for (std::uint32_t i = 0; i < block.sample_count; ++i, ++next) {
            const PackedSample& sample = index->samples.at(next);
            LARDER_ASSERT(sample.length > 0 && sample.offset >= sample_end);
            sample_end = std::uint64_t{sample.offset} + sample.length;
            LARDER_ASSERT(sample_end <= bytes);
        }
    }
    LARDER_ASSERT(next == index->samples.size());
}

void repair(std::string& file) {
    PackedHeader header;
    if (file.size() < sizeof header) return;
    std::memcpy(&header, file.data(), sizeof header);
    std::memcpy(header.magic, kPackedMagic, sizeof header.magic);
    header.layout = kPackedLayout;
    // An index offset past the end becomes the first offset a block can have, so that small inputs pass that check.
    if (header.index_offset > file.size()) header.index_offset = kPackedBlockAlignment;
    if (header.index_offset > file.size()) file.resize(header.index_offset + file.size());
    header.index_bytes = file.size() - header.index_offset;
    header.index_crc = crc32c(std::as_bytes(std::span(file).subspan(header.index_offset)));
    header = sealed(header);
    std::memcpy(file.data(), &header, sizeof header);
}

// Reads the input as the index of a file with one block of 4096 bytes, so that the mutator works on the index directly.
void read_as_index(std::string_view input) {
    if (input.size() < 8) return;
    PackedHeader header{};
    header.sample_format = static_cast<Format>(static_cast<unsigned char>(input[0]) % 9);
    header.block_count = static_cast<std::uint32_t>(static_cast<unsigned char>(input[1]));
    header.format_info_bytes = static_cast<std::uint32_t>(static_cast<unsigned char>(input[2]));
    header.index_offset = 2 * kPackedBlockAlignment;
    const std::string_view index = input.substr(3);
    const std::uint64_t other_bytes = header.block_count * sizeof(PackedBlock) + header.format_info_bytes;
    header.row_count = index.size() > other_bytes ? (index.size() - other_bytes) / sizeof(PackedSample) : 0;
    std::string file(header.index_offset, '\0');
    file += index.substr(0, std::min<std::size_t>(index.size(), other_bytes + header.row_count * sizeof(PackedSample)));
    std::memcpy(file.data(), &header, sizeof header);
    repair(file);
    read(file);
}

}  // namespace
}  // namespace larder::protocol

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    std::string file(reinterpret_cast<const char*>(data), size);
    larder::protocol::read(file);
    larder::protocol::read_as_index(file);
    larder::protocol::repair(file);
    larder::protocol::read(file);
    return 0;
}
