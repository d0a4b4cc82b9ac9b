#pragma once

// Runs the work of indexing many objects on a few threads, because a remote answers late rather than slowly. Keeps the
// error of the first object in the order given, so that equal input gives equal errors where it can. Blocks until all
// is done; `work` is called from several threads at once, `progress` from one at a time.

#include <cstddef>
#include <functional>
#include <stop_token>
#include <vector>

#include "cache/dataset/dataset_index.h"
#include "cache/dataset/indexed_object.h"

namespace larder::cache {

// Called now and then with the bytes of the object that are behind; false ends the work with ErrorCode::cancelled.
using ObjectProgress = std::function<bool(std::uint64_t bytes)>;
using ObjectWork = std::function<Result<IndexedObject>(std::size_t index, const ObjectProgress& progress)>;

Result<std::vector<IndexedObject>> index_in_parallel(std::size_t count, const ObjectWork& work,
                                                     const IndexProgressCallback& progress, std::stop_token stop);

}  // namespace larder::cache
