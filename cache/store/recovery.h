#pragma once

// Recovers at start-up what an earlier run left of a dataset on disk. Segments in the index are taken with their
// entries. The tails of unsealed segments, and files that the index does not know, are scanned, because kill -9 may
// strike between a write and its commit. Entries that do not lie in their segment, and files that are no segment of the
// dataset, are removed. Payload CRCs are checked when a block is first read, not here. Blocking I/O: call on a start-up
// or worker thread, before the dataset's DatasetStore exists.
//
// No file and no disk makes recovery fail: what cannot be read is left out, stays on disk for a later start, and is
// listed as a problem. A segment that may only be read takes no more records.

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cache/store/stored_block.h"

namespace larder::cache {

class Index;

// `blocks` includes retired ones (StoredBlock::is_retired), which only take up their place.
struct RecoveredSegment : StoredSegment {
    std::string path;
    FileDescriptor fd;  // O_DIRECT where the file system allows it
};

struct RecoveryReport {
    std::uint32_t segments = 0;
    std::uint64_t blocks = 0;
    std::uint64_t blocks_scanned = 0;    // of `blocks`, not in the index
    std::uint64_t entries_dropped = 0;   // entries of the index that did not fit their segment
    std::uint32_t segments_scanned = 0;  // scanned as a whole, because not in the index
    std::uint32_t segments_missing = 0;  // in the index, but without a file
    std::string index_problem;           // why the index could not be read
    std::vector<std::string> removed;    // files, each with the reason
    std::vector<Error> problems;         // files and directories that cannot be read or written
};

struct Recovered {
    std::vector<RecoveredSegment> segments;
    RecoveryReport report;
};

// `index` may be null. Posts what the scan finds to `index`.
Recovered recover_segments(std::uint64_t dataset_id, const std::string& segment_directory, Index* index);

}  // namespace larder::cache
