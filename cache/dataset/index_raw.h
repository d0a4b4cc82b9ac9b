#pragma once

// The raw format: a directory tree in which every file is one sample. Labels are those of torchvision's ImageFolder:
// the directories at the top, sorted by name, are the classes 0, 1, ..., and a file anywhere below one has its class; a
// file at the top has none. Unlike ImageFolder, every regular file counts, whatever its suffix.
//
// Left out, and counted in the notes: names that begin with a dot (directories too), empty files (there is nothing to
// train on), links to directories (so a tree has no cycles), dangling links, and whatever is neither file nor
// directory. Links to files are followed. Samples are ordered by path, bytewise.

#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/manifest_writer.h"

namespace larder::cache {

// Fills `content` (objects and classes) and `notes` from the tree at `root`.
Result<void> index_raw(const std::string& root, DatasetContent& content, std::vector<std::string>& notes,
                       const IndexProgressCallback& progress, std::stop_token stop);

}  // namespace larder::cache
