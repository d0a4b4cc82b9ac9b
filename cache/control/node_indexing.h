#pragma once

// Data that an indexing task and the control thread exchange. Private to Node.

#include <memory>
#include <string>

#include "cache/control/node.h"
#include "cache/dataset/dataset_index.h"

namespace larder::cache {

struct Node::Indexing {
    DatasetRecord record;
    std::shared_ptr<const DatasetVersion> previous;
    std::uint64_t version = 1;
    // Set by the task:
    IndexReport report;
    std::shared_ptr<const DatasetVersion> opened;
};

Result<std::shared_ptr<const DatasetVersion>> open_version(const std::string& manifest_path);

}  // namespace larder::cache
