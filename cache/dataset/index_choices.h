#pragma once

// Checks the choices of an IndexRequest (one shard only, block size, sample length) against the format: not every
// format supports each choice.

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/dataset_root.h"

namespace larder::cache {

// Returns the block goal to use for a dataset of `format`. The error names the choice that the format does not support.
Result<BlockGoal> check_choices(const IndexRequest& request, const DatasetRoot& root, protocol::Format format);

}  // namespace larder::cache
