#pragma once

// Indexes one tar shard of a WebDataset: finds its samples and groups them into blocks. Reads headers only: small reads
// if members are large, read-ahead if members are small. Stateless; may be called from several threads at once, each
// with its own `shard`.

#include <cstdint>
#include <string>

#include "base/error.h"
#include "cache/dataset/index_in_parallel.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

Result<IndexedObject> index_shard(ObjectReader& shard, const std::string& path, const BlockGoal& goal,
                                  const ObjectProgress& progress);

}  // namespace larder::cache
