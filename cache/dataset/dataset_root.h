#pragma once

// Where a dataset that is to be indexed lies: the place its URL names, and the one shard of it that is meant if the URL
// names a file.

#include <memory>
#include <string>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"

namespace larder::cache {

struct DatasetRoot {
    std::shared_ptr<const RemotePlace> place;
    std::string only;  // a .tar below the place; empty: all that lies there
};

// An error says which directory to give if the URL names a file that is no .tar.
Result<DatasetRoot> find_dataset_root(const IndexRequest& request);

}  // namespace larder::cache
