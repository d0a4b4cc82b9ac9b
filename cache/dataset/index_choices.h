#pragma once

// A request to index may choose the file to read, the size of blocks and the length of samples. Not every format takes
// each choice.

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/dataset_root.h"

namespace larder::cache {

// Returns the blocks that a dataset of `format` gets. The error names the choice that does not fit the format.
Result<BlockGoal> check_choices(const IndexRequest& request, const DatasetRoot& where, protocol::Format format);

}  // namespace larder::cache
