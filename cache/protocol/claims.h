#pragma once

// Lengths and counts that a file claims. Whoever wrote the file chose them, so a parser checks each claim against the
// bytes that are there before it allocates, reads or adds: with `lies_within` for bytes and arrays of a file, and with
// `may_decompress_to` for compressed bytes. A large file costs its writer nothing (it may be sparse), so a claim that
// lies within the file is still no reason to allocate that much: ClaimedArray reads an array in pieces.
//
// The functions are pure. A ClaimedArray belongs to one thread.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "cache/protocol/byte_source.h"

namespace larder::protocol {

// True if `count` items of `item_bytes` bytes each, from `offset` on, lie within `total_bytes` bytes. No claim makes
// the check overflow.
constexpr bool lies_within(std::uint64_t offset, std::uint64_t count, std::uint64_t item_bytes,
                           std::uint64_t total_bytes) {
    return offset <= total_bytes && (item_bytes == 0 || count <= (total_bytes - offset) / item_bytes);
}
constexpr bool lies_within(std::uint64_t offset, std::uint64_t bytes, std::uint64_t total_bytes) {
    return lies_within(offset, bytes, 1, total_bytes);
}

// False if no zstd frame of `compressed_bytes` bytes holds `raw_bytes` bytes: a block of a frame takes at least 4 bytes
// and holds at most 128 KiB (RFC 8878, 3.1.1.2).
constexpr bool may_decompress_to(std::uint64_t compressed_bytes, std::uint64_t raw_bytes) {
    constexpr std::uint64_t kBlockBytesLeast = 4;
    constexpr std::uint64_t kRawBytesMost = std::uint64_t{128} << 10;
    return raw_bytes / kRawBytesMost <= compressed_bytes / kBlockBytesLeast;
}

// Reads an array of numbers or plain structs in pieces of at most a mebibyte. The array must lie within the source.
template <typename Item>
class ClaimedArray {
public:
    ClaimedArray(ByteSource& source, std::uint64_t offset, std::uint64_t count)
        : source_(&source), offset_(offset), remaining_(count) {}
    // The offset of the item that `next` returns.
    std::uint64_t position() const { return offset_ - (piece_.size() - used_) * sizeof(Item); }
    bool at_end() const { return remaining_ == 0 && used_ == piece_.size(); }

    // Only if !at_end().
    Result<Item> next() {
        if (used_ == piece_.size()) {
            const std::uint64_t count = std::min<std::uint64_t>(remaining_, kPieceBytes / sizeof(Item));
            const auto read = source_->read(offset_, count * sizeof(Item));
            if (!read) return std::unexpected(read.error());
            piece_.resize(count);
            std::memcpy(piece_.data(), read->data(), read->size());
            offset_ += count * sizeof(Item);
            remaining_ -= count;
            used_ = 0;
        }
        return piece_[used_++];
    }

private:
    static constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

    ByteSource* source_;
    std::uint64_t offset_;     // of the bytes after the piece
    std::uint64_t remaining_;  // items after the piece
    std::vector<Item> piece_;
    std::size_t used_ = 0;
};

}  // namespace larder::protocol
