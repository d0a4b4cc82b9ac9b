#pragma once

// Indexes LitData's optimised datasets. An index.json describes the leaves of a sample and lists the chunks. Chunks
// have the layout of cache/protocol/sample_table.h (uncompressed, or compressed whole with zstd) or consist of zstd
// frames (framed_chunk.h). The index.json at the root is used; if there is none, all index.json below the root are
// used, and their leaves must agree.
//
// Reads index.json and the table at the head of each chunk, several chunks at a time; reads only the frame header of a
// chunk compressed whole. In a dataset of tokens (TokensLoader) a sample is one document, or, with `tokens_per_sample`,
// a window of that many tokens. Windows are cut per chunk, as with LitData's block_size.
//
// Unsupported, with an error that names the cause: pickled leaves, encryption, rows in Arrow tables, other
// compressions, and item loaders other than PyTreeLoader and TokensLoader. Source: Lightning-AI/litData,
// src/litdata/streaming (writer.py, item_loader.py, serializers.py).

#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_journal.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

Result<void> index_litdata(ObjectSource& source, const BlockGoal& goal, std::uint32_t tokens_per_sample,
                           DatasetContent& content, std::vector<std::string>& notes,
                           const IndexProgressCallback& progress, std::stop_token stop,
                           IndexJournal* journal = nullptr);

}  // namespace larder::cache
