#pragma once

// Indexes TFRecord files (cache/protocol/tfrecord.h): every file below a directory whose name ends in .tfrecord or
// .tfrecords, with or without TensorFlow's -00000-of-00010 after it. If no file has such a name, indexes all files. A
// record is a sample. Reads the 12 bytes before each record and verifies their checksum, several files at a time; the
// reader of a record verifies its data. Compressed files are errors.

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

bool is_tfrecord_name(std::string_view name);

Result<void> index_tfrecord(ObjectSource& source, const BlockGoal& goal, DatasetContent& content,
                            std::vector<std::string>& notes, const IndexProgressCallback& progress,
                            std::stop_token stop, IndexJournal* journal = nullptr);

}  // namespace larder::cache
