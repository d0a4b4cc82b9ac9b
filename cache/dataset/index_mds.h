#pragma once

// Indexes the MDS format of MosaicML Streaming. An index.json describes the columns and lists the shards. Shards have
// the layout of cache/protocol/sample_table.h, uncompressed or compressed with zstd. The index.json at the root is
// used; if there is none, all index.json below the root are used (the streams of one dataset), and their columns must
// agree.
//
// Reads index.json and the table at the head of each shard, several shards at a time. Reads only the zstd
// frame header of a compressed shard, because index.json has its number of samples. If a shard exists in both forms,
// uses the uncompressed one. If any shard is compressed, each shard of the dataset is one block, and the block goal is
// ignored.
//
// Unsupported, with an error that names the cause: `pkl` columns (unpickling would run any code in them), other
// compressions, other formats. Source: mosaicml/streaming, streaming/base/format (base/writer.py, mds/writer.py,
// mds/reader.py).

#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_journal.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

Result<void> index_mds(ObjectSource& source, const BlockGoal& goal, DatasetContent& content,
                       std::vector<std::string>& notes, const IndexProgressCallback& progress, std::stop_token stop,
                       IndexJournal* journal = nullptr);

}  // namespace larder::cache
