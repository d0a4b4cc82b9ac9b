#pragma once

// Resolves the URL of a dataset to the place to index. A URL of a file selects that one shard.

#include <memory>
#include <string>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"

namespace larder::cache {

struct DatasetRoot {
    std::shared_ptr<const RemotePlace> place;
    std::string only_shard;  // path of the one .tar, below the place; empty: all objects of the place
};

// Fails if the URL names a file that is not a .tar; the error names the directory to give instead.
Result<DatasetRoot> find_dataset_root(const IndexRequest& request);

}  // namespace larder::cache
