#pragma once

// The index's databases by name. Private to cache/store/index_*.cc.

#include "base/server/lmdb.h"

namespace larder::cache {

inline constexpr unsigned kIndexDatabases = 3;
inline constexpr const char* kBlocksDatabase = "blocks";
inline constexpr const char* kSegmentsDatabase = "segments";
inline constexpr const char* kStateDatabase = "state";

}  // namespace larder::cache
