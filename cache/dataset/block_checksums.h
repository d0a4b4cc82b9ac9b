#pragma once

// Computes the checksums of a dataset's blocks from the remote's bytes. Indexing does so on request only, and reads
// payloads nowhere else. Several objects are read at once. The blocks of an object are not read if the previous version
// or the journal has the checksums of the unchanged object.

#include <stop_token>

#include "base/error.h"
#include "cache/dataset/dataset_index.h"
#include "cache/dataset/index_journal.h"
#include "cache/dataset/manifest_writer.h"
#include "cache/remote/object_source.h"

namespace larder::cache {

// Fills content.checksums. `previous` may be null, or without checksums. Fails if an object has changed since it was
// indexed or cannot be read; the error names the object.
Result<void> add_checksums(ObjectSource& source, DatasetContent& content, const protocol::Manifest* previous,
                           const IndexProgressCallback& progress, std::stop_token stop,
                           IndexJournal* journal = nullptr);

}  // namespace larder::cache
