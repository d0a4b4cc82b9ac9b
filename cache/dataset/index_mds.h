#pragma once

// The MDS format of MosaicML Streaming: an index.json that describes the columns and lists the shards, and shards of
// the layout of cache/protocol/sample_table.h, as they are or compressed with zstd. The index.json at the root counts;
// where there is none, all those in directories below it do (the streams of one dataset), and their columns must agree.
//
// Reads index.json and the table at the head of each shard, several shards at a time; of compressed shards only their
// size, as index.json tells how many samples they have. Where a shard lies there both ways, the uncompressed one is
// taken. One compressed shard makes every shard of the dataset one block, whatever block was wished.
//
// Refused by name: `pkl` columns (unpickling runs whatever code was put there), other compressions, other formats.
// Source: mosaicml/streaming, streaming/base/format (base/writer.py, mds/writer.py, mds/reader.py).

#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_journal.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/object_source.h"

namespace larder::cache {

Result<void> index_mds(ObjectSource& source, const BlockGoal& goal, DatasetContent& content,
                       std::vector<std::string>& notes, const IndexProgressCallback& progress, std::stop_token stop,
                       IndexJournal* journal = nullptr);

}  // namespace larder::cache
