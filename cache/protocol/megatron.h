#pragma once

// Megatron's indexed datasets: NAME.bin holds only tokens, NAME.idx holds their boundaries:
//
//     "MMIDIDX\0\0" 9 bytes, version u64 = 1, type of a token u8, sequences u64, document indices u64     (34 bytes)
//     tokens of each sequence i32, offset of each sequence in .bin i64, document indices i64
//     for some multimodal datasets, a mode of each sequence i8
//
// Document i is the sequences [document index i, document index i + 1), so there is one document fewer than indices.
// The first index is 0 and the last is the number of sequences. Types: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6
// float64, 7 float32, 8 uint16. All integers are little-endian.
//
// Source: NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py.
//
// MegatronIndex streams an .idx, which may be gigabytes long, through a ByteSource, a megabyte at a time. It never
// reads the .bin. The sequences of a document must be adjacent, and the documents in file order. Errors name the offset
// in the .idx. One thread.

#include <cstdint>
#include <optional>

#include "base/error.h"
#include "cache/protocol/byte_source.h"
#include "cache/protocol/claims.h"
#include "cache/protocol/element_type.h"

namespace larder::protocol {

// The extent of a document in the .bin.
struct MegatronDocument {
    std::uint64_t offset;
    std::uint64_t bytes;  // 0 for an empty document
};

class MegatronIndex {
public:
    static Result<MegatronIndex> open(ByteSource& idx, std::uint64_t bin_bytes);

    ElementType element() const { return element_; }
    std::uint64_t document_count() const { return document_count_; }
    // The next document, in file order; nullopt after the last, when the whole index has been read.
    Result<std::optional<MegatronDocument>> next();

private:
    MegatronIndex(ByteSource& idx, std::uint64_t bin_bytes, ElementType element, std::uint64_t sequences,
                  std::uint64_t document_indices);

    ElementType element_;
    std::uint64_t document_count_;
    std::uint64_t sequence_count_;
    std::uint64_t bin_bytes_;
    std::uint64_t sequence_ = 0;  // first sequence of the next document
    std::uint64_t bin_end_ = 0;   // end of the documents so far
    ClaimedArray<std::int32_t> lengths_;
    ClaimedArray<std::int64_t> pointers_;
    ClaimedArray<std::int64_t> documents_;
};

}  // namespace larder::protocol
