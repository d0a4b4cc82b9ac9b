#pragma once

// The layout that MDS shards (MosaicML Streaming) and LitData chunks share. A file begins with a table:
//
//     sample count u32, then count + 1 offsets u32: sample i is the bytes [offset i, offset i + 1) of the file
//
// After the table MDS repeats its column description as JSON; the first offset points past it. A sample begins with the
// sizes of its fields, u32 each, followed by the fields. MDS stores no size for fields whose size is fixed for the
// whole dataset; LitData stores all sizes. Integers are little-endian. LitData's token chunks have the table too, but
// their samples are bare numbers, without sizes.
//
// Sources: mosaicml/streaming (streaming/base/format/mds/writer.py, reader.py), Lightning-AI/litData
// (src/litdata/streaming/writer.py, item_loader.py). Their index.json lists the columns; the indexer reads it
// (cache/dataset/index_mds.h and index_litdata.h).
//
// SampleTable reads a table piece by piece through a ByteSource, for the indexer. `sample_in` finds one sample in the
// bytes of a whole file, for clients of compressed files. Errors name the offset and the reason. One thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "cache/protocol/byte_source.h"
#include "cache/protocol/claims.h"
#include "cache/protocol/format_info.h"

namespace larder::protocol {

struct FileExtent {
    std::uint64_t offset;
    std::uint64_t bytes;
};

class SampleTable {
public:
    // `expected_samples` is the dataset index's count; another count in the file is an error.
    static Result<SampleTable> open(ByteSource& source, std::uint64_t expected_samples);

    std::uint32_t sample_count() const { return count_; }
    // The next sample; call it sample_count() times. Fails if the last sample does not end at the end of the file.
    Result<FileExtent> next();

private:
    SampleTable(ByteSource& source, std::uint32_t count, std::uint64_t first_offset)
        : source_(&source), count_(count), offset_(first_offset), ends_(source, 2 * sizeof(std::uint32_t), count) {}

    ByteSource* source_;
    std::uint32_t count_;
    std::uint32_t next_ = 0;
    std::uint64_t offset_;              // where the next sample begins
    ClaimedArray<std::uint32_t> ends_;  // of samples, from next_ on
};

// Sample `ordinal` of the file with these bytes, which must have `expected_samples` samples.
Result<std::span<const std::byte>> sample_in(std::span<const std::byte> file, std::uint32_t ordinal,
                                             std::uint32_t expected_samples);

// Appends the bytes of each column of a sample. The columns must fill the sample exactly.
Result<void> split_columns(std::span<const std::byte> sample, std::span<const FormatColumn> columns,
                           std::vector<std::span<const std::byte>>& fields);

}  // namespace larder::protocol
