#pragma once

// LitData's optimised datasets: an index.json that describes the leaves of a sample and lists the chunks, and chunks of
// the layout of cache/protocol/sample_table.h, as they are or compressed whole with zstd, or of zstd frames
// (framed_chunk.h). The index.json at the root counts; where there is none, all those in directories below it do, and
// their leaves must agree.
//
// Reads index.json and the table at the head of each chunk, several at a time; of compressed chunks the frame header
// only. With `tokens_per_sample` the samples of a dataset of tokens (TokensLoader) are windows of so many tokens over
// each chunk, as LitData's block_size makes them, else one document each.
//
// Refused by name: pickled leaves, encryption, rows in Arrow tables, other compressions and other item loaders than
// PyTreeLoader and TokensLoader. Source: Lightning-AI/litData, src/litdata/streaming (writer.py, item_loader.py,
// serializers.py).

#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_journal.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/object_source.h"

namespace larder::cache {

Result<void> index_litdata(ObjectSource& source, const BlockGoal& goal, std::uint32_t tokens_per_sample,
                           DatasetContent& content, std::vector<std::string>& notes,
                           const IndexProgressCallback& progress, std::stop_token stop,
                           IndexJournal* journal = nullptr);

}  // namespace larder::cache
