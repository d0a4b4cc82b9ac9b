#pragma once

// Megatron's indexed datasets: NAME.bin is tokens and nothing else, NAME.idx says where they divide:
//
//     "MMIDIDX\0\0" 9 bytes, version u64 = 1, type of a token u8, sequences u64, document indices u64     (34 bytes)
//     tokens of each sequence i32, offset of each sequence in .bin i64, document indices i64
//     for some multimodal datasets, a mode of each sequence i8
//
// Document i is the sequences [document index i, document index i + 1), so there is one document less than there are
// indices; the first is 0 and the last the number of sequences. Types: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64,
// 6 float64, 7 float32, 8 uint16. All little-endian.
//
// Source: NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py.
//
// MegatronIndex streams an .idx through a ByteSource, a megabyte at a time, because it may have gigabytes; it never
// looks at the .bin. The sequences of a document must lie one after the other, and documents in the order of the file.
// Errors say at which offset of the .idx and why. One thread.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "cache/protocol/byte_source.h"
#include "cache/protocol/element_type.h"

namespace larder::protocol {

// Reads an array of the .idx in pieces.
template <typename Number>
class ArrayCursor {
public:
    ArrayCursor(ByteSource& source, std::uint64_t offset, std::uint64_t count)
        : source_(&source), offset_(offset), left_(count) {}
    // Of the number that `next` gives.
    std::uint64_t position() const { return offset_ - (piece_.size() - used_) * sizeof(Number); }
    bool at_end() const { return left_ == 0 && used_ == piece_.size(); }
    Result<Number> next();  // while not at the end

private:
    ByteSource* source_;
    std::uint64_t offset_;  // of what comes after the piece
    std::uint64_t left_;    // numbers after the piece
    std::vector<Number> piece_;
    std::size_t used_ = 0;
};

// Bytes of a document in the .bin.
struct MegatronDocument {
    std::uint64_t offset;
    std::uint64_t bytes;  // 0 for an empty one
};

class MegatronIndex {
public:
    static Result<MegatronIndex> open(ByteSource& idx, std::uint64_t bin_bytes);

    ElementType element() const { return element_; }
    std::uint64_t document_count() const { return document_count_; }
    // In the order of the file; nullopt after the last, when everything has been read.
    Result<std::optional<MegatronDocument>> next();

private:
    MegatronIndex(ByteSource& idx, std::uint64_t bin_bytes, ElementType element, std::uint64_t sequences,
                  std::uint64_t document_indices);

    ElementType element_;
    std::uint64_t document_count_;
    std::uint64_t sequence_count_;
    std::uint64_t bin_bytes_;
    std::uint64_t sequence_ = 0;  // the first of the next document
    std::uint64_t bin_at_ = 0;    // where the documents so far end
    ArrayCursor<std::int32_t> lengths_;
    ArrayCursor<std::int64_t> pointers_;
    ArrayCursor<std::int64_t> documents_;
};

}  // namespace larder::protocol
