#pragma once

// One tar shard's part of a WebDataset index: where its samples are and how they divide into blocks. Reads headers
// only: small reads where members are large, read-ahead where they are small. One call, one thread, no state.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/manifest_writer.h"

namespace larder::cache {

struct ShardIndex {
    std::uint64_t size_bytes = 0;
    std::int64_t mtime_ns = 0;
    std::vector<DatasetContent::Block> blocks;      // first_sample counts within the shard
    std::vector<protocol::ManifestSample> samples;  // offsets within their blocks
    std::uint64_t members_not_files = 0;
    std::uint64_t members_without_key = 0;
};

// Called now and then with the offset reached; false ends the work with ErrorCode::cancelled.
using ShardProgress = std::function<bool(std::uint64_t offset)>;

Result<ShardIndex> index_shard(const std::string& path, const BlockGoal& goal, const ShardProgress& progress);

}  // namespace larder::cache
