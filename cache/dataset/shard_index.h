#pragma once

// One tar shard's part of a WebDataset index: where its samples are and how they divide into blocks. Reads headers
// only: small reads where members are large, read-ahead where they are small. One call, one thread, no state.

#include <cstdint>
#include <string>

#include "base/error.h"
#include "cache/dataset/index_in_parallel.h"
#include "cache/object_source.h"

namespace larder::cache {

Result<IndexedObject> index_shard(ObjectReader& shard, const std::string& path, const BlockGoal& goal,
                                  const ObjectProgress& progress);

}  // namespace larder::cache
