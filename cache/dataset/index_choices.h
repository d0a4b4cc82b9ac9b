#pragma once

// What a request to index says beside the place: the file it names, the size of blocks, the length of samples. Not
// every format takes each of them.

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/dataset_root.h"

namespace larder::cache {

// The blocks that a dataset of `format` gets, or what of the request does not fit the format.
Result<BlockGoal> check_choices(const IndexRequest& request, const DatasetRoot& where, protocol::Format format);

}  // namespace larder::cache
