#pragma once

// Indexes packed files (cache/protocol/packed.h). Reads only the header and the index of each file. The blocks and
// their checksums are those in the file, whatever the block goal.

#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_journal.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

// True for "NAME.larder".
bool is_packed_name(std::string_view name);

// Fills `content` and `packed_as`, the block goal that the files were packed with.
Result<void> index_packed(ObjectSource& source, DatasetContent& content, BlockGoal& packed_as,
                          std::vector<std::string>& notes, const IndexProgressCallback& progress, std::stop_token stop,
                          IndexJournal* journal = nullptr);

}  // namespace larder::cache
