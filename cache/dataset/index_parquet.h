#pragma once

// Indexes Parquet files (cache/protocol/parquet.h): every file below a directory whose name ends in .parquet, .parq or
// .pqt, except hidden ones: Spark and Hive hide what begins with "_" or "." (_SUCCESS, _metadata, .part-0.crc). Reads
// the footers only, several files at a time. All files must have the same schema.
//
// A row is a sample. A block is a row group, from the first byte of its chosen columns to the last; so it has the bytes
// of other columns only where these lie between. Row groups that follow each other without a gap share a block while
// they fit the block goal (`object`: all of the file).

#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

bool is_parquet_name(std::string_view name);
// True if a part of the path begins with "_" or ".".
bool is_hidden_path(std::string_view path);

// `columns`: see protocol::parse_parquet_footer.
Result<void> index_parquet(ObjectSource& source, const BlockGoal& goal, std::span<const std::string> columns,
                           DatasetContent& content, std::vector<std::string>& notes,
                           const IndexProgressCallback& progress, std::stop_token stop);

}  // namespace larder::cache
