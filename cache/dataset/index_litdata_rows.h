#pragma once

// Indexes LitData chunks whose samples are rows of a table. LitData writes such chunks if pyarrow is installed and all
// samples are dicts of nothing but text, numbers, JSON, bytes, lists and dicts. Layout of a chunk:
//
//     samples u32, samples + 1 offsets u32, all of which are the end of these numbers,
//     an Arrow file (cache/protocol/arrow_file.h), its length u32, "LDARW01\0"
//
// A batch of the Arrow file has 256 rows, the last one of a chunk what is left. Each chunk has a schema of its own,
// which LitData infers from the chunk's rows. Arrow decodes batches in the training job, so a block is one or more
// batches, its details are the schema's message, and a sample is a row of it (ManifestHeader::block_details_offset).
//
// Reads the two ends of each chunk, several chunks at a time. Source: Lightning-AI/litData, src/litdata/streaming
// (writer.py, item_loader.py).

#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_in_parallel.h"
#include "cache/dataset/index_tables.h"
#include "cache/dataset/indexed_object.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

// True if the chunk's samples are rows of a table.
Result<bool> has_litdata_rows(ObjectReader& chunk);

// Adds blocks to `object`, whose path, size and tag are set.
Result<void> index_row_chunk(ObjectReader& chunk, std::uint64_t expected_samples, const BlockGoal& goal,
                             IndexedObject& object, const ObjectProgress& progress);

// Fills the objects and blocks of `content`, and adds to `notes`. All chunks must have rows.
Result<void> index_litdata_rows(ObjectSource& source, std::span<const TableFile> files, const BlockGoal& goal,
                                DatasetContent& content, std::vector<std::string>& notes,
                                const IndexProgressCallback& progress, std::stop_token stop);

}  // namespace larder::cache
