#pragma once

// The checksums of a dataset's blocks, from the remote's bytes: what indexing does when it is asked to, and the only
// part of it that reads payloads. Several objects are read at once. Blocks of objects that have not changed since the
// version before keep the checksums they had there, and those of the journal the ones it has, unread.

#include <stop_token>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_journal.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/object_source.h"

namespace larder::cache {

// Fills content.checksums. `previous` may be null, or without checksums. An object that is not what was indexed, or
// that cannot be read, is an error that names it.
Result<void> add_checksums(ObjectSource& source, DatasetContent& content, const protocol::Manifest* previous,
                           const IndexProgressCallback& progress, std::stop_token stop,
                           IndexJournal* journal = nullptr);

}  // namespace larder::cache
