#pragma once

// The place of a dataset that is to be indexed, as its URL names it. If the URL names a file, only that shard is meant.

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
