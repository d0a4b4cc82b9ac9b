#include "cache/protocol/packed.h"

#include <cstring>

#include "base/hash.h"
#include "cache/protocol/claims.h"
#include "cache/protocol/format_info.h"
#include "cache/protocol/little_endian.h"

namespace larder::protocol {
namespace {

std::unexpected<Error> packed_error(const std::string& what) {
    return fail(ErrorCode::corrupt, "packed file: " + what);
}

Result<PackedHeader> read_header(ByteSource& file) {
    if (file.size_bytes() < sizeof(PackedHeader)) return packed_error("it is shorter than its header");
    const auto bytes = file.read(0, sizeof(PackedHeader));
    if (!bytes) return std::unexpected(bytes.error());
    const auto header = load<PackedHeader>(*bytes);
    if (std::memcmp(header.magic, kPackedMagic, sizeof header.magic) != 0) {
        return fail(ErrorCode::corrupt, "not a packed file: it does not begin with LARDERPK");
    }
    if (header.layout != kPackedLayout) {
        return fail(ErrorCode::unsupported, "packed file: layout " + std::to_string(header.layout) +
                                                " is unknown here, this version reads only " +
                                                std::to_string(kPackedLayout));
    }
    if (sealed(header).header_crc != header.header_crc) return packed_error("the header's checksum does not match");
    if (!may_be_packed(header.sample_format)) return packed_error("samples of an unknown format");
    if (header.block_count == 0) return packed_error("it has no block");
    if (header.index_offset < kPackedBlockAlignment || header.index_offset > file.size_bytes() ||
        header.index_bytes != file.size_bytes() - header.index_offset) {
        return packed_error("its index does not end at the end of the file");
    }
    if (header.index_bytes > kPackedIndexBytesMax) return packed_error("its index is too long");
    const std::uint64_t blocks_bytes = header.block_count * std::uint64_t{sizeof(PackedBlock)};
    if (!lies_within(blocks_bytes, header.row_count, sizeof(PackedSample), header.index_bytes) ||
        header.format_info_bytes > kFormatInfoBytesMax ||
        header.index_bytes != blocks_bytes + header.row_count * sizeof(PackedSample) + header.format_info_bytes) {
        return packed_error("the parts of its index do not add up to its length");
    }
    if (header.row_count > kPackedSamplesMax) return packed_error("it has more samples than a file may have");
    if (!lies_within(kPackedBlockAlignment, header.block_count - 1, kPackedBlockAlignment, header.index_offset)) {
        return packed_error("its " + std::to_string(header.block_count) +
                            " blocks do not fit between header and index");
    }
    return header;
}

// Builds each block's samples, from the rows if the block has rows.
class SampleBuilder {
public:
    explicit SampleBuilder(std::span<const std::byte> rows) : rows_(rows) {}

    // Returns nullptr if the block's samples lie inside it, aligned and in order; else the fault.
    const char* add(const PackedBlock& block, std::vector<PackedSample>& samples) {
        const std::uint64_t bytes = block.raw_bytes > 0 ? block.raw_bytes : block.stored_bytes;
        if (block.sample_count == 0) return "has no sample";
        if (block.sample_count > kPackedSamplesMax - samples.size()) return "has more samples than a file may have";
        if (!may_decompress_to(block.stored_bytes, block.raw_bytes)) {
            return "claims more decompressed bytes than its bytes can hold";
        }
        if (block.sample_bytes > 0) {
            const std::uint64_t stride = packed_stride(block.sample_bytes);
            if ((block.sample_count - 1) * stride + block.sample_bytes > bytes) return "has samples outside it";
            for (std::uint64_t i = 0; i < block.sample_count; ++i) {
                samples.push_back({static_cast<std::uint32_t>(i * stride), block.sample_bytes});
            }
            return nullptr;
        }
        if (!lies_within(0, block.sample_count, sizeof(PackedSample), rows_.size())) {
            return "has more samples than there are rows";
        }
        std::uint64_t end = 0;
        for (std::uint32_t i = 0; i < block.sample_count; ++i) {
            const auto sample = load<PackedSample>(rows_, i * sizeof(PackedSample));
            if (sample.length == 0 || sample.offset < end || sample.offset % kPackedSampleAlignment != 0) {
                return "has a sample that is empty, not aligned or overlaps the previous one";
            }
            end = std::uint64_t{sample.offset} + sample.length;
            if (end > bytes) return "has a sample outside it";
            samples.push_back(sample);
        }
        rows_ = rows_.subspan(block.sample_count * sizeof(PackedSample));
        return nullptr;
    }
    bool at_end() const { return rows_.empty(); }

private:
    std::span<const std::byte> rows_;
};

const char* find_block_fault(const PackedBlock& block, std::uint64_t end, std::uint64_t index_offset) {
    if (block.offset % kPackedBlockAlignment != 0 || block.offset < end) {
        return "is not aligned, or overlaps the previous one";
    }
    if (block.stored_bytes == 0 || block.stored_bytes > kBlockBytesMax || block.raw_bytes > kBlockBytesMax) {
        return "has a length out of range";
    }
    if (!lies_within(block.offset, block.stored_bytes, index_offset)) return "lies outside the file";
    return nullptr;
}

}  // namespace

PackedHeader sealed(PackedHeader header) {
    header.header_crc = 0;
    header.header_crc = crc32c(std::as_bytes(std::span(&header, 1)));
    return header;
}

Result<PackedIndex> read_packed_index(ByteSource& file) {
    const auto header = read_header(file);
    if (!header) return std::unexpected(header.error());
    const auto bytes = file.read(header->index_offset, header->index_bytes);
    if (!bytes) return std::unexpected(bytes.error());
    if (crc32c(*bytes) != header->index_crc) return packed_error("the checksum of its index does not match");

    const std::size_t blocks_bytes = header->block_count * sizeof(PackedBlock);
    const std::size_t rows_bytes = header->row_count * sizeof(PackedSample);
    PackedIndex index{.sample_format = header->sample_format, .block_bytes = header->block_bytes};
    SampleBuilder samples(bytes->subspan(blocks_bytes, rows_bytes));
    std::uint64_t end = kPackedBlockAlignment;
    for (std::uint32_t i = 0; i < header->block_count; ++i) {
        const auto block = load<PackedBlock>(*bytes, i * sizeof(PackedBlock));
        const char* fault = find_block_fault(block, end, header->index_offset);
        if (fault == nullptr) fault = samples.add(block, index.samples);
        if (fault != nullptr) return packed_error("block " + std::to_string(i) + " " + fault);
        end = block.offset + block.stored_bytes;
        index.blocks.push_back(block);
    }
    if (!samples.at_end()) return packed_error("rows of samples that belong to no block");
    const auto info = bytes->subspan(blocks_bytes + rows_bytes);
    index.format_info.assign(reinterpret_cast<const char*>(info.data()), info.size());
    if (!info.empty()) {
        if (auto parsed = parse_format_info(info); !parsed) return std::unexpected(parsed.error());
    }
    const Format format = index.sample_format;
    const bool has_columns = format == Format::mds || format == Format::litdata || format == Format::megatron;
    if (has_columns && info.empty()) return packed_error("it lacks the format info of its samples");
    return index;
}

}  // namespace larder::protocol
