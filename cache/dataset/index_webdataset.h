#pragma once

// The WebDataset format: tar shards in which members in a row with one key form one sample (see cache/protocol/tar.h).
// All *.tar below the root are its shards, ordered by path; or the dataset is one tar. Reads tar headers only, several
// shards at a time, because a remote answers late rather than slowly.
//
// A sample's bytes, and so a block's, are the members as they stand in the tar, headers included: a block is one range
// of the shard. A compressed tar, a broken one and a sample with one field twice are errors that name file and offset.
// Left out, and counted in the notes: hidden names, files that are not tars, tars without samples, members that are not
// files (links: WebDataset skips them too) and members that belong to no sample.

#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_journal.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/object_source.h"

namespace larder::cache {

bool is_shard_name(std::string_view name);             // "*.tar"
bool is_compressed_shard_name(std::string_view name);  // "*.tar.gz", "*.tgz", ...

// Fills `content` (objects, blocks, samples) and `notes` from the shards of `source`, or from `only_shard` in it when
// that is not empty. Shards that `journal` has, if there is one, are not read.
Result<void> index_webdataset(ObjectSource& source, const std::string& only_shard, const BlockGoal& goal,
                              DatasetContent& content, std::vector<std::string>& notes,
                              const IndexProgressCallback& progress, std::stop_token stop,
                              IndexJournal* journal = nullptr);

}  // namespace larder::cache
