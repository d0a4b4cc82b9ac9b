#pragma once

// Indexes ArrayRecord files (cache/protocol/array_record.h): every file below a directory whose name ends in
// .array_record or .arrayrecord, with or without -00000-of-00010 after it. Reads the two ends of each file, several
// files at a time.
//
// A record is a sample, found by its number in the decoded block (DatasetContent::samples_by_ordinal). A block is a
// group, or neighbouring groups as the block goal says.

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

bool is_array_record_name(std::string_view name);

Result<void> index_array_record(ObjectSource& source, const BlockGoal& goal, DatasetContent& content,
                                std::vector<std::string>& notes, const IndexProgressCallback& progress,
                                std::stop_token stop, IndexJournal* journal = nullptr);

}  // namespace larder::cache
