#pragma once

// Indexes the WebDataset format: tar shards in which consecutive members with one key form one sample (see
// cache/protocol/tar.h). The shards are all *.tar below the root, sorted by path, or the one tar that the URL names.
// Reads tar headers only, several shards at a time, because a remote has high latency rather than low throughput.
//
// The bytes of a sample are its members as stored in the tar, headers included, so a block is one range of the shard. A
// compressed tar, a broken tar and a sample that has a field twice are errors that name the file and, in a tar, the
// offset. Left out and counted in the notes: hidden names, files that are not tars, tars without samples, members that
// are not files (links, which WebDataset skips too) and members that belong to no sample.

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

bool is_shard_name(std::string_view name);             // "*.tar"
bool is_compressed_shard_name(std::string_view name);  // "*.tar.gz", "*.tgz", ...

// Fills `content` (objects, blocks, samples) and `notes` from all shards of `source`, or from `only_shard` if that is
// not empty. A shard whose result is in `journal` is not read; `journal` may be null.
Result<void> index_webdataset(ObjectSource& source, const std::string& only_shard, const BlockGoal& goal,
                              DatasetContent& content, std::vector<std::string>& notes,
                              const IndexProgressCallback& progress, std::stop_token stop,
                              IndexJournal* journal = nullptr);

}  // namespace larder::cache
